"""Convolutions in models, beside PyTorch."""

import copy
import pickle

import numpy as np
import pytest

import caffelite as cl
from caffelite import _kernels as kernels
from caffelite.program.recording import Recording
from tests.cases import DTYPES, both_dtypes
from tests.conftest import bits
from tests.functions.convolutions import GOOD, uniform
from tests.reference import LAYOUTS, assert_same_bits, plain_copy


def small_net(dtype=np.float32, seed=0):
    """Convolutions of few channels and of many, what stands between them, and a mean over pixels."""
    layers = [cl.Conv2d(2, 5, 3, padding=1), cl.ReLU(), cl.MaxPool2d(2), cl.Conv2d(5, 36, 3, bias=False)]
    layers += [cl.BatchNorm(36), cl.ReLU(), cl.GlobalAvgPool(), cl.Linear(36, 4)]
    return cl.Model(layers, seed=seed, dtype=dtype)


class Residual(cl.Model):
    """Two blocks of convolutions around which their input goes too, the second by way of a convolution of one pixel."""

    def __init__(self, dtype=np.float32, seed=0):
        super().__init__(seed=seed, dtype=dtype)
        self.first = cl.Conv2d(2, 8, 3, padding="same", bias=False)
        self.norm = cl.BatchNorm(8)
        self.one, self.two = cl.Conv2d(8, 8, 3, padding="same"), cl.Conv2d(8, 8, 3, padding=1)
        self.three, self.around = cl.Conv2d(8, 40, 3, 2, 1), cl.Conv2d(8, 40, 1, 2, bias=False)
        self.pool, self.last = cl.GlobalAvgPool(), cl.Linear(40, 4)

    def call(self, x):
        x = cl.relu(self.norm(self.first(x)))
        x = cl.relu(x + self.two(cl.relu(self.one(x))))
        x = cl.relu(self.three(x) + self.around(x))
        return self.last(self.pool(x))

    def output_shape(self, shape):
        return (shape[0], 4)


NETS = [small_net, Residual]
every_net = pytest.mark.parametrize("net", NETS, ids=lambda net: net.__name__)
LABELS = np.random.default_rng(1).integers(0, 4, 48)


def images(dtype=np.float32, n=48):
    """Spots in one of four corners, in noise."""
    x = np.random.default_rng(0).uniform(0, 0.5, (n, 2, 9, 8))
    for i, label in enumerate(LABELS[:n]):
        x[i, i % 2, 4 * (label // 2) : 4 * (label // 2) + 3, 4 * (label % 2) : 4 * (label % 2) + 3] += 0.5
    return x.astype(dtype)


def pytorchs_losses(torch, net, model, x, y, steps):
    """Those of so many steps of Adam from the model's present parameters."""
    functional = torch.nn.functional
    w = {name: torch.tensor(value.copy()) for name, value in model.state_dict().items()}
    learned = [w[name].requires_grad_() for name, _ in zip(w, model.parameters(), strict=False)]
    assert sum(p.numel() for p in learned) == sum(p.data.size for p in model.parameters())
    p = iter(learned)
    adam, losses = torch.optim.Adam(learned, lr=0.01), []

    def normalize(x, scale, shift):
        return functional.batch_norm(x, None, None, scale, shift, training=True)

    for _ in range(steps):
        p = iter(learned)
        if net is small_net:
            h = functional.max_pool2d(torch.relu(functional.conv2d(x, next(p), next(p), padding=1)), 2)
            h = torch.relu(normalize(functional.conv2d(h, next(p)), next(p), next(p)))
        else:
            h = torch.relu(normalize(functional.conv2d(x, next(p), padding=1), next(p), next(p)))
            inner = torch.relu(functional.conv2d(h, next(p), next(p), padding=1))
            h = torch.relu(h + functional.conv2d(inner, next(p), next(p), padding=1))
            outer = functional.conv2d(h, next(p), next(p), 2, 1)
            h = torch.relu(outer + functional.conv2d(h, next(p), stride=2))
        loss = functional.cross_entropy(h.mean((2, 3)) @ next(p) + next(p), y)
        adam.zero_grad()
        loss.backward()
        adam.step()
        losses.append(loss.item())
    return losses


@every_net
def test_losses_of_ten_steps_are_pytorchs(net):
    torch = pytest.importorskip("torch")
    model, x = net(np.float64), images(np.float64)
    theirs = pytorchs_losses(torch, net, model, torch.tensor(x), torch.tensor(LABELS), 10)
    history = model.fit(
        *(x, LABELS),
        loss=cl.SoftmaxLoss(),
        optimizer=cl.Adam(model.parameters(), lr=0.01),
        epochs=10,
        batch_size=48,
        shuffle=False,
        verbose=0,
    )
    np.testing.assert_allclose(history["loss"], theirs, 1e-9)


@every_net
@both_dtypes
@pytest.mark.usefixtures("restored_threads")
def test_a_recorded_training_has_the_bits_of_the_loop_by_hand(net, dtype):
    x, trained = images(dtype), []
    for threads in (1, 2, 3):
        cl.set_num_threads(threads)
        model, loss = net(dtype), cl.SoftmaxLoss()
        optimizer = cl.Adam(model.parameters(), lr=0.01)
        if threads == 1:
            for begin in (0, 20, 40) * 3:
                optimizer.zero_grad()
                rows = slice(begin, min(begin + 20, 48))
                loss(model(x[rows]), LABELS[rows]).backward()
                optimizer.step()
        else:
            options = {"epochs": 3, "batch_size": 20, "shuffle": False, "verbose": 0}
            model.fit(x, LABELS, loss=loss, optimizer=optimizer, **options)
        trained.append((bits(model), model.predict(x).tobytes()))
    assert trained[1:] == trained[:1] * 2


@pytest.mark.parametrize("channels", [2, 40])
def test_a_recorded_gradient_of_weights_adds_again(channels):
    x, dy, before = uniform(5, channels, 6, 6), uniform(5, 3, 4, 4), uniform(3, channels, 3, 3)
    out = before.copy()
    with Recording() as recording:
        kernels.convolution_weight_grad(x, dy, out, accumulate=True, **GOOD)
    x *= 2
    kernels.Replay(recording.entries).run()
    expected = before.copy()
    for scaled in (x / 2, x):
        kernels.convolution_weight_grad(scaled, dy, expected, accumulate=True, **GOOD)
    assert_same_bits(out, expected)


@every_net
@both_dtypes
def test_a_net_learns(net, dtype):
    model = net(dtype)
    options = {"epochs": 25, "batch_size": 16, "seed": 0, "verbose": 0}
    model.fit(images(dtype), LABELS, loss=cl.SoftmaxLoss(), optimizer=cl.Adam(model.parameters(), lr=0.01), **options)
    assert (model.predict(images(dtype)).argmax(axis=1) == LABELS).mean() > 0.95


@every_net
@both_dtypes
def test_predictions_of_an_image_do_not_depend_on_the_others(net, dtype):
    model, x = net(dtype), images(dtype)
    together = model.predict(x)
    for i in (0, 7, 47):
        assert_same_bits(model.predict(x[i : i + 1])[0], together[i])
    for size in (1, 5, 16, 33):
        assert_same_bits(model.predict(x, batch_size=size), together)
    for layout in LAYOUTS:
        if layout.__name__ not in ("zero_strided",):
            assert_same_bits(model.predict(layout(x)), together)


@every_net
def test_the_gradients_of_a_net_are_right(net):
    model, x = net(np.float64), images(np.float64, 6)
    cl.check_gradients(model, x)


@every_net
@pytest.mark.parametrize("duplicate", [copy.deepcopy, lambda model: pickle.loads(pickle.dumps(model))])
def test_a_net_pickles_and_deepcopies(net, duplicate):
    model, x = net(), images()
    options = {"loss": cl.SoftmaxLoss(), "epochs": 2, "verbose": 0, "seed": 0}

    def fit_bits(model):
        model.fit(x, LABELS, optimizer=cl.Adam(model.parameters(), lr=0.01), **options)
        return bits(model)

    fit_bits(model)
    same = duplicate(model)
    assert_same_bits(same.predict(x), model.predict(x))
    assert repr(same) == repr(model)
    before = bits(model)
    after = fit_bits(same)
    assert bits(model) == before
    assert fit_bits(model) == after


def test_parameters_have_the_names_of_their_layers_and_states_are_exchanged_by_them():
    model = small_net()
    state = model.state_dict()
    assert [name for name in state if name.startswith(("0", "3", "7"))] == [
        *("0.weight", "0.bias", "3.weight", "7.weight", "7.bias")
    ]
    assert next(iter(Residual().state_dict())) == "first.weight"
    other = small_net(seed=1)
    other.load_state_dict(state)
    assert_same_bits(other.predict(images()), model.predict(images()))
    state["3.weight"] = state["3.weight"].transpose(1, 0, 2, 3)
    with pytest.raises(ValueError, match=r"3\.weight"):
        other.load_state_dict(state)


def test_a_summary_has_shapes_and_numbers_of_parameters():
    lines = small_net().summary((2, 9, 8)).splitlines()
    for text, shape, count in [
        ("Conv2d(2, 5, 3, padding=1)", "(n, 5, 9, 8)", "95"),
        ("MaxPool2d(2)", "(n, 5, 4, 4)", "0"),
        ("Conv2d(5, 36, 3, bias=False)", "(n, 36, 2, 2)", "1,620"),
        ("Linear", "(n, 4)", "148"),
    ]:
        (line,) = [line for line in lines if text in line]
        assert shape in line
        assert count in line.split()
    assert "(n, 2, 9, 8)" in Residual().summary((2, 9, 8)) or "Residual" in repr(Residual())


@every_net
def test_a_net_is_drawn_with_the_shapes_of_its_images(net):
    model, x = net(), images(n=6)
    drawn = str(cl.graph(model(x)))
    for text in ("Conv2d", "(6, 40, 5, 4)" if net is Residual else "(6, 36, 2, 2)", "(6, 4)"):
        assert text in drawn


def test_a_net_refuses_images_that_do_not_fit_before_the_first_step():
    model = small_net()
    before = bits(model)
    for shape in ((48, 3, 9, 8), (48, 2, 9), (48, 2, 3, 3), (48, 144)):
        with pytest.raises(ValueError, match=r"Conv2d|MaxPool2d"):
            model.fit(
                np.zeros(shape, np.float32), LABELS, loss=cl.SoftmaxLoss(), optimizer=cl.SGD(model.parameters(), lr=0.1)
            )
        with pytest.raises(ValueError, match=r"Conv2d|MaxPool2d"):
            model.predict(np.zeros(shape, np.float32))
    assert bits(model) == before


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_net_of_series_and_one_that_enlarges_images_learn_to_give_what_they_got(dtype):
    rng = np.random.default_rng(0)
    flat = rng.uniform(0, 1, (32, 3, 12)).astype(dtype)
    large = rng.uniform(0, 1, (32, 1, 8, 8)).astype(dtype)
    nets = [
        (flat, [cl.Conv1d(3, 36, 5, padding="same"), cl.ReLU(), cl.Conv1d(36, 3, 3, padding="same")]),
        (large, [cl.Conv2d(1, 12, 3, 2, 1), cl.ReLU(), cl.ConvTranspose2d(12, 1, 3, 2, 1, 1)]),
    ]
    for x, layers in nets:
        model = cl.Model(layers, seed=0, dtype=dtype)
        options = {"epochs": 40, "batch_size": 8, "seed": 0, "verbose": 0}
        history = model.fit(x, x, loss=cl.MSELoss(), optimizer=cl.Adam(model.parameters(), lr=0.01), **options)
        assert history["loss"][-1] < 0.35 * history["loss"][0]
        assert_same_bits(model.predict(plain_copy(x))[3], model.predict(x[3:4])[0])
