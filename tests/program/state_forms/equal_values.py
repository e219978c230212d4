"""Values that are equal, or not even equal to themselves, and make other numbers."""

import math

import numpy as np

import caffelite as cl
from tests.program.state_forms.form import Settings, factor, form


def replace_by(name, *values):
    """Return a callback that sets an attribute to one of these values after the other."""
    return lambda self, epoch: setattr(self, name, values[epoch % len(values)])


class Wildcard:
    """An object that is equal to any other."""

    def __init__(self, w):
        self.w = w

    def __eq__(self, other):
        return True

    def __hash__(self):
        return 1


@factor(lambda: {"w": 0.0}, after=replace_by("w", -0.0, 0.0))
def a_zero_that_changes_its_sign(self):
    return 1.5 + math.copysign(1, self.w)


@factor(lambda: {"w": np.zeros(3)}, after=lambda self, epoch: np.negative(self.w, self.w))
def zeros_of_an_array_that_change_their_signs(self):
    return 1.5 + float(np.copysign(1, self.w[1]))


@factor(lambda: {"w": 1}, after=replace_by("w", True, 1.0, 1))
def a_number_that_changes_only_its_type(self):
    return 1 / len(str(self.w))


@factor(lambda: {"ws": [1, 2]}, after=lambda self, epoch: self.ws.__setitem__(0, [True, 1.0, 1][epoch % 3]))
def a_number_in_a_list_that_changes_only_its_type(self):
    return 1 / len(str(self.ws[0]))


@factor(lambda: {"w": 1.0}, after=replace_by("w", math.nan, 2.0))
def a_number_that_becomes_nan(self):
    return 0.5 if math.isnan(self.w) else self.w


@factor(lambda: {"n": 0, "w": math.nan})
def a_count_beside_nan(self):
    self.n += 1
    return 1 / self.n if math.isnan(self.w) else self.w


@factor(lambda: {"o": Wildcard(1.0)}, after=lambda self, epoch: setattr(self, "o", Wildcard(epoch + 2.0)))
def an_object_that_an_equal_one_replaces(self):
    return self.o.w


@factor(lambda: {"os": [Wildcard(1.0)]}, after=lambda self, epoch: self.os.__setitem__(0, Wildcard(epoch + 2.0)))
def an_object_in_a_list_that_an_equal_one_replaces(self):
    return self.os[0].w


@factor(lambda: {"d": {Wildcard(1.0): 1}}, after=lambda self, epoch: setattr(self, "d", {Wildcard(epoch + 2.0): 1}))
def a_key_that_an_equal_one_replaces(self):
    return next(iter(self.d)).w


@factor(lambda: {"o": Wildcard(0)})
def an_object_that_the_step_replaces_by_an_equal_one(self):
    self.o = Wildcard(self.o.w + 1)
    return 1 / self.o.w


@factor(lambda: {"d": {"a": 1.0, "b": 2.0}}, after=lambda self, epoch: self.d.update(a=self.d.pop("a")))
def a_dict_that_changes_only_its_order(self):
    for value in self.d.values():
        return value


@factor(lambda: {"d": {"a": 1.0, "b": 2.0}})
def a_dict_whose_order_the_step_changes(self):
    key = next(iter(self.d))
    self.d[key] = self.d.pop(key)
    return self.d[key]


@factor(
    lambda: {"a": np.ones(2, np.int8)}, after=lambda self, e: setattr(self, "a", self.a.astype(f"f{4 + 4 * (e % 2)}"))
)
def an_array_that_changes_only_its_dtype(self):
    return 1 / self.a.itemsize


@factor(lambda: {"a": np.arange(4.0).reshape(2, 2)}, after=lambda self, epoch: setattr(self, "a", self.a.T))
def an_array_that_changes_only_its_strides(self):
    return 1 + float(self.a[0, 1])


@factor(lambda: {"b": np.ones(9)}, after=lambda self, e: self.b.__setitem__(3, e + 2))
def a_view_of_an_array_that_a_callback_changes(self):
    return float(self.b[3:5][0])


@form(lambda: {"b": np.ones(9, np.float32)}, after=lambda self, epoch: self.b.__setitem__(slice(3, 6), epoch + 2))
def a_view_as_a_constant(self, h):
    return h * self.b[3:6][: h.shape[1]]


@factor(lambda: {"o": Settings(w=1.0)}, after=lambda self, epoch: setattr(self, "o", Settings(w=epoch + 2.0)))
def an_object_at_the_address_that_another_had(self):
    return self.o.w


@form(lambda: {"bias": np.zeros(3, np.float32)}, places=("loss",))
def a_sum_of_constants_that_the_step_makes(self, h):
    self.bias = self.bias + np.float32(0.125)
    return h + cl.Tensor(self.bias[:1])


@factor(lambda: {"first": True})
def a_first_step_that_differs(self):
    if self.first:
        self.first = False
        return 0.5
    return 1.0


@factor(lambda: {"n": 0})
def a_step_in_seven_that_differs(self):
    self.n += 1
    return 2.0 if self.n % 7 == 6 else 1.0
