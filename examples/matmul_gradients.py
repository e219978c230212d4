"""A matrix product followed by a sum, and its gradients, which you can work out by hand.

With y = Σᵢⱼ (x W)ᵢⱼ = Σᵢⱼₖ xᵢₖ Wₖⱼ, the derivative for xᵢₖ is Σⱼ Wₖⱼ, the sum of row k of W, for every i. The
derivative for Wₖⱼ is Σᵢ xᵢₖ, the sum of column k of x, for every j.
"""

import numpy as np

import caffelite as cl

x = cl.Tensor([[1, 2], [3, 4], [5, 6]], requires_grad=True)  # (3, 2)
W = cl.Tensor([[1, -2, 3, 0], [4, 1, 0, -1]], requires_grad=True)  # (2, 4)

y = (x @ W).sum()
y.backward()
print(f"y = {y.item():g}")
print(f"dy/dx =\n{x.grad}")
print(f"dy/dW =\n{W.grad}")

dx = np.tile(W.data.sum(axis=1), (3, 1))
dW = np.tile(x.data.sum(axis=0), (4, 1)).T
if not (np.array_equal(x.grad, dx) and np.array_equal(W.grad, dW)):
    raise SystemExit(f"by hand it is\n{dx}\nand\n{dW}")
print("as worked out by hand: rows of W's row sums, columns of x's column sums")
