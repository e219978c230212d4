"""When the site is built, every link in it is followed: to a page, a file, and the place in the page that is meant."""

from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

from sphinx.application import Sphinx
from sphinx.util import logging

logger = logging.getLogger(__name__)


class Page(HTMLParser):
    """The links of a page, and the names of the places in it."""

    def __init__(self, path: Path):
        super().__init__()
        self.links: set[str] = set()
        self.places: set[str] = set()
        self.feed(path.read_text())

    def handle_starttag(self, tag, attributes):
        values = dict(attributes)
        self.links |= {values[name] for name in ("href", "src") if values.get(name)}
        self.places |= {values["id"]} if "id" in values else set()


def follow(app, exception):
    """Warn of every link within the site that leads nowhere. What is outside is not asked."""
    if exception is not None or app.builder.format != "html":
        return
    pages = {path.resolve(): Page(path) for path in Path(app.outdir).rglob("*.html")}
    for path, page in pages.items():
        for link in sorted(page.links):
            parts = urlsplit(link)
            if parts.scheme:
                continue
            target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            there = pages[target].places if target in pages else set()
            is_place = parts.fragment and "=" not in parts.fragment  # others are for the page's script: lesson=6
            if not target.exists() or (target in pages and is_place and unquote(parts.fragment) not in there):
                logger.warning("%s: the link %s leads nowhere", path.relative_to(app.outdir), link)


def setup(app: Sphinx) -> dict:
    app.connect("build-finished", follow)
    return {"parallel_read_safe": True}
