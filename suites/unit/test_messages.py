"""The command line that the seed promises."""

from __future__ import annotations

import subprocess
import sys

from laya_apple.cli import build_parser


def test_the_commands_options_and_defaults() -> None:
    args = build_parser().parse_args(["switchyard"])
    assert (args.seed, args.duration, args.out, args.no_open, args.setup_ane, args.replay) == (
        11, 60, None, False, False, None,
    )  # fmt: skip
    args = build_parser().parse_args(
        [
            "switchyard",
            "--seed",
            "12",
            "--duration",
            "6",
            "--out",
            "x",
            "--no-open",
            "--setup-ane",
            "--replay",
            "y",
        ]
    )
    assert (args.seed, args.duration, str(args.out), args.no_open, args.setup_ane, str(args.replay)) == (
        12, 6, "x", True, True, "y",
    )  # fmt: skip


def test_importing_the_benchmark_loads_no_backend() -> None:
    code = (
        "import sys, laya_apple.demos.switchyard.run, laya_apple.demos.switchyard.simulate, laya_apple.cli\n"
        "laya_apple.cli.build_parser()\n"
        "heavy = {'mlx', 'mlx.core', 'coremltools', 'transformers', 'torch', 'huggingface_hub'}\n"
        "print(sorted(heavy & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
