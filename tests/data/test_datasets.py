"""The data that are made, that come with the package, and that are read from files."""

import functools
import gzip
import hashlib
import io
import struct
import sys
import tarfile
import threading
import tracemalloc
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer

import numpy as np
import pytest

import caffelite as cl
from caffelite.data.datasets import download, mnist_cifar
from tests.reference import assert_same_bits


def test_a_spiral_is_float32_points_and_int64_labels_class_by_class():
    x, y = cl.datasets.spiral(points_per_class=7, classes=4, seed=0)
    assert (x.shape, x.dtype, y.dtype) == ((28, 2), np.float32, np.int64)
    assert y.tolist() == sorted(list(range(4)) * 7)


def test_without_noise_a_spiral_is_its_formula():
    x, y = cl.datasets.spiral(points_per_class=50, classes=3, noise=0)
    for j in range(3):
        r, angle = np.linspace(0, 1, 50), np.linspace(4 * j, 4 * (j + 1), 50)
        np.testing.assert_allclose(x[y == j], np.column_stack([r * np.sin(angle), r * np.cos(angle)]), atol=1e-6)


def test_the_noise_of_a_spiral_is_normal_and_in_the_angle():
    x, y = cl.datasets.spiral(points_per_class=20_000, classes=2, noise=0.1, seed=0)
    np.testing.assert_allclose(np.hypot(*x[y == 1].T), np.linspace(0, 1, 20_000), atol=1e-6)
    angle = np.arctan2(*x[y == 1][1:].T) - np.linspace(4, 8, 20_000)[1:]
    noise = (angle + np.pi) % (2 * np.pi) - np.pi
    assert abs(noise.mean()) < 0.003
    assert abs(noise.std() - 0.1) < 0.003


def test_the_same_seed_gives_the_same_spiral():
    assert (cl.datasets.spiral(seed=1)[0] == cl.datasets.spiral(seed=1)[0]).all()
    assert (cl.datasets.spiral(seed=1)[0] != cl.datasets.spiral(seed=2)[0]).any()
    assert (cl.datasets.spiral()[0] != cl.datasets.spiral()[0]).any()


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"points_per_class": 0}, ValueError),
        ({"points_per_class": 1.5}, TypeError),
        ({"classes": -1}, ValueError),
        ({"classes": "3"}, TypeError),
        ({"noise": -0.1}, ValueError),
        ({"noise": float("nan")}, ValueError),
        ({"noise": "much"}, TypeError),
    ],
)
def test_a_spiral_of_impossible_size_or_noise_raises(options, error):
    with pytest.raises(error, match=next(iter(options))):
        cl.datasets.spiral(**options)


def test_digits_are_1437_images_to_learn_from_and_360_to_test_on():
    (x_train, y_train), (x_test, y_test) = cl.datasets.digits()
    assert (x_train.shape, y_train.shape) == ((1437, 8, 8), (1437,))
    assert (x_test.shape, y_test.shape) == ((360, 8, 8), (360,))
    for x, y in ((x_train, y_train), (x_test, y_test)):
        assert (x.dtype, y.dtype) == (np.float32, np.int64)
        assert (x.min(), x.max()) == (0, 1)
        assert (x * 16 == np.round(x * 16)).all()
        assert set(y.tolist()) == set(range(10))


def test_the_split_of_the_digits_is_stratified():
    (_, y_train), (_, y_test) = cl.datasets.digits()
    test, train = np.bincount(y_test), np.bincount(y_train)
    assert (abs(test - (test + train) * 360 / 1797) <= 1).all()


def test_digits_are_the_same_at_each_call_and_belong_to_the_caller():
    (first, _), _ = cl.datasets.digits()
    kept = first.copy()
    first[...] = -1
    (second, _), _ = cl.datasets.digits()
    assert (second == kept).all()


def test_digits_are_the_uci_images():
    datasets = pytest.importorskip("sklearn.datasets")
    images, labels = datasets.load_digits(return_X_y=True)
    (x_train, y_train), (x_test, y_test) = cl.datasets.digits()
    x = np.concatenate([x_train, x_test]).reshape(1797, 64) * 16
    y = np.concatenate([y_train, y_test])
    theirs = sorted(zip(labels.tolist(), images.tolist(), strict=True))
    assert sorted(zip(y.tolist(), x.tolist(), strict=True)) == theirs


# ---- files ----------------------------------------------------------------------------------------------------------

NAMES = ["train-images-idx3-ubyte", "train-labels-idx1-ubyte", "t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte"]
CIFAR_NAMES = [*[f"data_batch_{i}.bin" for i in range(1, 6)], "test_batch.bin"]
READERS = {"mnist": cl.datasets.mnist, "fashion_mnist": cl.datasets.fashion_mnist, "cifar10": cl.datasets.cifar10}
every_reader = pytest.mark.parametrize("dataset", READERS)

# Fast, and as small as it gets for pictures of one colour.
packed = functools.partial(gzip.compress, mtime=0)


def idx(array):
    return bytes([0, 0, 8, array.ndim]) + struct.pack(f">{array.ndim}I", *array.shape) + array.tobytes()


def mnist_arrays(rows=(7, 3)):
    rng = np.random.default_rng(0)
    return [rng.integers(0, high, (n, *shape), np.uint8) for n in rows for high, shape in ((256, (28, 28)), (10, ()))]


def cifar_arrays(rows=(2, 1, 3, 1, 1, 4)):
    rng = np.random.default_rng(0)
    return [np.hstack([rng.integers(0, high, (n, k), np.uint8) for high, k in ((10, 1), (256, 3072))]) for n in rows]


def contents(dataset):
    """Return the files of a small data set by name."""
    if dataset == "cifar10":
        return dict(zip(CIFAR_NAMES, [rows.tobytes() for rows in cifar_arrays()], strict=True))
    return dict(zip(NAMES, map(idx, mnist_arrays()), strict=True))


def write_files(folder, of, pack=lambda name: False):
    """Write files to a folder, packed with .gz where `pack` says so of a name."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in of.items():
        if pack(name):
            (folder / f"{name}.gz").write_bytes(packed(content))
        else:
            (folder / name).write_bytes(content)
    return folder


def assert_is_the_small(dataset, data):
    (x_train, y_train), (x_test, y_test) = data
    if dataset == "cifar10":
        *train, test = cifar_arrays()
        splits = [np.concatenate(train), test]
        expected = [(rows[:, 1:].reshape(-1, 3, 32, 32), rows[:, 0]) for rows in splits]
    else:
        images, labels, test_images, test_labels = mnist_arrays()
        expected = [(images, labels), (test_images, test_labels)]
    for x, y, (pixels, labels) in zip((x_train, x_test), (y_train, y_test), expected, strict=True):
        assert_same_bits(x, pixels.astype(np.float32) / np.float32(255))
        assert_same_bits(y, labels.astype(np.int64))
        assert x.flags.writeable


@every_reader
@pytest.mark.parametrize(
    "pack", [lambda name: False, lambda name: True, lambda name: "train" in name or "2" in name], ids=["", "gz", "some"]
)
def test_files_are_read_as_they_are_or_packed(dataset, pack, tmp_path):
    write_files(tmp_path, contents(dataset), pack)
    assert_is_the_small(dataset, READERS[dataset](tmp_path))
    assert_is_the_small(dataset, READERS[dataset](str(tmp_path)))


@every_reader
def test_a_gzip_file_is_recognized_by_its_content_not_its_name(dataset, tmp_path):
    for name, content in contents(dataset).items():
        (tmp_path / name).write_bytes(packed(content))
    assert_is_the_small(dataset, READERS[dataset](tmp_path))


def test_cifar10_is_found_in_the_folder_that_its_archive_unpacks_to(tmp_path):
    write_files(tmp_path / "cifar-10-batches-bin", contents("cifar10"), lambda name: name == "test_batch.bin")
    assert_is_the_small("cifar10", cl.datasets.cifar10(tmp_path))


def test_files_of_more_rows_than_are_read_at_once(tmp_path):
    rows = np.random.default_rng(0).integers(0, 10, (600, 3073), np.uint8)
    write_files(tmp_path, dict.fromkeys(CIFAR_NAMES, rows.tobytes()), lambda name: "2" in name)
    (x, y), _ = cl.datasets.cifar10(tmp_path)
    assert (y.reshape(5, 600) == rows[:, 0]).all()
    assert (x.reshape(5, 600, 3072) == rows[:, 1:] / np.float32(255)).all()
    rows[400, 0] = 10
    replace(tmp_path / "test_batch.bin", rows.tobytes())
    with pytest.raises(ValueError, match=r"test_batch.bin: expected labels from 0 to 9, got 10 in row 400"):
        cl.datasets.cifar10(tmp_path)
    images = np.random.default_rng(0).integers(0, 256, (2100, 28, 28), np.uint8)
    write_files(
        tmp_path,
        dict(zip(NAMES, [idx(images), idx((np.arange(2100) % 10).astype(np.uint8))] * 2, strict=True)),
        lambda name: "t10k" in name,
    )
    for x, _ in cl.datasets.mnist(tmp_path):
        assert (x == images / np.float32(255)).all()


def test_images_and_labels_of_no_rows_are_read(tmp_path):
    write_files(tmp_path, dict(zip(NAMES, map(idx, mnist_arrays((2, 0))), strict=True)))
    _, (x, y) = cl.datasets.mnist(tmp_path)
    assert (x.shape, y.shape) == ((0, 28, 28), (0,))


@every_reader
def test_missing_files_are_named(dataset, tmp_path):
    names = list(contents(dataset))
    with pytest.raises(FileNotFoundError, match=f"{', '.join(names)}.*not in .*nowhere. download=True fetches them"):
        READERS[dataset](tmp_path / "nowhere")
    write_files(tmp_path, contents(dataset))
    (tmp_path / names[1]).unlink()
    (tmp_path / names[1]).mkdir()
    with pytest.raises(FileNotFoundError, match=f"{dataset} needs the files {names[1]},"):
        READERS[dataset](tmp_path)


IMAGES, LABELS = map(idx, mnist_arrays()[:2])
ROWS = contents("cifar10")["data_batch_3.bin"]
BAD = {
    "empty": (IMAGES, b"", "expected an IDX file .* 00 00 08 03 .* got nothing"),
    "half a header": (IMAGES, IMAGES[:9], "expected an IDX file .* 00 00 08 03"),
    "other magic": (IMAGES, b"\0\0\x08\x01" + IMAGES[4:], "00 00 08 03 .* got 00 00 08 01"),
    "floats": (IMAGES, b"\0\0\x0d\x03" + IMAGES[4:], "00 00 08 03 .* got 00 00 0d 03"),
    "other pixels": (IMAGES, idx(np.zeros((7, 28, 29), np.uint8)), r"shape \(28, 28\), got .* \(7, 28, 29\)"),
    "truncated": (IMAGES, IMAGES[:-1], r"expected 5504 bytes for shape \(7, 28, 28\), got .*5503|5488 .* got 5487"),
    "too long": (IMAGES, IMAGES + b"\0", r"expected 5504 bytes .* got 5505|5488 .* got more"),
    "a row less": (IMAGES, idx(mnist_arrays()[0][:6]), "has 6 images, .*train-labels.* has 7 labels"),
    "absurd": (IMAGES, IMAGES[:4] + b"\xff" * 4 + IMAGES[8:], r"expected 3367254359296 bytes .* got"),
    "label 10": (LABELS, idx(np.array([3, 10, 11, 1, 1, 1, 1], np.uint8)), "labels from 0 to 9, got 10 in row 1"),
    "CIFAR, empty": (ROWS, b"", "whole rows of 3073 bytes, got 0"),
    "CIFAR, truncated": (ROWS, ROWS[:-1], "whole rows of 3073 bytes, got 9218"),
    "CIFAR, too long": (ROWS, ROWS + b"\0", "whole rows of 3073 bytes, got 9220"),
    "CIFAR, label 12": (ROWS, ROWS[:6146] + b"\x0c" + ROWS[6147:], "labels from 0 to 9, got 12 in row 2"),
}


@pytest.mark.parametrize("pack", [bytes, packed])
@pytest.mark.parametrize("what", BAD)
def test_a_wrong_file_is_named_with_the_expected_and_the_actual_content(what, pack, tmp_path):
    good, bad, message = BAD[what]
    dataset = "cifar10" if good is ROWS else "mnist"
    of = contents(dataset)
    name = next(name for name, content in of.items() if content == good)
    write_files(tmp_path, of)
    (tmp_path / name).write_bytes(pack(bad))
    with pytest.raises(ValueError, match=f"{name}.*({message})"):
        READERS[dataset](tmp_path)


@pytest.mark.parametrize(
    "spoil",
    [
        lambda content: content[:-1],
        lambda content: content[: len(content) // 2],
        lambda content: content[:7],
        lambda content: content[:-8] + bytes(8),  # another checksum
        lambda content: content + b"more",
        lambda content: content[:2] + b"\x63" + content[3:],  # another method
        lambda content: content[:20] + bytes(9) + content[29:],
    ],
)
@every_reader
def test_a_gzip_file_that_is_damaged_is_named(dataset, spoil, tmp_path):
    of = contents(dataset)
    name = next(iter(of))
    write_files(tmp_path, of, lambda name: True)
    (tmp_path / f"{name}.gz").write_bytes(spoil(packed(of[name])))
    with pytest.raises(ValueError, match=f"{name}.gz: expected"):
        READERS[dataset](tmp_path)


def peak_memory(call):
    """Return the most memory that Python and NumPy held during a call, in bytes, which raises ValueError."""
    tracemalloc.start()
    try:
        with pytest.raises(ValueError, match="expected"):
            call()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def test_a_gzip_file_is_unpacked_no_further_than_its_header_says(tmp_path):
    write_files(tmp_path, contents("mnist"))
    (tmp_path / NAMES[0]).write_bytes(packed(IMAGES + bytes(50_000_000)))
    assert peak_memory(lambda: cl.datasets.mnist(tmp_path)) < 2e6


@pytest.mark.parametrize("pack", [bytes, packed])
def test_a_header_that_promises_more_than_the_file_can_hold_gets_no_memory(pack, tmp_path):
    write_files(tmp_path, contents("mnist"))
    for rows in (10_000, 300_000, 2**32 - 1):
        (tmp_path / NAMES[0]).write_bytes(pack(IMAGES[:4] + struct.pack(">I", rows) + IMAGES[8:]))
        assert peak_memory(lambda: cl.datasets.mnist(tmp_path)) < 2e6


def test_a_gzip_file_is_not_unpacked_beyond_a_limit(tmp_path, monkeypatch):
    assert mnist_cifar.MAX_UNPACKED == 2**28
    monkeypatch.setattr(mnist_cifar, "MAX_UNPACKED", 3_000_000)
    write_files(tmp_path, contents("cifar10"))
    (tmp_path / CIFAR_NAMES[0]).write_bytes(packed(bytes(3073 * 10_000)))
    assert peak_memory(lambda: cl.datasets.cifar10(tmp_path)) < 6e6
    write_files(tmp_path, contents("mnist"))
    (tmp_path / NAMES[0]).write_bytes(packed(idx(np.zeros((4000, 28, 28), np.uint8))))
    assert peak_memory(lambda: cl.datasets.mnist(tmp_path)) < 2e6


def mutate(content, rng):
    """Return the content with a byte, a bit, an integer or a stretch changed, or with another length."""
    content = bytearray(content)
    for _ in range(rng.integers(1, 4)):
        i, n = int(rng.integers(0, len(content) + 1)), int(rng.integers(1, 40))
        if rng.integers(2):
            i = min(i, int(rng.integers(0, 24)))  # the header, more often
        match rng.integers(6):
            case 0:
                content[i : i + 1] = rng.bytes(1)
            case 1 if i < len(content):
                content[i] ^= 1 << int(rng.integers(8))
            case 2:
                content[i : i + 4] = struct.pack(">I", int(rng.choice([0, 1, 28, 2**16, 2**31, 2**32 - 1])))
            case 3:
                del content[i : i + n]
            case 4:
                content[i:i] = rng.bytes(n)
            case _:
                content = content[:i] or content
    return bytes(content)


def replace(path, content):
    """Write a file anew; to overwrite it may take a thousand times as long."""
    path.unlink()
    path.write_bytes(content)


def read_plainly(of):
    """x_train and y_train of files, without a check."""
    if "test_batch.bin" in of:
        rows = np.frombuffer(b"".join([of[name] for name in CIFAR_NAMES[:5]]), np.uint8).reshape(-1, 3073)
        return rows[:, 1:].reshape(-1, 3, 32, 32) / np.float32(255), rows[:, 0]
    images, labels = np.frombuffer(of[NAMES[0]][16:], np.uint8), np.frombuffer(of[NAMES[1]][8:], np.uint8)
    assert struct.unpack(">III", of[NAMES[0]][4:16]) == (len(labels), 28, 28)
    return images.reshape(-1, 28, 28) / np.float32(255), labels


@pytest.mark.parametrize("dataset", ["mnist", "cifar10"])
@pytest.mark.parametrize("pack", [bytes, packed])
def test_thousands_of_mutated_files_raise_value_error_or_are_read_right(dataset, pack, tmp_path):
    rng = np.random.default_rng(0)
    of = contents(dataset)
    write_files(tmp_path, of)
    unread = {name: [] for name in list(of)[:2]}
    tracemalloc.start()
    for i in range(1000):
        name = list(of)[i % 2]
        content = mutate(pack(of[name]), rng)
        replace(tmp_path / name, content)
        try:
            (x, y), _ = READERS[dataset](tmp_path)
        except ValueError as error:
            unread[name].append(str(error))
        else:
            content = gzip.decompress(content) if content[:2] == b"\x1f\x8b" else content
            expected_x, expected_y = read_plainly(of | {name: content})
            assert_same_bits(x, expected_x)
            assert y.tolist() == expected_y.tolist()
        replace(tmp_path / name, of[name])
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    largest = max(len(pack(content)) for content in of.values())
    assert peak < 4 * mnist_cifar.MAX_RATIO * largest  # objects that an error holds may not be collected at once
    for name, errors in unread.items():
        assert 300 < len(errors) < 500
        assert all(name in error for error in errors)


# ---- downloads -------------------------------------------------------------------------------------------------------


class Handler(SimpleHTTPRequestHandler):
    """Serves a folder, notes what was asked for, and breaks off in the middle of what is named so."""

    def do_GET(self):
        self.server.asked.append(self.path.rsplit("/", 1)[1])
        if self.server.breaks_off:
            self.send_response(200)
            self.send_header("Content-Length", "1000000")
            self.end_headers()
            self.wfile.write(b"half of it")
        else:
            super().do_GET()

    def log_message(self, *arguments):
        pass


@pytest.fixture
def server(tmp_path, monkeypatch):
    """Yield a server on this machine from which everything can be fetched, in place of those in the world."""
    pytest.importorskip("pooch")
    monkeypatch.setenv("NO_PROXY", "*")
    (tmp_path / "served").mkdir()
    with ThreadingHTTPServer(
        ("127.0.0.1", 0), functools.partial(Handler, directory=str(tmp_path / "served"))
    ) as server:
        server.asked, server.breaks_off, server.folder = [], False, tmp_path / "served"
        server.url = f"http://127.0.0.1:{server.server_port}/"
        for dataset in READERS:
            (server.folder / dataset).mkdir()
            if dataset == "cifar10":
                archive = io.BytesIO()
                with tarfile.open(fileobj=archive, mode="w:gz") as tar:
                    for name, content in [*contents(dataset).items(), ("batches.meta.txt", b"airplane")]:
                        member = tarfile.TarInfo(f"cifar-10-batches-bin/{name}")
                        member.size = len(content)
                        tar.addfile(member, io.BytesIO(content))
                served = {"cifar-10-binary.tar.gz": archive.getvalue()}
            else:
                served = {f"{name}.gz": packed(content) for name, content in contents(dataset).items()}
            for name, content in served.items():
                (server.folder / dataset / name).write_bytes(content)
            source = download.DOWNLOADS[dataset]
            assert served.keys() == source.sha256.keys()
            sha256 = {name: hashlib.sha256(content).hexdigest() for name, content in served.items()}
            monkeypatch.setitem(
                download.DOWNLOADS, dataset, source._replace(url=f"{server.url}{dataset}/", sha256=sha256)
            )
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def files_in(folder):
    return sorted(path.name for path in folder.rglob("*") if path.is_file())


@every_reader
def test_a_missing_file_is_fetched_once(dataset, server, tmp_path):
    folder = tmp_path / "new" / "folder"
    for _ in range(2):
        assert_is_the_small(dataset, READERS[dataset](folder, download=True))
        assert server.asked == list(download.DOWNLOADS[dataset].sha256)
    assert_is_the_small(dataset, READERS[dataset](folder))
    packed_names = contents(dataset) if dataset == "cifar10" else [f"{name}.gz" for name in contents(dataset)]
    assert files_in(folder) == sorted(packed_names)
    assert [path.name for path in folder.iterdir() if path.is_dir()] == ["cifar-10-batches-bin"] * (
        dataset == "cifar10"
    )


@every_reader
def test_files_that_are_there_are_kept(dataset, server, tmp_path):
    of = contents(dataset)
    (missing, _), *rest = of.items()
    folder = write_files(tmp_path / "folder", dict(rest))
    assert_is_the_small(dataset, READERS[dataset](folder, download=True))
    assert server.asked == ["cifar-10-binary.tar.gz" if dataset == "cifar10" else f"{missing}.gz"]
    assert len(files_in(folder)) == len(of)


@every_reader
def test_another_sha256_is_named_and_nothing_is_kept(dataset, server, tmp_path):
    name = list(download.DOWNLOADS[dataset].sha256)[-1]
    with open(server.folder / dataset / name, "ab") as file:
        file.write(b"x")
    with pytest.raises(ValueError, match=f"{server.url}{dataset}/{name} has unexpected content.*SHA256"):
        READERS[dataset](tmp_path / "folder", download=True)
    assert name not in files_in(tmp_path / "folder")
    assert not list((tmp_path / "folder").glob("incomplete*"))


@every_reader
@pytest.mark.parametrize("how", ["not found", "breaks off", "no server"])
def test_a_failed_download_is_named_and_leaves_no_file(how, dataset, server, tmp_path, monkeypatch):
    name, source = next(iter(download.DOWNLOADS[dataset].sha256)), download.DOWNLOADS[dataset]
    server.breaks_off = how == "breaks off"
    if how == "not found":
        (server.folder / dataset / name).unlink()
    if how == "no server":
        monkeypatch.setitem(download.DOWNLOADS, dataset, source._replace(url="http://127.0.0.1:9/"))
    url = f"{download.DOWNLOADS[dataset].url}{name}"
    with pytest.raises(ConnectionError, match=f"{url} could not be fetched: try again, or put .* into .*folder"):
        READERS[dataset](tmp_path / "folder", download=True)
    assert list((tmp_path / "folder").iterdir()) == []


def test_without_pooch_a_missing_file_says_what_to_install(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "pooch", None)
    with pytest.raises(ImportError, match=r"-m pip install pooch"):
        cl.datasets.mnist(tmp_path / "folder", download=True)
    assert not (tmp_path / "folder").exists()
    assert_is_the_small("mnist", cl.datasets.mnist(write_files(tmp_path, contents("mnist")), download=True))


def test_every_file_that_is_fetched_has_a_sha256_and_its_name_is_one_that_is_read():
    for source in download.DOWNLOADS.values():
        assert source.url.endswith("/")
        for sha256 in source.sha256.values():
            assert len(bytes.fromhex(sha256)) == 32
    assert (
        list(download.DOWNLOADS["mnist"].sha256)
        == [f"{name}.gz" for name in NAMES]
        == list(download.DOWNLOADS["fashion_mnist"].sha256)
    )
    assert {*download.DOWNLOADS["mnist"].sha256.values()}.isdisjoint(
        download.DOWNLOADS["fashion_mnist"].sha256.values()
    )
