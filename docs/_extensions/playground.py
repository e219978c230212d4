"""The playground of the site: its page, and the role `playground`, which links to it or to a step of its lesson.

{playground}`try it <6>`
"""

import re
from pathlib import Path

from docutils import nodes
from playground_page import FOLDER, write_page
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxRole


class PlaygroundRole(SphinxRole):
    """A link to the playground. `words <6>` leads to step 6 of the lesson."""

    def run(self):
        words, number = re.fullmatch(r"(.*?)(?: <(\d+)>)?", self.text).groups()
        path = "../" * self.env.docname.count("/") + f"{FOLDER}/index.html"
        node = nodes.reference("", words, refuri=f"{path}#lesson={number}" if number else path)
        return [node], []


def build(app, exception):
    if exception is None and app.builder.format == "html":
        write_page(Path(app.outdir) / FOLDER)


def setup(app: Sphinx) -> dict:
    app.add_role("playground", PlaygroundRole())
    app.connect("build-finished", build, priority=400)  # before links are followed
    return {"parallel_read_safe": True}
