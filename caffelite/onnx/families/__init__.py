"""Functions of caffelite and operators of ONNX, a file for each family.

A file has up to four tables, and the functions in them:

    RULES         `write_…`    write a Function, by its class, as nodes: (Writer, Function, inputs) → outputs
    GROUPS        `find_…`     find the layer that several nodes are, by the last operator: (NodeGraph, node) → node
    SINGLE_NODES  `find_…`     find the layer that one node is, by its operator: (NodeGraph, node) → node
    OPERATORS     `compute_…`  compute what a node does that is not a layer: (node, inputs) → output

A `compute_…` function gets a `Node`, for its attributes, and the node's inputs. An input is a Tensor, a plain array, or
None if it is left out. Constants, shapes, and the integers and masks that the model gets are plain arrays. If all
inputs are plain arrays, NumPy computes the same from them. If a truth value or an integer depends on data and is not a
plain array, it is a number of the model's dtype, without a gradient. True is 1, and False is 0.

`…_rule`, `…_finder` and `…_op` make such functions. Arguments may be attributes or inputs, by version: `Node.argument`.
This file joins the tables of all families.
"""

from __future__ import annotations

from typing import Any

from caffelite.onnx.families import (
    activation,
    attention,
    convolution,
    dense,
    elementwise,
    estimators,
    indexing,
    loss,
    normalization,
    recurrent,
    reduction,
    resizing,
    shape,
)
from caffelite.onnx.nodes import Finder, Operator
from caffelite.onnx.writing import Rule

FAMILIES = [elementwise, activation, dense, attention, recurrent, convolution, resizing, normalization, reduction]
FAMILIES += [shape, indexing, loss, estimators]


def _merge_tables(name: str) -> dict[Any, Any]:
    """Return the rows of all tables of this name. Of operators with several finders, the lists are joined."""
    rows: dict[Any, Any] = {}
    for family in FAMILIES:
        for key, row in getattr(family, name, {}).items():
            rows[key] = [*rows.get(key, ()), *row] if isinstance(row, list) else row
    return rows


#: A Function without a rule is written by its `formula`.
RULES: dict[type, Rule] = _merge_tables("RULES")
GROUPS: dict[str, list[Finder]] = _merge_tables("GROUPS")
SINGLE_NODES: dict[str, list[Finder]] = _merge_tables("SINGLE_NODES")
OPERATORS: dict[str, Operator] = _merge_tables("OPERATORS")
