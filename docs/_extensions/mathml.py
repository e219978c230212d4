"""Formulas as MathML, which browsers draw themselves: no script, no font, no picture."""

from docutils.nodes import SkipNode
from latex2mathml.converter import convert
from sphinx.application import Sphinx
from sphinx.util import logging
from sphinx.util.math import get_node_equation_number

logger = logging.getLogger(__name__)


def to_mathml(self, node, display):
    """Return the formula of a node. A warning, which ends the build, if LaTeX has a command that is not known here."""
    try:
        formula = convert(node.astext(), display=display)
    except Exception as error:  # the converter has no base class of its errors
        logger.warning("no formula: %s (%r)", node.astext(), error, location=node)
        return ""
    if "<mi>&</mi>" in formula or "<mi>\\" in formula:
        logger.warning("the formula has a part that is not understood: %s", node.astext(), location=node)
    return formula


def visit_inline(self, node):
    self.body.append(to_mathml(self, node, "inline"))
    raise SkipNode


def visit_block(self, node):
    number = f'<span class="eqno">({get_node_equation_number(self, node)})</span>' if node["number"] else ""
    self.body.append(f'<div class="math">{number}{to_mathml(self, node, "block")}</div>\n')
    raise SkipNode


def setup(app: Sphinx) -> dict:
    app.add_html_math_renderer("mathml", (visit_inline, None), (visit_block, None))
    return {"parallel_read_safe": True, "parallel_write_safe": True}
