"""Sources: what is not all in memory is read block by block, gives the bits of what is, and lies are errors."""

import os
import signal
import subprocess
import sys
import threading
import time

import numpy as np
import pytest
from caffelite.sources import Source, is_source

import caffelite as cl
from caffelite import sources
from caffelite.data.generator import merge_single_rows
from caffelite.training.epochs import in_memory
from tests.conftest import run
from tests.data.sources import CLASSES, FEATURES, N, Stopping, X, Y, assert_same, classifier, fit_classifier

h5py = pytest.importorskip("h5py")

NUMBERED = np.repeat(np.arange(N, dtype=np.float32)[:, None], 4, axis=1)


pytestmark = pytest.mark.usefixtures("small_buffers", "thread_leak_check")


class SlicedArray:
    """Something with shape, dtype and slices, which knows what was read."""

    def __init__(self, array):
        self.array, self.shape, self.dtype, self.reads = array, array.shape, array.dtype, []

    def __getitem__(self, rows):
        assert type(rows) is slice
        assert rows.step is None
        self.reads.append((rows.start, rows.stop))
        return self.array[rows]


class Lying(SlicedArray):
    """From the read of this number on, it gives what `lie` makes of rows, or changes itself."""

    def __init__(self, array, lie, reads=0):
        super().__init__(array)
        self.lie, self.truths = lie, reads

    def __getitem__(self, rows):
        found = super().__getitem__(rows)
        return found if len(self.reads) <= self.truths else self.lie(self, found)


def map_array(array, folder, mode="r", order="C"):
    path = folder / f"rows-{len(os.listdir(folder))}"
    array.T.tofile(path) if order == "F" else array.tofile(path)
    return np.memmap(path, array.dtype, mode, shape=array.shape, order=order)


def dataset(array, folder, **options):
    file = h5py.File(folder / f"rows-{len(os.listdir(folder))}.h5", "w")
    return file.create_dataset("rows", data=array, **options)


def offset(array, folder):
    """Rows in the midst of a mapped file."""
    return map_array(np.concatenate([array[:7] - 1, array, array[:3]]), folder)[7:-3]


SOURCES = {
    "memmap": map_array,
    "memmap r+": lambda array, folder: map_array(array, folder, "r+"),
    "memmap c": lambda array, folder: map_array(array, folder, "c"),
    "memmap F": lambda array, folder: map_array(array, folder, order="F"),
    "memmap, from a row on": offset,
    "memmap backwards": lambda array, folder: map_array(array[::-1], folder)[::-1],
    "h5py": dataset,
    "h5py chunks": lambda array, folder: dataset(array, folder, chunks=(37, *array.shape[1:]), compression="gzip"),
    "sliced": lambda array, folder: SlicedArray(array),
}
every_source = pytest.mark.parametrize("source", SOURCES)


def row_numbers(generator):
    return [[int(row) for row in np.ravel(batch[:, 0])] for batch in generator]


# ---- what a source is -----------------------------------------------------------------------------------------------


def test_sources_are_what_has_shape_dtype_and_slices_and_is_not_in_memory(tmp_path):
    torch = pytest.importorskip("torch")
    scipy_sparse = pytest.importorskip("scipy.sparse")
    assert all(is_source(make(X, tmp_path)) for make in SOURCES.values())
    for x in (X, X.tolist(), X[0, 0], cl.Tensor(X), torch.tensor(X), scipy_sparse.csr_array(X), 3, "x", np.float32):
        assert not is_source(x)
    assert not is_source(np.ma.masked_array(X))
    assert not is_source(map_array(X[:1, :1], tmp_path)[0, 0])


@every_source
def test_a_small_source_is_as_its_array(tmp_path, monkeypatch, source):
    monkeypatch.setattr(sources, "BUFFER", 2**30)
    x, y = SOURCES[source](X, tmp_path), SOURCES[source](Y, tmp_path)
    assert_same(fit_classifier(x, y, validation_split=0.2), fit_classifier(X, Y, validation_split=0.2))


# ---- the order ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("form", ["mapped", "h5py", "held out of h5py"])
def test_the_disk_hears_of_all_of_a_buffer_before_its_first_row_is_read(tmp_path, monkeypatch, form):
    heard, path = [], tmp_path / "file"
    if form == "mapped":
        with open(path, "wb") as file:
            file.write(b"?" * 12)
            NUMBERED.tofile(file)
        data = np.memmap(path, np.float32, "r", offset=12, shape=NUMBERED.shape)
    else:
        with h5py.File(path, "w") as file:
            file["x"] = NUMBERED
        data = h5py.File(path, "r")["x"]
        monkeypatch.setattr(os, "posix_fadvise", lambda file, begin, count, advice: heard.append((begin, count)))
    source = Source(data, "x")
    if form == "mapped":

        class Map:
            def madvise(self, advice, begin, count):
                if advice == source.region.advice["MADV_WILLNEED"]:
                    heard.append((begin, count))

        source.region.map = Map()
    if form == "held out of h5py":
        source = sources.select_ranges(source, np.array([[100, 900], [1000, 4000]]))
    pieces, room = [(7, 207), (700, 950), (2000, 2009)], np.empty((459, 4), np.float32)
    order = []
    monkeypatch.setattr(
        Source, "read", lambda self, *rows, read=Source.read: (order.append(len(heard)), read(self, *rows))
    )
    sources.read([source], pieces, [room])
    assert order[0] == len(heard) or form.startswith("held out")
    expected = np.concatenate([source.rows(*piece) for piece in pieces])
    assert np.array_equal(room, expected)
    content = path.read_bytes()
    found = b"".join(content[begin : begin + count] for begin, count in heard[: order[0]])
    if form == "mapped":  # whole pages
        assert all(begin % source.region.page == 0 for begin, _ in heard)
        assert len(found) >= expected.nbytes
        assert all(row.tobytes() in found for row in expected)
    else:
        assert found == expected.tobytes()


@pytest.mark.parametrize("shuffle", [False, True])
@pytest.mark.parametrize("drop_last", [False, True])
@pytest.mark.parametrize("size", [1, 48, 3000, 7000])
def test_every_row_comes_once_in_full_batches(shuffle, drop_last, size):
    if drop_last and size > N:
        return
    generator = cl.DataGenerator(SlicedArray(NUMBERED), batch_size=size, shuffle=shuffle, drop_last=drop_last, seed=0)
    batches = row_numbers(generator)
    assert len(batches) == len(generator) == (N // size if drop_last else -(-N // size))
    assert {len(batch) for batch in batches[:-1]} <= {size}
    rows = [row for batch in batches for row in batch]
    assert len(rows) == len(set(rows)) == (N // size * size if drop_last else N)
    assert (rows == sorted(rows)) == (not shuffle)


def test_blocks_are_read_whole_and_ascending_in_each_buffer():
    x = SlicedArray(NUMBERED)
    generator = cl.DataGenerator(x, batch_size=48, seed=0)
    blocks = generator.blocks
    list(generator)
    assert 30 < blocks.block < 50  # 24 bytes a row
    lengths = [stop - start for start, stop in x.reads]
    assert max(lengths) == blocks.block
    assert len(x.reads) <= N / blocks.block + 1 + N / blocks.buffer  # a block may lie in two buffers
    starts = np.array([start for start, _ in x.reads])
    per_buffer = np.split(starts, np.flatnonzero(np.cumsum(lengths) % blocks.buffer == 0) + 1)
    assert all((np.diff(buffer) > 0).all() for buffer in per_buffer)
    assert not (np.diff(starts) > 0).all()


def test_a_block_consists_of_whole_chunks_of_the_source(tmp_path):
    assert cl.DataGenerator(dataset(NUMBERED, tmp_path, chunks=(100, 4)), batch_size=48).blocks.block == 100
    assert cl.DataGenerator(dataset(NUMBERED, tmp_path, chunks=(15, 4)), batch_size=48).blocks.block == 45


def test_rows_of_a_buffer_are_shuffled_and_its_blocks_come_from_anywhere():
    generator = cl.DataGenerator(SlicedArray(NUMBERED), batch_size=48, seed=0)
    for batch in row_numbers(generator)[:-1]:
        places = {row // generator.blocks.block for row in batch}
        assert len(places) > 10  # of some 30 blocks
        assert max(places) - min(places) > N / generator.blocks.block / 2


def test_each_epoch_has_its_order_and_the_same_seed_the_same_orders():
    def orders(seed):
        generator = cl.DataGenerator(SlicedArray(NUMBERED), batch_size=48, seed=seed)
        return [row_numbers(generator) for _ in range(3)]

    first = orders(5)
    assert first == orders(5)
    assert first[0] != first[1] != first[2]
    assert first[0] != orders(6)[0]
    assert orders(None) != orders(None)


def test_every_row_is_as_likely_at_the_beginning_as_any_other():
    generator = cl.DataGenerator(SlicedArray(NUMBERED[:3000]), batch_size=50, seed=0)
    assert 3000 % generator.blocks.block  # the last block is short
    assert generator.blocks.buffer < 3000
    counts = np.zeros(3000)
    for _ in range(400):
        counts[next(iter(generator))[:, 0].astype(int)] += 1
    by_place = counts.reshape(30, 100).sum(axis=1) * 3000 / (400 * 50 * 100)
    assert 0.75 < by_place.min() <= by_place.max() < 1.25


def test_inputs_targets_and_weights_come_from_the_same_rows(tmp_path):
    number = NUMBERED[:, 0]
    x = (SlicedArray(NUMBERED), X, map_array(NUMBERED.astype(np.uint16), tmp_path))
    generator = cl.DataGenerator(x, map_array(number, tmp_path), sample_weight=number, batch_size=48, seed=0)
    for (a, b, c), y, w in generator:
        assert (a[:, 0] == y).all()
        assert (b == X[y.astype(int)]).all()
        assert (c[:, 1] == y).all()
        assert c.dtype == np.uint16
        assert (w == y).all()


def test_leaving_early_and_two_passes_at_once(tmp_path):
    generator = cl.DataGenerator(map_array(NUMBERED, tmp_path), batch_size=48, seed=0)
    for _ in generator:
        break
    pairs = list(zip(generator, generator, strict=True))
    for i in range(2):
        assert sorted(int(row) for pair in pairs for row in pair[i][:, 0]) == list(range(N))


# ---- training -------------------------------------------------------------------------------------------------------


@every_source
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_unshuffled_training_has_the_bits_of_what_is_in_memory(tmp_path, source, dtype):
    x, y = SOURCES[source](X, tmp_path), SOURCES[source](Y, tmp_path)
    options = {"dtype": dtype, "shuffle": False, "metrics": ["accuracy", "f1"], "sample_weight": np.arange(N) % 3}
    of_source = fit_classifier(x, y, validation_data=(x, y), **options)
    assert_same(of_source, fit_classifier(X, Y, validation_data=(X, Y), **options))
    assert_same(of_source, fit_classifier(x, Y, validation_data=(X, y), **options))


@pytest.mark.parametrize("dtype", ["f2", "f8", ">f4", "u1", "i8", "?"])
def test_rows_of_other_dtypes_become_the_models(tmp_path, dtype):
    x = (10 * X).astype(dtype)
    assert_same(fit_classifier(map_array(x, tmp_path), Y, shuffle=False), fit_classifier(x, Y, shuffle=False))


def test_several_inputs_indices_masks_and_targets_that_are_read():
    class Net(cl.Model):
        takes_indices = (True, False, False)

        def __init__(self):
            super().__init__(seed=0)
            self.words, self.numbers = cl.Embedding(50, 4), cl.Linear(FEATURES, 4)

        def call(self, words, numbers, mask):
            words = self.words(words)
            return cl.where(mask, words, -words) + self.numbers(numbers)

    words, mask, y = np.arange(N) % 50, (np.arange(N) % 7 > 2)[:, None], X[:, :4].astype(np.float64)
    options = {"shuffle": False, "loss": cl.MSELoss()}
    of_sources = fit_classifier(
        (SlicedArray(words), SlicedArray(X), SlicedArray(mask)), SlicedArray(y), model=Net(), **options
    )
    assert_same(of_sources, fit_classifier((words, X, mask), y, model=Net(), **options))
    assert_same(of_sources, fit_classifier((words, SlicedArray(X), mask), y, model=Net(), **options))


def test_shuffled_training_learns_and_the_same_seed_gives_the_same_bits(tmp_path):
    of_source = fit_classifier(map_array(X, tmp_path), Y, metrics=["accuracy"], epochs=6)
    assert_same(of_source, fit_classifier(SlicedArray(X), SlicedArray(Y), metrics=["accuracy"], epochs=6))
    assert of_source[0]["accuracy"][-1] > 0.95
    assert dict(of_source[0]) != dict(fit_classifier(SlicedArray(X), Y, metrics=["accuracy"], epochs=6, seed=2)[0])
    assert_same(
        fit_classifier(cl.DataGenerator(SlicedArray(X), Y, batch_size=48, seed=3)),
        fit_classifier(cl.DataGenerator(map_array(X, tmp_path), Y, batch_size=48, seed=3)),
    )


def test_training_through_a_transform_has_the_same_bits(tmp_path):
    def generator(transform):
        return cl.DataGenerator(map_array(X, tmp_path), Y, batch_size=48, seed=3, transform=transform)

    plain, transformed = fit_classifier(generator(None)), fit_classifier(generator(lambda x, y: (x, y)))
    assert_same(transformed, fit_classifier(cl.Prefetch(generator(lambda x, y: (x, y)))))
    assert all((plain[1][name] == x).all() for name, x in transformed[1].items())
    np.testing.assert_allclose(plain[0]["loss"], transformed[0]["loss"], rtol=1e-12)


@pytest.mark.parametrize("rows", [N, N - 800])  # an even number of buffers, and an odd one
def test_the_first_buffer_of_the_next_epoch_is_read_while_the_last_is_in_use(rows):
    source, ahead = SlicedArray(X[:rows]), []

    def rows_read():
        return sum(stop - start for start, stop in source.reads)

    def callback(epoch, history):
        expected = rows * (epoch + 1) + (epoch < 2)
        until = time.monotonic() + 5
        while rows_read() < expected and time.monotonic() < until:
            time.sleep(0.001)
        ahead.append(rows_read() - rows * (epoch + 1))

    options = {"epochs": 3, "shuffle": False}
    assert_same(
        fit_classifier(source, Y[:rows], callbacks=[callback], **options), fit_classifier(X[:rows], Y[:rows], **options)
    )
    assert [count > 0 for count in ahead] == [True, True, False]
    assert rows_read() == 3 * rows


@pytest.mark.parametrize("rows", [N, N - 1000])  # an even number of buffers, and an odd one
def test_a_buffer_in_use_is_not_read_over(rows):
    source = SlicedArray(NUMBERED[:rows])
    generator = cl.DataGenerator(source, batch_size=48, seed=0)
    columns, seen = [generator.x], []
    for read in generator.buffers(columns, generator.allocate_buffers(columns), epochs=2):
        buffer, reads, until = read(), len(source.reads), time.monotonic() + 0.05
        while len(source.reads) < reads + 30 and time.monotonic() < until:  # the next one is read meanwhile
            time.sleep(0.001)
        expected = np.concatenate([np.arange(start, stop) for start, stop in buffer.pieces])
        assert np.array_equal(buffer.columns[0][:, 0], expected)
        seen += expected.tolist()
    assert sorted(seen) == sorted([*range(rows)] * 2)


def test_a_pass_through_the_generator_between_two_epochs_takes_one():
    def training(transform):
        generator = cl.DataGenerator(SlicedArray(X), Y, batch_size=48, seed=3, transform=transform)
        return fit_classifier(
            generator, epochs=3, callbacks=[lambda epoch, history: epoch == 0 and next(iter(generator)) and None]
        )

    plain, transformed = training(None), training(lambda x, y: (x, y))
    assert all((plain[1][name] == x).all() for name, x in transformed[1].items())


def test_a_batch_without_weight_is_passed_over(tmp_path):
    weights = (np.arange(N) >= 2000).astype(float)
    options = {"shuffle": False, "sample_weight": weights, "metrics": ["f1"]}
    assert_same(fit_classifier(map_array(X, tmp_path), Y, **options), fit_classifier(X, Y, **options))


def test_evaluate_and_predict_have_the_bits_of_what_is_in_memory(tmp_path):
    model, options = classifier(), {"loss": cl.SoftmaxLoss(), "metrics": ["accuracy", "auc"]}
    model.load_state_dict(fit_classifier(X, (Y > 0).astype(int), model=cl.Model([*classifier().functions]))[1])
    x = map_array(X, tmp_path)
    assert (model.predict(x) == model.predict(X)).all()
    assert (model.predict(x, batch_size=7) == model.predict(X)).all()
    options["metrics"] = ["accuracy", "f1"]
    assert model.evaluate(x, Y, **options) == model.evaluate(X, Y, **options)
    assert model.evaluate(cl.DataGenerator(x, Y, seed=0), **options)["f1"] == pytest.approx(
        model.evaluate(X, Y, **options)["f1"]
    )


def test_an_overridden_predict_is_called_once_for_any_x_and_precision():
    class DoublingModel(cl.Model):
        def predict(self, x, **options):
            return 2 * super().predict(x, **options)

    model = DoublingModel([cl.Linear(X.shape[1], 2)], seed=0)
    twice = model(X).data * 2
    for x in (X, SlicedArray(X)):
        for options in ({}, {"precision": "float32"}):
            np.testing.assert_allclose(model.predict(x, **options), twice, 1e-5, 1e-6)


def test_predict_of_several_outputs_and_inputs():
    class Two(cl.Model):
        def call(self, a, b):
            return a + b, a * b

    a, b = Two().predict((SlicedArray(X), X))
    assert (a == X + X).all()
    assert (b == X * X).all()


def test_find_lr_takes_sources_and_inspect_says_that_it_takes_some_rows():
    model, loss = classifier(), cl.SoftmaxLoss()
    assert cl.find_lr(model, SlicedArray(X), Y, loss=loss, optimizer=cl.SGD(model.parameters(), lr=1)).suggestion
    with pytest.raises(ValueError, match=r"x\[:500\]"):
        cl.inspect(model, SlicedArray(X), Y, loss=loss)


def test_class_weights_of_labels_that_are_read():
    options = {"shuffle": False, "class_weight": "balanced"}
    assert_same(fit_classifier(SlicedArray(X), SlicedArray(Y), **options), fit_classifier(X, Y, **options))


def test_validation_split_holds_out_blocks_drawn_at_random():
    seen = []

    def note(outputs, targets):
        seen.append(targets.copy())
        return 0.0

    fit_classifier(SlicedArray(X), np.arange(N) % CLASSES, validation_split=0.3, epochs=1)

    class Noting(cl.Function):
        """The mean of x, which remembers targets."""

        def forward(self, x, y):
            self.shape = x.shape
            return x.mean()

        def backward(self, dy):
            return np.zeros(self.shape, np.float32)

    fit_classifier(SlicedArray(X), np.arange(N), loss=Noting(), metrics=[note], validation_split=0.3, epochs=1)
    rows = np.concatenate(seen)
    assert len(rows) == N
    assert (np.sort(rows) == np.arange(N)).all()
    held_out = rows[-int(0.3 * N) :]
    cuts = np.count_nonzero(np.diff(held_out) != 1)
    block = cl.DataGenerator(SlicedArray(X), Y).blocks.block
    assert 0.3 * N / block / 4 < cuts <= 0.3 * N / block + 1
    assert held_out.min() < N / 5 < 4 * N / 5 < held_out.max()


def test_the_thread_count_changes_no_bit(tmp_path):
    before, results = cl.get_num_threads(), []
    try:
        for count in (1, 2, 3):
            cl.set_num_threads(count)
            results.append(fit_classifier(map_array(X, tmp_path), Y))
    finally:
        cl.set_num_threads(before)
    assert_same(results[0], results[1])
    assert_same(results[0], results[2])


def test_private_changes_of_a_mapped_file_are_kept(tmp_path):
    x, changed = map_array(np.zeros_like(X), tmp_path, "c"), map_array(np.zeros_like(X), tmp_path, "r+")
    x[:] = X
    changed[:] = X
    for _ in range(2):
        assert_same(fit_classifier(x, Y, shuffle=False), fit_classifier(X, Y, shuffle=False))
        assert_same(fit_classifier(changed, Y, shuffle=False), fit_classifier(X, Y, shuffle=False))
    assert (np.fromfile(changed.filename, np.float32).reshape(X.shape) == X).all()


# ---- checkpoints ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("at", [1, 12, 13, 14, 90, 104, 105, 150])  # a buffer has 13 batches, an epoch 105
@pytest.mark.parametrize("way", ["shuffled", "in order", "transformed"])
def test_a_training_goes_on_in_mid_epoch_to_the_bits_of_one_that_never_stopped(tmp_path, monkeypatch, at, way):
    monkeypatch.setattr(in_memory, "REPLAY_SECONDS", 0)  # a step at a time
    path = tmp_path / "checkpoint"

    def train(**options):
        net = cl.Model([cl.Linear(FEATURES, 16), cl.ReLU(), cl.Dropout(0.1), cl.Linear(16, CLASSES)], seed=3)
        transform = (lambda x, y: (x + 1, y)) if way == "transformed" else None
        options_of_data = {"shuffle": way != "in order", "sample_weight": np.arange(N) % 5, "transform": transform}
        data = cl.DataGenerator(SlicedArray(X), Y, batch_size=48, seed=2, **options_of_data)
        assert data.blocks.batches == 13
        return fit_classifier(data, model=net, metrics=["f1", "accuracy"], **options)

    whole = train()
    with pytest.raises(KeyboardInterrupt):
        train(callbacks=[Stopping(path, at)])
    assert_same(train(resume=path), whole)


@pytest.mark.parametrize("change", ["a row", "length", "buffers"])
def test_a_checkpoint_of_other_data_raises(tmp_path, monkeypatch, change):
    path, x, y = tmp_path / "checkpoint", X.copy(), Y
    fit_classifier(SlicedArray(x), y, callbacks=[cl.callbacks.Checkpoint(path)])
    if change == "a row":
        x[-1, 0] += 1
    elif change == "length":
        x, y = x[:-1], y[:-1]
    else:
        monkeypatch.setattr(sources, "BUFFER", 2**16)
    with pytest.raises(ValueError, match=r"another (data|number of rows|way of shuffling)"):
        fit_classifier(SlicedArray(x), y, epochs=3, resume=path)


# ---- lies -----------------------------------------------------------------------------------------------------------


def grow(source, rows):
    source.shape = (N + 1, FEATURES)
    return rows


def raise_(error):
    def lie(source, rows):
        raise error

    return lie


LIES = {
    "a row less": (
        lambda source, rows: rows[:-1],
        ValueError,
        r"(x|predict): rows [\d,]+ … [\d,]+ came",
    ),
    "other rows": (lambda source, rows: rows[:, 1:], ValueError, r"came as float32 of shape \(\d+, 7\); expected"),
    "another dtype": (lambda source, rows: rows.astype(float), ValueError, "came as float64 .* expected float32"),
    "a list of words": (lambda source, rows: ["a"] * len(rows), ValueError, "came as <U1"),
    "an error": (raise_(OSError(5, "the disk")), OSError, "the disk"),
    "StopIteration": (raise_(StopIteration("enough")), StopIteration, "enough"),
    "KeyError": (raise_(KeyError("rows")), KeyError, "rows"),
}


@pytest.mark.parametrize("lie", LIES)
@pytest.mark.parametrize("reads", [0, 40, 200])
def test_an_inconsistent_source_raises_at_its_place_and_the_model_is_usable(lie, reads):
    lie, error, message = LIES[lie]
    model = classifier()
    for data in (
        lambda x: (x, Y),
        lambda x: (cl.DataGenerator(x, Y, batch_size=48, seed=0), None),
        lambda x: (cl.DataGenerator(x, Y, batch_size=48, seed=0, transform=lambda x, y: (x, y)), None),
    ):
        with pytest.raises(error, match=message):
            fit_classifier(*data(Lying(X, lie, reads)), model=model)
        with pytest.raises(error, match=message):
            model.evaluate(*data(Lying(X, lie, min(reads, 40))), loss=cl.SoftmaxLoss())
    with pytest.raises(error, match=message):
        model.predict(Lying(X, lie, min(reads, 40)))
    assert np.isfinite(model.predict(X)).all()
    fit_classifier(X, Y, model=model)


def test_a_source_that_changes_its_length_is_an_error_naming_both(tmp_path):
    with pytest.raises(ValueError, match=r"x has shape \(5001, 8\) now; it had \(5000, 8\) when it was given"):
        fit_classifier(Lying(X, grow, 50), Y)
    with h5py.File(tmp_path / "rows", "w") as file:
        x = file.create_dataset("x", data=X, maxshape=(None, FEATURES), chunks=(100, FEATURES))
        with pytest.raises(ValueError, match=r"x has shape \(4000, 8\) now"):
            fit_classifier(x, Y, callbacks=[lambda epoch, history: x.resize(4000, axis=0)])


SHRINKING = """
import os, sys, time, numpy as np, caffelite as cl
from caffelite import sources
sources.BUFFER, sources.BLOCK = 2**16, 2**12
header, rows, y, model = 4100, 9000, np.zeros(9000, int), cl.MLP(8, [2], seed=0)
open("rows", "wb").write(bytes(header + rows * 32))
x = np.memmap("rows", np.float32, mode=sys.argv[1], offset=header, shape=(rows, 8))
assert len(model.predict(x)) == rows
def shrink(epoch, history):
    time.sleep(0.5)  # in which what is read ahead has been read
    os.truncate("rows", header + 32)
options = {"loss": cl.SoftmaxLoss(), "optimizer": cl.SGD(model.parameters(), lr=0.1), "verbose": 0}
for use in (
    lambda: model.fit(x, y, epochs=2, callbacks=[shrink], **options),
    lambda: model.fit(x[::2], y[::2], **options),
    lambda: model.predict(x[-10:]),
    lambda: model.predict(x),
):
    try:
        use()
    except ValueError as error:
        print(error)
"""


@pytest.mark.parametrize("mode", ["r", "c", "r+"])
def test_a_mapped_file_that_shrinks_is_an_error_and_not_the_end(mode, tmp_path):
    said = run(sys.executable, "-c", SHRINKING, mode, cwd=tmp_path).splitlines()
    assert said == [
        f"{name}: its file has 4,132 bytes now, and 292,100 were mapped" for name in ("x", "x", *["predict"] * 2)
    ]


@pytest.mark.parametrize(
    ("x", "y", "error", "message"),
    [
        (SlicedArray(X), Y[:-1], ValueError, "x has 5000 rows, y has shape"),
        (SlicedArray(X[:, 1:]), Y, ValueError, r"Linear\(8 → 16.*7|got rows of 7|7"),
        (SlicedArray(X.astype(complex)), Y, TypeError, "x.*complex"),
        (SlicedArray(X.astype(object)), Y, TypeError, "x"),
        (SlicedArray(X), Y + 9 * (np.arange(N) == 77), ValueError, "row 77"),
        (
            SlicedArray(X),
            SlicedArray(np.where(np.arange(N) == 77, 9, Y)),
            ValueError,
            "63 … 83, 63 being row 0: label 9 in row 14",
        ),
        (
            SlicedArray(X),
            SlicedArray(np.where(np.arange(N) == 4000, -1, Y)),
            ValueError,
            r"3,990 … 4,010.*-1 in row 10",
        ),
    ],
)
def test_sources_that_do_not_fit_raise_before_the_first_step_if_possible(monkeypatch, x, y, error, message):
    monkeypatch.setattr(sources, "BUFFER", 2**13)  # which labels are larger than, too
    model = classifier()
    before = model.state_dict()
    with pytest.raises(error, match=message):
        fit_classifier(x, y, model=model, shuffle=False)
    if "4000" not in str(y) and not (isinstance(y, SlicedArray) and (y.array < 0).any()):
        assert all((value == before[name]).all() for name, value in model.state_dict().items())


def test_indices_are_checked_when_they_are_read():
    words = np.arange(N) % 50
    words[3210] = 50
    model = cl.Model([cl.Embedding(50, 4), cl.Linear(4, CLASSES)], seed=0)
    with pytest.raises(IndexError, match=r"among the rows [\d,]+ … [\d,]+, .* being row 0: x: index 50 in row"):
        fit_classifier(SlicedArray(words), Y, model=model)
    with pytest.raises(IndexError, match=r"among the rows from [\d,]+ on.*index 50 in row"):
        model.predict(SlicedArray(words))


def test_a_diverged_training_says_in_which_batch():
    x = X.copy()
    x[2000] = np.nan
    with pytest.raises(cl.TrainingDiverged, match=r"epoch 1, batch 42: .*x is not finite in 1 of"):
        fit_classifier(SlicedArray(x), Y, shuffle=False)


# ---- Ctrl-C, memory -------------------------------------------------------------------------------------------------


@pytest.mark.skipif(not hasattr(signal, "pthread_kill"), reason="needs signals to threads")
def test_ctrl_c_ends_a_training_that_waits_for_a_slow_source():
    class SlowArray(SlicedArray):
        def __getitem__(self, rows):
            time.sleep(0.02)  # and some 30 of them make a buffer
            return super().__getitem__(rows)

    main, x = threading.main_thread().ident, SlowArray(X)
    timer = threading.Timer(0.1, lambda: signal.pthread_kill(main, signal.SIGINT))
    timer.start()
    with pytest.raises(KeyboardInterrupt) as caught:
        fit_classifier(x, Y)
    timer.join()
    assert caught.value.history.epochs == 0
    assert len(x.reads) < 20  # in the midst of the first buffer


MEMORY = """
import re, resource, sys
import numpy as np
import caffelite as cl
from caffelite import sources

def kilobytes(name):
    return int(re.search(rf"^{name}:\\s+(\\d+) kB", open("/proc/self/status").read(), re.MULTILINE)[1])

sources.BUFFER, sources.BLOCK = 2**24, 2**18
rows = 300_000
x = np.memmap(sys.argv[1], np.float32, "w+", shape=(rows, 256))
y = np.arange(rows) % 3
model = cl.Model([cl.Linear(256, 3)], seed=0)
options = {"loss": cl.SoftmaxLoss(), "optimizer": cl.SGD(model.parameters(), lr=0.1), "verbose": 0}
model.fit(np.zeros((64, 256)), y[:64], **options)
open("/proc/self/clear_refs", "w").write("5")
before = kilobytes("VmRSS")
model.fit(x, y, batch_size=256, validation_split=0.1, **options)
model.evaluate(x, y, loss=cl.SoftmaxLoss())
model.predict(x)
for batch in cl.DataGenerator(x, y, batch_size=256):
    pass
print((kilobytes("VmHWM") - before) / 1024)
"""


@pytest.mark.slow
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
def test_memory_does_not_grow_with_the_file(tmp_path):
    """300 MB are trained on, evaluated and predicted in buffers of 16 MiB, two of them and two for validation."""
    done = subprocess.run(
        [sys.executable, "-c", MEMORY, str(tmp_path / "x")], capture_output=True, text=True, check=True
    )
    assert float(done.stdout) < 150


def test_a_source_is_read_as_it_says():
    with pytest.raises(ValueError, match="x: rows 3 … 4 came as"):
        Source(Lying(X, lambda source, rows: rows[:1]), "x").rows(3, 5)


@pytest.mark.parametrize("shuffle", [True, False])
def test_a_single_last_row_joins_the_batch_before_it(shuffle):
    """A training with a BatchNorm is given these batches, and goes on in their midst."""

    def generator(rows):
        x, y = SlicedArray(NUMBERED[:rows]), SlicedArray(Y[:rows])
        return cl.DataGenerator(x, y, batch_size=64, shuffle=shuffle, seed=0)

    rows = generator(N).blocks.buffer * 3 + 1
    batches = [x[:, 0] for x, _ in merge_single_rows(generator(rows))]
    assert [len(x) for x in batches] == [64] * (rows // 64 - 1) + [65]
    assert np.array_equal(np.sort(np.concatenate(batches)), np.arange(rows))
    found = []
    for given in (generator(rows), list(merge_single_rows(generator(rows)))):
        model = cl.Model([cl.BatchNorm(4), cl.Linear(4, CLASSES)], seed=0)
        loss, optimizer = cl.SoftmaxLoss(), cl.Adam(model.parameters())
        history = model.fit(given, loss=loss, optimizer=optimizer, metrics=["accuracy"], verbose=0)
        found.append((history, {name: array.tobytes() for name, array in model.state_dict().items()}))
    assert found[0] == found[1]
