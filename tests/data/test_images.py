"""`datasets.folder`: images of all kinds in folders, and what is not an image."""

import sys

import numpy as np
import pytest

import caffelite as cl
from caffelite.data.datasets import images
from tests.reference import assert_same_bits

Image = pytest.importorskip("PIL.Image")

RNG = np.random.default_rng(0)
PIXELS = RNG.integers(256, size=(4, 6, 3), dtype=np.uint8)


def write(folder, *files):
    """Files by name, each from a Pillow image, or from bytes."""
    for name, image, *options in files:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if isinstance(image, bytes):
            path.write_bytes(image)
        else:
            image.save(path, **dict(*options))
    return folder


def one(folder, image, channels=3, size=(4, 6), name="image.png", **options):
    """x of a folder with this image only."""
    x, y, names = cl.datasets.folder(write(folder, (f"class/{name}", image, options)), size, channels=channels)
    assert (x.shape, x.dtype, y.tolist(), names) == ((1, channels, *size), np.float32, [0], ["class"])
    return x[0]


def test_classes_and_files_are_in_order_and_pixels_in_0_to_1(tmp_path):
    picture = Image.fromarray(PIXELS)
    write(
        tmp_path,
        *(("dog/b.png", picture), ("dog/a.PNG", picture.transpose(Image.Transpose.FLIP_LEFT_RIGHT))),
        *(("cat/deep/er/x.bmp", picture), ("cat/notes.txt", b"no image"), ("cat/.hidden.png", b"none")),
        *((".git/x.png", b"none"), ("cat/.thumbs/x.png", b"none"), ("readme.png", b"none")),
    )
    x, y, names = cl.datasets.folder(str(tmp_path), (4, 6))
    assert names == ["cat", "dog"]
    assert y.tolist() == [0, 1, 1]
    assert y.dtype == np.int64
    truth = np.divide(PIXELS.transpose(2, 0, 1), 255, dtype=np.float32)
    assert_same_bits(x, np.stack([truth, truth[:, :, ::-1], truth]))


def test_images_are_scaled_to_one_size(tmp_path):
    x = one(tmp_path, Image.fromarray(np.full((9, 5, 3), [51, 102, 255], np.uint8)), size=(3, 7))
    np.testing.assert_allclose(x, np.broadcast_to(np.float32([0.2, 0.4, 1])[:, None, None], (3, 3, 7)), atol=1e-6)
    x, _, _ = cl.datasets.folder(tmp_path, 2)
    assert x.shape == (1, 3, 2, 2)


def test_gray_is_the_luminance_and_becomes_three_equal_channels(tmp_path):
    luminance = np.asarray(Image.fromarray(PIXELS).convert("L"))
    assert_same_bits(one(tmp_path / "a", Image.fromarray(PIXELS), 1)[0], np.divide(luminance, 255, dtype=np.float32))
    x = one(tmp_path / "b", Image.fromarray(luminance))
    assert_same_bits(x, np.divide(np.stack([luminance] * 3), 255, dtype=np.float32))
    assert one(tmp_path / "c", Image.fromarray(luminance > 100)).max() == 1


@pytest.mark.parametrize("mode", ["RGBA", "LA", "P"])
def test_transparent_pixels_become_white(tmp_path, mode):
    alpha = np.zeros((4, 6, 1), np.uint8)
    alpha[:, :3] = 255
    image = Image.fromarray(np.concatenate([PIXELS // 2, alpha], axis=2)).convert(mode)
    x = one(tmp_path, image)
    assert (x[:, :, 3:] == 1).all()
    assert x[:, :, :3].max() < 0.6


def test_16_bits_are_kept(tmp_path):
    gray = RNG.integers(2**16, size=(4, 6), dtype=np.uint16)
    for channels in (1, 3):
        x = one(tmp_path / str(channels), Image.fromarray(gray), channels)
        np.testing.assert_allclose(x, np.broadcast_to(gray / 65535, x.shape), rtol=1e-6)


def test_images_are_turned_as_their_exif_data_say(tmp_path):
    turned = Image.fromarray(PIXELS)
    exif = Image.Exif()
    exif[0x0112] = 6  # to be turned by 90 degrees, clockwise
    x = one(tmp_path, turned, size=(6, 4), exif=exif)
    assert_same_bits(x, np.divide(np.rot90(PIXELS, -1).transpose(2, 0, 1), 255, dtype=np.float32))


@pytest.mark.parametrize("name", ["x.jpg", "x.gif", "x.webp", "x.tiff", "x.ppm"])
def test_other_formats_and_the_first_picture_of_several(tmp_path, name):
    plain = Image.fromarray(np.full((4, 6, 3), 200, np.uint8))
    several = {"save_all": True, "append_images": [Image.new("RGB", (6, 4))]} if name in ("x.gif", "x.tiff") else {}
    x = one(tmp_path, plain, name=name, **several)
    np.testing.assert_allclose(x, 200 / 255, atol=0.02)


# ---- errors ---------------------------------------------------------------------------------------------------------


def whole(tmp_path):
    return write(tmp_path, ("a/good.png", Image.fromarray(PIXELS)))


@pytest.mark.parametrize("broken", ["no image", "cut", "empty", "floats", "32 bits"])
def test_a_file_that_cannot_be_read_is_named(tmp_path, broken):
    path = whole(tmp_path) / "a" / "z.tif"
    if broken in ("floats", "32 bits"):
        Image.fromarray(np.full((4, 6), 70_000, np.float32 if broken == "floats" else np.int32)).save(path)
    else:
        good = (tmp_path / "a" / "good.png").read_bytes()
        path.write_bytes({"no image": b"GIF87a and no more", "cut": good[:80], "empty": b""}[broken])
    with pytest.raises(ValueError, match=r"a.z\.tif: expected an image that Pillow can read: "):
        cl.datasets.folder(tmp_path, 4)


def test_images_that_do_not_fit_into_memory_raise_before_any_is_read(tmp_path, monkeypatch):
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "x.png").write_bytes(b"never read")
    monkeypatch.setattr(images, "_memory", lambda: 1000)
    with pytest.raises(MemoryError, match=r"1 images of 3 × 100 × 100 pixels need 0\.0 GB"):
        cl.datasets.folder(tmp_path, 100)
    monkeypatch.undo()
    with pytest.raises(MemoryError, match="take a smaller size"):
        cl.datasets.folder(tmp_path, 2**31 - 1)


def test_something_other_than_a_folder_of_classes_raises(tmp_path, monkeypatch):
    folder = cl.datasets.folder
    with pytest.raises(FileNotFoundError, match=r"there is no folder .*nowhere"):
        folder(tmp_path / "nowhere", 4)
    with pytest.raises(ValueError, match=r"a folder for each class in .*, found none"):
        folder(tmp_path, 4)
    whole(tmp_path)
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "photo.heic").write_bytes(b"of a telephone")
    with pytest.raises(ValueError, match=r"the class .*b has no images: no name ends with .*\.jpg, \.pgm, \.png"):
        folder(tmp_path, 4)
    for size, error in ((0, ValueError), (2.5, TypeError), ((1, 2, 3), ValueError)):
        with pytest.raises(error, match="folder: size"):
            folder(tmp_path, size)
    for channels in (2, True, "rgb"):
        with pytest.raises(ValueError, match="channels must be 1 or 3"):
            folder(tmp_path, 4, channels=channels)
    monkeypatch.setitem(sys.modules, "PIL", None)
    monkeypatch.setitem(sys.modules, "PIL.Image", None)
    with pytest.raises(ImportError, match=r"-m pip install pillow"):
        folder(tmp_path, 4)
