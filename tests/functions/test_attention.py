"""Attention: its kernels, PyTorch's modules, masks, contexts, rotary positions, the cache, dropout."""

import copy
import math
import pickle

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given, settings

import caffelite as cl
from caffelite import _kernels as kernels
from caffelite.program.recording import Recording
from tests.cases import both_dtypes
from tests.cases.attention import attention, attention_mask, rotate
from tests.conftest import bits, train
from tests.reference import LAYOUTS, assert_close, assert_same_bits, plain_copy, to_float64


def numbers(*shape, dtype=np.float32, seed=0):
    return np.random.default_rng(seed).normal(size=shape).astype(dtype)


def forward_and_backward(dy, q, k, v, heads, causal=False, mask=None, random=None, p=0.0):
    """y, dq, dk and dv by the kernels."""
    y, norms, drawn = kernels.attention(q, k, v, heads, causal, mask, random, p)
    return y, *kernels.attention_grad(dy, q, k, v, y, norms, heads, causal, mask, drawn, p)


# ---- the kernels ----

lengths = st.integers(0, 40) | st.sampled_from([63, 64, 65, 127, 130])


def compare_with_judge(data, dtype, sizes, heads, d, causal, p, seed):
    """Compare a call with the judge, with any mask. Return its arguments dy, q, k, v and mask, and its results."""
    n, queries, keys = sizes
    dy, q = (numbers(n, queries, heads * d, dtype=dtype, seed=seed + i) for i in range(2))
    k, v = (numbers(n, keys, heads * d, dtype=dtype, seed=seed + i) for i in (2, 3))
    shape = data.draw(st.sampled_from([None, (n, keys), (queries, keys), (n, queries, keys), (1, queries, keys)]))
    mask = None if shape is None else np.random.default_rng(seed).random(shape) < 0.7
    kept = attention_mask((n, heads, queries, keys), (7, 3), p) if p else 1.0
    y, backward = attention(*map(to_float64, (q, k, v)), heads, causal, mask, kept)
    mine = forward_and_backward(dy, q, k, v, heads, causal, mask, np.array([7, 3]), p)
    for array, truth in zip(mine, [y, *backward(to_float64(dy))], strict=True):
        assert_close(array, truth, dtype, scale=30.0)
    return (dy, q, k, v, mask), mine


@both_dtypes
@given(data=st.data(), seed=st.integers(0, 2**32))
def test_values_and_gradients_are_the_judges_for_any_number_of_queries_and_keys(dtype, data, seed):
    n, heads, d = data.draw(st.integers(0, 3)), data.draw(st.integers(1, 3)), data.draw(st.integers(1, 40))
    keys, causal, p = data.draw(lengths), data.draw(st.booleans()), data.draw(st.sampled_from([0.0, 0.3]))
    queries = data.draw(st.integers(0, keys)) if causal else data.draw(lengths)
    compare_with_judge(data, dtype, (n, queries, keys), heads, d, causal, p, seed)


@both_dtypes
@given(data=st.data(), seed=st.integers(0, 2**32))
def test_short_sequences_are_the_judges_and_have_the_bits_that_they_have_behind_hidden_keys(dtype, data, seed):
    """Few keys and narrow heads are computed in another way than many keys."""
    n, heads, d = data.draw(st.integers(1, 9)), data.draw(st.integers(1, 5)), data.draw(st.sampled_from([4, 8, 16]))
    keys, causal, p = data.draw(st.integers(1, 32)), data.draw(st.booleans()), data.draw(st.sampled_from([0.0, 0.3]))
    queries = data.draw(st.integers(1, keys if causal else 32))
    given, mine = compare_with_judge(data, dtype, (n, queries, keys), heads, d, causal, p, seed)
    if p == 0:
        (dy, q, k, v, mask), hidden = given, 32
        k, v = (np.concatenate([numbers(n, hidden, heads * d, dtype=dtype), array], 1) for array in (k, v))
        shown = np.ones((1, 1, 1), bool) if mask is None else mask[:, None] if mask.shape == (n, keys) else mask
        shown = np.broadcast_to(shown, (n, queries, keys))
        mask = np.concatenate([np.zeros((n, queries, hidden), bool), shown], 2)
        y, dq, dk, dv = forward_and_backward(dy, q, k, v, heads, causal, mask)
        for array, same in zip((y, dq, dk[:, hidden:], dv[:, hidden:]), mine, strict=True):
            assert_same_bits(array, same)


@both_dtypes
@pytest.mark.parametrize(
    ("queries", "keys", "heads", "d"), [*[(3, 3, 1, d) for d in (1, 255, 257, 600)], (2, 70, 1, 300), (40, 70, 16, 64)]
)
def test_heads_of_any_size_are_the_judges(queries, keys, heads, d, dtype):
    """One wider than a block of a product, before several blocks of keys; positions that crowd each other."""
    dy, q = (numbers(1, queries, heads * d, dtype=dtype, seed=i) / 3 for i in range(2))
    k, v = (numbers(1, keys, heads * d, dtype=dtype, seed=i) / 3 for i in (2, 3))
    y, backward = attention(*map(to_float64, (q, k, v)), heads)
    for array, truth in zip(forward_and_backward(dy, q, k, v, heads), [y, *backward(to_float64(dy))], strict=True):
        assert_close(array, truth, dtype, scale=d**0.5)


@both_dtypes
def test_scores_of_any_size_give_probabilities(dtype):
    """A difference of 10⁴ between scores, scores of 10³⁰, all the same: no overflow, and rows sum to 1."""
    for factor in (0.0, 1.0, 1e2, 1e15):
        q, k = (numbers(2, 70, 8, dtype=dtype, seed=i) * dtype(factor) for i in range(2))
        y = kernels.attention(q, k, np.ones_like(q), 2)[0]
        np.testing.assert_allclose(y, 1, rtol=1e-6)


def test_a_query_that_sees_no_key_is_0_and_has_no_gradient():
    q, k, v, dy = (numbers(2, 5, 6, seed=i) for i in range(4))
    mask = np.array([[False] * 5, [False, False, True, False, True]])
    for causal in (False, True):
        y, dq, dk, dv = forward_and_backward(dy, q, k, v, 2, causal, mask)
        for array in (y, dq, dk, dv):
            assert not array[0].any()
        assert np.isfinite([y, dq, dk, dv]).all()
        assert not dk[1, [0, 1, 3]].any()
        assert not dv[1, [0, 1, 3]].any()
        assert (y[1, :2] == 0).all() == causal
        assert y[1, 2:].all()


@both_dtypes
def test_some_rows_have_the_masks_that_they_have_among_others(dtype):
    q, k, v, dy = (numbers(5, 9, 6, dtype=dtype, seed=i) for i in range(4))
    y, norms, drawn = kernels.attention(q, k, v, 2, random=np.array([7, 3]), p=0.4)
    gradients = kernels.attention_grad(dy, q, k, v, y, norms, 2, drawn=drawn, p=0.4)
    rows, first = slice(2, 5), 2 * 2 * 9 * 9
    part = kernels.attention(q[rows], k[rows], v[rows], 2, random=np.array([7, 3]), p=0.4, first=first)
    assert_same_bits(part[0], y[rows])
    given = dy[rows], q[rows], k[rows], v[rows], y[rows], part[1], 2
    parts = kernels.attention_grad(*given, drawn=drawn, p=0.4, first=first)
    for mine, whole in zip(parts, gradients, strict=True):
        assert_same_bits(mine, whole[rows])


@both_dtypes
def test_a_query_has_the_same_bits_alone_in_any_row_and_at_the_end_of_any_sequence(dtype):
    q, k, v = (numbers(4, 150, 15, dtype=dtype, seed=i) for i in range(3))
    whole = kernels.attention(q, k, v, 3, causal=True)[0]
    assert_same_bits(kernels.attention(q[2:3], k[2:3], v[2:3], 3, causal=True)[0][0], whole[2])
    for end in (1, 2, 17, 63, 64, 65, 150):
        for first in {0, end // 2, end - 1}:
            y = kernels.attention(q[:, first:end], k[:, :end], v[:, :end], 3, causal=True)[0]
            assert_same_bits(y, whole[:, first:end])


@both_dtypes
def test_every_number_of_threads_gives_the_same_bits(dtype, restored_threads):
    for causal in (False, True):
        for rows, length, keys, size, heads in [(3, 300, 300, 42, 2), (3, 41, 300, 42, 2), (67, 20, 23, 20, 5)]:
            mask = np.random.default_rng(0).random((rows, keys)) < 0.9
            dy, q = (numbers(rows, length, size, dtype=dtype, seed=i) for i in range(2))
            k, v = (numbers(rows, keys, size, dtype=dtype, seed=i) for i in (2, 3))
            arguments = (dy, q, k, v, heads, causal, mask)
            cl.set_num_threads(1)
            expected = forward_and_backward(*arguments, np.array([7, 3]), 0.2)
            for n in (2, 3, 8):
                cl.set_num_threads(n)
                for array, same in zip(forward_and_backward(*arguments, np.array([7, 3]), 0.2), expected, strict=True):
                    assert_same_bits(array, same)


@both_dtypes
@pytest.mark.parametrize("layout", LAYOUTS, ids=lambda layout: layout.__name__)
def test_odd_layouts_give_the_plain_copys_bits(layout, dtype):
    mask = layout(np.random.default_rng(0).random((2, 5)) < 0.7)
    for size in (6, 8):
        odd = [layout(numbers(2, 5, size, dtype=dtype, seed=i)) for i in range(4)]
        plain = forward_and_backward(*map(plain_copy, odd), 2, True, plain_copy(mask))
        for array, same in zip(forward_and_backward(*odd, 2, True, mask), plain, strict=True):
            assert_same_bits(array, same)


def test_queries_keys_and_values_may_be_parts_of_one_array():
    together, dy = numbers(2, 5, 18), numbers(2, 5, 6, seed=1)
    parts = [together[:, :, i : i + 6] for i in (0, 6, 12)]
    plain = forward_and_backward(dy, *map(plain_copy, parts), 2)
    for array, same in zip(forward_and_backward(dy, *parts, 2), plain, strict=True):
        assert_same_bits(array, same)


def test_memory_is_linear_in_the_length():
    """No array that the kernels make or take has a number for each pair of positions; what they need besides is on
    the stack."""
    x = numbers(1, 2000, 2)
    with Recording() as recording:
        forward_and_backward(x, x, x, x, 1, True, None, np.array([7, 3]), 0.1)
    assert max(array.size for call in recording.entries for array in call.arrays if array is not None) <= 4000


def test_inputs_that_do_not_fit_raise():
    q, k, mask = numbers(2, 5, 6), numbers(2, 7, 6), np.ones((2, 7), bool)
    good = (q, k, k, 2, True, mask)
    y, norms, _ = kernels.attention(*good)
    for bad, error, says in [
        ((q[0], k, k, 2), ValueError, r"\(5, 6\), \(2, 7, 6\) and"),
        ((q, k, k[:1], 2), ValueError, r"\(2, 7, 6\) and \(1, 7, 6\)"),
        ((q, k[:1], k[:1], 2), ValueError, r"\(2, 5, 6\), \(1, 7, 6\)"),
        ((q, k[:, :, :4], k[:, :, :4], 2), ValueError, r"\(2, 7, 4\)"),
        ((q, k, k, 4), ValueError, r"\(2, 5, 6\).* 4 heads"),
        ((q, k, k, 0), ValueError, "0 heads"),
        ((k, q, q, 2, True), ValueError, r"\(2, 7, 6\) and fewer keys.* \(2, 5, 6\)"),
        (
            (q, k, k, 2, True, mask[:, :5]),
            ValueError,
            r"mask of shape \(2, 5\); expected \(2, 7\), \(5, 7\) or \(2, 5, 7\)",
        ),
        ((q, k, k, 2, True, np.ones((3, 5, 7), bool)), ValueError, r"mask of shape \(3, 5, 7\); expected \(2, 7\)"),
        ((q, k, k, 2, True, mask.astype(int)), TypeError, "mask of bool, got int64"),
        ((q, k.astype(float), k, 2), TypeError, "float32 and float64"),
        ((q, k, k, 2, True, None, np.array([1, 2]), 1.0), ValueError, "p must be"),
        ((q, k, k, 2, True, None, None, 0.5), TypeError, r"\(seed, step\)"),
    ]:
        with pytest.raises(error, match=says):
            kernels.attention(*bad)
    for bad, says in [((q[:1], y, norms), "dy of shape"), ((q, y[:1], norms), "shape"), ((q, y, norms[:1]), "norms")]:
        with pytest.raises(ValueError, match=says):
            kernels.attention_grad(bad[0], q, k, k, *bad[1:], 2, True, mask)


# ---- PyTorch's modules ----


def copied_attention(torch, theirs, mine):
    """Have a MultiheadAttention of PyTorch compute as a MultiHeadAttention."""
    layers = (mine.query, mine.key, mine.value)
    with torch.no_grad():
        theirs.in_proj_weight.copy_(torch.tensor(np.concatenate([layer.weight.data.T for layer in layers])))
        theirs.in_proj_bias.copy_(torch.tensor(np.concatenate([layer.bias.data for layer in layers])))
        theirs.out_proj.weight.copy_(torch.tensor(mine.output.weight.data.T))
        theirs.out_proj.bias.copy_(torch.tensor(mine.output.bias.data))


def torch_gradients(torch, theirs):
    """Return what copied_attention copies, as gradients of our parameters."""
    weights, biases = theirs.in_proj_weight.grad.numpy(), theirs.in_proj_bias.grad.numpy()
    pairs = [x for w, b in zip(np.split(weights, 3), np.split(biases, 3), strict=True) for x in (w.T, b)]
    return [*pairs, theirs.out_proj.weight.grad.numpy().T, theirs.out_proj.bias.grad.numpy()]


drawn_shapes = st.tuples(*[st.integers(1, most) for most in (3, 40, 3, 8)])


@settings(max_examples=20)
@given(drawn=drawn_shapes, causal=st.booleans(), masked=st.booleans(), seed=st.integers(0, 2**32))
def test_values_and_gradients_equal_pytorchs_modules(drawn, causal, masked, seed):
    torch = pytest.importorskip("torch")
    n, length, heads, d = drawn
    size, hidden, rng = heads * d, 5 * d, np.random.default_rng(seed)
    x, dy = (numbers(n, length, size, dtype=float, seed=seed + i) for i in range(2))
    mask = (rng.random((n, length)) < 0.6) | (np.arange(length) == 0) if masked else None
    options = {
        "src_mask": torch.full((length, length), -torch.inf, dtype=float).triu(1) if causal else None,
        "src_key_padding_mask": None if mask is None else torch.zeros(mask.shape).masked_fill_(
            torch.tensor(~mask), -torch.inf
        ).double(),
    }  # fmt: skip
    block = cl.TransformerBlock(size, heads, hidden, causal)
    cl.Model([block], seed=0, dtype=float)
    theirs = torch.nn.TransformerEncoderLayer(
        size, heads, hidden, 0.0, "gelu", batch_first=True, norm_first=True, dtype=float
    )
    copied_attention(torch, theirs.self_attn, block.attention)
    pairs = [(theirs.norm1, block.attention_norm), (theirs.norm2, block.mlp_norm)]
    linears = [(theirs.linear1, block.widen), (theirs.linear2, block.narrow)]
    with torch.no_grad():
        for norm, layer in pairs:
            for p in layer.parameters():
                p.data = rng.uniform(1, 2, p.shape)
            norm.weight.copy_(torch.tensor(layer.scale.data))
            norm.bias.copy_(torch.tensor(layer.shift.data))
        for linear, layer in linears:
            linear.weight.copy_(torch.tensor(layer.weight.data.T))
            linear.bias.copy_(torch.tensor(layer.bias.data))

    leaf, mine = torch.tensor(x, requires_grad=True), cl.Tensor(x, requires_grad=True)
    y, their_y = block(mine, *([] if mask is None else [mask])), theirs(leaf, **options)
    y.backward(dy)
    their_y.backward(torch.tensor(dy))
    np.testing.assert_allclose(y.data, their_y.detach(), 1e-9, 1e-9)
    np.testing.assert_allclose(mine.grad, leaf.grad, 1e-9, 1e-9)
    expected = [torch_gradients(torch, theirs.self_attn)]
    for (norm, _), (linear, _) in zip(pairs, linears, strict=True):
        expected += [[norm.weight.grad, norm.bias.grad], [linear.weight.grad.T, linear.bias.grad]]
    ours = [block.attention, block.attention_norm, block.widen, block.mlp_norm, block.narrow]
    for layer, gradients in zip(ours, expected, strict=True):
        for p, gradient in zip(layer.parameters(), gradients, strict=True):
            np.testing.assert_allclose(p.grad, gradient, 1e-9, 1e-9)

    leaf.grad = None
    module = torch.nn.MultiheadAttention(size, heads, batch_first=True, dtype=float)
    copied_attention(torch, module, block.attention)
    their_y = module(*[leaf] * 3, options["src_key_padding_mask"], False, options["src_mask"])[0]
    their_y.backward(torch.tensor(dy))
    mine.zero_grad()
    for p in block.attention.parameters():
        p.zero_grad()
    y = block.attention(mine, *([] if mask is None else [mask]))
    y.backward(dy)
    np.testing.assert_allclose(y.data, their_y.detach(), 1e-9, 1e-9)
    np.testing.assert_allclose(mine.grad, leaf.grad, 1e-9, 1e-9)
    for p, gradient in zip(block.attention.parameters(), torch_gradients(torch, module), strict=True):
        np.testing.assert_allclose(p.grad, gradient, 1e-9, 1e-9)


# ---- the layers ----


def test_children_and_parameters_have_these_names():
    assert [c for c, _ in cl.MultiHeadAttention(4, 2)._named_children()] == ["query", "key", "value", "output"]
    block = cl.Model([cl.TransformerBlock(4, 2, dropout=0.1)])
    named = block.state_dict()
    assert named["0.attention.query.weight"].shape == (4, 4)
    assert named["0.widen.weight"].shape == (4, 16)
    assert named["0.attention.random"].shape == (2,)
    assert len(cl.TransformerBlock(4, 2, bias=False).parameters()) == 8


@pytest.mark.parametrize(
    ("make", "error", "says"),
    [
        (lambda: cl.MultiHeadAttention(6, 4), ValueError, "size must be a multiple of heads, got 6 and 4"),
        (lambda: cl.MultiHeadAttention(6, 0), ValueError, "heads must be at least 1"),
        (lambda: cl.MultiHeadAttention(6, 2, key_dim=0), ValueError, "key_dim must be at least 1"),
        (lambda: cl.MultiHeadAttention(6, 2, key_dim=2.0), TypeError, "key_dim must be an integer"),
        (lambda: cl.MultiHeadAttention(6, 2, rotary=True, key_dim=5), ValueError, "rotary turns .* heads of 5 numbers"),
        (lambda: cl.MultiHeadAttention(6.0, 2), TypeError, "size must be an integer"),
        (lambda: cl.MultiHeadAttention(6, 2, dropout=1.0), ValueError, "dropout must be 0 or more and below 1"),
        (lambda: cl.MultiHeadAttention(6, 2, rotary=True), ValueError, "rotary turns pairs .* heads of 3 numbers"),
        (lambda: cl.TransformerBlock(6, 4), ValueError, "got 6 and 4"),
        (lambda: cl.TransformerBlock(6, 2, 0), ValueError, "hidden must be at least 1"),
    ],
)
def test_a_layer_refuses_bad_arguments(make, error, says):
    with pytest.raises(error, match=says):
        make()


@pytest.mark.parametrize("layer", [cl.MultiHeadAttention(6, 2), cl.TransformerBlock(6, 2)], ids=["layer", "block"])
def test_shapes_that_do_not_fit_raise(layer):
    x = numbers(2, 3, 6)
    for bad in (x[0], x[:, :, :5]):
        with pytest.raises(ValueError, match=r"MultiHeadAttention\(6, 2\) got shape .*; expected \(n, length, 6\)"):
            layer.forward(bad)
        with pytest.raises(ValueError, match=r"\(6, 2\) got shape"):
            layer.output_shape((None, *bad.shape[1:]))
    for shape in ((2, 4), (1, 3), (3,), (3, 3, 3), (2, 3, 4)):
        with pytest.raises(
            ValueError, match=r"mask of shape .* \(2, 3, 6\); expected \(2, 3\), \(3, 3\) or \(2, 3, 3\)"
        ):
            layer.forward(x, np.ones(shape, bool))
    for mask in (np.ones((2, 3)), [[1, 1, 0]] * 2):
        with pytest.raises(TypeError, match=r"MultiHeadAttention\(6, 2\) takes a mask of bool, .* got (float|int)"):
            layer.forward(x, mask)
    with pytest.raises(TypeError, match=r"takes a mask of bool, .* got float32"):
        layer(x, mask=x)
    with pytest.raises(TypeError, match=r"a cache made by its cache\(\), got ndarray"):
        layer(x, cache=x)
    with pytest.raises(ValueError, match="got shape"):
        cl.Model([cl.Linear(5, 7), layer])


def test_a_context_that_does_not_fit_raises():
    layer, x = cl.MultiHeadAttention(6, 2), numbers(2, 3, 6)
    for shape in ((2, 4, 5), (3, 4, 6), (6,), (2, 1, 4, 6)):
        with pytest.raises(ValueError, match=r"got a context of shape .* \(2, 3, 6\); expected \(2, n?.*6\)"):
            layer(x, numbers(*shape))
    context = numbers(2, 4, 6)
    for bad, says in [
        ((x, context, np.ones((2, 4))), "takes a mask of bool"),
        ((x, np.ones((2, 3), bool), np.ones((2, 3), bool)), "got two masks"),
        ((x, context.astype(float)), "is float32, got context in float64"),
        ((x, np.ones((2, 4))), "takes a mask of bool, .* got float64"),
    ]:
        with pytest.raises(TypeError, match=says):
            layer(*bad)
    for shape in ((2, 3), (4, 3), (2, 4, 3), (2, 3, 3)):
        with pytest.raises(ValueError, match=r"mask of shape .*expected \(2, 4\), \(3, 4\) or \(2, 3, 4\)"):
            layer(x, context, np.ones(shape, bool))
    causal = cl.MultiHeadAttention(6, 2, causal=True)
    with pytest.raises(ValueError, match="fewer keys"):
        causal(context, x)
    with cl.inference(), pytest.raises(TypeError, match="a context or a cache, got both"):
        causal(x, context, None, causal.cache(2, 9))


def test_a_model_counts_multiply_adds_of_pairs_that_are_seen():
    def count_multiply_adds(causal):
        table = str(cl.Model([cl.MultiHeadAttention(8, 2, causal)]).summary((10, 8)))
        return int(table.splitlines()[-1].split()[-3].replace(",", ""))

    assert count_multiply_adds(causal=False) == 4 * 10 * 8 * 8 + 2 * 100 * 8
    assert count_multiply_adds(causal=True) == 4 * 10 * 8 * 8 + 2 * 55 * 8


def sequence(dropout=0.1, seed=0, dtype=np.float32):
    """Return a model of a sequence of vectors, which classifies each position."""
    layers = [cl.MultiHeadAttention(8, 2, causal=True, dropout=dropout), cl.TransformerBlock(8, 2, dropout=dropout)]
    return cl.Model([cl.Linear(5, 8), *layers, cl.Linear(8, 3)], seed=seed, dtype=dtype)


X, Y = numbers(12, 9, 5), np.random.default_rng(0).integers(0, 3, (12, 9))


def test_dropout_changes_no_other_draw():
    assert bits(sequence(dropout=0.0)) == bits(sequence(dropout=0.3))


def test_a_model_learns_and_is_the_same_after_pickle_copy_and_file(tmp_path):
    model = sequence()
    before = model.evaluate(X, Y, loss=cl.SoftmaxLoss())["loss"]
    train(model, X, Y, epochs=30, batch_size=5, lr=0.05)
    assert model.evaluate(X, Y, loss=cl.SoftmaxLoss())["loss"] < before - 0.2
    model.save(tmp_path / "model")
    for other in (pickle.loads(pickle.dumps(model)), copy.deepcopy(model), cl.load(tmp_path / "model")):
        assert repr(other) == repr(model)
        assert_same_bits(other.predict(X), model.predict(X))
        again = [train(m, X, Y, epochs=2, batch_size=5, seed=1)["loss"] for m in (other, copy.deepcopy(model))]
        assert again[0] == again[1]


def test_fit_has_the_bits_of_the_loop_by_hand_with_all_that_is_dropped():
    model, by_hand = sequence(), sequence()
    train(model, X, Y, epochs=2, batch_size=5, shuffle=False)
    optimizer, loss = cl.SGD(by_hand.parameters(), lr=0.1, momentum=0.9), cl.SoftmaxLoss()
    for _ in range(2):
        for rows in (slice(0, 5), slice(5, 10), slice(10, 12)):
            optimizer.zero_grad()
            loss.forward(by_hand.forward(X[rows]), Y[rows])
            by_hand.backward(loss.backward())
            optimizer.step()
    assert bits(model) == bits(by_hand)


class MaskedNet(cl.Model):
    """A model of sequences of several lengths."""

    def __init__(self):
        super().__init__(seed=0)
        self.block, self.last = cl.TransformerBlock(6, 2, dropout=0.1), cl.Linear(6, 3)

    def call(self, x, mask):
        return self.last(self.block(x, mask))


def test_a_mask_is_an_input_of_a_model_and_padding_changes_nothing():
    model, x = MaskedNet(), numbers(10, 7, 6)
    assert "(n, 7, 3)" in str(model.summary(((7, 6), (7,))))
    mask = np.arange(7) < np.random.default_rng(0).integers(1, 8, (10, 1))
    y = model.predict((x, mask))
    with cl.inference():
        assert_same_bits(model.block(x, mask.tolist()).data, model.block(x, mask).data)
    padded = np.where(mask[:, :, np.newaxis], x, 1e3).astype(np.float32)
    assert_same_bits(model.predict((padded, mask))[mask], y[mask])
    assert not np.array_equal(model.predict((padded, np.ones_like(mask)))[mask], y[mask])
    history = train(model, (x, mask), np.zeros((10, 7), int), epochs=5, batch_size=4)
    assert history["loss"][-1] < history["loss"][0]


# ---- masks of keys and of pairs, contexts, rotary positions ----


def make_attention(size=8, heads=2, dtype=np.float32, **options):
    """Attention drawn from a seed."""
    return cl.Model([cl.MultiHeadAttention(size, heads, **options)], seed=0, dtype=dtype).functions[0]


def test_a_mask_of_keys_or_of_pairs_is_the_mask_of_each_rows_pairs():
    layer, x, context = make_attention(), numbers(3, 5, 8), numbers(3, 7, 8, seed=1)
    rng = np.random.default_rng(0)
    for keys, before in ((7, (context,)), (5, ())):
        of_keys, of_pairs = rng.random((3, keys)) < 0.6, rng.random((5, keys)) < 0.6
        for mask, rows in [
            (of_keys, of_keys[:, np.newaxis].repeat(5, 1)),
            (of_pairs, of_pairs[np.newaxis].repeat(3, 0)),
            (of_pairs[np.newaxis], of_pairs[np.newaxis].repeat(3, 0)),
            (np.broadcast_to(of_pairs, (3, 5, keys)), of_pairs[np.newaxis].repeat(3, 0)),
        ]:
            expected = layer(x, *before, rows).data
            assert_same_bits(layer(x, *before, mask).data, expected)
            assert_same_bits(layer(x, *before, mask=mask).data, expected)
    causal = np.tri(5, dtype=bool)
    np.testing.assert_allclose(layer(x, causal).data, make_attention(causal=True)(x).data, 1e-5, 1e-6)


def test_a_square_mask_is_of_keys_and_with_an_axis_of_1_of_pairs():
    layer, x, mask = make_attention(), numbers(4, 4, 8), np.tri(4, dtype=bool)
    assert_same_bits(layer(x, mask).data, layer(x, mask[:, np.newaxis].repeat(4, 1)).data)
    assert_same_bits(layer(x, mask[np.newaxis]).data, layer(x, mask[np.newaxis].repeat(4, 0)).data)
    assert not np.array_equal(layer(x, mask).data, layer(x, mask[np.newaxis]).data)


def test_a_bool_array_after_x_is_a_mask_also_if_it_has_the_shape_of_a_context():
    layer, x, mask = make_attention(), numbers(3, 8, 8), np.random.default_rng(0).random((3, 8, 8)) < 0.5
    expected = layer(x, mask=mask).data
    assert_same_bits(layer(x, mask).data, expected)
    assert not np.array_equal(layer(x, mask.astype(np.float32)).data, expected)
    model = cl.Model([layer])
    assert_same_bits(model.predict((x, mask)), expected)
    assert train(model, (x, mask), np.zeros((3, 8, 8)), loss=cl.MSELoss(), epochs=2)["loss"][1] > 0
    assert model.output_shape((None, 8, 8), (None, 8, 8)) == (None, 8, 8)


@pytest.mark.parametrize("rotary", [False, True])
def test_a_query_that_attends_to_nothing_gives_0_and_no_gradient(rotary):
    layer, mask = make_attention(bias=False, rotary=rotary), np.ones((2, 3, 5), bool)
    mask[0], mask[1, 1] = False, False
    x, context = (cl.Tensor(numbers(2, n, 8, seed=n), requires_grad=True) for n in (3, 5))
    y = layer(x, context, mask)
    (y * numbers(2, 3, 8)).sum().backward()
    nothing = ~mask.any(2)
    for array in (y.data, x.grad):
        assert not array[nothing].any()
        assert array[~nothing].all()
    assert not context.grad[0].any()
    assert context.grad[1].all()


def test_a_masked_key_has_no_influence_and_no_gradient_whatever_it_is():
    layer, mask = make_attention(), np.array([[True, False, True, True], [False, True, True, False]])
    x, context = cl.Tensor(numbers(2, 3, 8), requires_grad=True), numbers(2, 4, 8, seed=1)
    expected = layer(x, context, mask).data
    given = cl.Tensor(np.where(mask[..., np.newaxis], context, 1e3).astype(np.float32), requires_grad=True)
    y = layer(x, given, mask)
    y.sum().backward()
    assert_same_bits(y.data, expected)
    assert not given.grad[~mask].any()
    assert given.grad[mask].any(1).all()


@settings(max_examples=20)
@given(drawn=drawn_shapes, keys=st.integers(1, 70), masked=st.booleans(), seed=st.integers(0, 2**32))
def test_a_context_gives_the_values_and_gradients_of_pytorchs_module(drawn, keys, masked, seed):
    torch = pytest.importorskip("torch")
    n, length, heads, d = drawn
    size, rng = heads * d, np.random.default_rng(seed)
    layer = make_attention(size, heads, dtype=float)
    module = torch.nn.MultiheadAttention(size, heads, batch_first=True, dtype=float)
    copied_attention(torch, module, layer)
    arrays = [numbers(n, count, size, dtype=float, seed=seed + i) for i, count in enumerate((length, keys))]
    dy = numbers(n, length, size, dtype=float, seed=seed + 2)
    mask = (rng.random((1, length, keys)) < 0.6) | (np.arange(keys) == 0) if masked else None
    x, context = (cl.Tensor(array, requires_grad=True) for array in arrays)
    leaf, of_context = (torch.tensor(array, requires_grad=True) for array in arrays)
    their_y = module(leaf, of_context, of_context, attn_mask=None if mask is None else torch.tensor(~mask[0]))[0]
    their_y.backward(torch.tensor(dy))
    y = layer(x, context, mask)
    y.backward(dy)
    found = [y.data, x.grad, context.grad, *[p.grad for p in layer.parameters()]]
    expected = [their_y.detach(), leaf.grad, of_context.grad, *torch_gradients(torch, module)]
    for mine, theirs in zip(found, expected, strict=True):
        np.testing.assert_allclose(mine, theirs, 1e-9, 1e-9)


@both_dtypes
def test_rotary_positions_turn_pairs_of_numbers(dtype):
    x = numbers(3, 300, 12, dtype=dtype)
    for heads in (1, 2, 3):
        for first in (0, 7):
            y = kernels.rotary(x[:, first:], heads, first)
            assert_close(y, rotate(to_float64(x), heads)[:, first:], dtype, scale=2.0)
            assert_close(kernels.rotary(y, heads, first, True), to_float64(x[:, first:]), dtype, scale=4.0)
    for bad, says in [((x[0], 1), r"\(300, 12\)"), ((x, 4), "4 heads"), ((x, 0), "0 heads"), ((x, 2, -1), "got -1")]:
        with pytest.raises(ValueError, match=says):
            kernels.rotary(*bad)


@both_dtypes
@given(data=st.data(), layout=st.sampled_from(LAYOUTS), backward=st.booleans())
def test_rotary_turns_a_head_and_a_position_alone_to_the_same_bits(dtype, data, layout, backward):
    ends = {"n": (0, 3), "length": (0, 70), "first": (0, 300), "heads": (1, 12), "pairs": (1, 40)}
    n, length, first, heads, d = (data.draw(st.integers(*pair), name) for name, pair in ends.items())
    odd = layout(numbers(n, length, 2 * heads * d, dtype=dtype))
    x, y = plain_copy(odd), kernels.rotary(odd, heads, first, backward)
    assert y.shape == x.shape
    for head in range(heads):
        columns = slice(2 * head * d, 2 * (head + 1) * d)
        assert_same_bits(kernels.rotary(x[:, :, columns], 1, first, backward), y[:, :, columns])
    for t in range(length):
        assert_same_bits(kernels.rotary(x[:, t : t + 1], heads, first + t, backward), y[:, t : t + 1])


@both_dtypes
@pytest.mark.usefixtures("restored_threads")
def test_rotary_has_the_same_bits_on_any_threads(dtype):
    x = numbers(40, 700, 24, dtype=dtype)  # so many that threads share them
    for heads in (1, 3, 12):
        cl.set_num_threads(1)
        y = kernels.rotary(x, heads)
        for threads in range(2, 9):
            cl.set_num_threads(threads)
            assert_same_bits(kernels.rotary(x, heads), y)


@both_dtypes
def test_rotary_angles_are_computed_in_float64(dtype):
    d, position = 64, 100_000
    frequencies = [math.exp(-math.log(10000) * 2 * i / d) for i in range(d // 2)]
    y = kernels.rotary(np.tile(np.array([1, 0], dtype), (1, 1, d // 2)), 1, position)[0, 0]
    expected = np.array([f(position * w) for w in frequencies for f in (math.cos, math.sin)]).astype(dtype)
    np.testing.assert_allclose(y, expected, rtol=0, atol=np.finfo(dtype).eps if dtype == np.float32 else 1e-10)


@both_dtypes
def test_replays_keep_their_rotary_positions_while_other_lengths_are_computed(dtype):
    def turn(x):
        return [kernels.rotary(x, 3, first, back) for first in (0, 5) for back in (0, 1)]

    inputs = [numbers(2, 37, 24, dtype=dtype, seed=seed) for seed in range(3)]
    eager = [turn(x) for x in inputs]
    program = cl.capture(turn, inputs[0])
    program(inputs[0])  # from now on it replays
    for i in range(40):
        kernels.rotary(numbers(1, 50 * i + 1, 2 * i + 2, dtype=dtype), 1)
    for heads in (1, 2, 4, 6, 12):  # their cosines and sines have as many bytes
        kernels.rotary(inputs[0], heads)
    for x, arrays in zip(inputs, eager, strict=True):
        for mine, theirs in zip(program(x), arrays, strict=True):
            assert_same_bits(mine, theirs)
    with pytest.raises(OverflowError):
        kernels.rotary(inputs[0], 3, 2**63 - 1)


def test_rotary_scores_depend_on_distances_alone():
    q, k = (numbers(1, 1, 8, dtype=float, seed=i).repeat(20, 1) for i in range(2))
    scores = kernels.rotary(q, 1)[0] @ kernels.rotary(k, 1)[0].T
    for distance in range(-19, 20):
        np.testing.assert_allclose(np.diff(scores.diagonal(distance)), 0, atol=1e-12)
    assert np.ptp(scores) > 1


@both_dtypes
@pytest.mark.usefixtures("restored_threads")
def test_contexts_masks_and_rotary_positions_have_the_same_bits_on_any_threads(dtype):
    layer = make_attention(42, 3, dtype, dropout=0.2, rotary=True)
    arrays = [numbers(9, n, 42, dtype=dtype, seed=n) for n in (70, 130)]
    mask = np.random.default_rng(0).random((9, 70, 130)) < 0.7
    expected = None
    for threads in (1, 2, 3, 8):
        cl.set_num_threads(threads)
        layer.random[:] = 5, 0
        x, context = (cl.Tensor(array, requires_grad=True) for array in arrays)
        for p in layer.parameters():
            p.zero_grad()
        y = layer(x, context, mask)
        (y * y).sum().backward()
        found = [y.data, x.grad, context.grad, *[p.grad for p in layer.parameters()]]
        for array, same in zip(found, expected or found, strict=True):
            assert_same_bits(array, same)
        expected = found
    with cl.inference():
        whole = layer(*arrays, mask).data
        for rows in (slice(0, 1), slice(2, 7)):
            assert_same_bits(layer(*[array[rows] for array in arrays], mask[rows]).data, whole[rows])


class Translator(cl.Model):
    """Attention to another sequence, of which a mask says where its padding is."""

    def __init__(self):
        super().__init__(seed=0)
        self.block = cl.TransformerBlock(8, 2, dropout=0.1, causal=True, rotary=True)
        self.cross, self.last = cl.MultiHeadAttention(8, 2, dropout=0.1, rotary=True), cl.Linear(8, 3)

    def call(self, x, context, mask):
        h = self.block(x)
        return self.last(h + self.cross(h, context, mask))


def test_a_model_of_two_sequences_is_fitted_as_by_hand_saved_and_loaded(tmp_path):
    x, context = numbers(10, 5, 8), numbers(10, 7, 8, seed=1)
    mask = np.arange(7) < np.random.default_rng(0).integers(1, 8, (10, 1))
    y = np.random.default_rng(1).integers(0, 3, (10, 5))
    model, by_hand = Translator(), Translator()
    train(model, (x, context, mask), y, epochs=2, batch_size=5, shuffle=False)
    optimizer, loss = cl.SGD(by_hand.parameters(), lr=0.1, momentum=0.9), cl.SoftmaxLoss()
    for rows in [slice(0, 5), slice(5, 10)] * 2:
        optimizer.zero_grad()
        loss.forward(by_hand.forward(x[rows], context[rows], mask[rows]), y[rows])
        by_hand.backward(loss.backward())
        optimizer.step()
    assert bits(model) == bits(by_hand)
    assert "(n, 5, 3)" in str(model.summary(((5, 8), (7, 8), (7,))))
    expected = model.predict((x, context, mask))
    assert_same_bits(model.predict((x[3:4], context[3:4], mask[3:4])), expected[3:4])
    model.save(tmp_path / "model")
    assert_same_bits(Translator().load(tmp_path / "model").predict((x, context, mask)), expected)
    sequence = cl.Model([cl.MultiHeadAttention(8, 2, rotary=True), cl.TransformerBlock(8, 2, rotary=True)], seed=0)
    sequence.save(tmp_path / "sequence")
    loaded = cl.load(tmp_path / "sequence")
    assert repr(loaded) == repr(sequence)
    assert_same_bits(loaded.predict(x), sequence.predict(x))


# ---- the cache ----


@both_dtypes
def test_positions_one_after_the_other_have_the_bits_of_the_whole_sequence(dtype):
    x = numbers(3, 80, 12, dtype=dtype)
    mask = np.arange(80) >= np.array([[0], [5], [70]])
    for layer in (
        cl.MultiHeadAttention(12, 3, causal=True),
        cl.MultiHeadAttention(12, 5, causal=True, key_dim=7),
        cl.TransformerBlock(12, 2, causal=True, dropout=0.2),
        cl.TransformerBlock(12, 2, causal=True, rotary=True),
    ):
        cl.Model([layer], seed=0, dtype=dtype)
        for seen in (None, mask):
            cache = layer.cache(3, 80)
            assert cache.keys.dtype == cache.values.dtype == dtype
            with cl.inference():
                whole = layer(x, seen).data
                for begin, end in [(0, 7), (7, 8), (8, 9), (9, 75), (75, 80)]:
                    y = layer(x[:, begin:end], None if seen is None else seen[:, :end], cache)
                    assert_same_bits(y.data, whole[:, begin:end])
            assert cache.length == 80


def test_a_cache_goes_back_if_its_length_is_set():
    layer, x = cl.MultiHeadAttention(4, 2, causal=True), numbers(1, 6, 4)
    cache = layer.cache(1, 6)
    with cl.inference():
        layer(x[:, ::-1], None, cache)
        cache.length = 0
        assert_same_bits(layer(x, None, cache).data, layer(x).data)


def test_a_call_that_does_not_fit_a_cache_raises_and_leaves_it_unchanged():
    layer, x = cl.TransformerBlock(4, 2, causal=True), numbers(2, 3, 4)
    cache = layer.cache(2, 5)
    with cl.inference():
        layer(x, None, cache)
    keys = cache.keys.copy()
    with cl.inference():
        for bad, mask, error, says in [
            (x, None, ValueError, "cache of 5 positions has 3 and got 3 more"),
            (x[:1], None, ValueError, "cache of 2 rows got 1"),
            (x[:, :1], np.ones((2, 1), bool), ValueError, r"mask of shape \(2, 1\) .*expected \(2, 4\)"),
        ]:
            with pytest.raises(error, match=says):
                layer(bad, mask, cache)
        with pytest.raises(RuntimeError, match="recorded step"):
            cl.capture(lambda x: layer(x, None, cache), x[:, :1])
    with pytest.raises(RuntimeError, match="not for training"):
        layer(x[:, :1], None, cache)
    assert cache.length == 3
    assert_same_bits(cache.keys, keys)
    with pytest.raises(ValueError, match="not causal"):
        cl.MultiHeadAttention(4, 2).cache(1, 5)
    for bad in ((0, 5), (1, 0)):
        with pytest.raises(ValueError, match="at least 1"):
            layer.cache(*bad)


# ---- dropout ----


def probabilities(layer_or_p, random, length=64):
    """Return what is kept of the probabilities of 4 rows in which all positions are alike: 0 or 1 / (length
    (1 − p)).
    """
    zeros = np.zeros((4, length, length), np.float32)
    return kernels.attention(
        zeros, zeros, zeros + np.eye(length, dtype=np.float32), 1, False, None, random, layer_or_p
    )[0]


@pytest.mark.parametrize("p", [0.1, 0.5])
def test_as_many_probabilities_are_dropped_as_p_says_others_each_time(p):
    random = np.array([123, 0])
    first, second = probabilities(p, random), probabilities(p, random)
    assert random.tolist() == [123, 2]
    for kept in (first, second):
        assert set(np.unique(kept)) == {0, np.float32(np.float32(1 / (1 - p)) / np.float32(64))}
        assert abs((kept == 0).mean() - p) < 4.5 * math.sqrt(p * (1 - p) / kept.size)
    assert abs(((first == 0) & (second == 0)).mean() - p * p) < 4.5 * p / math.sqrt(first.size)
    assert_same_bits(probabilities(p, np.array([123, 1])), second)


def test_a_layer_drops_in_training_only_and_others_each_time():
    layer, x = cl.MultiHeadAttention(8, 2, dropout=0.5), numbers(2, 9, 8)
    with cl.inference():
        expected = layer(x).data
        assert_same_bits(layer(x).data, expected)
    assert layer.buffers()["random"][1] == 0
    one, other = layer(x).data, layer(x).data
    assert layer.buffers()["random"][1] == 2
    assert not np.array_equal(one, expected)
    assert not np.array_equal(one, other)
