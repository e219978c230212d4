"""Embedding and PositionalEncoding, beyond what `test_functions.py` holds all Functions to."""

import copy
import itertools
import pickle

import numpy as np
import pytest

import caffelite as cl
from caffelite import _kernels as kernels
from tests.cases import both_dtypes
from tests.conftest import bits, train
from tests.reference import assert_same_bits

TOKENS = np.random.default_rng(0).integers(0, 9, (60, 4))
NUMBERS = np.random.default_rng(1).normal(size=(60, 3)).astype(np.float32)
MASK = TOKENS > 2
LABELS = TOKENS[:, 0] % 3


class MixedInputs(cl.Model):
    """Tables for two places of a row, the same for the two others, a mask, and numbers beside them."""

    takes_indices = (True, False, False)

    def __init__(self, seed=0, dtype=np.float32):
        super().__init__(seed=seed, dtype=dtype)
        self.tables = [cl.Embedding(10, 2), cl.Embedding(20, 3)]
        self.rest = cl.Embedding(9, 4)
        self.scores = cl.Linear(2 + 3 + 8 + 3, 3)

    def call(self, tokens, numbers, mask):
        assert mask.dtype == np.bool_
        parts = [table(tokens[:, i]) for i, table in enumerate(self.tables)]
        rest = (self.rest(tokens[:, 2:]) * mask[:, 2:, None]).reshape(-1, 8)
        return self.scores(cl.concatenate([*parts, rest, numbers], axis=1))


def sequence(**options):
    return cl.Model([cl.Embedding(9, 5), cl.Flatten(), cl.Linear(20, 3)], seed=0, **options)


# ---- the table ----


def test_the_table_is_drawn_from_the_normal_distribution_and_by_the_models_seed():
    weight = cl.Embedding(200, 300).weight.data
    assert abs(weight.mean()) < 0.02
    assert abs(weight.std() - 1) < 0.01
    assert_same_bits(cl.Model([cl.Embedding(4, 3)], seed=5).parameters()[0].data, random_sequence(5))
    assert cl.Embedding(4, 3).parameters()[0].name == "weight"


def random_sequence(seed):
    return np.random.default_rng(seed).normal(size=(4, 3)).astype(np.float32)


@pytest.mark.parametrize("arguments", [(0, 3), (3, 0), (-1, 3)])
def test_a_table_without_rows_or_columns_raises(arguments):
    with pytest.raises(ValueError, match="at least 1"):
        cl.Embedding(*arguments)
    with pytest.raises(TypeError, match="count must be an integer"):
        cl.Embedding(2.0, 3)


@both_dtypes
def test_an_index_of_any_integer_type_gives_its_row(dtype):
    embedding = cl.Model([cl.Embedding(9, 5)], dtype=dtype).functions[0]
    for kind in ("i1", "u1", ">i2", "i4", "u8", np.longlong):
        assert_same_bits(embedding.forward(TOKENS.astype(kind)), embedding.weight.data[TOKENS])
    assert_same_bits(embedding([[1, 2], [0, 1]]).data, embedding.weight.data[[[1, 2], [0, 1]]])


@pytest.mark.parametrize("x", [np.ones(3), np.ones(3, bool), np.array(["a"]), [0.5]])
def test_an_index_that_is_not_an_integer_is_a_type_error(x):
    embedding = cl.Embedding(9, 5)
    for use in (embedding, embedding.forward):
        with pytest.raises(TypeError, match="integers"):
            use(x)
    with pytest.raises(ValueError, match=r"\(n, …\)"):
        embedding.forward(np.array(3))


def test_indices_changed_after_forward_do_not_move_the_gradient():
    embedding, x = cl.Embedding(9, 2), np.array([1, 1, 3])
    y = embedding.forward(x)
    x[:] = 8
    embedding.backward(np.ones_like(y))
    assert embedding.weight.grad.sum(axis=1).tolist() == [0, 4, 0, 2, 0, 0, 0, 0, 0]


def test_backward_returns_no_gradient_of_indices_and_adds_to_what_there_is():
    embedding = cl.Embedding(3, 2)
    for _ in range(2):
        y = embedding.forward(np.array([2, 0, 2]))
        assert embedding.backward(np.ones_like(y)) is None
    assert embedding.weight.grad.tolist() == [[2, 2], [0, 0], [4, 4]]
    embedding.weight.zero_grad()
    embedding.weight.requires_grad = False
    embedding.forward(np.array([1]))
    embedding.backward(np.ones((1, 2), np.float32))
    assert embedding.weight.grad is None


def test_a_tied_embedding_applied_twice_sums_all_gradients():
    embedding = cl.Model([cl.Embedding(4, 3)], seed=0, dtype=np.float64).functions[0]
    x, z = np.array([0, 2, 2]), np.array([1, 2, 3])
    weight = embedding.weight.data.copy()
    ((embedding(x) + embedding(z)) @ embedding.weight.T).sum().backward()
    gradient = np.zeros((4, 3))
    for rows in (x, z):
        np.add.at(gradient, rows, weight.sum(axis=0))
    gradient += (weight[x] + weight[z]).sum(axis=0)
    np.testing.assert_allclose(embedding.weight.grad, gradient, 1e-12)


# ---- bad indices ----

BAD = [9, -1, 100, -(2**63), 2**62]


@pytest.mark.parametrize("bad", BAD)
def test_a_bad_index_is_an_index_error_that_names_row_place_and_range(bad):
    embedding, x = cl.Embedding(9, 5), TOKENS.copy()
    x[41, 2] = bad
    for use in (embedding, embedding.forward):
        with pytest.raises(IndexError, match=rf"index {bad} in row 41, at \(41, 2\), is not in 0 … 8"):
            use(x)
    with pytest.raises(IndexError, match=r"index 200 in row 1 is not in 0 … 8"):
        embedding(np.array([1, 200], np.uint8))


@pytest.mark.parametrize("bad", BAD)
def test_a_bad_index_anywhere_is_found_in_use_before_anything_is_written(bad):
    x = TOKENS.copy()
    x[41, 2] = bad
    good = (TOKENS, LABELS)
    model = sequence()
    train(model, *good)
    model.predict(TOKENS)
    before = bits(model)
    message = rf"index {bad} in row 41, at \(41, 2\), is not in 0 … 8"
    for use in (
        lambda: train(model, x, LABELS, batch_size=7),
        lambda: train(model, cl.DataGenerator(x, LABELS, batch_size=7)),
        lambda: train(model, cl.DataGenerator(x, LABELS, batch_size=60, transform=lambda x, y: (x, y), shuffle=False)),
        lambda: train(model, [(x, LABELS)]),
        lambda: train(model, *good, validation_data=(x, LABELS)),
        lambda: train(model, x, LABELS, validation_split=0.5),
        lambda: model.evaluate(x, LABELS, loss=cl.SoftmaxLoss()),
        lambda: model.predict(x),
        lambda: model.predict(x, batch_size=7),
    ):
        with pytest.raises(IndexError, match=message):
            use()
    assert bits(model) == before


def test_a_bad_index_in_a_part_of_an_input_is_found():
    for place, bad in [((17, 0), 10), ((17, 1), 20), ((17, 2), 9), ((59, 3), -1)]:
        x, model = TOKENS.copy(), MixedInputs()
        x[0, :2], x[place] = (9, 19), bad
        before, message = bits(model), rf"index {bad} in row \d+.* is not in 0 … \d+"
        with pytest.raises(IndexError, match=message):  # a batch shows the columns of each table
            train(model, (x, NUMBERS, MASK), LABELS, batch_size=len(x))
        with pytest.raises(IndexError, match=rf"index {bad} in row {place[0]}"):
            model.predict((x, NUMBERS, MASK))
        assert bits(model) == before


def test_an_index_that_goes_into_two_tables_has_to_be_in_both():
    x = TOKENS.copy()
    x[17, 1] = 9
    for counts in ((9, 20), (20, 9)):
        model = cl.Model([cl.Parallel([cl.Embedding(n, 3) for n in counts]), cl.Flatten(), cl.Linear(24, 3)], seed=0)
        train(model, TOKENS, LABELS)
        before = bits(model)
        with pytest.raises(IndexError, match=r"index 9 in row 17, at \(17, 1\), is not in 0 … 8"):
            train(model, x, LABELS, batch_size=7)
        assert bits(model) == before


def test_inputs_that_are_not_looked_up_may_be_any_number():
    class First(cl.Model):
        takes_indices = True

        def __init__(self):
            super().__init__(seed=0)
            self.table = cl.Embedding(9, 3)

        def call(self, tokens):
            return self.table(tokens[:, 0])

    x = TOKENS.copy()
    x[:, 1:] = -1
    model = First()
    train(model, x, LABELS)
    assert model.predict(x).shape == (60, 3)


def test_a_replay_stops_at_a_bad_index_and_names_it():
    embedding = cl.Embedding(9, 5)
    program = cl.capture(lambda x: embedding(x), TOKENS)
    x = TOKENS[::-1].copy()
    assert_same_bits(program(x).data, embedding.weight.data[x])
    x[3, 1] = 9
    with pytest.raises(IndexError, match=r"index 9 in row 3, at \(3, 1\), is not in 0 … 8"):
        program(x)


def test_indices_that_another_thread_changes_stop_a_training_before_it_writes():
    model, x = sequence(), TOKENS.copy()
    states = []

    def spoil(epoch, history):
        states.append(bits(model))
        x[41, 2] = 9

    with pytest.raises(IndexError, match=r"index 9 in row 41, at \(41, 2\)"):
        train(model, x, LABELS, batch_size=60, epochs=5, callbacks=[spoil])
    assert len(states) == 1
    assert bits(model) == states[0]


def test_a_model_that_is_changed_is_asked_again_which_indices_it_takes():
    model = MixedInputs()
    train(model, (TOKENS, NUMBERS, MASK), LABELS)
    model.tables[0] = cl.Embedding(5, 2)
    with pytest.raises(IndexError, match="0 … 4"):
        train(model, (TOKENS, NUMBERS, MASK), LABELS)


# ---- in training ----


def test_tokens_numbers_and_a_mask_go_through_fit_predict_and_evaluate():
    data = (TOKENS.astype(np.uint8), NUMBERS.astype(np.float64), MASK)
    results = []
    for x in (data, cl.DataGenerator(data, LABELS, batch_size=16, seed=3), [(data, LABELS)]):
        model = MixedInputs()
        y = LABELS if isinstance(x, tuple) else None
        options = {} if y is None else {"validation_split": 0.2}
        history = train(model, x, y, epochs=20, metrics=["accuracy"], **options)
        assert history["loss"][-1] < history["loss"][0]
        results.append(model.evaluate(data, LABELS, loss=cl.SoftmaxLoss(), metrics=["accuracy"])["accuracy"])
        scores = model.predict(data, batch_size=7)
        assert_same_bits(scores[5], model.predict(tuple(a[5:6] for a in data))[0])
    assert min(results) > 0.6


@pytest.mark.parametrize("make", [sequence, MixedInputs])
@both_dtypes
def test_a_training_has_the_bits_of_the_loop_by_hand(make, dtype):
    model, other = make(dtype=dtype), make(dtype=dtype)
    x = TOKENS if make is sequence else (TOKENS, NUMBERS.astype(dtype), MASK)
    train(model, x, LABELS, shuffle=False, batch_size=25, epochs=3)
    optimizer, loss = cl.SGD(other.parameters(), lr=0.1, momentum=0.9), cl.SoftmaxLoss()
    for _, start in itertools.product(range(3), range(0, 60, 25)):
        batch = [a[start : start + 25] for a in (x if isinstance(x, tuple) else (x,))]
        optimizer.zero_grad()
        loss(other(*batch), LABELS[start : start + 25]).backward()
        optimizer.step()
    assert bits(model) == bits(other)


@pytest.mark.usefixtures("restored_threads")
def test_any_number_of_threads_gives_the_same_bits():
    x = np.random.default_rng(0).integers(0, 300, (200, 30))

    def train_on_threads(threads):
        cl.set_num_threads(threads)
        model = cl.Model([cl.Embedding(300, 100), cl.Flatten(), cl.Linear(3000, 3)], seed=0)
        train(model, x, x[:, 0] % 3, batch_size=128, epochs=2)
        return bits(model)

    assert train_on_threads(1) == train_on_threads(2) == train_on_threads(3)


def test_tables_are_summed_up_inspected_saved_pickled_and_copied(tmp_path):
    for model, shape in [(sequence(), (4,)), (MixedInputs(), ((4,), (3,), (4,)))]:
        x = TOKENS if len(shape) == 1 else (TOKENS, NUMBERS, MASK)
        train(model, x, LABELS)
        found = cl.inspect(model, x, LABELS, loss=cl.SoftmaxLoss())
        assert any("Embedding(9" in layer.function for layer in found.layers)
        copies = [copy.deepcopy(model), pickle.loads(pickle.dumps(model))]
        model.save(tmp_path / "model")
        copies += [cl.load(tmp_path / "model", custom={"MixedInputs": MixedInputs})]
        for other in copies:
            assert_same_bits(other.predict(x), model.predict(x))
            train(other, x, LABELS)
    assert "(n, 4, 5)" in sequence().summary((4,))
    assert "(n, ?, 5)" in sequence().summary()
    with pytest.raises(ValueError, match=r"Linear\(6 → 2\)"):
        cl.Model([cl.Embedding(9, 5), cl.Linear(6, 2)])
    cl.Model([cl.Embedding(9, 5), cl.GlobalAvgPool(), cl.Linear(4, 2)])


# ---- positions ----


def test_positions_are_waves_of_all_lengths():
    table = cl.PositionalEncoding(6, 50).forward(np.zeros((1, 50, 6)))[0]
    assert table[0].tolist() == [0, 1, 0, 1, 0, 1]
    for i in range(3):
        np.testing.assert_allclose(table[:, 2 * i], np.sin(np.arange(50) / 10_000 ** (2 * i / 6)), atol=1e-12)
        np.testing.assert_allclose(table[:, 2 * i + 1], np.cos(np.arange(50) / 10_000 ** (2 * i / 6)), atol=1e-12)
    assert not cl.PositionalEncoding(6, 50).parameters()
    assert not cl.PositionalEncoding(6, 50).buffers()


@pytest.mark.parametrize(
    ("shape", "message"),
    [((2, 3, 5), r"\(2|n, 3, 5\); expected \(n, length, 4\)"), ((2, 4), "length, 4"), ((2, 6, 4), "length 6; .* 5 at")],
)
def test_other_sizes_and_longer_sequences_raise(shape, message):
    function = cl.PositionalEncoding(4, 5)
    with pytest.raises(ValueError, match=message):
        function.forward(np.zeros(shape, np.float32))
    with pytest.raises(ValueError, match=message):
        function.output_shape((None, *shape[1:]))
    with pytest.raises(TypeError, match="float32 or float64"):
        function.forward(np.zeros((2, 3, 4), int))


def test_sequences_of_several_lengths_and_dtypes_are_predicted_by_one_model():
    model = cl.Model([cl.Embedding(9, 4), cl.PositionalEncoding(4, 5), cl.Linear(4, 2)], seed=0)
    for length in (1, 5, 3):
        x = TOKENS[:, [0] * length]
        y = model.functions[0].weight.data[x] + cl.PositionalEncoding(4, 5).table(np.float32)[:length]
        assert_same_bits(model.predict(x), model.functions[2].forward(y))
    with pytest.raises(ValueError, match="length 6; expected 5 at most"):
        model.predict(TOKENS[:, [0] * 6])
    assert model.functions[1].forward(np.zeros((1, 5, 4))).dtype == np.float64


# ---- kernels ----


@both_dtypes
def test_take_grad_adds_to_what_there_is_and_takes_rows_with_gaps(dtype):
    rng = np.random.default_rng(0)
    wide, order = rng.normal(size=(50, 40)).astype(dtype), rng.integers(0, 6, 50)
    for dy in (wide[:, :8], wide[:, 3:20], wide[:, 7:8], wide[::-1, :33], wide.T[:40].T):
        out = rng.normal(size=(6, dy.shape[1])).astype(dtype)
        expected = out.copy()
        np.add.at(expected, order, dy)
        assert kernels.take_grad(dy, order, 6, out, accumulate=True) is out
        assert_same_bits(out, expected)
        assert_same_bits(kernels.take_grad(dy, order, 6, out), kernels.take_grad(dy.copy(), order, 6))


def test_take_grad_refuses_an_output_that_does_not_fit():
    dy, order = np.ones((3, 2)), np.array([0, 1, 1])
    for out in (np.ones((3, 2)), np.ones((2, 4))[:, ::2]):
        with pytest.raises(ValueError, match="`out`"):
            kernels.take_grad(dy, order, 2, out)
    with pytest.raises(TypeError, match="float64 and float32"):
        kernels.take_grad(dy, order, 2, np.ones((2, 2), np.float32))
    with pytest.raises(ValueError, match="not given"):
        kernels.take_grad(dy, order, 2, accumulate=True)
    shared = np.ones((3, 2))
    assert kernels.take_grad(shared, order, 3, shared).tolist() == [[1, 1], [2, 2], [0, 0]]


# ---- sparse ----

RULES = {
    "SGD": lambda p: cl.SGD(p, lr=0.1),
    "Adagrad": lambda p: cl.Adagrad(p, lr=0.1),
    "Adam": lambda p: cl.Adam(p, lr=0.1),
    "a schedule": lambda p: cl.SGD(p, lr=cl.schedules.cosine(0.1, 12, warmup=2)),
    "groups": lambda p: cl.Adam(
        [
            {"parameters": [q for q in p if q.is_sparse], "lr": 0.01},
            {"parameters": [q for q in p if not q.is_sparse], "weight_decay": 0.1},
        ]
    ),
    "a user's": lambda p: Descent(p),
}

every_rule = pytest.mark.parametrize("rule", RULES.values(), ids=RULES)
WORDS = np.random.default_rng(5).integers(0, 40, (60, 4)) ** 2 % 300
USED = np.unique(WORDS)


class Descent(cl.Optimizer):
    """w ← w − 0.1 g, of a user who knows nothing of rows."""

    def step(self):
        for p in self.parameters:
            if p.grad is not None:
                p.data = p.data - p.dtype.type(0.1) * p.grad


class Reader(cl.Model):
    """A table that is applied twice, one that is used as a matrix too, and one that is always used whole."""

    takes_indices = True

    def __init__(self, sparse, seed=0, dtype=np.float32):
        super().__init__(seed=seed, dtype=dtype)
        self.sparse = sparse
        self.scores = cl.Linear(5, 3)
        self.twice, self.tied, self.small = (cl.Embedding(n, 5, sparse=sparse) for n in (300, 300, 1))

    def call(self, words):
        h = self.twice(words[:, 0]) * self.twice(words[:, 1:3]).sum(axis=1) + self.small(words[:, :0]).sum(axis=1)
        return self.scores(h + self.tied(words[:, 3]) @ (self.tied.weight.T @ self.tied.weight / 300))


def bag(sparse, dtype=np.float32):
    return cl.Model([cl.Embedding(300, 8, sparse=sparse), cl.Flatten(), cl.Linear(32, 3)], seed=0, dtype=dtype)


@pytest.mark.parametrize("name", ["SGD", "Adagrad", "a schedule", "a user's"])
@pytest.mark.parametrize("make", [bag, Reader])
@pytest.mark.parametrize("clip_norm", [None, 1e9])
@both_dtypes
def test_rules_that_leave_unused_rows_alone_give_the_bits_of_all_rows(name, make, clip_norm, dtype):
    trained = []
    for sparse in (False, True):
        model = make(sparse, dtype=dtype)
        optimizer = RULES[name](model.parameters())
        train(model, WORDS, LABELS, optimizer=optimizer, epochs=2, batch_size=25, clip_norm=clip_norm)
        trained.append(bits(model))
    assert trained[0] == trained[1]


@every_rule
@pytest.mark.parametrize("make", [bag, Reader])
@pytest.mark.parametrize("clip_norm", [None, 0.5])
def test_a_replayed_sparse_step_is_the_step_by_hand(rule, make, clip_norm):
    model, other = make(True), make(True)
    optimizer, by_hand, loss = rule(model.parameters()), rule(other.parameters()), cl.SoftmaxLoss()
    train(model, WORDS, LABELS, optimizer=optimizer, shuffle=False, batch_size=25, epochs=3, clip_norm=clip_norm)
    for _, start in itertools.product(range(3), range(0, 60, 25)):
        by_hand.zero_grad()
        loss(other(WORDS[start : start + 25]), LABELS[start : start + 25]).backward()
        by_hand.step(clip_norm=clip_norm)
    assert bits(model) == bits(other)
    for p, q in zip(model.parameters(), other.parameters(), strict=True):
        if p.grad is not None or q.grad is not None:
            assert_same_bits(p.grad, q.grad)
    for name, value in optimizer.state_dict().items():
        np.testing.assert_array_equal(value, by_hand.state_dict()[name])


def test_the_gradient_is_0_but_in_the_rows_that_the_last_step_used():
    embedding = cl.Embedding(9, 2, sparse=True)
    weight = embedding.weight
    assert weight.is_sparse
    for rows in ([3, 3, 1], [8], [1, 0, 8, 0]):
        weight.zero_grad()
        embedding(np.array(rows)).sum().backward()
        assert weight.grad.tolist() == np.bincount(rows, minlength=9)[:, None].repeat(2, 1).tolist()
        assert sorted(weight._used_rows[1 : 1 + weight._used_rows[0]]) == sorted(set(rows))
    embedding(np.array([2, 2])).sum().backward()
    assert weight.grad[:, 0].tolist() == [2, 1, 2, 0, 0, 0, 0, 0, 1]
    weight.add_grad(np.ones((9, 2)))
    assert weight.grad[:, 0].tolist() == [3, 2, 3, 1, 1, 1, 1, 1, 2]
    cl.SGD([weight], lr=1.0).step()
    weight.zero_grad()
    assert weight.grad is None
    embedding(np.array([4])).sum().backward()
    assert weight.grad[:, 0].tolist() == [0, 0, 0, 0, 1, 0, 0, 0, 0]


def test_rows_that_are_not_used_wait_in_adam():
    model = bag(True)
    before = model.parameters()[0].data.copy()
    optimizer = cl.Adam(model.parameters())
    train(model, WORDS, LABELS, optimizer=optimizer, epochs=3)
    changed = (model.parameters()[0].data != before).any(axis=1)
    assert set(np.flatnonzero(changed)) <= set(USED)
    moments = optimizer.vectors()["second_moment.float32"][: 300 * 8].reshape(300, 8)
    assert set(np.flatnonzero(moments.any(axis=1))) == set(USED)


@pytest.mark.parametrize("name", ["SGD", "Adagrad", "Adam"])
def test_sparse_steps_are_pytorchs(name):
    torch = pytest.importorskip("torch")
    torch.sparse.check_sparse_tensor_invariants.disable()  # said explicitly, since it warns otherwise
    rule, options = {
        "SGD": (torch.optim.SGD, {"lr": 0.1}),
        "Adagrad": (torch.optim.Adagrad, {"lr": 0.1}),
        "Adam": (torch.optim.SparseAdam, {"lr": 0.1, "eps": 1e-30}),  # which has ε at another place
    }[name]
    mine = cl.Model([cl.Embedding(30, 4, sparse=True)], seed=0, dtype=np.float64).functions[0]
    theirs = torch.nn.Embedding(30, 4, sparse=True, dtype=torch.float64)
    theirs.weight.data[...] = torch.tensor(mine.weight.data)
    optimizer, other = getattr(cl, name)([mine.weight], **options), rule(theirs.parameters(), **options)
    rng = np.random.default_rng(0)
    for _ in range(20):
        x, slope = rng.integers(0, 30, 5), rng.normal(size=(5, 4))
        for of, step, tensor in ((mine, optimizer, lambda a: a), (theirs, other, torch.tensor)):
            step.zero_grad()
            (of(tensor(x)) * tensor(slope)).sum().backward()
            step.step()
    np.testing.assert_allclose(mine.weight.data, theirs.weight.detach().numpy(), 1e-9, 1e-12)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda p: cl.SGD(p, lr=0.1, momentum=0.9), "momentum changes all rows; expected 0, got 0.9"),
        (lambda p: cl.SGD(p, lr=0.1, weight_decay=0.1), "weight_decay changes all rows"),
        (lambda p: cl.Adagrad(p, weight_decay=0.1), "weight_decay changes all rows"),
        (lambda p: cl.Adam(p, weight_decay=0.1), "weight_decay changes all rows"),
        (lambda p: cl.AdamW(p), "AdamW changes all rows; expected SGD, Adagrad or Adam"),
        (lambda p: cl.RMSProp(p), "RMSProp changes all rows"),
        (lambda p: cl.Lion(p), "Lion changes all rows"),
        (lambda p: cl.NAdam(p), "NAdam changes all rows"),
        (lambda p: cl.Adam([{"parameters": p[1:]}, {"parameters": p[:1], "weight_decay": 0.1}]), "weight_decay"),
    ],
)
def test_rules_that_change_all_rows_raise_naming_the_parameter(make, message):
    parameters = bag(True).parameters()
    with pytest.raises(ValueError, match=rf"parameter \d, weight \(300, 8\), is sparse: .*{message}"):
        make(parameters)
    make(parameters[1:])


def test_hyper_parameters_that_change_all_rows_raise_later_too():
    optimizer = cl.Adam([{"parameters": bag(True).parameters()[:1]}, {"parameters": bag(False).parameters()}])
    with pytest.raises(ValueError, match="is sparse: weight_decay"):
        optimizer.groups[0]["weight_decay"] = 0.1
    optimizer.groups[1]["weight_decay"] = 0.1
    state = optimizer.state_dict()
    assert state["weight_decay"].tolist() == [0, 0.1]
    with pytest.raises(ValueError, match="is sparse: weight_decay"):
        optimizer.load_state_dict({**state, "weight_decay": np.array([0.1, 0.1])})
    assert optimizer.state_dict()["weight_decay"].tolist() == [0, 0.1]


def test_a_gradient_row_that_is_not_finite_stops_the_step_and_names_the_parameter():
    model = bag(True)
    optimizer = cl.SGD(model.parameters(), lr=0.1)
    before = bits(model)
    for clip_norm in (None, 1.0):
        optimizer.zero_grad()
        y = model.functions[0](WORDS)
        (y * np.float32(np.inf)).sum().backward()
        with pytest.raises(cl.TrainingDiverged, match=r"parameter 0, weight \(300, 8\)"):
            optimizer.step(clip_norm=clip_norm)
    assert bits(model) == before


def test_gradients_are_clipped_by_the_norm_over_all_rows():
    gradients = []
    for sparse in (False, True):
        model = bag(sparse)
        optimizer = cl.SGD(model.parameters(), lr=0.0)
        cl.SoftmaxLoss()(model(WORDS), LABELS).backward()
        optimizer.clip_gradients(0.01)
        gradients.append([p.grad for p in model.parameters()])
    for dense, sparse in zip(*gradients, strict=True):
        np.testing.assert_allclose(sparse, dense, 1e-6, 1e-12)


@every_rule
def test_a_sparse_training_that_was_stopped_goes_on_to_the_same_bits(rule, tmp_path):
    def fit(model, optimizer, epochs, **options):
        train(model, WORDS, LABELS, optimizer=optimizer, epochs=epochs, batch_size=25, seed=1, **options)

    whole, part, rest = (Reader(True) for _ in range(3))
    optimizers = [rule(model.parameters()) for model in (whole, part, rest)]
    path = tmp_path / "checkpoint"
    fit(whole, optimizers[0], 4)
    fit(part, optimizers[1], 2, callbacks=[cl.callbacks.Checkpoint(path)])
    fit(rest, optimizers[2], 4, resume=path)
    assert bits(rest) == bits(whole)


@pytest.mark.usefixtures("restored_threads")
@pytest.mark.parametrize("name", ["SGD", "Adam"])
def test_any_number_of_threads_takes_the_same_sparse_steps(name):
    x = np.random.default_rng(0).integers(0, 3000, (200, 20))

    def train_on_threads(threads):
        cl.set_num_threads(threads)
        model = cl.Model([cl.Embedding(3000, 100, sparse=True), cl.Flatten(), cl.Linear(2000, 3)], seed=0)
        train(model, x, x[:, 0] % 3, optimizer=RULES[name](model.parameters()), batch_size=128, clip_norm=1.0)
        return bits(model)

    assert train_on_threads(1) == train_on_threads(2) == train_on_threads(3)


def test_sparse_tables_are_saved_pickled_copied_and_checked(tmp_path):
    model = bag(True)
    train(model, WORDS, LABELS, optimizer=cl.Adam(model.parameters()))
    model.save(tmp_path / "model")
    copies = [cl.load(tmp_path / "model"), copy.deepcopy(model), pickle.loads(pickle.dumps(model))]
    expected = None
    for other in [*copies, model]:
        assert other.parameters()[0].is_sparse
        assert repr(other) == repr(model)
        train(other, WORDS[::-1], LABELS[::-1], optimizer=cl.Adam(other.parameters()), seed=0)
        expected = expected or bits(other)
        assert bits(other) == expected
    embedding = model.functions[0]
    gradient = embedding.weight.grad.copy()
    cl.check_gradients(embedding, WORDS[:2])
    assert_same_bits(embedding.weight.grad, gradient)
    embedding.weight.zero_grad()
    embedding(np.array([7])).sum().backward()
    assert np.flatnonzero(embedding.weight.grad.any(axis=1)).tolist() == [7]


def test_a_table_joins_another_model_with_its_gradient():
    embedding = cl.Embedding(30, 4, sparse=True)
    embedding(np.array([5, 2])).sum().backward()
    model = cl.Model([embedding, cl.Linear(4, 2)])
    assert np.flatnonzero(embedding.weight.grad.any(axis=1)).tolist() == [2, 5]
    embedding.weight.zero_grad()
    model.add(cl.Linear(2, 2))
    embedding(np.array([9])).sum().backward()
    assert np.flatnonzero(embedding.weight.grad.any(axis=1)).tolist() == [9]


def test_lists_of_used_rows_that_do_not_fit_raise():
    x, order = np.zeros((4, 3)), np.array([1, 2])
    for used in (np.zeros(8, np.int64), np.zeros(11, np.int64), np.zeros(1, np.int64)):
        with pytest.raises(ValueError, match="rows"):
            kernels.use_rows(used, order, x, True)
    with pytest.raises(TypeError, match="int64"):
        kernels.use_rows(np.zeros(9), order, x, True)
    with pytest.raises(ValueError, match="contiguous rows"):
        kernels.use_rows(np.zeros(9, np.int64), order, np.zeros((4, 6))[:, ::2], True)
    w = np.zeros(12)
    with pytest.raises(ValueError, match="rmsprop always updates a whole"):
        kernels.update("rmsprop", w, w.copy(), np.zeros((1, 12)), np.full(5, 0.1), None, np.zeros(9, np.int64), True)


def test_a_model_without_takes_indices_gets_a_hint():
    class Words(cl.Model):
        def __init__(self):
            super().__init__(seed=0)
            self.table = cl.Embedding(9, 3)

        def call(self, words):
            return self.table(words)

    model = Words()
    with pytest.raises(TypeError, match=r"expected integers, got float32; .* set model.takes_indices = True"):
        model.predict(TOKENS)
    model.takes_indices = True
    assert model.predict(TOKENS).shape == (60, 4, 3)


IN_NO_TUPLE = pytest.mark.parametrize("of", [list, lambda xs: dict(zip("ab", xs, strict=True))], ids=["list", "dict"])


@IN_NO_TUPLE
def test_several_inputs_of_numbers_in_a_list_raise_and_name_the_tuple(of):
    class Two(cl.Model):
        def call(self, a, b):
            return a + b

    x, y = of([np.ones((4, 3)), np.ones((4, 3))]), np.zeros(4)
    several = "several inputs are a tuple"
    with pytest.raises(ValueError, match=several):
        Two().predict(x)
    with pytest.raises(ValueError, match=several):
        Two().evaluate([(x, y)], loss=cl.MSELoss())
    with pytest.raises(ValueError, match=several):
        cl.DataGenerator(x, y)


@IN_NO_TUPLE
def test_several_inputs_in_a_list_raise_and_name_the_tuple(of):
    class Two(cl.Model):
        takes_indices = (True, False)

        def call(self, words, numbers):
            return numbers

    with pytest.raises(ValueError, match=r"takes 2 inputs, got 1; several inputs are a tuple, got a (list|dict)"):
        Two().predict(of([TOKENS, NUMBERS]))
