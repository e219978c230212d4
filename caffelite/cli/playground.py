"""`caffelite playground`."""

from __future__ import annotations

import argparse
import threading
import webbrowser
from typing import Any

from caffelite.cli import values
from caffelite.cli.arguments import add_command
from caffelite.cli.saying import Refused, refusing
from caffelite.core.terminal import say

TEXT = """\
A page with small nets that learn to tell points of the plane apart. Choose points, layers, activation and optimizer,
and watch each unit while it learns. The page shows the program that does the same. It is for this machine's user only.
Ctrl-C ends it."""


def add(commands: Any) -> None:
    """Add the command."""
    argument = add_command(commands, playground, "see small nets learn, on a page", TEXT)
    argument("--port", type=values.natural, default=0, metavar="N", help="of the page (default: one that is free)")
    argument("--no-browser", action="store_true", help="print the address, and open no browser")


def playground(arguments: argparse.Namespace) -> int:
    """Show the page until Ctrl-C."""
    try:
        from caffelite.web.playground.page import Playground
    except ModuleNotFoundError as error:
        raise Refused(f"it needs {error.name}, which is not installed: pip install 'caffelite[web]'") from None
    if arguments.port > 65535:
        raise Refused(f"a port is at most 65535, got {arguments.port}")
    with refusing():
        page = Playground(arguments.port)
    say(f"The playground is at {page.server.address}\nCtrl-C ends it.", flush=True)
    if not arguments.no_browser:
        webbrowser.open(page.server.address)
    try:
        threading.Event().wait()
    except KeyboardInterrupt:
        page.stop()
    return 0
