"""The directive `drawing`: an SVG file of docs/ within the page, in the page's colours. Files in it are links.

    ```{drawing} _static/step.svg
    What is to be seen, for who does not see it.
    ```

A text with the class `file` becomes a link to that file (see sources.py).
"""

import html
import re
from pathlib import Path

from docutils import nodes
from sources import find_file, page_name
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective


class Drawing(SphinxDirective):
    required_arguments = 1
    has_content = True

    def run(self):
        name, path = self.env.relfn2path(self.arguments[0])
        self.env.note_dependency(name)
        drawing = re.sub(r'(<text class="code file"[^>]*>)([^<]+)(</text>)', self.add_links, Path(path).read_text())
        said = html.escape(" ".join(self.content))
        drawing = re.sub(r'aria-labelledby="[^"]*"', f'aria-label="{said}"', drawing)
        return [nodes.raw("", f'<div class="drawing">{drawing}</div>', format="html")]

    def add_links(self, text):
        path = find_file(text[2])
        if path is None:
            raise self.error(f"the drawing names {text[2]}, which is no file of the project")
        uri = self.env.app.builder.get_relative_uri(self.env.docname, page_name(path))
        return f'<a href="{uri}">{text[0]}</a>'


def setup(app: Sphinx) -> dict:
    app.add_directive("drawing", Drawing)
    return {"parallel_read_safe": True}
