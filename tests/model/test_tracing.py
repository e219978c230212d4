"""Traces: which Functions a model applies to what, and the graph of them that ONNX and C write."""

import numpy as np
import pytest

import caffelite as cl
from caffelite.model.export_graph import (
    Constant,
    ModelInput,
    N,
    Result,
    StoredArray,
    SymbolicLength,
    find_formula,
    trace_graph,
)
from caffelite.model.tracing import Trace
from tests.tools.fuzz_c_export import CC, differing

X = np.random.default_rng(0).normal(size=(5, 4)).astype(np.float32)


class Net(cl.Model):
    """Functions in Functions, operators, and one that is made in `call`."""

    def __init__(self):
        super().__init__(seed=0)
        self.body, self.head = cl.Residual(cl.Model([cl.Linear(4, 4), cl.Tanh()])), cl.Linear(4, 3)

    def call(self, x):
        h = self.body(x).relu()
        return self.head(cl.Residual(cl.Tanh())(h) * 0.5) - h.mean(axis=1, keepdims=True)


class Composite(cl.Function):
    """Functions in a Function that computes in NumPy."""

    def __init__(self):
        self.f, self.g = cl.Linear(4, 4), cl.Model([cl.Linear(4, 4), cl.Tanh()], seed=1)

    def forward(self, x):
        return np.maximum(self.g.forward(self.f.forward(x)), 0)

    def backward(self, dy):
        return self.f.backward(self.g.backward(dy))


def tree(steps):
    return [(step.name, step.kind.__name__, tree(step.inner)) for step in steps]


BODY = [("body.function.0", "Linear", []), ("body.function.1", "Tanh", [])]


def test_a_trace_is_the_tree_of_what_is_applied():
    model = Net()
    with cl.inference(), Trace(model) as trace:
        y = trace.model(X)
    assert tree(trace.steps) == [
        ("body", "Residual", BODY),
        ("", "ReLU", []),
        ("", "Residual", []),
        ("", "Multiply", []),
        ("head", "Linear", []),
        ("", "Mean", []),
        ("", "Subtract", []),
    ]
    assert [step.kind.__name__ for step in trace.all_steps()][:4] == ["Linear", "Tanh", "Residual", "ReLU"]
    body, relu = trace.steps[:2]
    assert relu.inputs[0] is body.outputs[0]
    assert trace.steps[-1].outputs[0] is y
    assert [call.name for call in body.calls][-1] == "add"
    np.testing.assert_array_equal(y.data, model(X).data)
    assert all(type(f).__module__.startswith("caffelite.functions") for f in (model.body, model.head))


def test_without_a_recording_the_steps_are_the_models_functions():
    trace = Trace(Net())
    trace.model(X)
    assert tree(trace.steps) == [("body", "Residual", BODY), ("head", "Linear", [])]
    assert all(step.calls == [] for step in trace.all_steps())


@pytest.mark.parametrize("recorded", [False, True])
def test_steps_get_the_gradients_of_what_came_out(recorded):
    trace = Trace(cl.Model([cl.Linear(4, 4), Composite(), cl.Linear(4, 1)], seed=0), strict=False)
    if recorded:
        with trace:
            y = trace.model(X)
    else:
        y = trace.model(X)
    y.backward(np.ones((5, 1)))
    shapes = {step.name: step.gradients[0].shape for step in trace.all_steps()}
    assert list(shapes) == ["0", "1.f", "1.g.0", "1.g.1", "1", "2"]
    assert {*shapes.values()} == {(5, 4), (5, 1)}


def test_a_summary_counts_what_functions_in_a_function_of_numpy_return():
    assert "64 B" in cl.Model([Composite()]).summary((4,))


# ---- where inputs come from -----------------------------------------------------------------------------------------


def test_a_graph_names_the_sources_of_inputs():
    class Calling(cl.Model):
        def __init__(self):
            super().__init__(seed=0)
            self.shift = np.ones(4, np.float32)
            self.weight = cl.Tensor(np.ones((4, 4)), requires_grad=True)

        def call(self, x):
            h = (x + self.shift) @ self.weight
            return h.reshape(len(x) * 2, 2)

    graph = trace_graph(Calling(), [(4,)], lambda kind: False)
    add, product, reshape = graph.leaves()
    assert (add.inputs[0], product.inputs) == (ModelInput(0), [Result(0, 0), StoredArray("weight")])
    assert isinstance(add.inputs[1], Constant)
    assert (add.shapes, reshape.shapes) == ([(N, 4)], [(SymbolicLength(2, 0), 2)])
    assert graph.outputs == [Result(2, 0)]


def test_functions_that_are_not_native_are_traced_by_formula_or_call():
    model = cl.Model([cl.Model([cl.Linear(4, 4)]), cl.Parallel([cl.Residual(cl.SiLU()), cl.Tanh()])], seed=0)
    kinds = {False: ["Linear", "Sigmoid", "Multiply", "Add", "Tanh", "Concatenate"]}
    kinds[True] = ["Linear", "SiLU", "Add", "Tanh", "Concatenate"]
    for native, expected in kinds.items():
        graph = trace_graph(model, [(4,)], lambda kind, native=native: native and kind is cl.SiLU)
        assert [a.kind.__name__ for a in graph.leaves()] == expected
    inner, parallel = graph.applications
    assert (inner.kind, parallel.kind, len(parallel.inner)) == (cl.Model, cl.Parallel, 3)
    assert [a.number for a in graph.leaves()] == [0, 1, 2, 3, 4]


def test_a_formula_belongs_to_the_class_that_computes():
    class InheritedResidual(cl.Residual):
        pass

    class OverriddenResidual(cl.Residual):
        def forward(self, x):
            return x

    assert find_formula(InheritedResidual) is cl.Residual.formula
    assert find_formula(OverriddenResidual) is None


class Constants(cl.Model):
    """Tensors that `call` makes of numbers."""

    def call(self, x):
        return x * cl.Tensor([0.5]) + cl.Tensor(2.0)


@pytest.mark.filterwarnings("ignore::caffelite.NotRecorded")
def test_tensors_that_call_makes_of_numbers_are_constants(tmp_path):
    pytest.importorskip("onnx")
    import caffelite.onnx

    for model in (Constants(), Net()):
        caffelite.onnx.export(model, tmp_path / "net.onnx", (4,))  # which compares what they compute
        again = caffelite.onnx.load(tmp_path / "net.onnx")
        np.testing.assert_allclose(again.predict(X), model.predict(X), rtol=1e-5, atol=1e-6)


@pytest.mark.skipif(CC is None, reason="there is no C compiler")
@pytest.mark.filterwarnings("ignore::caffelite.NotRecorded")
def test_tensors_that_call_makes_of_numbers_are_numbers_in_c(tmp_path):
    assert differing(tmp_path, [(Constants(), X)]) == []
