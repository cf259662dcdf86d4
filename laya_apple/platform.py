"""The machine this process runs on, and the documented hook that stands another in its place.

``LAYA_APPLE_PLATFORM=module:function`` names a function of no arguments that returns a :class:`Platform`.
It is called first thing in every process that uses ``laya_apple``, workers included.
"""

from __future__ import annotations

import functools
import importlib
import os
import platform as _platform
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from laya_apple.errors import BackendUnavailableError

if TYPE_CHECKING:
    from laya_apple.backends.base import Backend

HOOK_VARIABLE = "LAYA_APPLE_PLATFORM"


@dataclass(frozen=True)
class Platform:
    """Facts about a machine. A virtual platform subclasses this and overrides the two methods."""

    soc: str
    """Chip name, as ``Apple M4 Max``; the processor's name elsewhere."""
    macos: str
    """``26.6.2``; ``""`` off macOS."""
    macos_build: str
    """``25G80``; ``""`` off macOS."""
    machine: str
    """Architecture, as ``arm64``."""
    memory_bytes: int
    virtual: bool = False
    """True for a stand-in: everything it produces is labelled synthetic."""

    @property
    def is_apple_silicon(self) -> bool:
        """True on an Apple-silicon Mac, and on its stand-in."""
        return bool(self.macos) and self.machine == "arm64"

    @property
    def macos_major(self) -> int:
        """Major version of macOS; 0 off macOS."""
        return int(self.macos.split(".")[0]) if self.macos else 0

    def wrap_backend(self, device: str, backend: Backend) -> Backend:
        """Called once for each loaded backend (``gpu``, ``ane``, ``cpu``); a real machine changes nothing."""
        return backend

    def mlx_gpu_device(self) -> str | None:
        """Which MLX device answers as the GPU: ``gpu`` (Metal or CUDA), or None where MLX has none.

        Only a virtual platform returns ``cpu``.
        """
        import mlx.core as mx

        try:
            has_gpu = mx.is_available(mx.Device(mx.gpu))
        except (AttributeError, ValueError, RuntimeError):  # closed: cannot tell, so there is no GPU
            has_gpu = False
        return "gpu" if has_gpu else None


def _sysctl(name: str) -> str:
    try:
        done = subprocess.run(
            ["/usr/sbin/sysctl", "-n", name], capture_output=True, text=True, timeout=5, check=True
        )
    except (OSError, subprocess.SubprocessError):  # closed: an unknown field matches no profile
        return ""
    return done.stdout.strip()


def detect() -> Platform:
    """The real machine. Fields that cannot be read are empty, and so match no artifact and no profile."""
    machine = _platform.machine()
    memory_bytes = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    if sys.platform == "darwin":
        return Platform(
            soc=_sysctl("machdep.cpu.brand_string"),
            macos=_platform.mac_ver()[0],
            macos_build=_sysctl("kern.osversion"),
            machine=machine,
            memory_bytes=memory_bytes,
        )
    return Platform(
        soc=_linux_processor() or machine,
        macos="",
        macos_build="",
        machine=machine,
        memory_bytes=memory_bytes,
    )


def _linux_processor() -> str:
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
    except OSError:  # closed: the name is for display only off macOS
        return ""
    for line in text.splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return ""


@functools.lru_cache(maxsize=4)
def _from_hook(target: str) -> Platform:
    if not target:
        return detect()
    module_name, colon, function_name = target.partition(":")
    mend = f"set {HOOK_VARIABLE} to module:function, or unset it to use the real machine"
    if not colon or not module_name or not function_name:
        raise BackendUnavailableError(f"{HOOK_VARIABLE}={target!r} is not module:function; {mend}")
    try:
        function = getattr(importlib.import_module(module_name), function_name)
    except (ImportError, AttributeError) as error:  # reraise: the hook must be there
        raise BackendUnavailableError(
            f"{HOOK_VARIABLE}={target!r} cannot be imported: {error}; {mend}"
        ) from error
    found = function()
    if not isinstance(found, Platform):
        raise BackendUnavailableError(
            f"{HOOK_VARIABLE}={target!r} returned {type(found).__name__}, not a Platform; {mend}"
        )
    return found


def current_platform(environ: Mapping[str, str] = os.environ) -> Platform:
    """The platform this process uses: the hook's if ``LAYA_APPLE_PLATFORM`` is set, else the real machine.

    Raises BackendUnavailableError when the hook cannot be imported or returns something else.
    """
    return _from_hook(environ.get(HOOK_VARIABLE, ""))


def cache_root(platform: Platform, environ: Mapping[str, str] = os.environ) -> Path:
    """Where artifacts, stamps and profiles live; a virtual platform has a folder of its own below it.

    ``LAYA_APPLE_CACHE``, else ``$XDG_CACHE_HOME/laya-apple``, else ``~/.cache/laya-apple``.
    """
    named = environ.get("LAYA_APPLE_CACHE")
    if named:
        root = Path(named).expanduser()
    else:
        base = environ.get("XDG_CACHE_HOME")
        root = (Path(base).expanduser() if base else Path.home() / ".cache") / "laya-apple"
    return root / "virtual-mac" if platform.virtual else root
