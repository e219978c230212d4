"""Arrays of NumPy, and kernels that a count decides."""

import math
import operator

import numpy as np

import caffelite as cl
from tests.program.state_forms.form import change_after, factor, form

# ---- NumPy arrays ----------------------------------------------------------------------------------------------------


@factor(lambda: {"share": np.ones(1)})
def an_array_that_its_next_value_replaces(self):
    self.share = self.share * 0.9
    return float(self.share[0])


@factor(lambda: {"shares": [np.ones(100)]})
def an_array_in_a_list_that_its_next_value_replaces(self):
    self.shares[0] = self.shares[0] * 0.9
    return float(self.shares[0][0])


@factor(lambda: {"shares": {"a": np.ones(3)}})
def an_array_in_a_dict_that_its_next_value_replaces(self):
    self.shares = {"a": self.shares["a"] * 0.9}
    return float(self.shares["a"].mean())


@factor(lambda: {"kept": []})
def a_list_that_gets_an_array_in_each_step(self):
    self.kept.append(np.ones(3))
    return 1 / len(self.kept)


@factor(lambda: {"t": np.zeros(1)})
def an_array_that_changes_in_place(self):
    self.t += 1
    return float(1 / self.t[0])


@factor(lambda: {"t": np.zeros(1000)})
def a_long_array_that_changes_in_place(self):
    self.t[999] += 1
    return float(1 / self.t[999])


@factor(lambda: {"t": np.zeros(1000)}, after=lambda self, epoch: operator.setitem(self.t, 500, epoch))
def a_long_array_that_a_callback_changes_in_place(self):
    return float(1 / (1 + self.t[500]))


@factor(lambda: {"t": np.array([0, None], object)})
def an_array_of_objects(self):
    self.t[0] += 1
    return 1 / self.t[0]


@factor(lambda: {"t": np.zeros(2, [("a", "i8"), ("b", "f8")])})
def a_structured_array(self):
    self.t["a"][0] += 1
    return 1 / int(self.t["a"][0])


@factor(lambda: {"t": np.ma.zeros(1)})
def a_masked_array(self):
    self.t[0] += 1
    return float(1 / self.t[0])


@factor(lambda: {"t": np.zeros(3).view(type("Column", (np.ndarray,), {}))})
def a_subclass_of_an_array(self):
    self.t[1] += 1
    return float(1 / self.t[1])


@factor(lambda: {"t": np.array(1.0)})
def a_number_of_numpy_that_its_next_value_replaces(self):
    self.t = self.t * np.float64(0.9)
    return float(self.t)


@form(lambda: {"mean": np.zeros(1)})
def a_running_mean_of_outputs(self, h):
    self.mean = self.mean * 0.9 + h.data.mean() * 0.1
    return h - float(self.mean[0])


@form(lambda: {"mean": np.zeros(3, np.float32)})
def a_running_mean_as_a_constant(self, h):
    self.mean = self.mean * np.float32(0.9) + h.data.mean(axis=0) * np.float32(0.1)
    return h - self.mean


@form(lambda: {"state": None})
def a_result_that_goes_to_the_next_step(self, h):
    out = h if self.state is None else h + self.state.detach() * 0.5
    self.state = out
    return out


@form(lambda: {"state": [0.0]})
def a_result_in_a_list_that_goes_to_the_next_step(self, h):
    out = h + self.state[-1].detach() * 0.5 if len(self.state) > 1 else h
    self.state.append(out.detach())
    return out


@form(lambda: {"n": 0})
def a_constant_that_numpy_makes_from_a_count(self, h):
    self.n += 1
    return h * np.full((1, h.shape[1]), 1 / self.n, np.float32)


@form(lambda: {"n": 0})
def a_constant_as_large_as_the_batch(self, h):
    self.n += 1
    return h + cl.Tensor(np.full(h.shape, 1 / self.n, np.float32))


@form(
    lambda: {"weights": np.ones(3, np.float32)}, after=lambda self, epoch: np.multiply(self.weights, 0.5, self.weights)
)
def a_constant_that_a_callback_changes_in_place(self, h):
    return h * self.weights


@form(
    lambda: {"weights": np.ones(3, np.float32)},
    after=lambda self, epoch: setattr(self, "weights", np.full(3, 1 / (epoch + 2), np.float32)),
)
def a_constant_that_a_callback_replaces(self, h):
    return h * self.weights


@form(
    lambda: {"mask": np.array([True, False, True])},
    after=change_after(1, lambda self: np.logical_not(self.mask, self.mask)),
)
def a_mask_that_a_callback_changes_in_place(self, h):
    return h * np.where(self.mask[: h.shape[1]], 1.0, 0.5).astype(np.float32)


# ---- kernels that a count decides ------------------------------------------------------------------------------------


@form(lambda: {"n": 0})
def a_count_that_decides_how_many_kernels_run(self, h):
    self.n += 1
    for _ in range(self.n % 3):
        h = h.tanh()
    return h


@form(lambda: {"n": 0})
def a_count_that_decides_after_ten_steps(self, h):
    self.n += 1
    return h.tanh() if self.n > 10 else h


@form(lambda: {"n": 0})
def a_count_that_decides_which_kernel_runs_in_each_third_step(self, h):
    self.n += 1
    return h.sigmoid() if self.n % 3 == 0 else h.tanh()


@form(lambda: {"n": 0})
def a_count_that_decides_which_rows_count(self, h):
    self.n += 1
    rows = 4 + self.n % 3
    return cl.concatenate([h[:rows] * 2.0, h[rows:]], axis=0)


@form(lambda: {"n": 0})
def a_count_that_detaches(self, h):
    self.n += 1
    return h + h.detach() if self.n % 2 else h + h


@form(lambda: {"best": math.inf})
def a_look_at_a_value_that_decides(self, h):
    value = abs(float(h.data.mean()))
    if value < self.best:
        self.best = value
        return h * 0.5
    return h
