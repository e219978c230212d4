"""`caffelite playground`."""

from __future__ import annotations

import argparse
from typing import Any

from caffelite.cli.options import add_command
from caffelite.cli.serving import add_address, require_web, serve

TEXT = """\
A page with small nets that learn to tell points of the plane apart. Choose points, layers, activation and optimizer,
and watch each unit while it learns. The page shows the program that does the same. It is for this machine's user only.
Ctrl-C ends it."""


def add(commands: Any) -> None:
    """Add the command."""
    add_address(add_command(commands, playground, "see small nets learn, on a page", TEXT))


def playground(arguments: argparse.Namespace) -> int:
    """Show the page until Ctrl-C."""
    with require_web():
        from caffelite.web.playground.page import Playground
    return serve(Playground, "The playground is", arguments)
