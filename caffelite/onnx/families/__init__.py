"""Functions of caffelite and operators of ONNX, a file for each family.

A file has up to four tables, and the functions in them:

    RULES      `write_…`    write a Function, by its class, as nodes: (Writer, application, inputs) → outputs
    GROUPS     `find_…`     find the layer that several nodes are, by the operator of the last: (Nodes, node) → node
    SINGLE     `find_…`     find the layer that one node is, by its operator: (Nodes, node) → node
    OPERATORS  `compute_…`  compute what a node does that is not a layer: (node, inputs) → output

A `compute_…` function gets a `Node`, for its attributes, and the node's inputs: Tensors, plain arrays (constants,
shapes, and the integers and masks that the model is given), or None if one is left out. NumPy computes the same of
plain arrays alone. If something that is true or false, or an integer, depends on data, it is a number of the model's
dtype, 1 and 0, unless it is a plain array. It has no gradient.

Versions of an operator differ in where they have their arguments, as attributes or as inputs: `Node.argument`.
"""
