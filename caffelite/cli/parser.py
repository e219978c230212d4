"""`main` runs a command, and prints a message if it fails."""

from __future__ import annotations

import argparse
import os
import re
import sys
from collections.abc import Sequence
from typing import Any, NoReturn

import caffelite
from caffelite._support.hints import did_you_mean
from caffelite._support.terminal import echo, make_writable, write
from caffelite._support.text_table import plural
from caffelite.cli import builtin, gpt, grade, info, pages, tables
from caffelite.cli.output import UsageError, is_stdout_error

COMMANDS = (tables, builtin, gpt, pages, grade, info)  # in the order in which help lists them


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command with these arguments, by default the process's arguments. Returns the exit status.

    As usual with argparse, --help and bad arguments raise SystemExit, with 0 and 2.
    """
    parser = _parser()
    try:
        arguments = parser.parse_args(argv)
        if arguments.run is None:
            parser.print_help(sys.stderr)
            parser.exit(2, "\ncaffelite: error: name a command of these, such as train\n")
        status = arguments.run(arguments)
        write("", sys.stdout)  # flush the buffer
        return status
    except UsageError as error:
        echo(f"caffelite {arguments.run.__name__}: error: {error}", sys.stderr)
        return 2
    except KeyboardInterrupt as interrupt:
        history = getattr(interrupt, "history", None)
        when = "" if history is None else f" after {plural(history.epochs, 'epoch')}"
        echo(f"caffelite: interrupted{when}", sys.stderr)
        return 130
    except OSError as error:
        if not is_stdout_error(error):
            raise
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # Python then ends without another error
        if not isinstance(error, BrokenPipeError):  # otherwise the reader has stopped reading
            echo(f"caffelite: could not write to the standard output: {error.strerror}", sys.stderr)
        return 1


class Parser(argparse.ArgumentParser):
    """A parser whose help can be written in any encoding, and whose errors know the choice that was meant."""

    def _print_message(self, message: str, file: Any = None) -> None:
        super()._print_message(make_writable(message, file or sys.stderr), file)

    def error(self, message: str) -> NoReturn:
        if choice := re.search(r"invalid choice: '(.*?)' \(choose from (.*)\)", message):
            message += did_you_mean(choice[1], re.findall(r"[\w-]+", choice[2]))
        super().error(message)


def _parser() -> argparse.ArgumentParser:
    parser = Parser(
        prog="caffelite",
        description="Train a small neural network on a table, a text or built-in data, without a download.",
        epilog="caffelite COMMAND --help describes a command and its arguments.",
    )
    parser.set_defaults(run=None)
    parser.add_argument("--version", action="version", version=f"caffelite {caffelite.__version__}")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND")
    for command in COMMANDS:
        command.add(commands)
    return parser
