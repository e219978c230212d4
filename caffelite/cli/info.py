"""`caffelite info`."""

from __future__ import annotations

import argparse
from typing import Any

from caffelite.cli.options import add_command
from caffelite.core.threads import show_config

TEXT = "Print the version, the instruction set, the number of threads with the reason, and whether OpenMP is available."


def add(commands: Any) -> None:
    """Add the command."""
    add_command(commands, info, "print version, instruction set and threads", TEXT)


def info(arguments: argparse.Namespace) -> int:
    """Print the configuration."""
    show_config()
    return 0
