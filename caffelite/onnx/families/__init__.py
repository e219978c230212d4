"""Functions of caffelite and operators of ONNX, a file for each family.

A file has up to four tables, and the functions in them:

    RULES         `write_…`    write a Function, by its class, as nodes: (Writer, application, inputs) → outputs
    GROUPS        `find_…`     find the layer that several nodes are, by the last operator: (NodeGraph, node) → node
    SINGLE_NODES  `find_…`     find the layer that one node is, by its operator: (NodeGraph, node) → node
    OPERATORS     `compute_…`  compute what a node does that is not a layer: (node, inputs) → output

A `compute_…` function gets a `Node`, for its attributes, and the node's inputs. An input is a Tensor, a plain array, or
None if it is left out. Constants, shapes, and the integers and masks that the model gets are plain arrays. If all
inputs are plain arrays, NumPy computes the same from them. If a truth value or an integer depends on data and is not a
plain array, it is a number of the model's dtype, without a gradient. True is 1, and False is 0.

`…_rule`, `…_finder` and `…_op` make such functions. Arguments may be attributes or inputs, by version: `Node.argument`.
"""
