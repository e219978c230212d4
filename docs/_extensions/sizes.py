"""Every picture of the site has its width and height in the page, so nothing jumps when a picture arrives.

The style sheet may show it smaller. A drawing without a size of its own is as wide as its column.
"""

import re
from pathlib import Path
from urllib.parse import unquote

from PIL import Image
from sphinx.application import Sphinx

UNITS = {"": 1, "px": 1, "pt": 4 / 3}  # in pixels


def measure(path):
    """Return the width and the height of a picture in pixels, and if it has them itself, not only their ratio."""
    if path.suffix != ".svg":
        with Image.open(path) as image:
            return *image.size, True
    tag = re.search(r"<svg\b[^>]*>", path.read_text(encoding="utf-8"))[0]
    sizes = [re.search(rf'\s{side}="([\d.]+)(px|pt|)"', tag) for side in ("width", "height")]
    if all(sizes):
        return *[round(float(size[1]) * UNITS[size[2]]) for size in sizes], True
    box = re.search(r'viewBox="([^"]*)"', tag)[1].split()
    return *[round(float(side)) for side in box[2:]], False


def add_sizes(text, folder):
    """Return a page, in a folder, with the sizes of those of its pictures that have none yet and are files."""

    def add(match):
        tag = match[0]
        source = re.search(r'\ssrc="([^":]+)"', tag)  # with a colon, it is no file of the site
        if source is None or re.search(r"\s(width|height)=", tag):
            return tag
        width, height, is_fixed = measure(folder / unquote(source[1]))
        style = "" if is_fixed else ' style="width: 100%"'
        return f'<img width="{width}" height="{height}"{style}{tag[4:]}'

    return re.sub(r"<img\b[^>]*>", add, text)


def write_sizes(app, exception):
    if exception is None and app.builder.format == "html":
        for page in Path(app.outdir).rglob("*.html"):
            text = page.read_text(encoding="utf-8")
            sized = add_sizes(text, page.parent)
            if sized != text:
                page.write_text(sized, encoding="utf-8")


def setup(app: Sphinx) -> dict:
    app.connect("build-finished", write_sizes)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
