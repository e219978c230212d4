"""Pages that a command serves until Ctrl-C."""

from __future__ import annotations

import argparse
import threading
import webbrowser
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from caffelite._support.extras import install_command
from caffelite._support.terminal import echo
from caffelite.cli import argtypes
from caffelite.cli.output import UsageError, raise_usage_errors


def add_address(add_argument: Callable[..., Any]) -> None:
    """Add the arguments that say where the page is, and whether a browser opens it."""
    add_argument("--port", type=argtypes.natural, default=0, metavar="N", help="of the page (default: a free port)")
    add_argument("--no-browser", action="store_true", help="print the address, and open no browser")


@contextmanager
def require_web() -> Iterator[None]:
    """Inside, import the packages that serve pages. `UsageError` says what to install if one is missing."""
    try:
        yield
    except ModuleNotFoundError as error:
        raise UsageError(f"it needs {error.name}, which is not installed: {install_command('web')}") from None


def serve(make: Callable[[int], Any], subject: str, arguments: argparse.Namespace) -> int:
    """Serve the page that `make` returns for a port, until Ctrl-C. Returns the exit status."""
    if arguments.port > 65535:
        raise UsageError(f"a port is at most 65535, got {arguments.port}")
    with raise_usage_errors():
        page = make(arguments.port)
    echo(f"{subject} at {page.server.address}\nCtrl-C ends it.", flush=True)
    if not arguments.no_browser:
        webbrowser.open(page.server.address)
    try:
        threading.Event().wait()
    except KeyboardInterrupt:
        page.stop()
    return 0
