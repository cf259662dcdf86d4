"""Times our worker with a no-op backend; prints one JSON object. Run by ``benchmarks/execution.py``.

Two levels: ``lane`` is submit -> outputs of prepared rows, what the peer's worker does too; ``laya`` is the
public ``Laya.submit`` -> Result with tokenising, routing, formatting and a trace, which the peer's figures do
not hold.
"""

from __future__ import annotations

import json
import os
import sys
import time
from concurrent.futures import Future
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))
os.environ["LAYA_APPLE_PLATFORM"] = "benchmarks.noop:platform"

from benchmarks.timing import closed_loop, throughput  # noqa: E402
from laya_apple import Laya  # noqa: E402
from laya_apple.backends.base import RowOutput  # noqa: E402
from laya_apple.checkpoint import open_checkpoint  # noqa: E402
from laya_apple.demos.switchyard import world  # noqa: E402
from laya_apple.execution.lane import Job, Lane  # noqa: E402
from laya_apple.execution.loading import LoadRequest  # noqa: E402
from laya_apple.execution.transports import ProcessTransport  # noqa: E402
from laya_apple.prompt.sequence import Row  # noqa: E402

CHECKPOINT = ROOT / "fixtures" / "checkpoints" / "window16"


class Bare(Job):
    def complete(self, outputs: list[RowOutput], *_: int) -> list[RowOutput]:
        return outputs


def lane() -> dict[str, Any]:
    request = LoadRequest("cpu", open_checkpoint(CHECKPOINT), "float16", 16, True)
    found = Lane("cpu", ProcessTransport(request, send_timeout_s=60), request_timeout_s=60)
    found.start()
    found.transport.ready.result()

    def submit(rows: list[Row], number: int) -> Future[Any]:
        job = Bare(number, rows, 1.0)
        found.submit(job)
        return job.future

    short, long = ([Row(tuple(range(n)), (20, 24, 28), 0)] for n in (64, 1024))
    try:
        return {
            **closed_loop(lambda number: submit(short, number)),
            "throughput_64_req_s": throughput(lambda number: submit(short, number), 20_000),
            "throughput_1024_req_s": throughput(lambda number: submit(long, number), 5_000),
        }
    finally:
        found.close(5.0)


def laya() -> dict[str, Any]:
    request = world.prompt(world.oracle_cases()[0])
    context, questions = request.context, request.questions
    traces: list[object] = []
    with Laya.from_pretrained(CHECKPOINT, "cpu", execution="workers", trace=traces.append) as found:
        loop = closed_loop(lambda _: found.submit(context, questions))
        rate = throughput(lambda _: found.submit(context, questions), 5_000)
    with Laya.from_pretrained(CHECKPOINT, "cpu") as found:
        host_us = []
        for _ in range(2_000):
            begin = time.perf_counter()
            found.predict(context, questions)
            host_us.append((time.perf_counter() - begin) * 1e6)
    host_us.sort()
    return {**loop, "throughput_req_s": rate, "inline_host_p50_us": host_us[len(host_us) // 2]}


if __name__ == "__main__":
    print(json.dumps({"lane": lane(), "laya": laya()}))
