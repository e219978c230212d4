"""A page as one HTML file, with its scripts, styles and icon in it: for a saved run, and for a notebook's cell."""

from __future__ import annotations

import json
import re
from base64 import b64encode
from pathlib import Path

STATIC = Path(__file__).with_name("static")
POLICY = "default-src 'none'; script-src 'unsafe-inline' data:; style-src 'unsafe-inline'; img-src data: blob:"
STYLES = re.compile(r'<link rel="stylesheet" href="/static/(.*)">')
IMPORT = re.compile(r'from "\./(\w+)\.js"')


def make_page_file(name: str) -> str:
    """Return a page, such as "live.html", with the files that it needs.

    The scripts are data, which has no address. So they import each other by name.
    """
    html = STYLES.sub(lambda found: f"<style>{_read(found[1])}</style>", _read(name))
    html = html.replace("/static/icon.svg", _data_url("image/svg+xml", _read("icon.svg")))
    (main,) = re.findall(r'<script type="module" src="/static/(\w+)\.js">', html)
    modules = [main]
    for module in modules:  # the list grows
        modules += {*IMPORT.findall(_read(f"{module}.js"))} - {*modules}
    sources = {module: IMPORT.sub(r'from "\1"', _read(f"{module}.js")) for module in modules}
    imports = {module: _data_url("text/javascript", source) for module, source in sources.items()}
    head = f"""<meta http-equiv="Content-Security-Policy" content="{POLICY}">
<script type="importmap">{json.dumps({"imports": imports})}</script>
<script type="module">import "{main}";</script>"""
    return re.sub(r'<script type="module" src=.*</script>', lambda found: head, html, count=1)


def _read(name: str) -> str:
    return (STATIC / name).read_text(encoding="utf-8")


def _data_url(media_type: str, text: str) -> str:
    return f"data:{media_type};base64,{b64encode(text.encode()).decode()}"
