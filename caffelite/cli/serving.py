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
from caffelite.cli.output import Refused, refusing


def add_address(argument: Callable[..., Any]) -> None:
    """Add the arguments that say where the page is, and whether a browser opens it."""
    argument("--port", type=argtypes.natural, default=0, metavar="N", help="of the page (default: a free port)")
    argument("--no-browser", action="store_true", help="print the address, and open no browser")


@contextmanager
def with_web() -> Iterator[None]:
    """Inside, import the packages that serve pages. `Refused` says what to install if one is missing."""
    try:
        yield
    except ModuleNotFoundError as error:
        raise Refused(f"it needs {error.name}, which is not installed: {install_command('web')}") from None


def serve(make: Callable[[int], Any], what: str, arguments: argparse.Namespace) -> int:
    """Serve the page that `make` returns for a port, until Ctrl-C. Returns the exit status."""
    if arguments.port > 65535:
        raise Refused(f"a port is at most 65535, got {arguments.port}")
    with refusing():
        page = make(arguments.port)
    echo(f"{what} at {page.server.address}\nCtrl-C ends it.", flush=True)
    if not arguments.no_browser:
        webbrowser.open(page.server.address)
    try:
        threading.Event().wait()
    except KeyboardInterrupt:
        page.stop()
    return 0
