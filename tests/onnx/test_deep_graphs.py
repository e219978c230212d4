"""Graphs of any depth are loaded, in a time that grows with their length."""

import sys

import numpy as np
import pytest

import caffelite as cl
import caffelite.onnx
from tests.onnx.graphs import W, chain, load_graph, make_graph


def linear(count):
    """MatMul and Add, again and again."""
    return [
        node
        for _, (x, *_), (y,), _ in chain("Linear", count)
        for node in [("MatMul", [x, "w"], [f"{y} w"], {}), ("Add", [f"{y} w", "b"], [y], {})]
    ]


def residuals(count):
    """x + relu(x), again and again."""
    return [
        node
        for _, (x,), (y,), _ in chain("Residual", count)
        for node in [("Relu", [x], [f"relu {y}"], {}), ("Add", [x, f"relu {y}"], [y], {})]
    ]


def in_each_other(operator, count, **attributes):
    """f(x) with x beside it, and that with tanh(x) beside it, and so on."""
    return [
        ("Relu", ["x"], ["start"], {}),
        *[("Tanh", ["x"], [f"tanh {i}"], {}) for i in range(count)],
        *[
            (operator, [y if i else "start", f"tanh {i}" if operator == "Concat" else "x"], [end], attributes)
            for i, (_, (y,), (end,), _) in enumerate(chain("y", count))
        ],
    ]


def two_chains(count):
    """Two chains, concatenated."""
    nodes = [*chain("Relu", count), *chain("Tanh", count)]
    nodes[count - 1][2][0], nodes[-1][2][0] = "end", "other end"
    return [*nodes, ("Concat", ["end", "other end"], ["y"], {"axis": 1})]


LONG = {
    "layers": lambda count: chain("Relu", count),
    "layers of two nodes": linear,
    "a product": lambda count: chain("Mul", count, "b"),
    "shapes": lambda count: chain("Reshape", count, "shape"),
    "Residuals": residuals,
    "Residuals in each other": lambda count: in_each_other("Add", count),
    "a Parallel": two_chains,
    "Parallels in each other": lambda count: in_each_other("Concat", count, axis=1),
    "constants": lambda count: [
        *[("Neg", ["b"], [f"minus {i}"], {}) for i in range(count)],
        ("Sum", ["x", *[f"minus {i}" for i in range(count)]], ["y"], {}),
    ],
}


def lines_run(function):
    """How many lines of `caffelite.onnx` a call runs."""
    count = 0

    def trace(frame, event, argument):
        nonlocal count
        if "onnx" not in frame.f_code.co_filename:
            return None
        count += event == "line"
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        function()
    finally:
        sys.settrace(before)
    return count


@pytest.mark.parametrize("kind", LONG)
def test_loading_costs_as_much_for_each_node_of_a_long_graph_as_of_a_short_one(kind, path):
    constants = {"w": W, "b": W[0], "shape": np.array([-1, 3])}

    def lines(count):
        nodes = LONG[kind](count)
        used = {name for _, inputs, _, _ in nodes for name in inputs}
        path.write_bytes(make_graph(nodes, {name: a for name, a in constants.items() if name in used}))
        return lines_run(lambda: caffelite.onnx.load(path))

    lines(20)  # the work that is done once
    short, long = lines(40), lines(160)
    assert long < 4.5 * short


def test_exporting_costs_as_much_for_each_layer_of_a_deep_model_as_of_a_shallow_one(path):
    def lines(count):
        model = cl.Model([layer for _ in range(count) for layer in (cl.Linear(2, 2), cl.ReLU())], seed=0)
        return lines_run(lambda: caffelite.onnx.export(model, path))

    lines(2)
    short, long = lines(10), lines(40)
    assert long < 4.5 * short


@pytest.mark.parametrize("kind", ["a product", "Residuals in each other", "Parallels in each other"])
def test_a_graph_of_any_depth_is_loaded(kind, path):
    nodes = LONG[kind](1200)
    assert "Graph" in repr(load_graph(path, nodes, {"b": W[0]} if kind == "a product" else {}))


def test_a_graph_becomes_layers_as_deep_as_files_take_them(path, tmp_path):
    for count in range(44, 52):
        model = load_graph(path, in_each_other("Add", count), {})
        if "Graph" in repr(model):
            break
        model.save(tmp_path / "net.safetensors")
        assert repr(cl.load(tmp_path / "net.safetensors")) == repr(model)
    assert 44 < count < 51
