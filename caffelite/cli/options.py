"""The commands' arguments, declared for argparse."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from caffelite.cli import argtypes


def add_command(commands: Any, run: Callable[..., int], line: str, text: str) -> Callable[..., Any]:
    """Add a command that has its function's name. Returns the method that adds an argument to it."""
    command = commands.add_parser(run.__name__, help=line, description=text)
    command.set_defaults(run=run)
    return command.add_argument


def add_training(
    commands: Any, run: Callable[..., int], epochs: int, line: str, text: str, epoch: str = "passes over the data"
) -> Callable[..., Any]:
    """Add a command that trains on built-in data for so many epochs, and draws a picture."""
    argument = add_command(commands, run, line, text)
    argument("--epochs", type=argtypes.positive, default=epochs, metavar="N", help=f"{epoch} (default: %(default)s)")
    argument("--seed", type=argtypes.natural, default=0, metavar="N", help=SEED)
    argument(
        "--output",
        type=argtypes.picture,
        default=f"{run.__name__}.png",
        metavar="PICTURE",
        help=f"picture to write, a file in {' or '.join(argtypes.FORMATS)} (default: %(default)s)",
    )
    return argument


SEED = "the same seed gives the same run (default: %(default)s)"
