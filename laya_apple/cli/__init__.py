"""The command ``laya-apple``: one module a subcommand.

Each module in ``COMMANDS`` offers ``add_parser(subparsers)``, which sets ``run=function(args) -> int`` on its
parser. Exit codes: 0 done, 1 the work failed, 2 a usage problem (one line on standard error says why).
"""

from __future__ import annotations

import argparse
import importlib
import sys
from collections.abc import Sequence
from typing import NoReturn

from laya_apple import __version__
from laya_apple.errors import LayaAppleError

COMMANDS: tuple[str, ...] = (
    "predict",
    "benchmark",
    "switchyard",
    "info",
    "download",
    "parity",
    "calibrate",
    "artifacts",
)


class _Parser(argparse.ArgumentParser):
    """Says what is wrong in one line; subcommands inherit it."""

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: {message}; see {self.prog} --help\n")


def build_parser() -> argparse.ArgumentParser:
    """The whole command line; loads no backend."""
    parser = _Parser(prog="laya-apple", description="Typed decisions about a text, on Apple silicon.")
    parser.add_argument("--version", action="version", version=f"laya-apple {__version__}")
    subparsers = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for name in COMMANDS:
        importlib.import_module(f"laya_apple.cli.{name}").add_parser(subparsers)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code."""
    args = build_parser().parse_args(argv)
    try:
        code: int = args.run(args)
    except LayaAppleError as error:  # reraise: as one line and an exit code
        # A cause may bring line breaks of its own; the reader gets one line.
        print(f"laya-apple: {' '.join(str(error).split())}", file=sys.stderr)
        return 2
    return code
