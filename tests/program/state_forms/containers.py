"""Counts in objects, containers and iterators."""

import array
import collections
import ctypes
import heapq
import io
import itertools
import mmap
import operator
import queue

from tests.program.state_forms.form import Settings, bump, change_after, factor


def set_global(name, value):
    globals()[name] = value
    return {}


# ---- many objects, and places for counts -----------------------------------------------------------------------------


@factor(
    lambda: {"rows": [Settings(w=1.0) for _ in range(1500)]},
    after=change_after(1, lambda self: setattr(self.rows[1499], "w", 3.0)),
)
def the_last_of_many_objects(self):
    return self.rows[1499].w


@factor(lambda: {"rows": [Settings(w=1.0) for _ in range(1500)], "z": Settings(n=0)})
def a_count_behind_many_objects(self):
    self.z.n += 1
    return self.rows[0].w / self.z.n


def make_chain():
    chain = Settings(n=0)
    for _ in range(60):
        chain = Settings(below=chain)
    return {"chain": chain}


@factor(make_chain)
def a_count_sixty_objects_deep(self):
    o = self.chain
    while hasattr(o, "below"):
        o = o.below
    o.n += 1
    return 1 / o.n


@factor(lambda: {"n": 0})
def a_count_in_an_attribute(self):
    self.n += 1
    return 1 / self.n


global_count = 0


@factor(lambda: set_global("global_count", 0), shared=True)
def a_count_in_a_global(self):
    global global_count
    global_count += 1
    return 1 / global_count


def make_closure():
    n = 0

    def count():
        nonlocal n
        n += 1
        return n

    return {"count": count}


@factor(make_closure)
def a_count_in_an_enclosing_function(self):
    return 1 / self.count()


def make_default():
    def count(n=[0]):  # noqa: B006
        n[0] += 1
        return n[0]

    return {"count": count}


@factor(make_default)
def a_count_in_a_mutable_default(self):
    return 1 / self.count()


def make_function_with_attribute():
    def count():
        count.n += 1
        return count.n

    count.n = 0
    return {"count": count}


@factor(make_function_with_attribute)
def a_count_in_an_attribute_of_a_function(self):
    return 1 / self.count()


@factor(lambda: {"counter": collections.Counter()})
def a_counter(self):
    self.counter["rows"] += 1
    return 1 / self.counter["rows"]


@factor(lambda: {"counter": collections.Counter()})
def a_counter_that_is_updated(self):
    self.counter.update(["a", "b", "a"])
    return 1 / self.counter.total()


@factor(lambda: {"d": collections.OrderedDict(a=1.0, b=0.5, c=0.25)})
def an_ordered_dict_whose_order_changes(self):
    self.d.move_to_end(next(iter(self.d)))
    return next(iter(self.d.values()))


@factor(lambda: {"d": collections.defaultdict(int)})
def a_default_dict(self):
    self.d["n"] += 1
    return 1 / self.d["n"]


@factor(lambda: {"d": collections.ChainMap({}, {"n": 0})})
def a_chain_map(self):
    self.d["n"] = self.d["n"] + 1
    return 1 / self.d["n"]


@factor(lambda: {"d": collections.UserDict(n=0)})
def a_user_dict(self):
    self.d["n"] += 1
    return 1 / self.d["n"]


@factor(lambda: {"d": collections.UserList([0])})
def a_user_list(self):
    self.d.append(0)
    return 1 / len(self.d)


@factor(lambda: {"q": collections.deque([1.0, 0.5, 0.25])})
def a_deque_that_rotates(self):
    self.q.rotate(1)
    return self.q[0]


@factor(lambda: {"s": set()})
def a_set_that_grows(self):
    self.s.add(len(self.s))
    return 1 / len(self.s)


@factor(lambda: {"heap": [3, 1, 2]})
def a_heap(self):
    heapq.heappush(self.heap, heapq.heappop(self.heap) + 3)
    return 1 / self.heap[0]


@factor(lambda: {"d": {"a": {"b": [{"n": 0}]}}})
def a_count_in_nested_containers(self):
    self.d["a"]["b"][0]["n"] += 1
    return 1 / self.d["a"]["b"][0]["n"]


@factor(
    lambda: {"d": dict.fromkeys(range(3000), 1.0)},
    after=lambda self, epoch: operator.setitem(self.d, 2999, epoch + 2.0),
)
def the_last_of_many_items(self):
    return self.d[2999]


class NewValues(dict):
    def __missing__(self, key):
        self[key] = len(self) + 1
        return self[key]


@factor(lambda: {"d": NewValues(), "n": 0})
def a_dict_that_makes_missing_values(self):
    return 1 / self.d[len(self.d)]


class FixedDict(dict):
    def update(self, *_):
        raise RuntimeError("no update")

    clear = update


@factor(lambda: {"d": FixedDict(w=1.0)}, after=lambda self, epoch: self.d.__setitem__("w", epoch + 1.0))
def a_dict_that_may_not_be_updated(self):
    return self.d["w"]


class Steps(list):
    n = 0

    def __getitem__(self, i):
        self.n += 1
        return super().__getitem__(i) / self.n


@factor(lambda: {"steps": Steps([1.0])})
def a_list_with_a_count_of_its_own(self):
    return self.steps[0]


@factor(lambda: {"a": array.array("d", [0.0])})
def an_array_of_the_array_module(self):
    self.a[0] += 1
    return 1 / self.a[0]


@factor(lambda: {"a": bytearray(1)})
def a_bytearray(self):
    self.a[0] += 1
    return 1 / self.a[0]


@factor(lambda: {"a": memoryview(bytearray(2))}, places=("loss",))
def a_memoryview(self):
    self.a[1] += 1
    return 1 / self.a[1]


@factor(lambda: {"a": mmap.mmap(-1, 8)}, places=("loss",))
def an_anonymous_map_of_memory(self):
    self.a[0] += 1
    return 1 / self.a[0]


@factor(lambda: {"a": ctypes.c_int(0)}, places=("loss",))
def an_integer_of_ctypes(self):
    self.a.value += 1
    return 1 / self.a.value


@factor(lambda: {"a": io.StringIO("124" * 20)})
def the_position_in_a_text(self):
    return 1 / int(self.a.read(1))


@factor(lambda: {"q": queue.Queue()}, places=("loss",))
def a_queue(self):
    self.q.put(1)
    return 1 / self.q.qsize()


# ---- iterators -------------------------------------------------------------------------------------------------------


@factor(lambda: {"i": itertools.count(1)})
def an_iterator_that_counts(self):
    return 1 / next(self.i)


@factor(lambda: {"i": itertools.cycle([1.0, 0.5, 2.0])})
def an_iterator_that_cycles(self):
    return next(self.i)


@factor(lambda: {"i": (1 / n for n in itertools.count(1))})
def a_generator_of_factors(self):
    return next(self.i)


@factor(lambda: {"i": itertools.accumulate(itertools.count(1))})
def an_iterator_that_accumulates(self):
    return 1 / next(self.i)


@factor(lambda: {"i": map(bump, itertools.repeat(Settings(n=0)))})
def an_iterator_that_maps(self):
    return next(self.i)


@factor(lambda: {"i": enumerate(itertools.repeat(1), 1)})
def an_iterator_that_enumerates(self):
    return 1 / next(self.i)[0]


@factor(lambda: {"i": iter([1 / n for n in range(1, 200)])})
def an_iterator_of_a_list(self):
    return next(self.i)


@factor(lambda: {"next_value": itertools.count(1).__next__})
def a_method_of_an_iterator(self):
    return 1 / self.next_value()


@factor(lambda: {"take": list(range(1, 200)).pop})
def a_method_that_takes_from_a_list(self):
    return 1 / self.take()


def make_coroutine():
    def receive():
        total = 0.0
        while True:
            total += yield 1 / (1 + total)

    coroutine = receive()
    next(coroutine)
    return {"coroutine": coroutine}


@factor(make_coroutine)
def a_generator_that_receives_values(self):
    return self.coroutine.send(1.0)


@factor(lambda: {"i": zip(itertools.count(1), itertools.repeat(1.0)), "f": 1.0}, after=lambda self, epoch: next(self.i))
def an_iterator_that_a_callback_advances(self):
    return 1 / next(self.i)[0]
