"""Attention, the transformer block, and the cache for sampling."""

from __future__ import annotations

from typing import Any

import numpy as np

from caffelite import _kernels as kernels
from caffelite._support.reprs import as_code, repr_with_arguments
from caffelite.core.arrays import as_array, check_nonnegative, check_positive_integer
from caffelite.core.autograd import matches_shape
from caffelite.core.function import Function, Shape, format_shape
from caffelite.core.initializers import Initializer, check_initializer
from caffelite.core.inputs import as_float
from caffelite.core.modes import init_rng, is_training, register_initialized, shape_inference
from caffelite.core.shard import current_shard
from caffelite.core.tensor import Tensor
from caffelite.functions.activation import GELU
from caffelite.functions.dropout import Dropout, draw_seed
from caffelite.functions.linear import Linear
from caffelite.functions.normalization import LayerNorm

__all__ = ["MultiHeadAttention", "TransformerBlock"]


class MultiHeadAttention(Function, recordable=True, rowwise=True):
    """Attention: each position becomes a weighted mean over all positions:

            q, k, v = query(x), key(x), value(x), cut into heads of d numbers;  p = softmax(q kᵀ / √d),  y = output(p v)

    The weights p are larger for keys that match the query. x and y are (n, length, size), and d is `key_dim`, by
    default size / heads. `query`, `key` and `value` are Linear(size, heads · d, bias, initializer=…), and `output` is
    the Linear back to size. In training, Dropout(dropout) is applied to p. The buffer `random` holds the seed and the
    number of masks drawn. The layer never stores a whole length × keys matrix.

        y = attention(x)                        # keys and values from x itself
        y = attention(x, context)               # from another sequence (n, keys, size)
        y = attention(x, mask=mask)             # or attention(x, mask)
        y = attention(x, context, mask)

    If the layer is causal, a position sees itself and earlier positions only. If there is also a context, the positions
    of x count as its last ones. A mask is bool, with False for positions to hide. Its shape is one of these:

    - (n, keys): one entry for each key, False for padding (even if n equals the length of x);
    - (length, keys): one entry for each position of x and each key, the same in all rows (or (1, length, keys));
    - (n, length, keys): one entry for each pair in each row.

    A position that sees nothing gets output(0), and passes no gradient to x or the context.

    If the layer is `rotary`, it rotates each pair of numbers 2i, 2i + 1 of a head's query or key by the angle position
    / 10000^(2i / d). So p depends on how far apart two positions are. Positions count from 0, and d is even.

    To sample position by position, inside `inference()`, give a causal layer a cache of the earlier keys and values:

        cache = attention.cache(rows, max_length)
        y = attention(x, cache=cache)           # x (rows, more, size): the positions that follow those in the cache

    y has the same bits as if you passed the entire sequence at once. A mask then covers all keys so far. You can also
    pass the mask and the cache by position: attention(x, None, cache).

    Raise ValueError unless size is a multiple of heads or key_dim is given, if x, a context or a mask does not fit, and
    if the cache is full. Raise TypeError if a mask is not bool, and if there is both a cache and a context.

    A. Vaswani et al., "Attention is all you need", NeurIPS 2017. J. Su et al., "RoFormer: enhanced
    transformer with rotary position embedding", 2021.
    """

    axis_names = ("n", "length")

    def __init__(
        self,
        size: int,
        heads: int,
        causal: bool = False,
        dropout: float = 0.0,
        bias: bool = True,
        rotary: bool = False,
        *,
        initializer: Initializer | None = None,
        key_dim: int | None = None,
    ) -> None:
        self.size, self.heads = (
            check_positive_integer(f"MultiHeadAttention: {name}", n) for name, n in (("size", size), ("heads", heads))
        )
        self.key_dim = None if key_dim is None else check_positive_integer("MultiHeadAttention: key_dim", key_dim)
        if self.key_dim is None and self.size % self.heads != 0:
            raise ValueError(f"MultiHeadAttention: size must be a multiple of heads, got {size} and {heads}")
        self.causal, self.bias, self.rotary = bool(causal), bool(bias), bool(rotary)
        if self.rotary and self.head_size % 2 != 0:
            raise ValueError(
                "MultiHeadAttention: rotary turns pairs of numbers, so heads have an even size; got heads of "
                f"{self.head_size} numbers"
            )
        self.dropout = check_nonnegative("MultiHeadAttention: dropout", dropout, 1.0)
        self.initializer = check_initializer("MultiHeadAttention", initializer)
        width = self.heads * self.head_size
        self.query, self.key, self.value, self.output = (
            Linear(inputs, outputs, self.bias, initializer=initializer)
            for inputs, outputs in (*[(self.size, width)] * 3, (width, self.size))
        )
        self.random = np.array([draw_seed(init_rng()), 0])  # the Linears are initialized already
        register_initialized(self)

    @property
    def head_size(self) -> int:
        """The size of a head, d."""
        return self.size // self.heads if self.key_dim is None else self.key_dim

    def initialize(self, rng: Any) -> None:
        """Initialize the Linears, take another seed, and count the masks from 0 again."""
        rng = np.random.default_rng(rng)
        super().initialize(rng)
        self.random[:] = draw_seed(rng), 0

    def buffers(self) -> dict[str, np.ndarray]:
        """Return the seed and the number of masks so far. They are saved but not learned."""
        return {"random": self.random, **super().buffers()}

    def cache(self, rows: int, max_length: int) -> KVCache:
        """Return an empty cache for rows of at most `max_length` positions. ValueError unless it is causal."""
        if not self.causal:
            raise ValueError(f"{self!r} has no cache: it is not causal, so a new position changes the earlier ones")
        return KVCache(rows, max_length, self.heads * self.head_size, self.query.weight.dtype)

    @property
    def required_input_shape(self) -> Any:
        return (None, None, self.size)

    def output_shape(self, *input_shapes: Shape) -> Shape:
        x = input_shapes[0]  # only `forward` knows whether the second input is a context or a mask
        self.check_input_shape(x)
        return (*x[:2], self.size)

    def _check_shapes(
        self, x: Shape, context: Shape | None = None, mask: Shape | None = None, past_length: int = 0
    ) -> None:
        """Raise ValueError unless a context and a mask fit the shape of x, with `past_length` positions in a cache."""
        if context is not None and not matches_shape(context, (x[0], None, self.size)):
            raise ValueError(
                f"{self!r} got a context of shape {format_shape(context)} for x of shape {format_shape(x)}; expected "
                f"{format_shape((x[0], None, self.size))}"
            )
        n, length = x[:2]
        keys = (x if context is None else context)[1]
        keys = None if keys is None else past_length + keys
        allowed: list[Shape] = [(n, keys), (length, keys), (n, length, keys)]
        if mask is not None and not any(matches_shape(mask, shape) for shape in [*allowed, (1, length, keys)]):
            raise ValueError(
                f"{self!r} got a mask of shape {format_shape(mask)} for x of shape {format_shape(x)}; expected "
                f"{format_shape(allowed[0])}, {format_shape(allowed[1])} or {format_shape(allowed[2])}"
            )

    def forward(
        self,
        x: np.ndarray,
        context: np.ndarray | None = None,
        mask: np.ndarray | None = None,
        cache: KVCache | None = None,
    ) -> np.ndarray:
        self.check_input_shape(x.shape)
        if isinstance(mask, KVCache):
            mask, cache = None, mask
        if context is not None and self._is_mask(context := as_array(context, f"{self!r}: context or mask")):
            if mask is not None:
                raise TypeError(f"{self!r} takes a context (n, keys, {self.size}) before a mask, got two masks")
            context, mask = None, context
        mask = None if mask is None else as_array(mask, f"{self!r}: mask")
        self._check_types(context, mask, cache)
        context = None if context is None else as_float(self, context, self.key.weight.dtype, "context")
        self.past_length = 0 if cache is None else cache.length
        context_shape, mask_shape = (None if array is None else array.shape for array in (context, mask))
        self._check_shapes(x.shape, context_shape, mask_shape, self.past_length)
        self.has_context, source = context is not None, x if context is None else context
        self.mask = None if shape_inference.is_on else mask
        self.active_p = self.dropout if is_training() else 0.0
        self.q, self.k, self.v = self.query.forward(x), self.key.forward(source), self.value.forward(source)
        if self.rotary:
            self.q, self.k = (kernels.rotary(a, self.heads, self.past_length) for a in (self.q, self.k))
        if cache is not None:
            self.k, self.v = cache.update(self.k, self.v)
        pairs = len(x) * self.heads * x.shape[1] * self.k.shape[1]  # of queries and keys
        self.offset = current_shard().offset(pairs) if self.active_p else 0
        self.h, self.norms, self.rng_state = kernels.attention(
            self.q, self.k, self.v, self.heads, self.causal, self.mask, self.random, self.active_p, self.offset
        )
        return self.output.forward(self.h)

    def _is_mask(self, array: np.ndarray) -> bool:
        """Return whether the input after x is a mask. Zeros from which shapes are inferred may be numbers instead."""
        is_wide = array.shape[2:] == (self.size,)
        return array.dtype == np.bool_ or array.ndim == 2 or (shape_inference.is_on and not is_wide)

    def _check_types(self, context: np.ndarray | None, mask: np.ndarray | None, cache: KVCache | None) -> None:
        if not isinstance(cache, KVCache | None):
            raise TypeError(f"{self!r} takes x, a mask and a cache made by its cache(), got {type(cache).__name__}")
        if mask is not None and mask.dtype != np.bool_ and not shape_inference.is_on:
            raise TypeError(
                f"{self!r} takes a mask of bool, False for what is not seen, got {mask.dtype}; a model leaves an "
                "input of bools as it is, and makes floats of numbers"
            )
        if context is not None and cache is not None:
            raise TypeError(f"{self!r} takes a context or a cache, got both")

    def backward(self, dy: np.ndarray) -> Any:
        dh: Any = self.output.backward(dy)
        arrays = (dh, self.q, self.k, self.v, self.h, self.norms)
        options = (self.heads, self.causal, self.mask, self.rng_state, self.active_p, self.offset)
        dq, dk, dv = kernels.attention_grad(*arrays, *options)
        if self.rotary:
            dq, dk = (kernels.rotary(d, self.heads, self.past_length, True) for d in (dq, dk))
        dx, dkey = self.query.backward(dq), self.key.backward(dk)
        if self.has_context:
            return dx, kernels.add(dkey, self.value.backward(dv))
        return kernels.add(kernels.add(dx, dkey), self.value.backward(dv))

    __repr__ = repr_with_arguments


class TransformerBlock(Function, recordable=True, rowwise=True):
    """A transformer block: attention, then a two-layer net, with residual connections:

        h = x + attention(norm(x)),  y = h + mlp(norm(h)),  mlp(h) = narrow(gelu(widen(h)))

    x and y are (n, length, size). A LayerNorm comes before each branch. `hidden`, 4 size by default, is the number of
    units between `widen` and `narrow`. An `initializer` sets the weights of all Linears. In training, dropout acts on
    the attention probabilities and on the outputs of both branches. Masks, rotary positions, caches and errors work as
    in MultiHeadAttention: `block(x)`, `block(x, mask)`, `block(x, None, cache)`.

    R. Xiong et al., "On layer normalization in the transformer architecture", ICML 2020.
    """

    def __init__(
        self,
        size: int,
        heads: int,
        hidden: int | None = None,
        causal: bool = False,
        dropout: float = 0.0,
        bias: bool = True,
        rotary: bool = False,
        *,
        initializer: Initializer | None = None,
    ) -> None:
        self.attention_norm = LayerNorm(size, bias=bias)
        self.attention = MultiHeadAttention(size, heads, causal, dropout, bias, rotary, initializer=initializer)
        self.attention_dropout = Dropout(dropout)
        self.size, self.heads, self.causal = self.attention.size, self.attention.heads, self.attention.causal
        self.dropout, self.bias, self.rotary = self.attention.dropout, self.attention.bias, self.attention.rotary
        self.hidden = 4 * self.size if hidden is None else check_positive_integer("TransformerBlock: hidden", hidden)
        self.mlp_norm = LayerNorm(size, bias=bias)
        self.initializer = self.attention.initializer
        self.widen = Linear(self.size, self.hidden, bias, initializer=initializer)
        self.gelu = GELU()
        self.narrow = Linear(self.hidden, self.size, bias, initializer=initializer)
        self.mlp_dropout = Dropout(dropout)

    def cache(self, rows: int, max_length: int) -> KVCache:
        """Return an empty cache of keys and values for `block(x, None, cache)`; see MultiHeadAttention."""
        return self.attention.cache(rows, max_length)

    @property
    def required_input_shape(self) -> Any:
        return self.attention.required_input_shape

    def output_shape(self, *input_shapes: Shape) -> Shape:
        return self.attention.output_shape(*input_shapes)

    def formula(self, x: Tensor, mask: Any = None, cache: KVCache | None = None) -> Any:
        h = x + self.attention(self.attention_norm(x), mask=mask, cache=cache)
        return h + self.narrow(self.gelu(self.widen(self.mlp_norm(h))))

    def forward(self, x: np.ndarray, mask: np.ndarray | None = None, cache: KVCache | None = None) -> np.ndarray:
        self.output_shape(x.shape)
        branch = self.attention.forward(self.attention_norm.forward(x), None, mask, cache)
        h = kernels.add(x, self.attention_dropout.forward(branch))
        branch = self.narrow.forward(self.gelu.forward(self.widen.forward(self.mlp_norm.forward(h))))
        return kernels.add(h, self.mlp_dropout.forward(branch))

    def backward(self, dy: np.ndarray) -> np.ndarray:
        d: Any = self.narrow.backward(self.mlp_dropout.backward(dy))
        d = self.widen.backward(self.gelu.backward(d))
        dh = kernels.add(dy, self.mlp_norm.backward(d))
        d = self.attention.backward(self.attention_dropout.backward(dh))
        return kernels.add(dh, self.attention_norm.backward(d))

    def __repr__(self) -> str:
        hidden = None if self.hidden == 4 * self.size else self.hidden
        names = ("causal", "dropout", "bias", "rotary", "initializer")
        return as_code(self, self.size, self.heads, hidden=hidden, **{name: getattr(self, name) for name in names})


class KVCache:
    """The keys and values of the positions so far, for sampling.

    `attention.cache(rows, max_length)` makes one. `keys` and `values` (rows, max_length, size) are written in place.
    `length` is the number of positions. Set it to a smaller number to forget the later ones.
    """

    def __init__(self, rows: int, max_length: int, size: int, dtype: np.dtype) -> None:
        shape = (
            check_positive_integer("cache: rows", rows),
            check_positive_integer("cache: max_length", max_length),
            size,
        )
        self.keys, self.values, self.length = np.zeros(shape, dtype), np.zeros(shape, dtype), 0

    def update(self, k: np.ndarray, v: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Add the keys and values of further positions, k and v (rows, more, size), and return all of them."""
        rows, max_length = self.keys.shape[:2]
        if len(k) != rows:
            raise ValueError(f"a cache of {rows} rows got {len(k)}")
        end = self.length + k.shape[1]
        if end > max_length:
            raise ValueError(
                f"a cache of {max_length} positions has {self.length} and got {k.shape[1]} more: it is full"
            )
        if is_training() or kernels.recorder() is not None:
            raise RuntimeError("a cache is for sampling in inference(), and not for training or in a recorded step")
        kernels.copy(k, self.keys[:, self.length : end])
        kernels.copy(v, self.values[:, self.length : end])
        self.length = end
        return self.keys[:, :end], self.values[:, :end]
