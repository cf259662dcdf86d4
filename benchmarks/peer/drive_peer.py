"""Times the peer's worker with a no-op backend; prints one JSON object. Run by ``benchmarks/execution.py``.

Runs in the peer's own environment (``pip install laya-apple==1.7.0``), with ``site/`` first on the path.
"""

import importlib.util
import json
from pathlib import Path

# By path: the folder of our package must not be on the peer's path.
_SPEC = importlib.util.spec_from_file_location("timing", Path(__file__).parents[1] / "timing.py")
timing = importlib.util.module_from_spec(_SPEC)
_SPEC.loader.exec_module(timing)

if __name__ == "__main__":
    from laya_apple.executor import DeviceWorker

    options = {"model": "laya-typed-decisions", "checkpoint": ".", "pad_id": 0, "dtype": "float16"}
    worker = DeviceWorker("gpu", {**options, "batch_size": 16})
    short, long = ([{"ids": list(range(n)), "markers": [20, 24, 28], "qtype": 0}] for n in (64, 1024))
    found = {
        **timing.closed_loop(lambda number: worker.submit(short, 1.0, number)),
        "throughput_64_req_s": timing.throughput(lambda number: worker.submit(short, 1.0, number), 20_000),
        "throughput_1024_req_s": timing.throughput(lambda number: worker.submit(long, 1.0, number), 5_000),
    }
    worker.close()
    print(json.dumps({"lane": found}))
