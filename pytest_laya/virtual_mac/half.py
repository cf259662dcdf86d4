"""Rounding float32 arrays to float16 values, kept as float32.

NumPy converts through software, two passes of about 1.3 ns an element; adding and subtracting a power of two
makes the processor's own rounding do it, exactly, ties to even and subnormals included.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Float = NDArray[np.float32]

_EXPONENT = np.uint32(0x7F800000)
_MIN_NORMAL = np.float32(2.0**-14)
_LAST_BINADE = np.float32(2.0**15)
# 1.5 x 2^13 times the value's power of two: the sum's last bit is then the value's eleventh, which float16
# keeps.
_SHIFT = np.float32(1.5 * 2.0**13)


def round_to_half(x: Float) -> Float:
    """Equal to ``x.astype(float16).astype(float32)``; a zero may lose its sign.

    ``x`` may be overwritten; use the result.
    """
    if x.ndim == 0 or x.size == 0:
        return _slowly(x)
    magnitude = np.bitwise_and(x.view(np.uint32), _EXPONENT)
    power: Float = magnitude.view(np.float32)
    # The last binade rounds up to infinity, and infinities and NaN have no ulp: rare enough for the slow way.
    if power.max() >= _LAST_BINADE:
        return _slowly(x)
    np.maximum(power, _MIN_NORMAL, out=power)
    np.multiply(power, _SHIFT, out=power)
    np.add(x, power, out=x)
    np.subtract(x, power, out=x)
    return x


def _slowly(x: Float) -> Float:
    with np.errstate(over="ignore", invalid="ignore"):
        return np.asarray(x.astype(np.float16), np.float32)
