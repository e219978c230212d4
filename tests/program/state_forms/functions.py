"""Functions, classes and methods as values."""

import builtins
import functools
import math
import operator
import sys
import types

from tests.program.state_forms.form import Settings, change_after, double, factor, form, one, tanh, two


def set_global(name, value):
    globals()[name] = value
    return {}


current_function = tanh


@form(
    lambda: set_global("current_function", tanh),
    after=change_after(1, lambda self: set_global("current_function", double)),
    shared=True,
)
def a_function_in_a_global(self, h):
    return current_function(h)


@form(lambda: {"f": tanh}, after=change_after(1, lambda self: setattr(self, "f", double)))
def a_function_in_an_attribute(self, h):
    return self.f(h)


@form(lambda: {"fs": {"now": tanh}}, after=change_after(1, lambda self: self.fs.update(now=double)))
def a_function_in_a_dict(self, h):
    return self.fs["now"](h)


@form(lambda: {"fs": [tanh, double]}, after=lambda self, epoch: self.fs.reverse())
def functions_in_a_list_that_a_callback_reverses(self, h):
    return self.fs[0](h)


@form(
    lambda: {"f": functools.partial(operator.mul, 1.0)},
    after=change_after(1, lambda self: setattr(self, "f", functools.partial(operator.mul, 3.0))),
)
def a_partial_in_an_attribute(self, h):
    return h * self.f(1.0)


class First:
    scale = 1.0

    @staticmethod
    def f(h):
        return h.tanh()


class Second:
    scale = 2.0

    @staticmethod
    def f(h):
        return h * 2.0


@form(
    lambda: {"settings": Settings(kind=First)},
    after=change_after(1, lambda self: setattr(self.settings, "kind", Second)),
)
def a_class_in_an_attribute(self, h):
    return self.settings.kind.f(h)


@factor(lambda: {"kinds": (First, Second), "i": 0}, after=lambda self, epoch: setattr(self, "i", 1 - self.i))
def a_class_in_a_tuple(self):
    return self.kinds[self.i].scale


class Methods:
    def __init__(self):
        self.f = self.first

    def first(self, h):
        return h.tanh()

    def second(self, h):
        return h * 2.0


@form(lambda: {"two": Methods()}, after=change_after(1, lambda self: setattr(self.two, "f", self.two.second)))
def a_bound_method_in_an_attribute(self, h):
    return self.two.f(h)


def make_classes():
    """Return an object whose class has fresh methods, to be replaced."""

    class Base:
        def base_factor(self):
            return 1.0

    class Kind(Base):
        level = 1.0

        class Inner:
            value = 1.0

        def method(self, w=1.0, *, k=1.0):
            return w * k

        @staticmethod
        def static():
            return 1.0

        @classmethod
        def class_level(cls):
            return cls.level

        @property
        def scale(self):
            return 1.0

        def base_factor(self):
            return super().base_factor()

        def __call__(self):
            return 1.0

        def __len__(self):
            return 1

        def __getattr__(self, name):
            if name.startswith("__"):
                raise AttributeError(name)
            return 1.0

    return {"o": Kind()}


def replace(name, value):
    return change_after(1, lambda self: setattr(type(self.o), name, value))


@factor(make_classes, after=replace("method", lambda self: 3.0))
def a_method_that_a_callback_replaces_in_its_class(self):
    return self.o.method()


@factor(make_classes, after=replace("static", staticmethod(lambda: 3.0)))
def a_static_method_that_a_callback_replaces(self):
    return self.o.static()


@factor(make_classes, after=replace("class_level", classmethod(lambda cls: 3.0)))
def a_class_method_that_a_callback_replaces(self):
    return self.o.class_level()


@factor(make_classes, after=replace("scale", property(lambda self: 3.0)))
def a_property_that_a_callback_replaces(self):
    return self.o.scale


@factor(make_classes, after=replace("Inner", Second))
def a_class_in_a_class_that_a_callback_replaces(self):
    return getattr(self.o.Inner, "scale", 1.0)


@factor(make_classes, after=replace("level", 3.0))
def a_number_of_a_class_that_a_callback_replaces(self):
    return self.o.class_level()


@factor(make_classes, after=replace("__call__", lambda self: 3.0))
def a_call_method_that_a_callback_replaces(self):
    return self.o()


@factor(make_classes, after=replace("__len__", lambda self: 3))
def a_len_method_that_a_callback_replaces(self):
    return 1.0 * len(self.o)


@factor(make_classes, after=replace("__getattr__", lambda self, name: 3.0))
def a_getattr_method_that_a_callback_replaces(self):
    return self.o.anything


@factor(
    make_classes, after=change_after(1, lambda self: setattr(type(self.o).__mro__[1], "base_factor", lambda self: 3.0))
)
def a_method_behind_super_that_a_callback_replaces(self):
    return self.o.base_factor()


@factor(make_classes, after=change_after(1, lambda self: setattr(type(self.o).method, "__defaults__", (3.0,))))
def a_default_that_a_callback_replaces(self):
    return self.o.method()


@factor(make_classes, after=change_after(1, lambda self: setattr(type(self.o).method, "__kwdefaults__", {"k": 3.0})))
def a_keyword_default_that_a_callback_replaces(self):
    return self.o.method()


@factor(
    make_classes,
    after=change_after(
        1, lambda self: setattr(type(self.o).method, "__code__", (lambda self, w=1.0, *, k=1.0: 3.0).__code__)
    ),
)
def code_that_a_callback_replaces(self):
    return self.o.method()


@factor(
    make_classes,
    after=change_after(1, lambda self: setattr(self.o, "method", types.MethodType(lambda self: 3.0, self.o))),
)
def a_method_of_one_object_that_a_callback_sets(self):
    return self.o.method()


@factor(make_classes, after=change_after(1, lambda self: setattr(self.o, "__class__", Second)))
def the_class_of_an_object_that_a_callback_changes(self):
    return 2.0 if hasattr(self.o, "f") and not hasattr(type(self.o), "static") else 1.0


@factor(lambda: {"o": Settings(w=1.0)}, after=change_after(1, lambda self: setattr(self.o, "__dict__", {"w": 3.0})))
def the_dict_of_an_object_that_a_callback_replaces(self):
    return self.o.w


@factor(lambda: {"o": Settings(w=1.0)}, after=change_after(1, lambda self: setattr(self, "o", Settings(w=3.0))))
def an_object_that_a_callback_replaces(self):
    return self.o.w


@factor(
    lambda: {"o": type("Slow", (), {"w": 1.0})(), "x": 0},
    after=change_after(1, lambda self: delattr(type(self.o), "w")),
)
def an_attribute_that_a_callback_deletes(self):
    return getattr(self.o, "w", 3.0)


def make_module(path="/tmp/users_module.py"):
    module = sys.modules["users_module"] = types.ModuleType("users_module")
    module.__file__, module.n = path, 0
    code = "def f():\n    return 1.0\ndef count():\n    global n\n    n += 1\n    return 1 / n\n"
    exec(compile(code, path, "exec"), vars(module))
    return {"module": module}


@factor(make_module, after=change_after(1, lambda self: setattr(self.module, "f", two)), shared=True)
def a_function_of_a_users_module_that_a_callback_replaces(self):
    import users_module

    return users_module.f()


@factor(make_module, shared=True)
def a_count_in_a_users_module(self):
    return self.module.count()


@factor(lambda: make_module("/usr/lib/python3/site-packages/users_module.py"), shared=True)
def a_count_in_a_module_that_is_installed(self):
    return self.module.count()


def set_library(value):
    math.factor_for_forms = value
    return {}


@factor(lambda: set_library(one), after=change_after(1, lambda self: set_library(two)), shared=True)
def a_function_of_a_library_that_a_callback_replaces(self):
    return math.factor_for_forms()


@factor(lambda: set_library(1.0), after=change_after(1, lambda self: set_library(3.0)), shared=True)
def a_number_in_a_library_that_a_callback_replaces(self):
    return math.factor_for_forms


def set_builtin(value):
    builtins.factor_for_forms = value
    return {}


@factor(lambda: set_builtin(1.0), after=change_after(1, lambda self: set_builtin(3.0)), shared=True)
def a_builtin_that_a_callback_replaces(self):
    return factor_for_forms  # noqa: F821


@factor(lambda: {"source": "1.0"}, after=change_after(1, lambda self: setattr(self, "source", "3.0")))
def text_that_the_step_evaluates(self):
    return eval(self.source)


@factor(lambda: {"w": 1.0, "v": 3.0, "key": "w"}, after=change_after(1, lambda self: setattr(self, "key", "v")))
def an_attribute_by_a_name_that_a_callback_changes(self):
    return getattr(self, self.key)


@factor(lambda: {"count_1": 0})
def an_attribute_whose_name_is_computed(self):
    name = "count_" + str(1)
    setattr(self, name, getattr(self, name) + 1)
    return 1 / getattr(self, name)


@factor(lambda: {"count_1": 0})
def an_attribute_in_vars(self):
    values = vars(self)
    values["count" + "_1"] += 1
    return 1 / values["count" + "_1"]
