"""Tables of ratios in a container `ratios`: the larger the ratio in a cell, the stronger the cell's colour."""

import re
from bisect import bisect

from docutils import nodes
from sphinx.application import Sphinx

LIMITS = (1.15, 2, 5, 20)  # a cell below the first one has no colour


def colour_cells(app, document):
    """Give each cell of such a table that begins with a number the class ratio-0 … ratio-4."""
    for container in document.findall(nodes.container):
        if "ratios" in container["classes"]:
            for cell in container.findall(nodes.entry):
                number = re.match(r"[\d,]+(\.\d+)?\b(?! ×)", cell.astext())
                if number and cell.parent.index(cell):
                    cell["classes"].append(f"ratio-{bisect(LIMITS, float(number[0].replace(',', '')))}")


def setup(app: Sphinx) -> dict:
    app.connect("doctree-read", colour_cells)
    return {"parallel_read_safe": True}
