"""Runs that are kept: each a file in a folder, or in memory, which the page can show again.

A file has the bytes of one message (`messages.py`), of the kind "run": its name, and all parts that the page showed.
"""

from __future__ import annotations

import os
import re
import time
from itertools import chain, count
from pathlib import Path
from typing import Any

from caffelite.files.atomic import open_file, replace_file
from caffelite.web.messages import decode
from caffelite.web.server import encode_message

SUFFIX = ".run"
NAME_PATTERN = re.compile(r"[0-9A-Za-z][0-9A-Za-z_-]{0,99}")  # of a run; it is only a file name, without a folder
MAX_BYTES = 2**25  # bytes of a file
STALE_AFTER = 60  # seconds after which a run that writes nothing does not run any more
MAX_RUNS = 50  # runs that the page lists, the newest


class Runs:
    """The runs in a folder or, without one, the last runs in memory."""

    def __init__(self, folder: str | os.PathLike[str] | None) -> None:
        self.folder = None if folder is None else Path(folder).absolute()
        self._contents: dict[str, bytes] = {}  # without a folder
        self._cache: dict[str, tuple[int, dict[str, Any]]] = {}  # the time of each file, and its entry in `list_runs`

    def new_name(self) -> str:
        """Return the name of a run that begins now. Make the folder; OSError if it cannot be written."""
        first = time.strftime("%Y-%m-%d_%H-%M-%S")
        return next(filter(self._reserve, chain([first], (f"{first}-{number}" for number in count(2)))))

    def _reserve(self, name: str) -> bool:
        """Take a name for a run that begins. Return False if another run has it."""
        if self.folder is None:
            return name not in self._contents
        self.folder.mkdir(parents=True, exist_ok=True)
        try:
            with open(self.path(name), "xb"):  # an empty file: no other program can take the name
                return True
        except FileExistsError:
            return False

    def path(self, name: str) -> Path:
        """Return the file of a run."""
        assert self.folder is not None
        return self.folder / f"{name}{SUFFIX}"

    def save(self, name: str, parts: dict[str, dict[str, Any]]) -> None:
        """Keep a run, replacing an earlier state of it. Raise OSError if it cannot be written."""
        content = encode_message("run", {"name": name, "parts": parts})
        if self.folder is not None:
            replace_file(self.path(name), [content])
            return
        self._contents[name] = content
        while len(self._contents) > MAX_RUNS:
            del self._contents[next(iter(self._contents))]

    def content(self, name: Any) -> bytes:
        """Return the message of a run. Raise ValueError if there is none with this name."""
        if isinstance(name, str) and NAME_PATTERN.fullmatch(name):
            if name in self._contents:
                return self._contents[name]
            if self.folder is not None and (content := self._read(self.path(name))) is not None:
                return content
        raise ValueError(f"there is no run {name!r:.80}")

    def _read(self, path: Path) -> bytes | None:
        try:
            with open(path, "rb", opener=open_file) as file:
                content = file.read(MAX_BYTES + 1)
        except OSError:
            return None
        return content if len(content) <= MAX_BYTES else None

    def list_runs(self) -> list[dict[str, Any]]:
        """Return name, state and curves of each run, the newest first. Files that are not runs are left out."""
        if self.folder is None:
            entries = [entry for name, content in self._contents.items() if (entry := _summarize(name, content))]
            return entries[::-1]
        entries = []
        for path in sorted(self.folder.glob(f"*{SUFFIX}"), key=lambda path: path.stem, reverse=True)[:MAX_RUNS]:
            name = path.stem
            try:
                changed = path.stat().st_mtime_ns
            except OSError:
                continue
            if not NAME_PATTERN.fullmatch(name):
                continue
            if self._cache.get(name, (None,))[0] != changed:
                self._cache[name] = (changed, _summarize(name, self._read(path)))
            if entry := self._cache[name][1]:
                is_interrupted = entry["state"] == "running" and time.time() - changed / 1e9 > STALE_AFTER
                entries.append(entry | ({"state": "interrupted"} if is_interrupted else {}))
        return entries


def _summarize(name: str, content: bytes | None) -> dict[str, Any]:
    """Return the entry of a run in the page's list; {} if the content is not a run."""
    try:
        message = decode(content or b"")
        status, curves = message["parts"]["status"], message["parts"]["curves"]
        entry = {key: status[key] for key in ("state", "epoch", "epochs", "seconds", "optimizer", "parameters")}
        entry |= {
            "title": status.get("title", ""),
            "note": status.get("note", ""),
            "settings": dict(status.get("settings", {})),
        }
        return {"name": name, **entry, "curves": {key: dict(curve) for key, curve in curves["curves"].items()}}
    except (ValueError, TypeError, KeyError, AttributeError):
        return {}
