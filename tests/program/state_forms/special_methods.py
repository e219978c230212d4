"""Counts in special methods and in classes."""

import collections
import copy
import dataclasses
import enum
import operator
import pickle
import types
import weakref

import numpy as np

from tests.program.state_forms.form import Settings, change_after, factor


class Slots:
    __slots__ = ("n",)

    def __init__(self):
        self.n = 0

    def count(self):
        self.n += 1
        return self.n


@factor(lambda: {"o": Slots()})
def a_count_in_slots(self):
    return 1 / self.o.count()


def make_special():
    class Special:
        def __init__(self):
            self.n = 0
            type(self).total = 0

        def bump(self):
            self.n += 1
            return self.n

        def bump_with(self, _):
            return self.bump()

        value = property(bump)

        def __getitem__(self, i):
            return self.bump()

        def __call__(self):
            return self.bump()

        def __len__(self):
            return self.bump()

        def __bool__(self):
            return self.bump() % 2 == 0

        def __float__(self):
            return 1.0 * self.bump()

        def __iter__(self):
            yield self.bump()

        def __enter__(self):
            return self.bump()

        def __exit__(self, *_):
            return None

        def __eq__(self, other):
            return self.bump() % 2 == 0

        def __hash__(self):
            return self.bump()

        def __contains__(self, x):
            return self.bump() % 3 == 0

        def __rmul__(self, x):
            return x * self.bump()

        def __format__(self, spec):
            return str(self.bump())

        def __getattr__(self, name):
            if name.startswith("_"):
                raise AttributeError(name)
            return self.bump()

        def __index__(self):
            return self.bump()

    return {"o": Special()}


SPECIAL = {
    "a_property": lambda o: o.value,
    "indexing": lambda o: o[0],
    "a_call": lambda o: o(),
    "a_length": lambda o: len(o),
    "a_truth_value": lambda o: 2 if o else 1,
    "a_conversion": lambda o: float(o),
    "an_iteration": lambda o: next(iter(o)),
    "a_comparison": lambda o: 2 if o == 1 else 1,
    "a_hash": lambda o: hash(o),
    "a_membership": lambda o: 2 if 1 in o else 1,
    "a_product": lambda o: 1.0 * o,
    "a_format": lambda o: int(f"{o}"),
    "an_attribute_that_is_missing": lambda o: o.anything,
    "an_index": lambda o: operator.index(o),
}


def register_special(name, f):
    def find(self):
        return 1 / f(self.o)

    find.__name__ = "a_count_in_" + name
    factor(make_special)(find)


for special_name, special_function in SPECIAL.items():
    register_special(special_name, special_function)


@factor(make_special)
def a_count_in_a_with_statement(self):
    with self.o as n:
        return 1 / n


class CountDescriptor:
    def __get__(self, owner, kind):
        owner.n += 1
        return owner.n


class Schedule:
    weight = CountDescriptor()

    def __init__(self):
        self.n = 0


@factor(lambda: {"o": Schedule()})
def a_count_in_a_descriptor(self):
    return 1 / self.o.weight


class SetCount:
    def __init__(self):
        object.__setattr__(self, "n", 0)

    def __setattr__(self, name, value):
        object.__setattr__(self, "n", self.n + 1)


@factor(lambda: {"o": SetCount()})
def a_count_in_a_setattr_method(self):
    self.o.anything = 1
    return 1 / self.o.n


def make_metaclass():
    class Meta(type):
        n = 0

        def __call__(cls):
            cls.n += 1
            return super().__call__()

    class Kind(metaclass=Meta):
        pass

    return {"kind": Kind}


@factor(make_metaclass)
def a_count_in_a_metaclass(self):
    self.kind()
    return 1 / self.kind.n


def make_base():
    class Base:
        kinds = []  # noqa: RUF012

        def __init_subclass__(cls):
            Base.kinds.append(cls)

    return {"base": Base}


@factor(make_base)
def classes_that_the_step_makes(self):
    type("New", (self.base,), {})
    return 1 / len(self.base.kinds)


@factor(lambda: {"kind": type("Made", (), {"n": 0, "count": lambda self: 1})})
def a_count_in_a_class_that_type_made(self):
    self.kind.n += 1
    return 1 / self.kind.n


def make_deleted():
    class Kind:
        n = 0

        def __del__(self):
            Kind.n += 1

    return {"kind": Kind}


@factor(make_deleted)
def a_count_in_a_del_method(self):
    self.kind()
    return 1 / (1 + self.kind.n)


def make_enum():
    class Phase(enum.Enum):
        FIRST = 1.0
        SECOND = 2.0

    return {"phases": Phase, "phase": Phase.FIRST}


@factor(make_enum, after=change_after(1, lambda self: setattr(self, "phase", self.phases.SECOND)))
def a_member_of_an_enum(self):
    return self.phase.value


@dataclasses.dataclass(frozen=True)
class Count:
    n: int = 0


@factor(lambda: {"o": Count()})
def a_frozen_dataclass_that_its_next_value_replaces(self):
    self.o = dataclasses.replace(self.o, n=self.o.n + 1)
    return 1 / self.o.n


Pair = collections.namedtuple("Pair", "n w")


@factor(lambda: {"pair": Pair(0, 1.0)})
def a_named_tuple_that_its_next_value_replaces(self):
    self.pair = self.pair._replace(n=self.pair.n + 1)
    return 1 / self.pair.n


@factor(lambda: {"o": types.SimpleNamespace(n=0)})
def a_copy_that_replaces_an_object(self):
    self.o = copy.deepcopy(self.o)
    self.o.n += 1
    return 1 / self.o.n


@factor(lambda: {"state": pickle.dumps(0)})
def a_count_in_a_pickle(self):
    self.state = pickle.dumps(pickle.loads(self.state) + 1)
    return 1 / pickle.loads(self.state)


@factor(lambda: {"text": ""})
def a_text_that_grows(self):
    self.text += "a"
    return 1 / len(self.text)


@factor(lambda: {"n": 1}, after=lambda self, epoch: setattr(self, "n", self.n * 2**70))
def a_large_integer(self):
    return 1.0 / self.n.bit_length()


@factor(lambda: {"w": 1.0}, after=lambda self, epoch: setattr(self, "w", [True, 1, 2, 2.0, np.float32(3), None][epoch]))
def a_number_that_changes_its_type(self):
    return 0.5 if self.w is None else float(self.w)


class Number(float):
    pass


@factor(lambda: {"w": Number(1.0)}, after=lambda self, epoch: setattr(self, "w", Number(1 / (epoch + 2))))
def a_subclass_of_float(self):
    return self.w * 1.0


class Reading(float):
    """A float with a count."""

    def __mul__(self, other):
        self.n = getattr(self, "n", 0) + 1
        return float(self) / self.n * other


@factor(lambda: {"w": Reading(1.0)})
def a_float_that_counts_its_products(self):
    return self.w * 1.0


@factor(lambda: {"o": Settings(w=1.0), "refs": []})
def a_weak_reference(self):
    if not self.refs:
        self.refs.append(weakref.ref(self.o))
    self.refs[0]().w *= 0.9
    return self.o.w


@factor(lambda: {"o": Settings(w=1.0), "d": weakref.WeakKeyDictionary()})
def a_dict_of_weak_references(self):
    self.d[self.o] = self.d.get(self.o, 0) + 1
    return 1 / self.d[self.o]


def make_reference():
    settings = Settings(w=1.0)
    return {"settings": settings, "reference": weakref.ref(settings)}


@factor(make_reference, after=lambda self, epoch: setattr(self.settings, "w", 1 / (epoch + 2)))
def an_object_behind_a_weak_reference(self):
    return self.reference().w
