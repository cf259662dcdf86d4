"""Time and peak memory of building one bucket of a ModernBERT-large-shaped checkpoint of random weights.

    python -m benchmarks.artifact_build [--length 128] [--json FILE]

Hidden 1024, 28 layers, 16 heads, intermediate 2624, 50,368 tokens, two decision layers, FP32 on disk (1.6 GB
in a temporary folder). Measured in a fresh process: the FP32 reference, graph, layout check, conversion and
program hash. Compiling, parity and probe need Core ML and goldens and are left out. On a busy machine
``cpu_s`` says more than ``total_s``.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

ENCODER = {
    "model_type": "modernbert",
    "hidden_size": 1024,
    "num_attention_heads": 16,
    "intermediate_size": 2624,
    "num_hidden_layers": 28,
    "vocab_size": 50368,
    "global_attn_every_n_layers": 3,
    "local_attention": 128,
    "global_rope_theta": 160000.0,
    "local_rope_theta": 10000.0,
    "norm_eps": 1e-5,
    "pad_token_id": 50283,
}
AGENT = {"max_len": 512, "head_layers": 2, "act_costs": [0.1], "temperature": [1.0, 1.0, 1.0]}
LIMIT_S = 90
LIMIT_BYTES = 3 * 1024**3


def write_random_checkpoint(folder: Path) -> None:
    """All files of a checkpoint; the tokenizer's are empty objects, since nothing here tokenises."""
    import numpy as np
    from safetensors.numpy import save_file

    from laya_apple.config import AgentConfig, EncoderConfig
    from laya_apple.weights import expected_shapes

    random = np.random.default_rng(0)
    tensors = {}
    shapes = expected_shapes(AgentConfig.from_dict(AGENT), EncoderConfig.from_dict(ENCODER))
    for name, shape in shapes.items():
        values = random.standard_normal(shape, dtype=np.float32)
        if len(shape) == 2:
            values *= 0.5 / np.sqrt(shape[1])
        else:
            values = np.float32(name.endswith("weight")) + np.float32(0.05) * values
        tensors[name] = values
    (folder / "encoder").mkdir(parents=True)
    (folder / "tokenizer").mkdir()
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    (folder / "rl_agent_config.json").write_text(json.dumps(AGENT), encoding="utf-8")
    (folder / "encoder" / "config.json").write_text(json.dumps(ENCODER), encoding="utf-8")
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (folder / "tokenizer" / name).write_text("{}", encoding="utf-8")


def build(folder: Path, length: int) -> dict[str, Any]:
    """The steps, timed, in this process; run it in a fresh one, since peak memory is the process's."""
    from laya_apple.artifacts.convert import convert
    from laya_apple.artifacts.graph import GraphShape, build_graph
    from laya_apple.artifacts.layout import check_layout, expected_outputs
    from laya_apple.artifacts.tensors import TensorFile
    from laya_apple.checkpoint import open_checkpoint

    seconds: dict[str, float] = {}
    start = last = time.perf_counter()

    def lap(step: str) -> None:
        nonlocal last
        now = time.perf_counter()
        seconds[step] = round(now - last, 2)
        last = now

    checkpoint = open_checkpoint(folder)
    lap("open")
    expected = expected_outputs(checkpoint, length)
    lap("reference")
    graph = build_graph(GraphShape.of(checkpoint, length), TensorFile(checkpoint))
    lap("graph")
    check = check_layout(graph, checkpoint, expected)
    lap("layout")
    program = convert(graph, folder / "model.mlpackage")
    lap("convert")
    used = resource.getrusage(resource.RUSAGE_SELF)
    peak = used.ru_maxrss
    return {
        "length": length,
        "seconds": seconds,
        "total_s": round(last - start, 2),
        "cpu_s": round(used.ru_utime + used.ru_stime, 2),
        "peak_bytes": peak if sys.platform == "darwin" else peak * 1024,
        "operations": program.operations,
        "operation_types": program.operation_types,
        "program_sha256": program.program_sha256,
        "max_logit_difference": check.max_logit_difference,
        "layout_passed": check.passed,
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "machine": platform.machine(),
        "python": platform.python_version(),
    }


def main() -> int:
    """Run and report; 1 when a limit (90 s, 3 GiB) is broken or the layout check fails."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--length", type=int, default=128)
    parser.add_argument("--json", type=Path, help="also write the figures here")
    parser.add_argument("--in-process", type=Path, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.in_process is not None:
        print(json.dumps(build(args.in_process, args.length)))
        return 0
    with tempfile.TemporaryDirectory(prefix="laya-large-") as folder:
        write_random_checkpoint(Path(folder) / "large")
        command = [sys.executable, "-m", "benchmarks.artifact_build", "--length", str(args.length)]
        command += ["--in-process", f"{folder}/large"]
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    facts = json.loads(done.stdout.splitlines()[-1])
    text = json.dumps(facts, indent=2)
    print(text)
    if args.json is not None:
        args.json.write_text(text + "\n", encoding="utf-8")
    within = facts["total_s"] < LIMIT_S and facts["peak_bytes"] < LIMIT_BYTES and facts["layout_passed"]
    print(f"limits: {LIMIT_S} s and {LIMIT_BYTES / 1024**3:.0f} GiB: {'kept' if within else 'BROKEN'}")
    return 0 if within else 1


if __name__ == "__main__":
    sys.exit(main())
