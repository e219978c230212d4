"""The directive `net`: a net that learns on the page, as WebAssembly from docs/_static/.

    :::{net} spiral
    ![What it looks like](spiral.png)
    :::

The page contains spiral.wasm itself, because browsers let no page that was opened from a disk fetch a file. The file
is compressed first: base64 hides from a server's compression what repeats. The scripts net.js and spiral.js put the
running net in the place of the content. It stays where there is no JavaScript.
"""

import base64
import zlib
from pathlib import Path

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective


class Net(nodes.General, nodes.Element):
    pass


class NetDirective(SphinxDirective):
    required_arguments = 1
    has_content = True

    def run(self):
        _, path = self.env.relfn2path(f"/_static/{self.arguments[0]}.wasm")
        self.env.note_dependency(path)
        node = Net(net=self.arguments[0], wasm=deflate(Path(path)))
        self.state.nested_parse(self.content, self.content_offset, node)
        return [node]


def deflate(path: Path) -> str:
    """Return a file as raw deflate in base64."""
    compressor = zlib.compressobj(level=9, wbits=-15)
    return base64.b64encode(compressor.compress(path.read_bytes()) + compressor.flush()).decode()


def visit_net(translator, node):
    translator.body.append(f'<div class="net" data-net="{node["net"]}" data-wasm="{node["wasm"]}">')


def depart_net(translator, node):
    translator.body.append("</div>")


def add_scripts(app, page, template, context, doctree):
    for node in doctree.findall(Net) if doctree is not None else ():
        for name in ("net", node["net"]):
            app.add_js_file(f"{name}.js", loading_method="defer")


def setup(app: Sphinx) -> dict:
    app.add_node(Net, html=(visit_net, depart_net))
    app.add_directive("net", NetDirective)
    app.connect("html-page-context", add_scripts)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
