"""``laya-apple benchmark``: closed-loop latency of one device, by length. One request at a time."""

from __future__ import annotations

import argparse
import json
import os
from typing import TYPE_CHECKING, Any

from laya_apple.errors import InvalidRequestError

if TYPE_CHECKING:
    from laya_apple import Laya
    from laya_apple.workload import Request

FORMAT = "laya-apple-benchmark"
DEFAULT_MODEL = "laya-typed-decisions"
DEFAULT_LENGTHS = (64, 128, 256, 512)
SEED = 2


def add_parser(subparsers: Any) -> None:
    """Add the subcommand; loads nothing heavy."""
    parser = subparsers.add_parser(
        "benchmark",
        help="closed-loop latency by length",
        description="Send one request after the other and report the latency at each length. For latency "
        "under load, with requests that do not wait for each other, use `laya-apple switchyard`.",
    )
    parser.add_argument("--model", default=DEFAULT_MODEL, help=f"default: {DEFAULT_MODEL}")
    parser.add_argument("--device", default="gpu", help="gpu, ane, cpu or auto; default: gpu")
    parser.add_argument("--dtype", default="float16", help="float16 or float32, of MLX; default: float16")
    parser.add_argument("--execution", default="inline", help="inline or workers; default: inline")
    parser.add_argument(
        "--lengths",
        type=_lengths,
        default=DEFAULT_LENGTHS,
        metavar="N,N,...",
        help="tokens of the longest row; default: " + ",".join(map(str, DEFAULT_LENGTHS)),
    )
    parser.add_argument("--questions", type=_positive, default=1, metavar="N", help="1 to 4; default: 1")
    parser.add_argument(
        "--requests", type=_positive, default=50, metavar="N", help="at each length; default: 50"
    )
    parser.add_argument("--warmup", type=_positive, default=5, metavar="N", help="at each length; default: 5")
    parser.add_argument("--local-files-only", action="store_true", help="never go to the network")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Measure and print; errors become one line and exit code 2."""
    from laya_apple import Laya, workload
    from laya_apple.platform import current_platform

    shapes = {str(n): workload.RequestShape(n, args.questions, SEED) for n in args.lengths}
    try:
        requests = workload.make_requests(args.model, shapes, local_files_only=args.local_files_only)
        laya = Laya.from_pretrained(
            args.model,
            args.device,
            dtype=args.dtype,
            execution=args.execution,
            local_files_only=args.local_files_only,
        )
    except ValueError as error:  # reraise: an option's value, said in one line
        raise InvalidRequestError(str(error)) from error
    with laya:
        load_before = os.getloadavg()
        measured = [
            _measure(laya, length, requests[str(length)], args.requests, args.warmup)
            for length in args.lengths
        ]
        info = laya.info()
    platform = current_platform()
    report = {
        "format": FORMAT,
        "format_version": 1,
        "synthetic": platform.virtual,
        "loop": "closed",
        "model": info["model"],
        "model_revision": info["model_revision"],
        "device": args.device,
        "dtype": args.dtype,
        "execution": args.execution,
        "questions": args.questions,
        "seed": SEED,
        "platform": info["platform"],
        "conditions": {"loadavg": {"start": list(load_before), "end": list(os.getloadavg())}},
        "lengths": measured,
    }
    print(json.dumps(report) if args.json else render(report))
    return 0


def _measure(laya: Laya, length: int, request: Request, count: int, warmup: int) -> dict[str, Any]:
    from laya_apple import benchmark

    for _ in range(warmup):
        laya.predict(request.context, request.questions)
    ran = [laya.predict(request.context, request.questions).runtime for _ in range(count)]
    return {
        "length": length,
        "latency": benchmark.stats([one.latency_ms for one in ran]),
        "device": benchmark.stats([one.device_ms for one in ran if one.device_ms is not None]),
        # Under auto the router may choose anew for each request; every device that answered is named.
        "ran_on": sorted({f"{one.backend}:{one.device}:{one.dtype}" for one in ran}),
        "routing_reasons": sorted({one.routing_reason for one in ran}),
        "artifact_revisions": sorted({one.artifact_revision for one in ran}),
        "placement": sorted({one.placement for one in ran if one.placement is not None}),
    }


def render(report: dict[str, Any]) -> str:
    """The table for a reader; the last column is the host's own share of the median."""
    platform = report["platform"]
    lines = [
        f"{report['model']}, device {report['device']}, {report['execution']}, closed loop, "
        f"{report['questions']} question(s), on {platform['soc'] or platform['machine']}",
        f"{'tokens':>6}  {'n':>4}  {'P50 ms':>9}  {'P95 ms':>9}  {'P99 ms':>9}  {'host ms':>8}  ran on",
    ]
    for row in report["lengths"]:
        latency = row["latency"]
        host_ms = latency["p50_ms"] - row["device"]["p50_ms"]
        lines.append(
            f"{row['length']:>6}  {latency['n']:>4}  {latency['p50_ms']:>9.3f}  {latency['p95_ms']:>9.3f}  "
            f"{latency['p99_ms']:>9.3f}  {host_ms:>8.3f}  {', '.join(row['ran_on'])}"
        )
    load = report["conditions"]["loadavg"]
    lines.append(f"load average {load['start'][0]:.2f} before, {load['end'][0]:.2f} after")
    if report["synthetic"]:
        lines.append("synthetic: measured on a virtual machine, says nothing about a Mac")
    return "\n".join(lines)


def _lengths(text: str) -> tuple[int, ...]:
    return tuple(_positive(part) for part in text.split(","))


def _positive(text: str) -> int:
    number = int(text) if text.isascii() and text.isdigit() else 0
    if number < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a positive whole number")
    return number
