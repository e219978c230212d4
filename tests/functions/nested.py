"""Functions made of Functions, models of them, and steps."""

import numpy as np

import caffelite as cl
from caffelite import _kernels as kernels
from tests.reference import assert_same_bits

RNG = np.random.default_rng(0)
X = RNG.normal(size=(12, 4)).astype(np.float32)
Y = RNG.integers(0, 3, 12)


class Scale(cl.Function, recordable=True):
    """y = s x; s is the class's until an instance has its own."""

    s = 2.0

    def forward(self, x):
        self.factor = self.s
        return kernels.multiply(x, self.factor)

    def backward(self, dy):
        return kernels.multiply(dy, self.factor)


class Block(cl.Function):
    """A user's Function that holds another: y = f(x) · s, in NumPy."""

    def __init__(self, function, s=1.0):
        self.function, self.s = function, s

    def forward(self, x):
        self.factor = self.s
        return self.function.forward(x) * np.asarray(self.factor, x.dtype)

    def backward(self, dy):
        return self.function.backward(dy * np.asarray(self.factor, dy.dtype))


class RecordableBlock(Block, recordable=True):
    """The same with kernels."""

    def forward(self, x):
        self.factor = self.s
        return kernels.multiply(self.function.forward(x), self.factor)

    def backward(self, dy):
        return self.function.backward(kernels.multiply(dy, self.factor))


class Split(cl.Function):
    """Two outputs, y = 2 x and z = x²."""

    def forward(self, x):
        self.x = x
        return 2 * x, x * x

    def backward(self, dys):
        dy, dz = dys
        dx = np.zeros_like(self.x)
        if dy is not None:
            dx = dx + 2 * dy
        if dz is not None:
            dx = dx + 2 * self.x * dz
        return dx


class RecordableSplit(Split, recordable=True):
    """The same with kernels."""

    def forward(self, x):
        self.x = x
        return kernels.multiply(x, 2.0), kernels.multiply(x, x)

    def backward(self, dys):
        dy, dz = dys
        dx = None if dy is None else kernels.multiply(dy, 2.0)
        if dz is not None:
            d = kernels.multiply(kernels.multiply(self.x, dz), 2.0)
            dx = d if dx is None else kernels.add(dx, d)
        return dx


class Net(cl.Model):
    """A model by `call`, with Functions in an attribute, in a list, and in a dict in a list."""

    def __init__(self, seed=None, dtype=np.float32, size=4):
        super().__init__(seed=seed, dtype=dtype)
        self.f = cl.MLP(size, [8, size])
        self.blocks = [Block(cl.Linear(size, size)), {"last": cl.Linear(size, 3)}]

    def call(self, x):
        x = x + self.f(x)
        x = self.blocks[0](self.blocks[0](x)).relu()
        return self.blocks[1]["last"](x)


def assert_same_parameters(a, b):
    for p, q in zip(a.parameters(), b.parameters(), strict=True):
        assert_same_bits(p.data, q.data)
