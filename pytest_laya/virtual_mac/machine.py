"""The virtual Mac as a :class:`laya_apple.platform.Platform`."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from laya_apple.platform import Platform
from pytest_laya.virtual_mac.disk import install_disk_faults
from pytest_laya.virtual_mac.faults import standing
from pytest_laya.virtual_mac.importing import install_bridge
from pytest_laya.virtual_mac.threads import use_one_blas_thread

if TYPE_CHECKING:
    from laya_apple.backends.base import Backend

SOC = "Virtual Mac"
"""No Apple chip has this name, so no profile or artifact of a real Mac matches, nor ours there."""
MACOS = "26.0"
MACOS_BUILD = "VIRTUAL1"


class VirtualPlatform(Platform):
    """Facts of the stand-in machine; ``other_platform`` changes them while it stands.

    The facts are read when asked for, so a process that already holds the platform sees a changed one.
    """

    def __init__(self) -> None:
        # The fields are properties here: there is nothing to store.
        pass

    @property
    def soc(self) -> str:
        return str(_changed("soc", SOC))

    @property
    def macos(self) -> str:
        return str(_changed("macos", MACOS))

    @property
    def macos_build(self) -> str:
        return str(_changed("macos_build", MACOS_BUILD))

    @property
    def machine(self) -> str:
        return "arm64"

    @property
    def memory_bytes(self) -> int:
        return int(_changed("memory_bytes", os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")))

    @property
    def virtual(self) -> bool:
        return True

    def mlx_gpu_device(self) -> str | None:
        """MLX's CPU device answers in the GPU's place."""
        return "cpu"

    def wrap_backend(self, device: str, backend: Backend) -> Backend:
        """The GPU takes its declared time and its faults here; the Neural Engine's are in the bridge."""
        if device != "gpu":
            return backend
        from pytest_laya.virtual_mac.gpu import VirtualGPU

        return VirtualGPU(backend)


def _changed(name: str, default: Any) -> Any:
    fault = standing("other_platform")
    value = fault.args[name] if fault is not None else None
    return default if value is None else value


def start() -> VirtualPlatform:
    """Make this process one of the virtual Mac's. Idempotent."""
    use_one_blas_thread()
    install_bridge()
    install_disk_faults()
    return VirtualPlatform()
