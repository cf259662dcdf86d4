"""``laya-apple info``: this machine, the installed versions, the caches, the models, what can run where."""

from __future__ import annotations

import argparse
import importlib.util
import json
import platform as _python_platform
from importlib import metadata
from pathlib import Path
from typing import Any

from laya_apple import __version__, registry
from laya_apple.hub import cached_snapshot, hub_cache, offline
from laya_apple.platform import Platform, cache_root, current_platform
from laya_apple.registry import ModelSpec

_PACKAGES = ("mlx", "coremltools", "numpy", "tokenizers", "huggingface_hub", "safetensors")


def add_parser(subparsers: Any) -> None:
    parser = subparsers.add_parser("info", help="what this machine is and what can run on it")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    facts = collect(current_platform())
    print(json.dumps(facts, indent=2) if args.json else render(facts))
    return 0


def collect(platform: Platform) -> dict[str, Any]:
    """The facts as plain JSON-able values, from files and versions only: nothing is loaded or verified."""
    return {
        "laya_apple": __version__,
        "python": _python_platform.python_version(),
        "synthetic": platform.virtual,
        "platform": {
            "soc": platform.soc,
            "macos": platform.macos,
            "macos_build": platform.macos_build,
            "machine": platform.machine,
            "memory_bytes": platform.memory_bytes,
        },
        "versions": {name: _version(name) for name in _PACKAGES},
        "offline": offline(),
        "caches": {"laya_apple": str(cache_root(platform)), "hub": str(hub_cache())},
        "devices": {"gpu": _gpu(platform), "ane": _ane(platform), "cpu": _cpu()},
        "models": [_model(spec, cache_root(platform)) for spec in registry.MODELS],
    }


def render(facts: dict[str, Any]) -> str:
    """The same for a reader."""
    platform = facts["platform"]
    system = f"macOS {platform['macos']} ({platform['macos_build']})" if platform["macos"] else "not macOS"
    lines = [
        f"laya-apple {facts['laya_apple']}, Python {facts['python']}",
        f"machine    {platform['soc']}, {platform['machine']}, {system}, "
        f"{platform['memory_bytes'] / 2**30:.0f} GiB"
        + (" (virtual, synthetic)" if facts["synthetic"] else ""),
        "packages   "
        + ", ".join(f"{name} {found or 'missing'}" for name, found in facts["versions"].items()),
        f"caches     {facts['caches']['laya_apple']}, hub {facts['caches']['hub']}"
        + (" (offline)" if facts["offline"] else ""),
    ]
    for device, state in facts["devices"].items():
        lines.append(f"{device:<10} " + ("available" if state["available"] else f"no: {state['reason']}"))
    for model in facts["models"]:
        built = ", ".join(map(str, model["ane_buckets_built"])) or "none"
        lines.append(
            f"model      {model['name']} @ {model['revision'][:12]}: {model['checkpoint']}; "
            f"ANE buckets built: {built}"
        )
    return "\n".join(lines)


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:  # closed: reported as missing
        return None


def _state(reason: str | None) -> dict[str, Any]:
    return {"available": reason is None, "reason": reason}


def _mlx_problem() -> str | None:
    try:
        import mlx.core  # noqa: F401
    except ImportError as error:  # closed: reported as not available, with the reason
        return f"MLX cannot be imported ({error}); install laya-apple with its dependencies"
    return None


def _cpu() -> dict[str, Any]:
    return _state(_mlx_problem())


def _gpu(platform: Platform) -> dict[str, Any]:
    problem = _mlx_problem()
    if problem is None and platform.mlx_gpu_device() is None:
        problem = 'MLX has no GPU on this machine; use device="cpu"'
    return _state(problem)


def _ane(platform: Platform) -> dict[str, Any]:
    if not platform.is_apple_silicon:
        return _state("this machine is not an Apple silicon Mac")
    if importlib.util.find_spec("coremltools") is None:
        return _state("coremltools is not installed; pip install 'laya-apple[ane]'")
    return _state(None)


def _model(spec: ModelSpec, root: Path) -> dict[str, Any]:
    if spec.embedded:
        checkpoint = "embedded"
    elif cached_snapshot(spec) is not None:
        checkpoint = "cached"
    else:
        checkpoint = f"not cached; run `laya-apple download {spec.name}`"
    artifacts = root / "artifacts" / spec.name / spec.revision[:12]
    return {
        "name": spec.name,
        "repo": spec.repo,
        "revision": spec.revision,
        "weights_sha256": spec.weights_sha256,
        "max_len": spec.max_len,
        "ane_buckets": list(spec.ane_buckets),
        "auto_ane_buckets": list(spec.auto_ane_buckets),
        "checkpoint": checkpoint,
        "ane_buckets_built": [
            bucket
            for bucket in spec.ane_buckets
            if (artifacts / f"bc1s-masked-L{bucket}-B1" / "manifest.json").is_file()
        ],
    }
