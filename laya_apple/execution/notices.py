"""Warnings that point at the caller's line, and warnings from threads that must not die of them."""

from __future__ import annotations

import sys
import warnings
from pathlib import Path

PACKAGE_PREFIX = str(Path(__file__).resolve().parent.parent)


def warn_caller(message: str, category: type[Warning] = RuntimeWarning) -> None:
    """Warn at the first frame outside this package."""
    level = 1
    frame = sys._getframe()
    while frame.f_back is not None and frame.f_code.co_filename.startswith(PACKAGE_PREFIX):
        level += 1
        frame = frame.f_back
    warnings.warn(message, category, stacklevel=level)


def warn_from_thread(message: str) -> None:
    """Warn from a thread that serves requests; where warnings are errors, print instead of dying."""
    try:
        warnings.warn(message, RuntimeWarning, stacklevel=2)
    except RuntimeWarning:  # warned: row 14 on standard error, since raising here would lose requests
        print(f"laya-apple: {message}", file=sys.stderr)
