"""Our worker against the peer's (``laya-apple`` 1.7.0 from PyPI), both with a backend that answers at once.

    python -m venv peer && peer/bin/pip install laya-apple==1.7.0
    python benchmarks/execution.py --peer peer/bin/python --out benchmarks/execution.json

The two run in turn, several rounds in one go, so that the machine's state bears on both; a figure is its
median over the rounds and a ratio divides medians (above 1: ours is better). The peer is driven from outside
and never opened. What is timed: submit -> response of prepared rows through one worker process, one at a time
and all at once, and ``import laya_apple``.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import platform
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
IMPORTS = 7


def ours(_: str) -> dict[str, Any]:
    done = subprocess.run(
        [sys.executable, HERE / "drive_ours.py"], capture_output=True, text=True, check=True
    )
    return {**json.loads(done.stdout), "import_ms": import_ms(sys.executable)}


def peer(python: str) -> dict[str, Any]:
    environment = {"PYTHONPATH": str(HERE / "peer" / "site"), "LAYA_PEER_NOOP": "1"}
    done = subprocess.run(
        [python, HERE / "peer" / "drive_peer.py"],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, **environment},
        # Its worker imports from the current directory, which must not hold our package of the same name.
        cwd=HERE / "peer",
    )
    return {**json.loads(done.stdout), "import_ms": import_ms(python)}


def import_ms(python: str) -> float:
    """Fastest of a few fresh interpreters, less the fastest empty one."""

    def fastest(code: str) -> float:
        taken = []
        for _ in range(IMPORTS):
            begin = time.perf_counter()
            # -P: the package of this environment, not the one in the current directory.
            subprocess.run([python, "-P", "-c", code], check=True)
            taken.append((time.perf_counter() - begin) * 1e3)
        return min(taken)

    return fastest("import laya_apple") - fastest("pass")


def median(rounds: list[dict[str, Any]], *path: str) -> float:
    def pick(one: Any) -> float:
        for key in path:
            one = one[key]
        return float(one)

    return statistics.median(map(pick, rounds))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--peer", required=True, help="the Python of the peer's environment")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()

    load = [list(os.getloadavg())]
    rounds: dict[str, list[dict[str, Any]]] = {"ours": [], "peer": []}
    for number in range(args.rounds):
        for name, drive in (
            (("ours", ours), ("peer", peer)) if number % 2 else (("peer", peer), ("ours", ours))
        ):
            rounds[name].append(drive(args.peer))
    load.append(list(os.getloadavg()))

    lower = [("lane", "p50_us"), ("lane", "p99_us"), ("import_ms",)]
    higher = [("lane", "throughput_64_req_s"), ("lane", "throughput_1024_req_s")]
    compared = {
        ".".join(path): {
            "ours": median(rounds["ours"], *path),
            "peer": median(rounds["peer"], *path),
            "ratio": (
                median(rounds["peer"], *path) / median(rounds["ours"], *path)
                if path in lower
                else median(rounds["ours"], *path) / median(rounds["peer"], *path)
            ),
        }
        for path in (*lower, *higher)
    }
    report = {
        "benchmark": "execution",
        "created_utc": datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        "machine": {"cpus": os.cpu_count(), "system": platform.system(), "machine": platform.machine()},
        "python": platform.python_version(),
        "peer": "laya-apple 1.7.0",
        "loadavg": {"start": load[0], "end": load[1]},
        "compared": compared,
        "ours_alone": {key: median(rounds["ours"], "laya", key) for key in rounds["ours"][0]["laya"]},
        "rounds": rounds,
    }
    text = json.dumps(report, indent=1)
    if args.out:
        args.out.write_text(text + "\n", encoding="utf-8")
    for name, row in compared.items():
        print(f"{name:28} ours {row['ours']:10.1f}  peer {row['peer']:10.1f}  ratio {row['ratio']:.2f}")
    for name, value in report["ours_alone"].items():
        print(f"laya.{name:23} ours {value:10.1f}")


if __name__ == "__main__":
    main()
