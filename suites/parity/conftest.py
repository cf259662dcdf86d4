"""Lets the suite's modules import each other by name, in the source tree and where the wheel put them."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
