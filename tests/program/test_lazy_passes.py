"""The passes run when a recorded step is first needed again, whatever other threads do meanwhile."""

import threading

import numpy as np
import pytest

import caffelite as cl
from caffelite.program import PASSES
from caffelite.program import program as programs

X = np.arange(3, dtype=np.float32)


def scale(factor):
    return lambda x: (cl.Tensor(x) * factor).sum()


def test_a_training_of_one_step_runs_no_pass(monkeypatch):
    model = cl.MLP(4, [3, 1], seed=0)
    optimizer, x, y = cl.SGD(model.parameters(), lr=0.1), np.ones((8, 4), np.float32), np.ones((8, 1), np.float32)
    loss, calls = cl.MSELoss(), []
    monkeypatch.setattr(programs, "PASSES", [lambda step: calls.append(1) or step, *PASSES])
    for expected in (0, 1, 1):
        model.fit(x, y, loss=loss, optimizer=optimizer, batch_size=8, verbose=0)
        assert len(calls) == expected


def test_a_step_that_is_recorded_again_during_the_passes_is_what_is_replayed(monkeypatch):
    program = programs.Program()
    program.record(scale(2), X)
    threads = []

    def record_again(step):
        if not threads:
            threads.append(threading.Thread(target=program.record, args=(scale(5), X)))
            threads[0].start()
        return step

    monkeypatch.setattr(programs, "PASSES", [record_again, *PASSES])
    program.optimize()
    threads[0].join()
    assert program.run(None, X * 10) == 150


def test_the_memory_of_a_program_is_known_without_its_lock():
    program = programs.Program()
    assert program.nbytes == 0
    program.record(scale(2), X)
    before, sizes = program.nbytes, []
    with program.lock:
        thread = threading.Thread(target=lambda: sizes.append(program.nbytes))
        thread.start()
        thread.join(5)
    assert sizes == [before]
    program.optimize()
    assert X.nbytes <= program.nbytes


def test_a_pass_that_raises_changes_no_tensor(monkeypatch):
    weight = cl.Tensor(np.ones(3, np.float32), requires_grad=True)

    def step(x):
        weight.zero_grad()
        (weight * x).sum().backward()
        return weight.grad

    program = programs.Program()
    program.record(step, X)
    weight.zero_grad()

    def fail(step):
        raise MemoryError

    monkeypatch.setattr(programs, "PASSES", [fail])
    with pytest.raises(MemoryError):
        program.run(step, X)
    assert weight.grad is None
