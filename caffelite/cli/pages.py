"""`caffelite live` and `playground`: pages that are served until Ctrl-C."""

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
from caffelite.cli.options import add_command
from caffelite.cli.output import UsageError, raise_usage_errors

LIVE_TEXT = """\
Serve a page with the training runs that cl.live(folder="FOLDER") has saved: the curves of several runs side by side,
and each run's page as it was at the end. Only this machine's user can open it. Ctrl-C ends it."""

PLAYGROUND_TEXT = """\
Serve a page with small nets that learn to tell points of the plane apart. Choose points, layers, activation and
optimizer, and watch each unit while it learns. The page also shows a program that does the same. Only this machine's
user can open it. Ctrl-C ends it."""


def add(commands: Any) -> None:
    """Add both commands."""
    add_argument = add_command(commands, live, "show the training runs saved in a folder, on a page", LIVE_TEXT)
    add_argument("folder", metavar="FOLDER", help="the folder given to cl.live(folder=…)")
    _add_address(add_argument)
    _add_address(add_command(commands, playground, "watch small nets learn, on a page", PLAYGROUND_TEXT))


def _add_address(add_argument: Callable[..., Any]) -> None:
    """Add the arguments that say where the page is, and whether a browser opens it."""
    add_argument("--port", type=argtypes.natural, default=0, metavar="N", help="port of the page (default: a free one)")
    add_argument("--no-browser", action="store_true", help="print the address, but open no browser")


def live(arguments: argparse.Namespace) -> int:
    """Show the runs of a folder until Ctrl-C."""
    with _require_web():
        from caffelite.web.folder import FolderPage
    return _serve(lambda port: FolderPage(arguments.folder, port), "The runs are", arguments)


def playground(arguments: argparse.Namespace) -> int:
    """Show the playground until Ctrl-C."""
    with _require_web():
        from caffelite.web.playground.page import Playground
    return _serve(Playground, "The playground is", arguments)


@contextmanager
def _require_web() -> Iterator[None]:
    """Inside, import the packages that serve pages. `UsageError` says what to install if one is missing."""
    try:
        yield
    except ModuleNotFoundError as error:
        raise UsageError(f"it needs {error.name}, which is not installed: {install_command('web')}") from None


def _serve(make: Callable[[int], Any], subject: str, arguments: argparse.Namespace) -> int:
    """Serve the page that `make` returns for a port, until Ctrl-C. Return the exit status."""
    if arguments.port > 65535:
        raise UsageError(f"a port is at most 65535, got {arguments.port}")
    with raise_usage_errors():
        page = make(arguments.port)
    echo(f"{subject} at {page.server.directions}\nCtrl-C ends it.", flush=True)
    if not arguments.no_browser:
        webbrowser.open(page.server.address)
    try:
        threading.Event().wait()
    except KeyboardInterrupt:
        page.stop()
    return 0
