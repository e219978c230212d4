"""einsum against NumPy's and PyTorch's."""

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given

import caffelite as cl
from tests.reference import assert_same_bits

RNG = np.random.default_rng(0)

EXAMPLES = [
    ("ij,jk->ik", (2, 3), (3, 4)),
    ("ij,jk", (2, 3), (3, 4)),
    ("ij,kj->ki", (2, 3), (4, 3)),
    ("bij,bjk->bik", (5, 2, 3), (5, 3, 4)),
    ("bij,jk->bik", (5, 2, 3), (3, 4)),
    ("bqhd,bkhd->bhqk", (2, 3, 4, 5), (2, 6, 4, 5)),
    ("bhqk,bkhd->bqhd", (2, 4, 3, 6), (2, 6, 4, 5)),
    ("i,j->ij", (3,), (4,)),
    ("i,i->", (3,), (3,)),
    ("ij,ij->i", (2, 3), (2, 3)),
    ("ij,ij->ji", (2, 3), (2, 3)),
    ("i,->i", (3,), ()),
    (",", (), ()),
    ("ijk,kj->", (2, 3, 4), (4, 3)),
    ("ijk,lm->il", (2, 3, 4), (5, 6)),
    ("ij,jk->ik", (2, 1), (3, 4)),
    ("ij,ij->ij", (1, 3), (2, 1)),
    ("ii,ij->j", (3, 3), (3, 2)),
    ("iij,kjk->ik", (2, 2, 3), (4, 3, 4)),
    ("...ij,...jk->...ik", (5, 1, 2, 3), (4, 3, 4)),
    ("…i , …i -> …", (5, 2), (2, 2, 5, 2)[2:]),
    ("...i,i...->...", (5, 2), (2, 5)),
    ("i...,j->j...", (3, 2), (4,)),
    ("ba,cb->", (2, 3), (4, 2)),
    ("ij->ji", (2, 3)),
    ("ba", (2, 3)),
    ("ii", (3, 3)),
    ("iij->ji", (3, 3, 2)),
    ("ijij->ij", (2, 3, 2, 3)),
    ("i...->...", (2, 3, 4)),
    ("ij,jk->ik", (2, 0), (0, 4)),
    ("ij,jk->ik", (0, 3), (3, 4)),
]


def in_ascii(subscripts):
    return subscripts.replace("…", "...")


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize(("subscripts", "shapes"), [(subscripts, shapes) for subscripts, *shapes in EXAMPLES])
def test_einsum_is_numpys_and_has_gradients(subscripts, shapes, dtype):
    arrays = [RNG.normal(size=shape) for shape in shapes]
    y = cl.einsum(subscripts, *[x.astype(dtype) for x in arrays])
    assert y.dtype == dtype
    tolerance = 1e-5 if dtype == np.float32 else 1e-12
    np.testing.assert_allclose(y.data, np.einsum(in_ascii(subscripts), *arrays), tolerance, tolerance)
    assert cl.check_gradients(lambda *tensors: cl.einsum(subscripts, *tensors), *arrays) < 1e-7


@st.composite
def random_contraction(draw):
    """Subscripts of two operands and their shapes: letters of lengths that fit, or 1 in one, and `...` in some."""
    lengths = {letter: draw(st.integers(1, 4)) for letter in "abcde"}
    dots = draw(st.lists(st.integers(1, 3), max_size=2))
    terms, shapes = [], []
    for _ in range(2):
        letters = draw(st.lists(st.sampled_from("abcde"), max_size=4))
        shape = [lengths[letter] for letter in letters]
        for i, letter in enumerate(letters):
            if letters.count(letter) == 1 and draw(st.integers(0, 5)) == 0:
                shape[i] = 1
        own = dots[draw(st.integers(0, len(dots))) :]
        if draw(st.booleans()) or (terms and not dots):
            place = draw(st.integers(0, len(letters)))
            letters.insert(place, "...")
            shape[place:place] = [n if draw(st.integers(0, 5)) else 1 for n in own]
        terms.append("".join(letters))
        shapes.append(tuple(shape))
    text = ",".join(terms)
    if draw(st.booleans()):
        return text, shapes
    known = sorted(set("".join(terms)) - {"."})
    result = draw(st.lists(st.sampled_from(known), unique=True)) if known else []
    if "..." in text:
        result.insert(draw(st.integers(0, len(result))), "...")
    return f"{text}->{''.join(result)}", shapes


@given(drawn=random_contraction(), seed=st.integers(0, 2**32))
def test_einsum_is_numpys_for_random_shapes(drawn, seed):
    subscripts, shapes = drawn
    rng = np.random.default_rng(seed)
    arrays = [rng.normal(size=shape) for shape in shapes]
    y = cl.einsum(subscripts, *arrays)
    np.testing.assert_allclose(y.data, np.einsum(subscripts, *arrays), 1e-9, 1e-9)
    assert cl.check_gradients(lambda *tensors: cl.einsum(subscripts, *tensors), *arrays) < 1e-7


@pytest.mark.parametrize(("subscripts", "shapes"), [(subscripts, shapes) for subscripts, *shapes in EXAMPLES])
def test_einsum_and_its_gradients_are_pytorchs(subscripts, shapes):
    torch = pytest.importorskip("torch")
    arrays = [RNG.normal(size=shape) for shape in shapes]
    mine = [cl.Tensor(x, requires_grad=True) for x in arrays]
    theirs = [torch.tensor(x, requires_grad=True) for x in arrays]
    y, z = cl.einsum(subscripts, *mine), torch.einsum(in_ascii(subscripts), *theirs)
    dy = RNG.normal(size=y.shape)
    y.backward(dy)
    z.backward(torch.tensor(dy))
    for a, b in zip([y.data, *[t.grad for t in mine]], [z.detach(), *[t.grad for t in theirs]], strict=True):
        np.testing.assert_allclose(a, b.numpy(), 1e-9, 1e-9)


@pytest.mark.parametrize(
    ("subscripts", "kernel"), [("bqd,bkd->bqk", "matmul_stack"), ("bij,jk->bik", "matmul"), ("ij,jk->ki", "matmul")]
)
def test_a_contraction_is_one_product_and_nothing_is_copied(subscripts, kernel):
    lengths = {"b": 2, "i": 3, "j": 4, "k": 5, "q": 6, "d": 7}
    shapes = [[lengths[letter] for letter in term] for term in subscripts.partition("->")[0].split(",")]
    program = cl.capture(lambda a, b: cl.einsum(subscripts, a, b), *[np.ones(shape) for shape in shapes])
    assert kernel in str(program)
    assert len(program) == 1


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_a_replay_has_the_bits_of_the_step(dtype):
    a, b = (RNG.normal(size=(2, *shape)).astype(dtype) for shape in ((4, 3, 5), (4, 5, 6)))
    w = cl.Tensor(RNG.normal(size=(6, 3)).astype(dtype), requires_grad=True)

    def step(a, b):
        w.zero_grad()
        y = cl.einsum("ki,bik->b", w, cl.einsum("bij,bjk->bik", a, b)).sum()
        y.backward()
        return y

    program = cl.capture(step, a[0], b[0])
    y = program(a[1], b[1])
    replayed = w.grad.copy()
    assert_same_bits(y, step(a[1], b[1]).data)
    assert_same_bits(replayed, w.grad)


@pytest.mark.parametrize(
    ("subscripts", "shapes", "says"),
    [
        *[("ij,jk->ik", [(2, 3)], "1 operands"), ("i,j,k->", [(1,)] * 3, "3 operands"), ("", [], "0 operands")],
        *[("ij->i", [(2, 3), (3,)], "2 operands"), ("ijk->i", [(2, 3)], "'ijk'.*2 axes"), ("i->i", [(2, 3)], "2 axes")],
        *[("i1->i", [(2, 3)], "letters"), ("ij->ik", [(2, 3)], "behind the arrow"), ("ij->ii", [(2, 2)], "each once")],
        *[("...i->i", [(2, 3)], "... behind the arrow, too"), ("......->...", [(2, 3)], "at most one")],
        *[("ij,jk", [(2, 3), (4, 5)], "lengths 3 and 4 for 'j'"), ("ii", [(2, 3)], "lengths 2 and 3 for 'i'")],
        *[("...i,...i", [(2, 3), (4, 3)], "lengths 2 and 4 for an axis of"), ("i->i->i", [(2,)], "one ->")],
    ],
)
def test_einsum_says_what_does_not_fit(subscripts, shapes, says):
    with pytest.raises(ValueError, match=f"einsum.*{says}"):
        cl.einsum(subscripts, *[np.ones(shape) for shape in shapes])


def test_einsum_takes_a_string_and_arrays_of_one_dtype():
    with pytest.raises(TypeError, match="string first, got ndarray"):
        cl.einsum(np.ones(2), "i")
    with pytest.raises(TypeError, match="einsum got float32 and float64"):
        cl.einsum("i,i", cl.Tensor(np.ones(2, np.float32)), cl.Tensor(np.ones(2)))
    assert cl.einsum("i,i", [1, 2], cl.Tensor(np.ones(2))).dtype == np.float64
    assert cl.einsum("i,->i", cl.Tensor(np.ones(2)), 2).dtype == np.float64
