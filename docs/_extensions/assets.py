"""A page without code loads no script and no style that code needs: a fifth of the bytes of the page on microgpt."""

from docutils import nodes
from sphinx import addnodes
from sphinx.application import Sphinx

FILES = ("copybutton", "clipboard", "mystnb", "pygments", "furo-extensions")  # the last: copy buttons, hosts


def leave_out(app, page, template, context, doctree):
    """Take the files out of a page whose document has neither code nor signatures."""
    if doctree is None or any(doctree.findall(lambda node: isinstance(node, nodes.literal_block | addnodes.desc))):
        return
    for key in ("script_files", "css_files"):
        context[key] = [file for file in context[key] if not any(name in str(file.filename) for name in FILES)]


def setup(app: Sphinx) -> dict:
    app.connect("html-page-context", leave_out, priority=900)  # after the extensions that add the files
    return {"parallel_read_safe": True, "parallel_write_safe": True}
