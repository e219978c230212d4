"""The numbers of random streams, clocks, files and the environment."""

import itertools
import json
import os
import random
import secrets
import sqlite3
import tempfile
import time
import uuid

import numpy as np
import pytest

from tests.program.state_forms.form import change_after, factor, form

# ---- random streams --------------------------------------------------------------------------------------------------


@factor(shared=True)
def normal_numbers_of_numpys_global_stream(self):
    return 2 + float(np.random.randn())  # noqa: NPY002


@factor(shared=True)
def normal_numbers_with_a_scale_of_numpys_global_stream(self):
    return 2 + float(np.random.normal(0.0, 0.5))  # noqa: NPY002


@factor(shared=True)
def gauss_of_pythons_global_stream(self):
    return 2 + random.gauss(0, 1)


@factor(shared=True)
def a_choice_of_pythons_global_stream(self):
    return random.choice([0.5, 1.0, 1.5])


@factor(lambda: {"state": np.random.RandomState(3)})
def normal_numbers_of_a_random_state(self):
    return 2 + float(self.state.normal())


@factor(lambda: {"rng": np.random.default_rng(3)})
def normal_numbers_of_a_generator(self):
    return 2 + float(self.rng.standard_normal())


@factor(lambda: {"rng": np.random.default_rng(3).random})
def a_method_of_a_generator(self):
    return 1 + self.rng()


@factor(lambda: {"streams": [random.Random(i) for i in range(3)]})
def gauss_of_streams_in_a_list(self):
    return 2 + self.streams[1].gauss(0, 1)


@form(lambda: {"rng": random.Random(0)})
def a_coin_that_skips_a_layer(self, h):
    return h.tanh() if self.rng.random() < 0.5 else h


@form(lambda: {"rng": np.random.default_rng(0)})
def noise_made_by_numpy(self, h):
    return h + self.rng.normal(size=h.shape).astype(np.float32)


@form(lambda: {"rng": np.random.default_rng(0)})
def rows_in_a_random_order(self, h):
    return h[self.rng.permutation(len(h))]


@factor(lambda: {"seeds": 0})
def a_generator_made_from_a_count(self):
    self.seeds += 1
    return 1 + float(np.random.default_rng(self.seeds).random())


@factor(after=lambda self, epoch: random.seed(epoch), shared=True)
def a_stream_that_a_callback_seeds(self):
    return 1 + random.random()


@factor(system=True)
def a_generator_without_a_seed(self):
    return 1 + float(np.random.default_rng().random())


@factor(system=True)
def a_seed_sequence_without_a_seed(self):
    return 1 + np.random.SeedSequence().entropy % 10**6 / 1e6


@factor(system=True)
def numbers_of_system_random(self):
    return 1 + random.SystemRandom().random()


@factor(system=True)
def numbers_of_secrets(self):
    return 1 + secrets.randbelow(10**6) / 1e6


@factor(system=True)
def numbers_of_urandom(self):
    return 1 + int.from_bytes(os.urandom(4), "little") / 2**32


@factor(system=True)
def numbers_of_uuid4(self):
    return 1 + uuid.uuid4().int % 10**6 / 1e6


@factor(system=True)
def a_clock_in_nanoseconds(self):
    return 1 + time.perf_counter_ns() % 999_983 / 1e6


@factor(system=True)
def a_stream_seeded_by_the_operating_system(self):
    return 1 + random.Random().random()


@factor(system=True)
def torchs_global_stream(self):
    return 1 + pytest.importorskip("torch").rand(1).item()


# ---- the clock, files, the environment, changed by a callback --------------------------------------------------------


class Clock:
    now = 0.0

    @classmethod
    def monotonic(cls):
        return cls.now


def set_clock(now):
    time.monotonic_for_forms = Clock.monotonic  # a library's module, with the user's function
    Clock.now = now
    return {}


@factor(lambda: set_clock(0.0), after=lambda self, epoch: set_clock(epoch + 1.0), shared=True)
def the_parity_of_a_clock(self):
    return 1 + int(time.monotonic_for_forms()) % 2


def make_ticks():
    time.ticks_for_forms = itertools.count().__next__
    return {}


@factor(make_ticks, shared=True)
def a_clock_that_ticks_when_it_is_read(self):
    return 1 + time.ticks_for_forms() % 2


folder = None  # of the forms that keep files


def make_path():
    return {"path": tempfile.mktemp(dir=folder)}


def write_file(self, epoch=0):
    with open(self.path, "a", encoding="utf-8") as file:
        file.write("2")


@factor(make_path, after=change_after(2, write_file))
def a_file_that_a_callback_makes(self):
    return 2.0 if os.path.exists(self.path) else 1.0


@factor(make_path, after=write_file)
def a_file_that_a_callback_writes(self):
    try:
        with open(self.path, encoding="utf-8") as file:
            return 1 / len(file.read())
    except FileNotFoundError:
        return 1.0


@factor(make_path)
def a_file_that_the_step_writes(self):
    write_file(self)
    return 1 / os.path.getsize(self.path)


@factor(make_path)
def a_file_of_json_that_the_step_reads_and_writes(self):
    try:
        with open(self.path, encoding="utf-8") as file:
            n = json.load(file)
    except FileNotFoundError:
        n = 0
    with open(self.path, "w", encoding="utf-8") as file:
        json.dump(n + 1, file)
    return 1 / (n + 1)


def set_environment(value):
    os.environ["CAFFELITE_FORMS"] = value
    return {}


@factor(lambda: set_environment("1"), after=lambda self, epoch: set_environment(str(epoch)), shared=True)
def the_environment_that_a_callback_changes(self):
    return 1.0 + int(os.environ["CAFFELITE_FORMS"])


@factor(lambda: set_environment("1"), shared=True)
def the_environment_that_the_step_changes(self):
    set_environment(str(int(os.environ["CAFFELITE_FORMS"]) + 1))
    return 1 / int(os.environ["CAFFELITE_FORMS"])


DATABASES = []  # which stay open: Python 3.13 and later warn if an open one is freed


def make_database():
    database = sqlite3.connect(":memory:", check_same_thread=False)
    DATABASES.append(database)
    database.execute("create table t (n integer)")
    return {"database": database}


@factor(make_database, places=("loss",))
def rows_in_a_database(self):
    self.database.execute("insert into t values (1)")
    return 1 / self.database.execute("select count(*) from t").fetchone()[0]
