"""Pictures of programs that have areas of colour or photographs keep their colours in the dark: the class `paper`.

In the dark the site turns the lightness of charts round. A picture with an image in it would look like a negative.
"""

from pathlib import Path

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.transforms.post_transforms import SphinxPostTransform


class Paper(SphinxPostTransform):
    default_priority = 5  # before the pictures are given their final names

    def run(self, **_):
        for picture in self.document.findall(nodes.image):
            path = Path(self.app.srcdir, picture["uri"].lstrip("/"))
            if path.suffix == ".svg" and path.is_file() and "<image" in path.read_text(encoding="utf-8"):
                picture["classes"].append("as-is" if "as-is" in picture["classes"] else "paper")


def setup(app: Sphinx) -> dict:
    app.add_post_transform(Paper)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
