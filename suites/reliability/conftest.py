"""The unit tests' checkpoints and artifacts serve here too."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "unit"))

from reliability_case import case, case_files

__all__ = ["case", "case_files"]
