"""What caffelite and ONNX have in common, a file for each family of operators.

In each file there are up to four tables, and the functions in them:

    RULES      `write_…`    which nodes a Function becomes, by its class: of a `Writer`, an application and its inputs
    GROUPS     `find_…`     which layer several nodes are, by the operator of the last one: of `Nodes` and that node
    SINGLE     `find_…`     which layer one node is, by its operator
    OPERATORS  `compute_…`  what an operator computes, written with Tensor's operators, for a node that is no layer

A `compute_…` function gets a `Node`, for its attributes, and the node's inputs: Tensors, plain arrays (constants,
shapes, and the integers and masks that the model is given), or None if one is left out. NumPy computes the same of
plain arrays alone. If something that is true or false, or an integer, depends on data, it is a number of the model's
dtype, 1 and 0, unless it is a plain array. It has no gradient.

Versions of an operator differ in where they have their arguments, as attributes or as inputs: `Node.argument`.
"""
