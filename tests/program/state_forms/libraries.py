"""Counts behind helpers of libraries, in other packages, in callbacks and metrics."""

import asyncio
import concurrent.futures
import contextlib
import contextvars
import decimal
import functools
import itertools
import logging
import operator
import random
import string
import threading

import numpy as np
import pytest

import caffelite as cl
from tests.program.state_forms.form import Settings, bump, change_after, double, factor, form, tanh, two
from tests.program.state_forms.special_methods import make_special

# ---- helpers of the standard library ---------------------------------------------------------------------------------

variable = contextvars.ContextVar("variable", default=0)


@factor(lambda: (variable.set(0) and {}) or {}, shared=True)
def a_context_variable(self):
    variable.set(variable.get() + 1)
    return 1 / variable.get()


@factor(lambda: {"local": threading.local()}, places=("loss",))
def a_local_of_a_thread(self):
    self.local.n = getattr(self.local, "n", 0) + 1
    return 1 / self.local.n


@factor(lambda: {"lock": threading.Lock(), "n": 0}, places=("loss",))
def a_count_under_a_lock(self):
    with self.lock:
        self.n += 1
        return 1 / self.n


@factor(lambda: {"n": 0})
def a_count_in_a_thread_of_the_step(self):
    thread = threading.Thread(target=lambda: setattr(self, "n", self.n + 1))
    thread.start()
    thread.join()
    return 1 / self.n


def run_in_thread(change):
    def change_state(self, epoch):
        thread = threading.Thread(target=change, args=(self, epoch))
        thread.start()
        thread.join()

    return change_state


@factor(lambda: {"w": 1.0}, after=run_in_thread(lambda self, epoch: setattr(self, "w", 1 / (epoch + 2))))
def a_number_that_a_thread_of_a_callback_changes(self):
    return self.w


@factor(lambda: {"n": 0})
def a_count_in_a_pool_of_threads(self):
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        self.n = pool.submit(lambda: self.n + 1).result()
    return 1 / self.n


@factor(lambda: {"n": 0})
def a_count_in_a_coroutine(self):
    async def count():
        self.n += 1
        return self.n

    loop = asyncio.new_event_loop()
    try:
        return 1 / loop.run_until_complete(count())
    finally:
        loop.close()


class CountHandler(logging.Handler):
    def __init__(self):
        super().__init__()
        self.n = 0

    def emit(self, record):
        self.n += 1


def make_logger():
    logger, handler = logging.Logger("forms"), CountHandler()
    logger.addHandler(handler)
    return {"logger": logger, "handler": handler}


@factor(make_logger, places=("loss",))
def a_count_in_a_handler_of_logging(self):
    self.logger.warning("a step")
    return 1 / self.handler.n


@factor(lambda: {"n": 0})
def a_partial_with_a_count(self):
    self.n += 1
    return functools.partial(operator.truediv, 1.0)(self.n)


@factor(lambda: {"t": [0]})
def a_cache_that_keeps_nothing(self):
    @functools.lru_cache(maxsize=0)
    def count():
        self.t[0] += 1
        return self.t[0]

    return 1 / count()


def make_cache():
    @functools.lru_cache
    def load(key):
        return random.Random(key).random()

    return {"look_up": load}


@factor(make_cache)
def how_full_a_cache_is(self):
    self.look_up(self.look_up.cache_info().currsize)
    return 1 / self.look_up.cache_info().currsize


@factor(make_cache)
def how_often_a_cache_was_hit(self):
    self.look_up(0)
    return 1 / (1 + self.look_up.cache_info().hits)


def make_dispatch():
    n = [0]

    @functools.singledispatch
    def count(x):
        return 1.0

    @count.register
    def _(x: int):
        n[0] += 1
        return 1 / n[0]

    return {"count": count}


@factor(make_dispatch)
def a_count_behind_single_dispatch(self):
    return self.count(1)


@factor(make_dispatch, after=change_after(1, lambda self: self.count.register(str, two)))
def a_function_that_a_callback_registers(self):
    return self.count("a")


class Lazy:
    n = 0

    def __init__(self):
        pass

    @functools.cached_property
    def value(self):
        Lazy.n += 1
        return Lazy.n


@factor(lambda: setattr(Lazy, "n", 0) or {}, shared=True)
def a_cached_property_of_a_new_object(self):
    return 1 / Lazy().value


@factor(lambda: {"o": Lazy()}, after=lambda self, epoch: vars(self.o).update(value=epoch + 1), shared=True)
def a_cached_property_that_a_callback_sets(self):
    return 1.0 * (vars(self.o).get("value") or 1)


def make_vectorize():
    o = Settings(n=0)
    return {"f": np.vectorize(lambda v: bump(o), otypes=[float])}


@factor(make_vectorize)
def a_count_behind_vectorize(self):
    return float(self.f(1))


@factor(lambda: {"f": np.frompyfunc(itertools.count(1).__next__, 0, 1)})
def a_count_behind_a_ufunc_made_from_python(self):
    return 1 / self.f()


class Bumps:
    def __init__(self):
        self.n = 0

    go = bump


go = operator.methodcaller("go")


@factor(lambda: {"o": Bumps()})
def a_count_behind_methodcaller(self):
    return go(self.o)


@factor(lambda: {"o": make_special()["o"], "get": operator.attrgetter("value")})
def a_count_behind_attrgetter(self):
    return 1 / self.get(self.o)


@factor(lambda: {"o": make_special()["o"], "get": operator.itemgetter(0)})
def a_count_behind_itemgetter(self):
    return 1 / self.get(self.o)


@factor(lambda: {"o": make_special()["o"]})
def a_count_behind_map_and_sum(self):
    return 1 / sum(map(self.o.bump_with, [1]))


@factor(lambda: {"o": make_special()["o"]})
def a_count_behind_the_key_of_a_sort(self):
    sorted([2, 1], key=lambda _: self.o.bump())
    return 1 / self.o.n


@factor(lambda: {"o": make_special()["o"]})
def a_count_behind_reduce(self):
    return 1 / functools.reduce(lambda a, _: self.o.bump(), [0, 0])


def make_context():
    n = [0]

    @contextlib.contextmanager
    def count():
        n[0] += 1
        yield n[0]

    return {"count": count}


@factor(make_context)
def a_count_behind_a_context_manager(self):
    with self.count() as n:
        return 1 / n


@factor(lambda: {"stack": contextlib.ExitStack(), "n": 0}, places=("loss",))
def a_count_in_an_exit_stack(self):
    with contextlib.ExitStack() as stack:
        stack.callback(lambda: setattr(self, "n", self.n + 1))
    return 1 / self.n


class Words(string.Formatter):
    def __init__(self):
        self.n = 0

    def get_value(self, key, args, kwargs):
        self.n += 1
        return self.n


@factor(lambda: {"words": Words()})
def a_count_in_a_formatter(self):
    return 1 / int(self.words.format("{x}"))


@factor(
    lambda: decimal.setcontext(decimal.Context(prec=28)) or {},
    after=lambda self, e: setattr(decimal.getcontext(), "prec", 2 + e),
    shared=True,
)
def the_context_of_decimal(self):
    return float(decimal.Decimal(2).sqrt())


@factor(lambda: {"n": 0})
def a_count_in_an_except_clause(self):
    try:
        raise KeyError
    except KeyError:
        self.n += 1
    return 1 / self.n


@factor(lambda: {"n": 0})
def a_count_in_a_recursion(self):
    def descend(depth):
        self.n += 1
        return descend(depth - 1) if depth else self.n

    return 1 / descend(2)


@factor(lambda: {"n": 0})
def a_count_in_a_comprehension(self):
    return 1 / max(setattr(self, "n", self.n + 1) or self.n for _ in range(2))


@factor(lambda: {"source": compile("self.n = getattr(self, 'n', 0) + 1", "<text>", "exec")}, places=("loss",))
def code_that_the_step_executes(self):
    exec(self.source, {"self": self})
    return 1 / self.n


# ---- other packages --------------------------------------------------------------------------------------------------


@factor(
    lambda: {"s": pytest.importorskip("pandas").Series([1.0, 2.0])},
    after=lambda self, epoch: operator.setitem(self.s, 0, epoch + 1.0),
)
def a_series_that_a_callback_changes_in_place(self):
    return float(self.s.iloc[0])


@factor(lambda: {"s": pytest.importorskip("pandas").Series([0.0, 2.0])})
def a_series_that_the_step_changes_in_place(self):
    self.s[0] = self.s[0] + 1
    return float(1 / self.s[0])


@factor(
    lambda: {"f": pytest.importorskip("pandas").DataFrame({"a": [1.0]})},
    after=lambda self, epoch: self.f.insert(0, str(epoch), 1),
)
def a_frame_that_gets_columns(self):
    return 1 / self.f.shape[1]


@factor(lambda: {"f": pytest.importorskip("polars").DataFrame({"a": [0.0]})})
def a_frame_of_polars_that_its_next_value_replaces(self):
    self.f = self.f + 1
    return float(1 / self.f["a"][0])


@factor(lambda: {"m": pytest.importorskip("scipy.sparse").csr_array(np.ones((1, 1)))})
def a_sparse_array_that_changes_in_place(self):
    self.m.data[0] += 1
    return float(1 / self.m[0, 0])


@factor(lambda: {"t": pytest.importorskip("torch").zeros(1)})
def a_tensor_of_torch_that_changes_in_place(self):
    self.t += 1
    return 1 / self.t.item()


# ---- callbacks and metrics -------------------------------------------------------------------------------------------


@factor(lambda: {"n": 0}, after=lambda self, epoch: setattr(self, "n", self.n + 1))
def a_count_that_a_callback_makes_and_the_step_reads(self):
    return 1 / (1 + self.n)


@factor(lambda: {"n": 0}, after=lambda self, epoch: setattr(self, "n", 0))
def a_count_that_a_callback_resets(self):
    self.n += 1
    return 1 / self.n


def count_calls(self, outputs, targets):
    self.n += 1
    return float(np.abs(outputs).mean()) + self.n


@factor(lambda: {"n": 0}, metric=count_calls, places=("loss",))
def a_count_that_a_metric_makes_and_the_step_reads(self):
    return 1 / (1 + self.n)


def replace_function(self, outputs, targets):
    self.f = double if self.f is tanh else tanh
    return 0.0


@form(lambda: {"f": tanh}, metric=replace_function, places=("loss",))
def a_function_that_a_metric_replaces(self, h):
    return self.f(h)


@factor(lambda: {"i": itertools.count(1)}, metric=lambda self, o, y: float(next(self.i)), places=("loss",))
def an_iterator_that_the_step_and_a_metric_share(self):
    return 1 / next(self.i)


@factor(metric=lambda self, o, y: random.gauss(0, 1), places=("loss",), shared=True)
def a_stream_that_the_step_and_a_metric_share(self):
    return 2 + random.gauss(0, 1)


@factor(lambda: {"n": 0, "w": 1.0}, after=lambda self, epoch: setattr(self, "w", self.w / self.n))
def a_count_of_steps_that_only_a_callback_reads(self):
    self.n += 1
    return self.w


@factor(lambda: {"optimizers": []}, after=lambda self, epoch: setattr(self.optimizers[0], "lr", 0.05 / (epoch + 2)))
def the_learning_rate_that_a_callback_changes(self):
    return 1 + 10 * self.optimizers[0].lr


def freeze(name):
    return lambda self, epoch: setattr(getattr(self, name), "requires_grad", epoch % 2 == 1)


@factor(lambda: {"layer": cl.Linear(3, 1)}, after=freeze("layer"), places=("loss",))
def whether_a_layer_is_frozen(self):
    return 1.0 if self.layer.requires_grad else 0.5


@factor(after=freeze("hidden"), places=("call",))
def whether_a_layer_of_the_net_is_frozen(self):
    return 1.0 if self.hidden.requires_grad else 0.5


@factor(lambda: {"t": cl.Tensor(np.ones(1, np.float32))}, after=lambda self, epoch: self.t.data.__imul__(0.5))
def a_tensor_whose_values_a_callback_changes_in_place(self):
    return float(self.t.data[0])


@factor(lambda: {"t": cl.Tensor(np.ones(1, np.float32))})
def a_tensor_that_its_next_value_replaces(self):
    self.t = self.t * 0.9
    return float(self.t.data[0])


@factor(
    lambda: {"t": cl.Tensor(np.ones(1, np.float32))}, after=lambda self, epoch: setattr(self.t, "data", self.t.data / 2)
)
def a_tensor_that_gets_new_data(self):
    return self.t.item()


@factor(lambda: {"optimizers": []}, places=("loss",))
def a_list_of_optimizers_that_grows(self):
    self.optimizers.append(self.optimizers[0])
    return 1 / len(self.optimizers)
