"""``laya-apple switchyard``: the benchmark, and the replay of an earlier run."""

from __future__ import annotations

import argparse
import sys
import webbrowser
from pathlib import Path
from typing import Any

from laya_apple.demos.switchyard import world


def add_parser(subparsers: Any) -> None:
    """Add the subcommand; loads no backend."""
    parser = subparsers.add_parser(
        "switchyard",
        help="how many trains get their decision late, on the GPU and on the GPU plus the Neural Engine",
    )
    parser.add_argument("--seed", type=int, default=world.SEED, metavar="N", help="default %(default)s")
    parser.add_argument(
        "--duration",
        type=float,
        default=world.DURATION_S,
        metavar="S",
        help="seconds of the timed window, whole 3 s burst cycles; default %(default)s",
    )
    parser.add_argument("--out", type=Path, metavar="DIR", help="default switchyard-results/<UTC>-<soc>/")
    parser.add_argument("--no-open", action="store_true", help="do not open the replay page")
    parser.add_argument(
        "--setup-ane", action="store_true", help="build and calibrate the Neural Engine path first"
    )
    parser.add_argument(
        "--replay",
        type=Path,
        metavar="DIR",
        help="rebuild and open the page of an earlier run; measures nothing",
    )
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Exit code 0, 1 (the GPU-only round failed) or 2 (a usage problem)."""
    from laya_apple.demos.switchyard import replay, report
    from laya_apple.demos.switchyard.run import Options
    from laya_apple.demos.switchyard.run import run as run_benchmark

    if args.replay is not None:
        page = replay.rebuild(args.replay)
        print(page)
        _open(page, args.no_open)
        return 0
    outcome = run_benchmark(
        Options(seed=args.seed, duration_s=args.duration, out=args.out, setup_ane=args.setup_ane),
        progress=lambda line: print(line, file=sys.stderr, flush=True),
    )
    if outcome.result is not None:
        print("\n".join(report.summary(outcome.result)))
        print(f"wrote {outcome.result_dir}")
    else:
        for failure in outcome.failures:
            print(f"{report.LABELS[failure.config]}: failed: {failure.error}", file=sys.stderr)
    if outcome.page is not None and not outcome.interrupted:
        _open(outcome.page, args.no_open)
    return outcome.exit_code


def _open(page: Path, stay_closed: bool) -> None:
    if not stay_closed:
        webbrowser.open(page.resolve().as_uri())
