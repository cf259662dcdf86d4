"""``laya-apple download MODEL``: fetch a checkpoint at its pinned revision and check it."""

from __future__ import annotations

import argparse
import sys
from typing import Any

from laya_apple import hub
from laya_apple.checkpoint import open_checkpoint
from laya_apple.errors import BackendUnavailableError
from laya_apple.platform import current_platform
from laya_apple.registry import resolve


def add_parser(subparsers: Any) -> None:
    parser = subparsers.add_parser("download", help="fetch a model's checkpoint, to run offline after that")
    parser.add_argument("model", metavar="MODEL", help="a model's name or repository")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    spec = resolve(args.model)
    platform = current_platform()
    if spec.path is None:
        try:
            hub.download(spec, platform)
        except BackendUnavailableError as error:  # reraise: as one line and an exit code
            print(f"laya-apple: {error}", file=sys.stderr)
            return 1
    checkpoint = open_checkpoint(spec, local_files_only=True, platform=platform)
    print(f"{spec.name} @ {spec.revision[:12]}: {checkpoint.path}")
    return 0
