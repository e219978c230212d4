"""Each picture of a page has a twin for dark pages, with the same shapes in other colours. The page shows one of them.

The lightness of greys is turned round, so text and grids stay readable, and pale grounds become dark ones of the same
hue. Strong colours keep their hue, and are light enough for a dark page. If there is a file NAME-dark.EXT next to a
picture, it is the twin. An SVG image with the id "photo" keeps its colours, and one with the id "ground" becomes dark,
because text is on it. A film has a twin with a slider of its own. Every picture needs a text for people who don't see
it.
"""

import base64
import hashlib
import io
import os
import re
import zlib
from pathlib import Path

import numpy as np
from docutils import nodes
from PIL import Image
from sphinx.application import Sphinx
from sphinx.util import logging

GROUND = "#131416"  # of the theme's dark pages
#: Lightness on a light page, and on a dark one: black, ink, grey, faint lines, white.
GREYS = (0.0, 0.32, 0.6, 0.9, 1.0), (0.98, 0.91, 0.7, 0.36, 0.19)
STRONG = (0.3, 0.53, 0.74, 0.92, 1.0), (0.6, 0.65, 0.8, 0.9, 0.95)
PALE, FULL = 0.08, 0.125  # chroma up to which a colour is a ground, and from which it is strong
SOFT = 0.8  # how much of its chroma a ground keeps

# B. Ottosson, "A perceptual color space for image processing", 2020: linear RGB to LMS, and its cube roots to Oklab.
TO_LMS = np.array([[0.4122214708, 0.5363325363, 0.0514459929], [0.2119034982, 0.6806995451, 0.1073969566],
                   [0.0883024619, 0.2817188376, 0.6299787005]])  # fmt: skip
TO_OKLAB = np.array([[0.2104542553, 0.7936177850, -0.0040720468], [1.9779984951, -2.4285922050, 0.4505937099],
                     [0.0259040371, 0.7827717662, -0.8086757660]])  # fmt: skip


def darken(rgb, is_ground=False):
    """Return colours (…, 3) in 0 … 1 as they are on a dark page. Those of a ground are dark, however strong."""
    linear = np.where(rgb <= 0.04045, rgb / 12.92, ((rgb + 0.055) / 1.055) ** 2.4)
    lightness, a, b = np.moveaxis(np.cbrt(linear @ TO_LMS.T) @ TO_OKLAB.T, -1, 0)
    strength = np.clip((np.hypot(a, b) - PALE) / (FULL - PALE), 0, 1) * (not is_ground)
    turned = np.interp(lightness, *GREYS)
    new = turned + strength * (np.interp(lightness, *STRONG) - turned)
    kept = SOFT + strength * (1 - SOFT)
    linear = (np.stack([new, kept * a, kept * b], axis=-1) @ np.linalg.inv(TO_OKLAB).T) ** 3 @ np.linalg.inv(TO_LMS).T
    linear = np.clip(linear, 0, 1)
    return np.where(linear <= 0.0031308, linear * 12.92, 1.055 * linear ** (1 / 2.4) - 0.055)


def darken_colour(name):
    """Return the twin of a colour such as #ffffff or #fff."""
    digits = name[1:] if len(name) == 7 else "".join(2 * digit for digit in name[1:])
    if digits.lower() == "ffffff":
        return GROUND
    rgb = np.array([int(digits[i : i + 2], 16) for i in (0, 2, 4)]) / 255
    return "#" + "".join(f"{round(255 * x):02x}" for x in darken(rgb))


def darken_table(table):
    """Return the twin of a table of colours, of three bytes each."""
    colours = np.frombuffer(table, np.uint8).reshape(-1, 3) / 255
    return np.round(255 * darken(colours)).astype(np.uint8).tobytes()


def darken_gif(gif):
    """Return the twin of a GIF file: its tables of colours, the common one and those of single frames."""
    twin, place = bytearray(gif), 13

    def darken_next(flags):  # with a table, the highest bit is set, and the lowest three are for its length
        nonlocal place
        end = place + (3 << (flags % 8 + 1) if flags >> 7 else 0)
        twin[place:end] = darken_table(gif[place:end])
        place = end

    darken_next(gif[10])
    while gif[place] != 0x3B:  # the end
        if gif[place] == 0x2C:  # a frame
            place += 10
            darken_next(gif[place - 1])
            place += 1
        else:  # an extension
            place += 2
        while gif[place]:  # the length of a block, up to an empty one
            place += gif[place] + 1
        place += 1
    return bytes(twin)


def darken_image(png, is_ground=False):
    """Return the twin of a PNG file; what is transparent stays so."""
    image = Image.open(io.BytesIO(png))
    colours = image.mode if image.mode in ("RGB", "RGBA") else "RGBA"
    pixels = np.array(image.convert(colours))
    distinct, index = np.unique(pixels[..., :3].reshape(-1, 3), axis=0, return_inverse=True)
    pixels[..., :3] = np.round(255 * darken(distinct / 255, is_ground))[index.ravel()].reshape(*pixels.shape[:2], 3)
    file = io.BytesIO()
    Image.fromarray(pixels, colours).save(file, format="PNG", optimize=True)
    return file.getvalue()


def darken_svg(text):
    """Return the twin of an SVG drawing: its colours, and the images in it."""

    def encode(match):
        attributes = match[1] + match[3]
        if 'id="photo"' in attributes:
            return match[0]
        twin = darken_image(base64.b64decode(match[2]), is_ground='id="ground"' in attributes)
        return match[1] + base64.b64encode(twin).decode() + match[3]

    text = re.sub(r'(?<!href=")(?<!url\()#([0-9a-fA-F]{6}|[0-9a-fA-F]{3})\b', lambda m: darken_colour(m[0]), text)
    text = re.sub(r'(<image\b[^>]*?"data:image/png;base64,\s*)([A-Za-z0-9+/=\s]+)("[^>]*>)', encode, text)
    return text.replace("<svg ", f'<svg fill="{darken_colour("#000000")}" ', 1)  # of all that has no colour


def darken_film(text):
    """Return a film with its twin, which has a slider of its own. The page shows one of them.

    The pictures of a film are PNG files with the same table of colours, which begins after 33 bytes. So in base64, the
    table is the same string in all of them. The twin takes the pictures of the film, with another table.
    """
    name = re.search(r'<div id="(film-\w+)"', text)[1]
    pictures = re.findall(r"iVBORw0KGgo[A-Za-z0-9+/=]+", text)  # the first bytes of a PNG file
    png = base64.b64decode(pictures[0])
    table = png[33 : 45 + int.from_bytes(png[33:37], "big")]  # length, name, colours, checksum
    light = base64.b64encode(table).decode()
    if table[4:8] != b"PLTE" or any(not picture.startswith(light, 44) for picture in pictures):
        raise ValueError("the pictures of a film should have the same table of colours, after the header")
    colours = b"PLTE" + darken_table(table[8:-4])
    dark = base64.b64encode(table[:4] + colours + zlib.crc32(colours).to_bytes(4, "big")).decode()

    settings = f"""const film = {{ ...window["settings-{name}"] }};
  film.pictures = film.pictures.map((picture) => picture.replace("{light}", "{dark}"));"""
    twin = re.sub(r"const film = .*", lambda _: settings, text).replace(f'"{name}"', f'"{name}-dark"')
    twin = twin.replace(pictures[0], pictures[0].replace(light, dark))
    text = text.replace("const film = ", f'const film = window["settings-{name}"] = ')
    return f'<div class="only-light">{text}</div>\n<div class="only-dark">{twin}</div>\n'


def find_twin(path, folder):
    """Return the file of a picture's twin, made if it is not there yet. None if it has no twin."""
    own = path.with_name(f"{path.stem}-dark{path.suffix}")
    if own.exists() or path.suffix not in (".svg", ".png", ".gif"):
        return own if own.exists() else None
    content = path.read_bytes()
    key = hashlib.sha256(content + Path(__file__).read_bytes()).hexdigest()[:12]
    made = folder / f"{path.stem}-{key}-dark{path.suffix}"
    if not made.exists():
        folder.mkdir(parents=True, exist_ok=True)
        twins = {".png": darken_image, ".gif": darken_gif, ".svg": lambda svg: darken_svg(svg.decode()).encode()}
        made.write_bytes(twins[path.suffix](content))
    return made


def add_twins(app, document):
    """Put the twins next to the pictures and films of a page."""
    for film in list(document.findall(nodes.raw)):
        if '<div id="film-' in film.astext():
            film[:] = [nodes.Text(darken_film(film.astext()))]
    for image in list(document.findall(nodes.image)):
        if not image.get("alt"):
            logging.getLogger(__name__).warning("a picture without alt text: %s", image["uri"], location=image)
        if "://" in image["uri"] or image["uri"].startswith("data:"):
            continue
        _, path = app.env.relfn2path(image["uri"])
        twin = find_twin(Path(path), Path(app.doctreedir).parent / "dark")
        if twin is None:
            image["classes"].append("as-is")
            continue
        dark = image.copy()
        dark["uri"] = "/" + os.path.relpath(twin, app.srcdir)
        for picture, where in ((image, "only-light"), (dark, "only-dark")):
            picture["classes"] = [*picture["classes"], where]
            picture["loading"] = "lazy"
        image.parent.insert(image.parent.index(image) + 1, dark)


def setup(app: Sphinx) -> dict:
    app.connect("doctree-read", add_twins, priority=400)  # before Sphinx collects the images
    return {"parallel_read_safe": True, "parallel_write_safe": True}
