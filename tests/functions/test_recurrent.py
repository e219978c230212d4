"""RNN, GRU and LSTM: what their cases do not say: lengths, states, histories in parts, stacks, threads, models."""

import copy
import pickle

import numpy as np
import pytest

import caffelite as cl
from caffelite import _kernels as kernels
from tests.cases import both_dtypes
from tests.cases.case import as_tuple
from tests.conftest import bits
from tests.reference import assert_same_bits

LAYERS = {"RNN": (cl.RNN, 1), "GRU": (cl.GRU, 1), "LSTM": (cl.LSTM, 2)}
every_layer = pytest.mark.parametrize(("layer", "kinds"), LAYERS.values(), ids=LAYERS)


def numbers(*shape, dtype=np.float32, seed=0):
    return np.random.default_rng(seed).normal(size=shape).astype(dtype)


def make_layer(layer, *arguments, dtype=np.float32, seed=0, **options):
    """Return a layer drawn from a seed."""
    return cl.Model([layer(*arguments, **options)], seed=seed, dtype=dtype).functions[0]


def gradients(layer, x, *states, lengths=None, dys=None):
    """All outputs of a call, and the gradients of inputs and parameters for these of the outputs, or ones."""
    leaves = [cl.Tensor(a, requires_grad=True) for a in (x, *states)]
    ys = as_tuple(layer(*leaves) if lengths is None else layer(*leaves, lengths=lengths))
    for p in layer.parameters():
        p.zero_grad()
    sum((y * d).sum() for y, d in zip(ys, dys or [np.ones_like(y.data) for y in ys], strict=True)).backward()
    return [*[y.data for y in ys], *[t.grad for t in (*leaves, *layer.parameters())]]


# ---- rows ----


@every_layer
@both_dtypes
@pytest.mark.parametrize("sequences", [False, True])
def test_a_row_alone_has_the_bits_it_has_among_others(layer, kinds, sequences, dtype):
    layer, x = make_layer(layer, 5, 21, sequences, dtype=dtype), numbers(67, 6, 5, dtype=dtype)
    lengths = np.arange(67) % 6 + 1
    states = [numbers(67, 21, dtype=dtype, seed=i) for i in range(kinds)]
    n = 2 * (1 + kinds)  # outputs and inputs with rows
    whole = gradients(layer, x, *states, lengths=lengths)[:n]
    for part in (slice(0, 1), slice(66, 67), slice(3, 50)):
        alone = gradients(layer, x[part], *[s[part] for s in states], lengths=lengths[part])[:n]
        for of_part, of_whole in zip(alone, whole, strict=True):
            assert_same_bits(of_part, of_whole[part])


@every_layer
@both_dtypes
@pytest.mark.usefixtures("restored_threads")
def test_every_number_of_threads_gives_the_same_bits(layer, kinds, dtype):
    layer, x = make_layer(layer, 30, 70, True, dtype=dtype), numbers(61, 9, 30, dtype=dtype)
    states = [numbers(61, 70, dtype=dtype, seed=i) for i in range(kinds)]
    expected = None
    for threads in (1, 2, 3, 8):
        cl.set_num_threads(threads)
        found = gradients(layer, x, *states, lengths=np.arange(61) % 9 + 1)
        for array, same in zip(found, expected or found, strict=True):
            assert_same_bits(array, same)
        expected = found


@every_layer
@both_dtypes
def test_sums_longer_than_a_block_are_pytorchs(layer, kinds, dtype):
    torch = pytest.importorskip("torch")
    mine, x = make_layer(layer, 2, 300, True, dtype=dtype), numbers(3, 4, 2, dtype=dtype)
    module = getattr(torch.nn, layer.__name__)(2, 300, batch_first=True, dtype=torch.float64)
    with torch.no_grad():
        for theirs, p in zip(module.parameters(), mine.parameters(), strict=True):
            theirs.copy_(torch.tensor(p.data))
    y, *found = gradients(mine, x)
    inputs = torch.tensor(x, dtype=torch.float64, requires_grad=True)
    truth = module(inputs)[0]
    truth.sum().backward()
    tolerance = 1e-11 if dtype == np.float64 else 1e-4
    for mine, theirs in zip([y, *found], [truth, inputs.grad, *[p.grad for p in module.parameters()]], strict=True):
        np.testing.assert_allclose(mine, theirs.detach().numpy(), tolerance, tolerance)


@every_layer
def test_the_draws_are_pytorchs_interval(layer, kinds):
    layer = make_layer(layer, 7, 100)
    for p in layer.parameters():
        assert 0.09 < abs(p.data).max() <= 0.1
        assert abs(p.data.mean()) < 0.02


# ---- lengths ----


@every_layer
@pytest.mark.parametrize("sequences", [False, True])
def test_values_beyond_a_length_have_no_influence(layer, kinds, sequences):
    layer, x, lengths = make_layer(layer, 3, 4, sequences), numbers(5, 6, 3), np.array([6, 1, 3, 5, 2])
    expected = gradients(layer, x, lengths=lengths)
    beyond = np.arange(6) >= lengths[:, None]
    assert (expected[1][beyond] == 0).all()
    assert (expected[1][~beyond] != 0).all()
    if sequences:
        assert (expected[0][beyond] == 0).all()
    x[beyond] = np.nan
    for array, same in zip(gradients(layer, x, lengths=lengths), expected, strict=True):
        assert_same_bits(array, same)
    for i, length in enumerate(lengths):
        alone = layer(x[i : i + 1, :length]).data[0]
        assert_same_bits(expected[0][i, :length] if sequences else expected[0][i], alone)


@every_layer
def test_kernels_return_0_beyond_a_length(layer, kinds):
    kernel, lengths = getattr(kernels, layer.__name__.lower()), np.array([6, 1, 3])
    for _ in range(3):  # in memory that has been used
        rows = layer.gates * 40
        gates, w, bias, h = numbers(3, 6, rows), numbers(rows, 40), numbers(rows), numbers(3, 40)
        found = kernel(gates, w, bias, *[h] * kinds, lengths, *[True] * (layer is not cl.RNN))
        for array in (gates, *found):
            if array.ndim == 3:
                assert not array[np.arange(6) >= lengths[:, None]].any()
                assert array[np.arange(6) < lengths[:, None]].any()


@pytest.mark.parametrize("dtype", ["u1", "i2", ">i4", "u8", "i8"])
def test_lengths_are_integers_of_any_width(dtype):
    layer, x, lengths = make_layer(cl.GRU, 3, 4), numbers(3, 5, 3), np.array([2, 5, 1])
    expected = layer(x, lengths=lengths).data
    assert_same_bits(layer(x, lengths=lengths.astype(dtype)).data, expected)
    assert_same_bits(layer(x, lengths=[2, 5, 1]).data, expected)
    assert_same_bits(layer(x, None, lengths).data, expected)


@every_layer
@pytest.mark.parametrize(
    ("lengths", "error", "says"),
    [
        ([2, 0, 9], ValueError, r"length 0 in row 1 is not in 1 … 4"),
        ([2, 5, 0], ValueError, r"length 5 in row 1 is not in 1 … 4"),
        ([-1, 2, 2], ValueError, r"length -1 in row 0 is not in 1 … 4"),
        ([2, 2, 2**62], ValueError, r"length 4611686018427387904 in row 2 is not in 1 … 4"),
        ([2, 2.5, 2], TypeError, r"integers in 1 … 4, got float64: 2.5 in row 1"),
        ([True] * 3, TypeError, r"integers in 1 … 4, got bool: True in row 0"),
        (["2", "1", "2"], TypeError, r"integers in 1 … 4, got <U1: '2' in row 0"),
        ([2, 2], ValueError, r"lengths of shape \(2,\) for 3 rows; expected \(3,\)"),
        ([[2, 2, 2]], ValueError, r"lengths of shape \(1, 3\) for 3 rows"),
        (np.array([2, 2**63, 2], np.uint64), ValueError, r"length 9223372036854775808 in row 1 is not in 1 … 4"),
    ],
)
def test_impossible_lengths_are_named(layer, kinds, lengths, error, says):
    layer = make_layer(layer, 2, 3)
    with pytest.raises(error, match=says):
        layer(numbers(3, 4, 2), lengths=lengths)


class LengthsNet(cl.Model):
    """A number from the last state of a GRU, of rows with lengths."""

    takes_indices = (False, True)

    def __init__(self, layer=cl.GRU, seed=None):
        super().__init__(seed=seed)
        self.memory, self.output = layer(3, 8), cl.Linear(8, 1)

    def call(self, x, lengths):
        return self.output(self.memory(x, lengths=lengths))


def lengths_and_sums(n=200):
    """Series with NaN behind their ends, their lengths, and the sums of what is before."""
    x, lengths = numbers(n, 7, 3), np.random.default_rng(1).integers(1, 8, n)
    beyond = np.arange(7) >= lengths[:, None]
    y = np.where(beyond[..., None], 0, x).sum(axis=(1, 2))[:, None].astype(np.float32)
    x[beyond] = np.nan
    return x, lengths, y


@every_layer
def test_a_model_of_lengths_is_fitted_used_saved_and_summed_up(layer, kinds, tmp_path):
    x, lengths, y = lengths_and_sums()
    model = LengthsNet(layer, seed=0)
    history = model.fit(
        (x, lengths), y, loss=cl.MSELoss(), optimizer=cl.Adam(model.parameters(), lr=1e-2), epochs=15, verbose=0
    )
    assert history["loss"][-1] < 0.3 * history["loss"][0]
    expected = model.predict((x, lengths))
    assert_same_bits(model.predict((x[5:6], lengths[5:6])), expected[5:6])
    for other in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        assert_same_bits(other.predict((x, lengths)), expected)
    with pytest.warns(UserWarning, match="LengthsNet.__init__ takes"):  # a class is not written to a file
        model.save(tmp_path / "model")
    assert_same_bits(LengthsNet(layer).load(tmp_path / "model").predict((x, lengths)), expected)
    gates, text = len(model.memory.bias_ih.data) // 8, str(model.summary(((7, 3), ())))
    assert f"{7 * gates * 8 * (3 + 8):,}" in text
    assert f"{sum(p.size for p in model.memory.parameters()):,}" in text


@pytest.mark.parametrize("bad", [0, 8])
def test_a_bad_length_stops_a_replayed_step_before_anything_is_written(bad):
    x, lengths, y = lengths_and_sums(96)
    lengths[70] = bad  # in the third batch, when the step is replayed
    model = LengthsNet(seed=0)
    first = LengthsNet(seed=0)
    options = {"batch_size": 32, "shuffle": False, "verbose": 0, "loss": cl.MSELoss()}
    first.fit((x[:64], lengths[:64]), y[:64], optimizer=cl.SGD(first.parameters(), lr=0.1), **options)
    with pytest.raises(ValueError, match=rf"GRU\(3, 8\): length {bad} in row 6 is not in 1 … 7"):
        model.fit((x, lengths), y, optimizer=cl.SGD(model.parameters(), lr=0.1), **options)
    assert bits(model) == bits(first)


def test_lengths_that_a_model_does_not_take_as_integers_raise():
    x, lengths, y = lengths_and_sums(8)
    model = LengthsNet(seed=0)
    model.takes_indices = False
    with pytest.raises(TypeError, match=r"takes lengths that are integers"):
        model.fit((x, lengths), y, loss=cl.MSELoss(), optimizer=cl.SGD(model.parameters(), lr=0.1))


# ---- states ----


@every_layer
@pytest.mark.parametrize("sequences", [False, True])
def test_a_history_in_two_parts_ends_as_the_whole(layer, kinds, sequences):
    layer, x = make_layer(layer, 3, 5, sequences, dtype=np.float64), numbers(4, 9, 3, dtype=np.float64)
    zeros = [np.zeros((4, 5))] * kinds
    whole, first = as_tuple(layer(x, *zeros)), as_tuple(layer(x[:, :4], *zeros))
    second = as_tuple(layer(x[:, 4:], *first[1:]))
    for state, same in zip(second[1:], whole[1:], strict=True):
        assert_same_bits(state.data, same.data)
    y = np.concatenate([first[0].data, second[0].data], axis=1) if sequences else second[0].data
    assert_same_bits(y, whole[0].data)
    assert_same_bits(layer(x).data, whole[0].data)


@every_layer
def test_a_history_cut_by_detach_has_pytorchs_gradient(layer, kinds):
    torch = pytest.importorskip("torch")
    mine, x = make_layer(layer, 3, 5, True, dtype=np.float64), numbers(4, 10, 3, dtype=np.float64)
    module = getattr(torch.nn, layer.__name__)(3, 5, batch_first=True, dtype=torch.float64)
    with torch.no_grad():
        for theirs, p in zip(module.parameters(), mine.parameters(), strict=True):
            theirs.copy_(torch.tensor(p.data))
    states, theirs = [np.zeros((4, 5))] * kinds, None
    for part in (x[:, :5], x[:, 5:]):
        y, *states = as_tuple(mine(cl.Tensor(part), *states))
        (y * y).sum().backward()
        states = [s.detach() for s in states]
        y, theirs = module(torch.tensor(part), theirs)
        (y * y).sum().backward()
        theirs = tuple(s.detach() for s in theirs) if kinds == 2 else theirs.detach()
    for p, q in zip(mine.parameters(), module.parameters(), strict=True):
        np.testing.assert_allclose(p.grad, q.grad.numpy(), 1e-9, 1e-9)


def test_an_lstm_gives_its_states_as_a_pair():
    layer, x, zeros = make_layer(cl.LSTM, 3, 4), numbers(2, 5, 3), np.zeros((2, 4), np.float32)
    y, (h, c) = layer(x, zeros, zeros)
    assert_same_bits(y.data, h.data)
    assert y.shape == h.shape == c.shape == (2, 4)
    y, h, c = layer.forward(x, zeros, zeros)
    assert isinstance(c, np.ndarray)


def test_gradients_flow_if_only_some_outputs_are_used():
    layer, x, zeros = (
        make_layer(cl.LSTM, 3, 4, True, dtype=np.float64),
        numbers(2, 5, 3, dtype=np.float64),
        np.zeros((2, 4)),
    )
    for chosen in ((1, 0, 0), (0, 1, 0), (0, 0, 1), (1, 0, 1)):
        dys = [np.full((2, 5, 4) if i == 0 else (2, 4), float(take)) for i, take in enumerate(chosen)]
        expected = gradients(layer, x, zeros, zeros, dys=dys)[3:]
        leaves = [cl.Tensor(a, requires_grad=True) for a in (x, zeros, zeros)]
        for p in layer.parameters():
            p.zero_grad()
        used = [y for y, take in zip(as_tuple(layer(*leaves)), chosen, strict=True) if take]
        sum(y.sum() for y in used).backward()
        for p, gradient in zip([*leaves, *layer.parameters()], expected, strict=True):
            np.testing.assert_allclose(p.grad, gradient, 1e-12, 1e-12)


@every_layer
def test_other_shapes_and_dtypes_raise(layer, kinds):
    name, layer = layer.__name__, make_layer(layer, 3, 4)
    x, state = numbers(2, 5, 3), numbers(2, 4)
    states = [state] * kinds
    for bad in (numbers(5, 3), numbers(2, 5, 2), numbers(1, 2, 5, 3)):
        with pytest.raises(ValueError, match=rf"{name}\(3, 4\) got shape .*; expected \(n, length, 3\)"):
            layer(bad)
    for bad in (numbers(3, 4), numbers(2, 5), numbers(1, 2, 4), numbers(4)):
        with pytest.raises(ValueError, match=r"got a state h of shape .*; expected \(2, 4\)"):
            layer(x, bad, *states[1:])
    for inputs in ((x.astype(np.float64), *states), (x, *[s.astype(np.float64) for s in states])):
        with pytest.raises(TypeError, match=r"is float32, got [xh] in float64"):
            layer(*inputs)
    with pytest.raises(TypeError, match="unexpected keyword argument 'length'"):
        layer(x, length=[1, 2])
    if kinds == 2:
        with pytest.raises(TypeError, match=r"takes both states, or none: layer\(x, h, c\)"):
            layer(x, state)
    for bad in (0, -1):
        with pytest.raises(ValueError, match=f"{name}: hidden must be at least 1"):
            LAYERS[name][0](3, bad)
    with pytest.raises(TypeError, match=f"{name}: in_features must be an integer"):
        LAYERS[name][0](3.0, 4)


@every_layer
def test_no_steps_leave_the_first_state(layer, kinds):
    layer, states = make_layer(layer, 3, 4, True), [numbers(2, 4, seed=i) for i in range(kinds)]
    y, *last = as_tuple(layer(np.zeros((2, 0, 3), np.float32), *states))
    assert y.shape == (2, 0, 4)
    for state, first in zip(last, states, strict=True):
        assert_same_bits(state.data, first)


# ---- stacks and directions ----

STACK = {"layers": 2, "bidirectional": True}


@every_layer
def test_parameters_have_pytorchs_shapes_order_and_names(layer, kinds):
    torch = pytest.importorskip("torch")
    mine = layer(3, 4, layers=3, bidirectional=True).named_parameters()
    theirs = getattr(torch.nn, layer.__name__)(3, 4, 3, bidirectional=True).named_parameters()
    assert [(k.replace("_l0", ""), tuple(p.shape)) for k, p in theirs] == [(k, p.shape) for k, p in mine.items()]
    assert list(mine)[4:8] == ["weight_ih_reverse", "weight_hh_reverse", "bias_ih_reverse", "bias_hh_reverse"]
    assert list(layer(3, 4).named_parameters()) == ["weight_ih", "weight_hh", "bias_ih", "bias_hh"]


@every_layer
@both_dtypes
@pytest.mark.usefixtures("restored_threads")
def test_a_stack_has_the_same_bits_for_every_number_of_threads_and_rows(layer, kinds, dtype):
    layer, x = make_layer(layer, 30, 70, True, dtype=dtype, **STACK), numbers(61, 9, 30, dtype=dtype)
    states, lengths = [numbers(4, 61, 70, dtype=dtype, seed=i) for i in range(kinds)], np.arange(61) % 9 + 1
    expected = None
    for threads in (1, 2, 3, 8):
        cl.set_num_threads(threads)
        found = gradients(layer, x, *states, lengths=lengths)
        for array, same in zip(found, expected or found, strict=True):
            assert_same_bits(array, same)
        expected = found
    rows = [0, *[1] * kinds, 0, *[1] * kinds]  # the axis of the rows, of outputs and of inputs
    for part in (slice(0, 1), slice(60, 61), slice(3, 50)):
        alone = gradients(layer, x[part], *[s[:, part] for s in states], lengths=lengths[part])
        for axis, of_part, of_whole in zip(rows, alone, expected, strict=False):
            assert_same_bits(of_part, of_whole[part] if axis == 0 else of_whole[:, part])


@every_layer
@pytest.mark.parametrize("sequences", [False, True])
def test_a_stack_begins_backward_at_each_rows_last_element(layer, kinds, sequences):
    """What is beyond a length has no influence, whatever it is; a row is as one without padding."""
    layer, x, lengths = make_layer(layer, 3, 4, sequences, **STACK), numbers(5, 6, 3), np.array([6, 1, 3, 5, 2])
    expected = gradients(layer, x, lengths=lengths)
    beyond = np.arange(6) >= lengths[:, None]
    assert (expected[1][beyond] == 0).all()
    assert (expected[1][~beyond] != 0).all()
    x[beyond] = np.nan
    for array, same in zip(gradients(layer, x, lengths=lengths), expected, strict=True):
        assert_same_bits(array, same)
    for i, length in enumerate(lengths):
        alone = layer(x[i : i + 1, :length]).data[0]
        assert_same_bits(expected[0][i, :length] if sequences else expected[0][i], alone)
    assert not sequences or (expected[0][beyond] == 0).all()


@every_layer
def test_the_second_direction_is_a_layer_that_reads_from_the_end(layer, kinds):
    both, one, x = make_layer(layer, 3, 4, True, bidirectional=True), make_layer(layer, 3, 4, True), numbers(5, 6, 3)
    for p, q in zip(one.parameters(), both.parameters()[4:], strict=True):
        p.data = q.data
    assert_same_bits(both(x).data[..., 4:], one(x[:, ::-1]).data[:, ::-1])
    both.sequences = one.sequences = False
    assert_same_bits(both(x).data[:, 4:], one(x[:, ::-1]).data)


@every_layer
def test_a_stack_goes_on_from_the_states_that_it_gave(layer, kinds):
    layer, x = make_layer(layer, 3, 5, True, layers=3, dtype=np.float64), numbers(4, 9, 3, dtype=np.float64)
    zeros = [np.zeros((3, 4, 5))] * kinds
    whole, first = as_tuple(layer(x, *zeros)), as_tuple(layer(x[:, :4], *zeros))
    second = as_tuple(layer(x[:, 4:], *first[1:]))
    for state, same in zip(second[1:], whole[1:], strict=True):
        assert state.shape == (3, 4, 5)
        assert_same_bits(state.data, same.data)
    assert_same_bits(np.concatenate([first[0].data, second[0].data], axis=1), whole[0].data)


@every_layer
@pytest.mark.usefixtures("restored_threads")
def test_a_stack_drops_between_its_layers_as_dropout_does(layer, kinds):
    stack, x = make_layer(layer, 30, 70, True, layers=3, dropout=0.4), numbers(61, 9, 30)
    singles = [layer(30 if i == 0 else 70, 70, True) for i in range(3)]
    for p, q in zip([p for one in singles for p in one.parameters()], stack.parameters(), strict=True):
        p.data = q.data.copy()
    drops = [cl.Dropout(0.4), cl.Dropout(0.4)]
    for i, drop in enumerate(drops):
        drop.random[:] = stack.random[0], i
    seed = stack.random[0]
    expected = gradients(cl.Model([singles[0], drops[0], singles[1], drops[1], singles[2]]), x)
    for threads in (1, 2, 3, 8):
        cl.set_num_threads(threads)
        stack.random[:] = seed, 0
        for array, same in zip(gradients(stack, x), expected, strict=True):
            assert_same_bits(array, same)
        assert stack.random.tolist() == [seed, 2]
    assert not np.array_equal(stack(x).data, expected[0])  # another mask each time


@every_layer
def test_nothing_is_dropped_in_inference_without_a_p_or_in_a_single_layer(layer, kinds):
    stack, x = make_layer(layer, 3, 4, layers=2, dropout=0.5), numbers(5, 6, 3)
    plain = make_layer(layer, 3, 4, layers=2)
    with cl.inference():
        assert_same_bits(stack(x).data, plain(x).data)
    plain(x)
    assert stack.random[1] == plain.random[1] == 0
    assert list(stack.buffers()) == ["random"]
    with pytest.warns(
        cl.TrainingWarning, match=rf"^{layer.__name__}: dropout=0.5 does nothing, .*cl.Dropout\(0.5\)"
    ) as found:
        single = make_layer(layer, 3, 4, dropout=0.5)
    assert len(found) == 1
    assert_same_bits(single(x).data, make_layer(layer, 3, 4)(x).data)
    assert single.buffers() == {}


@every_layer
def test_a_stack_is_fitted_as_by_hand_saved_and_loaded(layer, kinds, tmp_path):
    def net():
        layers = [layer(2, 6, sequences=True, **STACK, dropout=0.3), layer(12, 5, **STACK), cl.Linear(10, 2)]
        return cl.Model(layers, seed=0)

    x, model, by_hand = numbers(24, 8, 2), net(), net()
    y = (x[:, 0, 0] > 0).astype(np.int64)
    options = {"batch_size": 8, "shuffle": False, "epochs": 2, "verbose": 0}
    model.fit(x, y, loss=cl.SoftmaxLoss(), optimizer=cl.SGD(model.parameters(), lr=0.1), **options)
    optimizer, loss = cl.SGD(by_hand.parameters(), lr=0.1), cl.SoftmaxLoss()
    for rows in [slice(i, i + 8) for i in (0, 8, 16)] * 2:
        optimizer.zero_grad()
        loss.forward(by_hand.forward(x[rows]), y[rows])
        by_hand.backward(loss.backward())
        optimizer.step()
    assert bits(model) == bits(by_hand)
    model.save(tmp_path / "model")
    again = cl.load(tmp_path / "model")
    assert repr(again) == repr(model)
    assert "layers=2, dropout=0.3, bidirectional=True" in repr(again)
    for other in (again, copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        assert_same_bits(other.predict(x), model.predict(x))
        assert bits(other) == bits(model)


@every_layer
def test_stacks_and_states_that_do_not_fit_raise(layer, kinds):
    for options, error, says in [
        ({"layers": 0}, ValueError, "layers must be at least 1"),
        ({"layers": 2.0}, TypeError, "layers must be an integer"),
        ({"dropout": 1.0}, ValueError, "dropout must be 0 or more and below 1"),
        ({"dropout": -0.1}, ValueError, "dropout must be 0 or more and below 1"),
    ]:
        with pytest.raises(error, match=f"{layer.__name__}: {says}"):
            layer(3, 4, **options)
    deep = make_layer(layer, 3, 4, **STACK)
    for shape in [(2, 4), (2, 2, 4), (4, 3, 4), (4, 2, 8)]:
        with pytest.raises(ValueError, match=r"got a state h of shape .*; expected \(4, 2, 4\)"):
            deep(numbers(2, 5, 3), *[numbers(*shape)] * kinds)


# ---- models ----


@every_layer
def test_a_sequence_is_fitted_saved_and_summed_up(layer, kinds, tmp_path):
    """What the first number of a series was is to be remembered."""
    x = numbers(300, 8, 2)
    y = (x[:, 0, 0] > 0).astype(np.int64)
    model = cl.Model([layer(2, 12, sequences=True), cl.Dropout(0.1), layer(12, 12), cl.Linear(12, 2)], seed=0)
    optimizer = cl.Adam(model.parameters(), lr=1e-2)
    history = model.fit(x, y, loss=cl.SoftmaxLoss(), optimizer=optimizer, epochs=25, metrics=["accuracy"], verbose=0)
    assert history["accuracy"][-1] > 0.9
    model.save(tmp_path / "model")
    again = cl.load(tmp_path / "model")
    assert repr(again) == repr(model)
    assert_same_bits(again.predict(x), model.predict(x))
    gates, text = len(model.functions[0].bias_ih.data) // 12, str(model.summary((8, 2)))
    assert f"{8 * gates * 12 * (2 + 12):,}" in text
    assert list(model.state_dict())[:4] == ["0.weight_ih", "0.weight_hh", "0.bias_ih", "0.bias_hh"]


@every_layer
def test_the_backward_kernels_take_what_the_forward_kernels_give_and_nothing_else(layer, kinds):
    gates, w, h = numbers(3, 4, 2), numbers(2, 2), numbers(3, 2)
    with pytest.raises(ValueError, match=r"rnn got gates of shape \(3, 4, 2\) and w of shape \(3, 2\)"):
        kernels.rnn(gates, numbers(3, 2), numbers(2), h)
    with pytest.raises(ValueError, match=r"rnn got an operand of shape \(2, 3\); expected \(3, 2\)"):
        kernels.rnn(gates, w, numbers(2), h.T)
    with pytest.raises(TypeError, match=r"float32 and float64"):
        kernels.rnn_grad(gates, w, None, h.astype(np.float64))


def test_cut_names_the_first_row_with_an_impossible_length():
    with pytest.raises(IndexError, match=r"the length 4 in row 1; expected 1 … 3"):
        kernels.cut(np.ones((3, 3, 2)), np.array([3, 4, 0]))


@pytest.mark.parametrize("layer", [cl.RNN, cl.GRU])
def test_a_state_may_be_a_list(layer):
    layer, x, h = layer(3, 2), np.ones((2, 4, 3), np.float32), [[0.5, -0.5], [1.0, 2.0]]
    for one, other in zip(layer(x, h), layer(x, np.array(h, np.float32)), strict=True):
        np.testing.assert_array_equal(one.data, other.data)
    with pytest.raises(ValueError, match=r"got a state h of shape \(1, 2\); expected \(2, 2\)"):
        layer(x, h[:1])
