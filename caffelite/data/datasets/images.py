"""Images in one folder per class, in the formats that Pillow reads."""

from __future__ import annotations

import math
import os
import sys
from pathlib import Path
from typing import Any

import numpy as np

from caffelite._support.extras import install_command
from caffelite.core.arrays import check_integers

SUFFIXES = {".bmp", ".gif", ".jpeg", ".jpg", ".pgm", ".png", ".ppm", ".tif", ".tiff", ".webp"}


def folder(
    path: str | os.PathLike[str], size: int | tuple[int, int], *, channels: int = 3
) -> tuple[np.ndarray, np.ndarray, list[str]]:
    """Return the images in a folder with a subfolder per class: x, y, class names.

        pets/cat/1.jpg, pets/cat/2.png, …, pets/dog/1.jpg, …

    x (n, channels, height, width) is float32 in 0 … 1. y (n,) is int64, the index of the class in `names`. Classes are
    in alphabetical order, and so are the files of each class, including those in nested folders. Names that begin with
    a dot are skipped, and so are files without an image's extension (.jpg, .png, .bmp, .gif, .webp, .tif, .ppm, .pgm).

    Parameters
    ----------
    path : str or path
    size : int, or (height, width)
        Each image is scaled to this size by bilinear interpolation, without keeping its aspect ratio.
    channels : int
        3 for red, green and blue; 1 for grayscale.

    Images are rotated as their EXIF data says. Transparent pixels become white. 16-bit gray keeps its precision. If a
    file contains several pictures, the first one counts.

    This needs Pillow (`pip install pillow`), and raises ImportError without it. Raise ValueError, naming the file, if
    Pillow cannot read it as an image. Raise ValueError for a class without images or a folder without classes, and
    FileNotFoundError if there is no such folder. Raise MemoryError, before reading the first image, if x would be
    larger than the machine's memory.
    """
    height, width = check_integers("folder: size", size, 2, max_value=2**31 - 1)
    if channels not in (1, 3) or isinstance(channels, bool):
        raise ValueError(f"folder: channels must be 1 or 3, got {channels!r}")
    try:
        import PIL.Image  # noqa: F401
    except ImportError as error:
        raise ImportError(f"folder reads images with Pillow: {install_command('images')}") from error
    classes = _classes(Path(path))
    files = [(file, label) for label, paths in enumerate(classes.values()) for file in paths]
    shape = (len(files), channels, height, width)
    if 4 * math.prod(shape) > (memory := _memory()):
        raise MemoryError(
            f"folder: {len(files):,} images of {channels} × {height} × {width} pixels need "
            f"{4 * math.prod(shape) / 1e9:.1f} GB, and the machine has {memory / 1e9:.1f} GB: take a smaller size"
        )
    x = np.empty(shape, np.float32)
    for image, (file, _) in zip(x, files, strict=True):
        _read(file, image)
    return x, np.array([label for _, label in files], np.int64), list(classes)


def _classes(path: Path) -> dict[str, list[Path]]:
    """Return the images of each class, by its name."""
    if not path.is_dir():
        raise FileNotFoundError(f"folder: there is no folder {path}")
    classes = {}
    for class_folder in sorted(path.iterdir()):
        if class_folder.is_dir() and not class_folder.name.startswith("."):
            paths = [
                file for file in sorted(class_folder.rglob("*")) if file.suffix.lower() in SUFFIXES and file.is_file()
            ]
            classes[class_folder.name] = [
                file for file in paths if not any(part.startswith(".") for part in file.relative_to(class_folder).parts)
            ]
            if not classes[class_folder.name]:
                suffixes = ", ".join(sorted(SUFFIXES))
                raise ValueError(f"folder: the class {class_folder} has no images: no name ends with {suffixes}")
    if not classes:
        raise ValueError(f"folder: expected a folder for each class in {path}, found none")
    return classes


def _read(file: Path, into: np.ndarray) -> None:
    """Read an image into an array (channels, height, width)."""
    from PIL import Image, ImageOps

    channels, height, width = into.shape
    try:
        with Image.open(file) as opened:
            image: Any = ImageOps.exif_transpose(opened)
            if image.mode.startswith("I;16") or image.mode == "I":  # 16-bit gray, which Pillow would cut to 8
                gray = np.asarray(image, np.float32) / np.float32(65535)
                if gray.size and not (gray.min() >= 0 and gray.max() <= 1):
                    raise ValueError("its pixels have more than 16 bits, and their range is not known")
                image = Image.fromarray(gray).resize((width, height), Image.Resampling.BILINEAR)
                into[...] = np.asarray(image)
                return
            if image.mode == "F":
                raise ValueError("its pixels are floats, and their range is not known")
            if image.has_transparency_data:
                image = image.convert("RGBA")
                image = Image.alpha_composite(Image.new("RGBA", image.size, "white"), image)
            image = image.convert("L" if channels == 1 else "RGB").resize((width, height), Image.Resampling.BILINEAR)
            pixels = np.asarray(image).reshape(height, width, channels)
            np.divide(pixels.transpose(2, 0, 1), 255, out=into, dtype=np.float32)
    except (OSError, SyntaxError, ValueError, EOFError, Image.DecompressionBombError) as error:
        raise ValueError(f"{file}: expected an image that Pillow can read: {error}") from error


def _memory() -> float:
    """Return the machine's memory in bytes, or infinity if that is unknown."""
    if sys.platform == "win32":
        import ctypes

        kilobytes = ctypes.c_ulonglong()
        is_known = ctypes.WinDLL("kernel32").GetPhysicallyInstalledSystemMemory(ctypes.byref(kilobytes))
        return kilobytes.value * 1024 if is_known else math.inf
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):
        return math.inf
