"""`caffelite live`."""

from __future__ import annotations

import argparse
from typing import Any

from caffelite.cli.options import add_command
from caffelite.cli.serving import add_address, require_web, serve

TEXT = """\
A page with the trainings that cl.live(folder="FOLDER") has kept: the curves of several runs side by side, and each run
as its page was at the end. It is for this machine's user only. Ctrl-C ends it."""


def add(commands: Any) -> None:
    """Add the command."""
    add_argument = add_command(commands, live, "show the trainings that a folder keeps, on a page", TEXT)
    add_argument("folder", metavar="FOLDER", help="the folder of cl.live(folder=…)")
    add_address(add_argument)


def live(arguments: argparse.Namespace) -> int:
    """Show the page until Ctrl-C."""
    with require_web():
        from caffelite.web.folder import FolderPage
    return serve(lambda port: FolderPage(arguments.folder, port), "The runs are", arguments)
