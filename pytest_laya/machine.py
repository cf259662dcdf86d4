"""Facts about the machine and the software, for session.json."""

from __future__ import annotations

import platform
import subprocess
from importlib import metadata
from pathlib import Path
from typing import Any

DISTRIBUTIONS = (
    "pytest", "pytest-benchmark", "pytest-xdist", "mlx", "coremltools", "numpy", "tokenizers", "transformers",
    "huggingface_hub", "safetensors", "torch", "laya",
)  # fmt: skip


def platform_facts() -> dict[str, Any]:
    """The platform this process uses, virtual or real. Raises BackendUnavailableError on a bad hook."""
    from laya_apple.platform import current_platform

    found = current_platform()
    return {
        "soc": found.soc,
        "macos": found.macos,
        "macos_build": found.macos_build,
        "machine": found.machine,
        "memory_gb": round(found.memory_bytes / 2**30, 1),
        "virtual": found.virtual,
    }


def versions() -> dict[str, str | None]:
    """Installed versions, without importing anything; None for what is not installed."""
    found: dict[str, str | None] = {"python": platform.python_version()}
    for name in DISTRIBUTIONS:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            found[name] = None
    return found


def git_revision(folder: Path) -> dict[str, Any] | None:
    """Commit of the project under test and whether tracked files differ from it; None outside git."""
    revision = _git(folder, "rev-parse", "HEAD")
    if not revision:
        return None
    return {"commit": revision, "modified": bool(_git(folder, "status", "--porcelain", "-uno"))}


def _git(folder: Path, *arguments: str) -> str:
    try:
        done = subprocess.run(
            ["git", "-C", str(folder), *arguments], capture_output=True, text=True, timeout=10, check=False
        )
    except (OSError, subprocess.SubprocessError):
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""
