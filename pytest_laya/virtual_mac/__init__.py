"""A stand-in Mac: every line of ``laya_apple`` that needs Apple silicon runs anywhere, labelled synthetic.

Use it with ``LAYA_APPLE_PLATFORM=pytest_laya.virtual_mac:platform``, which every process of the runtime
reads, or in a test through the ``virtual_mac`` fixture (:class:`pytest_laya.virtual_mac.control.VirtualMac`).

Importing this package loads neither NumPy nor MLX nor Core ML Tools.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from laya_apple.platform import Platform


def platform() -> Platform:
    """The virtual Mac of this process: puts the bridge in place, keeps BLAS on one thread.

    May be called any number of times.
    """
    from pytest_laya.virtual_mac.machine import start

    return start()
