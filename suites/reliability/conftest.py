"""The checkpoints and artifacts of the unit tests serve here too."""

from __future__ import annotations

import sys
from pathlib import Path

UNIT = str(Path(__file__).resolve().parents[1] / "unit")
if UNIT not in sys.path:
    sys.path.insert(0, UNIT)

from artifact_files import built, mac, registered  # noqa: E402
from reliability_case import case, case_files  # noqa: E402
from transfer_files import archive, embedded, importing  # noqa: E402

__all__ = ["archive", "built", "case", "case_files", "embedded", "importing", "mac", "registered"]
