"""The commands' arguments, declared for argparse."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from caffelite.cli import argtypes


def add_command(commands: Any, run: Callable[..., int], summary: str, description: str) -> Callable[..., Any]:
    """Add a command with its function's name. Return the method that adds an argument to it."""
    command = commands.add_parser(run.__name__, help=summary, description=description)
    command.set_defaults(run=run)
    return command.add_argument


def add_training(
    commands: Any,
    run: Callable[..., int],
    epochs: int,
    summary: str,
    description: str,
    epoch_help: str = "passes over the data",
) -> Callable[..., Any]:
    """Add a command that trains on built-in data for a number of epochs, and draws a picture."""
    add_argument = add_command(commands, run, summary, description)
    add_argument(
        "--epochs", type=argtypes.positive, default=epochs, metavar="N", help=f"{epoch_help} (default: %(default)s)"
    )
    add_argument("--seed", type=argtypes.natural, default=0, metavar="N", help=SEED_HELP)
    add_argument(
        "--output",
        type=argtypes.picture,
        default=f"{run.__name__}.png",
        metavar="PICTURE",
        help=f"picture file to write, {' or '.join(argtypes.FORMATS)} (default: %(default)s)",
    )
    return add_argument


SEED_HELP = "the same seed gives the same run (default: %(default)s)"
