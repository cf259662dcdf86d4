"""Virtual Macs whose word on MLX's GPU differs from what the host has."""

from pytest_laya.virtual_mac.machine import VirtualPlatform, start


class ClaimedGPU(VirtualPlatform):
    """Says that MLX's own GPU answers; hook: ``LAYA_APPLE_PLATFORM=audit_gpu_claimed:platform``."""

    def mlx_gpu_device(self):
        return "gpu"


class NoGPU(VirtualPlatform):
    """Says that there is none; hook: ``LAYA_APPLE_PLATFORM=audit_gpu_claimed:without_gpu``."""

    def mlx_gpu_device(self):
        return None


def platform():
    """The hook of a machine that claims a GPU."""
    start()
    return ClaimedGPU()


def without_gpu():
    """The hook of a machine without one."""
    start()
    return NoGPU()
