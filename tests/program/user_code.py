"""Losses and models as users write them, each with whether a replay would repeat its Python.

What a replay would not repeat (NumPy inside, a look at values, random numbers drawn in Python, counters) is no reason
to refuse a program, and even less to train another net than the one that is written.
"""

import collections
import contextlib
import functools
import itertools
import random
import sys
import types

import numpy as np

import caffelite as cl
from caffelite import _kernels as kernels

X = np.random.default_rng(0).normal(size=(48, 6)).astype(np.float32)
LABELS = np.random.default_rng(1).integers(0, 3, 48)
VALUES = X[:, :1] * 2 + 1
FORMS = {}


def form(recorded, *, y=LABELS, x=X):
    """Return a form of training: a function that makes a model and a loss. Is its step recorded, or is there
    a warning?
    """

    def note(make):
        FORMS[make.__name__] = (make, recorded, x, y)
        return make

    return note


def net(out=3):
    return cl.MLP(6, [8, out], seed=0)


def focal(p):
    return -(((1 - p) ** 2) * (p + 1e-7).log()).mean()


@form(recorded=True)
def focal_loss_by_fancy_indexing():
    return net(), lambda s, y: focal(s.softmax()[np.arange(len(y)), y])


@form(recorded=False)
def focal_loss_by_an_identity_matrix():
    return net(), lambda s, y: focal((s.softmax() * np.eye(3, dtype=np.float32)[y]).sum(axis=1))


@form(recorded=False)
def focal_loss_by_comparing():
    return net(), lambda s, y: focal((s.softmax() * (y[:, None] == np.arange(3)).astype(np.float32)).sum(axis=1))


@form(recorded=False)
def focal_loss_by_where():
    one_hot = lambda y: np.where(y[:, None] == np.arange(3), np.float32(1), np.float32(0))  # noqa: E731
    return net(), lambda s, y: focal((s.softmax() * one_hot(y)).sum(axis=1))


@form(recorded=True, y=(VALUES > 1).astype(np.float32))
def focal_loss_of_one_score():
    def loss(s, y):
        p, y = s.sigmoid(), cl.Tensor(y)
        return -(y * (1 - p) ** 2 * (p + 1e-7).log() + (1 - y) * p**2 * (1 - p + 1e-7).log()).mean()

    return net(1), loss


@form(recorded=False, y=VALUES)
def quantiles_by_a_comparison_of_arrays():
    class Quantiles(cl.Model):
        def __init__(self):
            super().__init__()
            self.q = np.float32([0.1, 0.5, 0.9])

        def call(self, outputs, y):
            d = cl.Tensor(y) - outputs
            return cl.where(outputs.data < y, self.q * d, (self.q - 1) * d).mean()

    return net(3), Quantiles()


@form(recorded=True, y=VALUES)
def quantiles_by_an_array_kept_outside():
    class Quantiles(cl.Model):
        def __init__(self):
            super().__init__()
            self.q = np.float32([0.1, 0.5, 0.9])

        def call(self, outputs, y):
            d = cl.Tensor(y) - outputs
            return (self.q * d.relu() + (1 - cl.Tensor(self.q)) * (-d).relu()).mean()

    return net(3), Quantiles()


@form(recorded=True, y=VALUES)
def quantiles_by_arithmetic_of_numpy():
    q = np.float32([0.1, 0.5, 0.9])
    return net(3), lambda o, y: ((q - 0.5) * (cl.Tensor(y) - o) + (cl.Tensor(y) - o).abs() * 0.5).mean()


@form(recorded=False)
def contrastive_with_integer_labels():
    def loss(h, y):
        same = (y[:-1] == y[1:]).astype(np.float32)
        d = ((h[1:] - h[:-1]) ** 2).sum(axis=1)
        return (same * d + (1 - same) * (1.0 - d).relu()).mean()

    return net(4), loss


@form(recorded=False, y=VALUES)
def a_weight_that_grows_by_a_counter():
    class AnnealedLoss(cl.Model):
        def __init__(self):
            super().__init__()
            self.t = 0

        def call(self, o, y):
            self.t += 1
            return ((o - y) ** 2).mean() * min(1.0, self.t / 10)

    return net(1), AnnealedLoss()


@form(recorded=False, y=VALUES)
def a_counter_in_an_enclosing_function():
    t = 0

    def loss(o, y):
        nonlocal t
        t += 1
        return ((o - y) ** 2).mean() * (1 / t)

    return net(1), loss


@form(recorded=False, y=VALUES)
def a_counter_in_a_dict():
    state = {"t": 0}

    def loss(o, y):
        state["t"] += 1
        return ((o - y) ** 2).mean() * (1 / state["t"])

    return net(1), loss


@form(recorded=False, y=VALUES)
def a_counter_in_an_object():
    config = types.SimpleNamespace(t=0)

    def count():
        config.t += 1
        return config.t

    return net(1), lambda o, y: ((o - y) ** 2).mean() * (1 / count())


@form(recorded=False, y=VALUES)
def a_counter_in_an_array():
    class Counts(Net):
        out = 1

        def prepare(self):
            self.t = np.zeros(1)

        def call(self, x):
            self.t[0] += 1
            return super().call(x) * float(1 / self.t[0])

    return Counts(), cl.MSELoss()


def loss_times(factor):
    """Return a loss whose factor Python computes, on a line of this file."""
    return net(1), lambda o, y: ((o - y) ** 2).mean() * (1 / factor())


@form(recorded=False, y=VALUES)
def a_counter_in_slots():
    class Box:
        __slots__ = ("t", "unset")

        def __init__(self):
            self.t = 0

        def count(self):
            self.t += 1
            return self.t

    return loss_times(Box().count)


@form(recorded=True, y=VALUES)
def a_number_and_a_result_kept_in_slots():
    class Box:
        __slots__ = ("factor", "last", "made_once")

    box = Box()
    box.factor = 0.5

    class Keeps(Net):
        out = 1

        def call(self, x):
            if not hasattr(box, "made_once"):
                box.made_once = 2.0
            box.last = super().call(x) * (box.factor * box.made_once)
            return box.last

    return Keeps(), cl.MSELoss()


@form(recorded=False, y=VALUES)
def a_counter_of_indexing():
    class Weights:
        t = 0

        def __getitem__(self, i):
            self.t += 1
            return self.t

    weights = Weights()
    return loss_times(lambda: weights[0])


@form(recorded=False, y=VALUES)
def a_counter_in_a_descriptor():
    class Counts:
        t = 0

        def __get__(self, of, kind):
            self.t += 1
            return self.t

    class Schedule:
        weight = Counts()

    schedule = Schedule()
    return loss_times(lambda: schedule.weight)


@form(recorded=False, y=VALUES)
def a_counter_in_an_attribute_of_a_function():
    def loss(o, y):
        loss.t += 1
        return ((o - y) ** 2).mean() * (1 / loss.t)

    loss.t = 0
    return net(1), loss


@form(recorded=False, y=VALUES)
def a_bound_method_that_takes_from_a_list():
    return loss_times(list(range(1, 100)).pop)


@form(recorded=False, y=VALUES)
def a_bound_method_of_an_iterator():
    return loss_times(itertools.count(1).__next__)


@form(recorded=False, y=VALUES)
def a_bound_method_of_a_random_stream():
    return loss_times(random.Random(0).random)


@form(recorded=False, y=VALUES)
def a_bound_method_of_numpys_random_stream():
    draw = np.random.default_rng(0).random
    return loss_times(lambda: 1 + draw())


@form(recorded=False, y=VALUES)
def a_counter_in_a_module_that_is_imported_inside():
    module = sys.modules["counts_of_a_user"] = types.ModuleType("counts_of_a_user")
    module.__file__, module.t = "counts_of_a_user.py", 0

    def count():
        import counts_of_a_user

        counts_of_a_user.t += 1
        return counts_of_a_user.t

    return loss_times(count)


@form(recorded=False, y=VALUES)
def a_counter_behind_the_decorator_of_a_library():
    t = [0]

    @contextlib.contextmanager
    def count_calls():
        t[0] += 1
        yield t[0]

    def loss(o, y):
        with count_calls() as count:
            return ((o - y) ** 2).mean() * (1 / count)

    return net(1), loss


@form(recorded=False, y=VALUES)
def a_counter_behind_a_cache():
    t = [0]

    @functools.lru_cache(maxsize=0)
    def count():
        t[0] += 1
        return t[0]

    return loss_times(count)


@form(recorded=False, y=VALUES)
def a_counter_in_a_dict_of_a_library():
    state = collections.UserDict(t=0)

    def loss(o, y):
        state["t"] += 1
        return ((o - y) ** 2).mean() * (1 / state["t"])

    return net(1), loss


@form(recorded=False, y=VALUES)
def a_counter_in_an_attribute_of_a_list():
    class Weights(list):
        t = 0

    weights = Weights([1.0])

    def loss(o, y):
        weights.t += 1
        return ((o - y) ** 2).mean() * (weights[0] / weights.t)

    return net(1), loss


@form(recorded=False, y=VALUES)
def a_counter_in_a_masked_array():
    t = np.ma.zeros(1)

    def loss(o, y):
        t[0] += 1
        return ((o - y) ** 2).mean() * float(1 / t[0])

    return net(1), loss


@form(recorded=True, y=VALUES)
def a_small_array_that_kernels_write():
    class Follows(Net):
        out = 1

        def prepare(self):
            self.mean = np.zeros(8, np.float32)

        def call(self, x):
            h = self.hidden_layer(x)
            kernels.multiply(self.mean, 0.9, self.mean)
            return self.b(h + self.mean)

    return Follows(), cl.MSELoss()


@form(recorded=False, y=VALUES)
def an_iterator_of_weights():
    weights = itertools.cycle([0.5, 1.0, 2.0])
    return net(1), lambda o, y: ((o - y) ** 2).mean() * next(weights)


@form(recorded=False, y=VALUES)
def a_loss_that_looks_at_its_value():
    def loss(o, y):
        d = ((o - y) ** 2).mean()
        return d * 0.5 if d.item() > 1 else d

    return net(1), loss


@form(recorded=True, y=VALUES)
def a_function_of_functions():
    def half(o, y, factor):
        return ((o - y) ** 2).mean() * factor

    return net(1), functools.partial(half, factor=0.5)


@form(recorded=True, y=VALUES)
def an_object_that_is_called():
    class ScaledLoss:
        factor = 0.5

        def __call__(self, o, y):
            return ((o - y) ** 2).mean() * self.factor

    return net(1), ScaledLoss()


@form(recorded=False, y=VALUES)
def targets_transformed_by_numpy():
    return net(1), lambda o, y: ((o - np.tanh(y)) ** 2).mean()


class Net(cl.Model):
    """y = b(relu(a(x))), to be made in other ways below."""

    out = 3

    def __init__(self):
        super().__init__(seed=0)
        self.a, self.b = cl.Linear(6, 8), cl.Linear(8, self.out)
        self.prepare()

    def prepare(self):
        pass

    def hidden_layer(self, x):
        return self.a(x).relu()

    def call(self, x):
        return self.b(self.hidden_layer(x))


@form(recorded=True)
def a_model_that_keeps_its_hidden_values():
    class Keeps(Net):
        def call(self, x):
            self.h = self.hidden_layer(x)
            return self.b(self.h)

    return Keeps(), cl.SoftmaxLoss()


@form(recorded=True)
def a_model_that_prepares_something_when_it_is_first_called():
    class Lazy(Net):
        scale = None

        def call(self, x):
            if self.scale is None:
                self.scale = 0.5
            return self.b(self.hidden_layer(x) * self.scale)

    return Lazy(), cl.SoftmaxLoss()


@form(recorded=False)
def causal_padding_by_zeros():
    class Causal(cl.Model):
        def __init__(self):
            super().__init__(seed=0)
            self.c, self.f = cl.Conv1d(1, 4, 3), cl.Linear(24, 3)

        def call(self, x):
            x = x.reshape(len(x), 1, 6)
            x = cl.concatenate([cl.Tensor(np.zeros((len(x), 1, 2), np.float32)), x], axis=2)
            return self.f(self.c(x).relu().reshape(len(x), 24))

    return Causal(), cl.SoftmaxLoss()


@form(recorded=False, y=X)
def a_variational_autoencoder_with_noise_drawn_inside():
    class VAE(Net):
        out = 6

        def prepare(self):
            self.log_var, self.rng = cl.Linear(6, 8), np.random.default_rng(0)

        def call(self, x):
            noise = self.rng.standard_normal((len(x), 8)).astype(np.float32)
            return self.b(self.a(x) + (self.log_var(x) * 0.5).exp() * noise)

    return VAE(), cl.MSELoss()


@form(recorded=False)
def stochastic_depth_by_a_coin():
    class Depth(Net):
        def call(self, x):
            h = self.hidden_layer(x)
            return self.b(h + h.tanh()) if random.random() < 0.5 else self.b(h)

    return Depth(), cl.SoftmaxLoss()


@form(recorded=False)
def stochastic_depth_by_numpys_global_stream():
    class Depth(Net):
        def call(self, x):
            h = self.hidden_layer(x)
            return self.b(h + h.tanh()) if np.random.rand() < 0.5 else self.b(h)  # noqa: NPY002

    return Depth(), cl.SoftmaxLoss()


@form(recorded=False)
def scheduled_sampling_by_a_step_count():
    class Sampling(Net):
        def prepare(self):
            self.step = 0

        def call(self, x):
            self.step += 1
            h = self.hidden_layer(x)
            return self.b(h if self.step > 5 else h * 0.5)

    return Sampling(), cl.SoftmaxLoss()


@form(recorded=False)
def a_mask_made_by_numpy():
    class MaskedNet(Net):
        def call(self, x):
            mask = (x.data > 0).astype(np.float32)
            return self.b(self.hidden_layer(x * mask))

    return MaskedNet(), cl.SoftmaxLoss()


@form(recorded=False)
def a_temperature_that_falls():
    class Cooling(Net):
        def prepare(self):
            self.t = 1.0

        def call(self, x):
            if cl.is_training():
                self.t = max(0.1, self.t * 0.9)
            return super().call(x) / self.t

    return Cooling(), cl.SoftmaxLoss()


@form(recorded=True)
def a_learned_temperature():
    class Temperature(Net):
        def prepare(self):
            self.temperature = cl.Tensor(2.0, requires_grad=True)

        def call(self, x):
            return super().call(x) / self.temperature

    return Temperature(), cl.SoftmaxLoss()


@form(recorded=False)
def a_state_that_goes_from_batch_to_batch():
    class Stateful(Net):
        def prepare(self):
            self.state = cl.Tensor(np.zeros((1, 8), np.float32))

        def call(self, x):
            h = self.hidden_layer(x) + self.state
            self.state = h.detach().mean(axis=0, keepdims=True)
            return self.b(h)

    return Stateful(), cl.SoftmaxLoss()


@form(recorded=False)
def a_queue_of_what_was_seen():
    class Queue(Net):
        def prepare(self):
            self.seen = collections.deque([0.0], maxlen=3)

        def call(self, x):
            self.seen.append(self.seen[-1] + 1)
            return super().call(x) * (1 / sum(self.seen))

    return Queue(), cl.SoftmaxLoss()
