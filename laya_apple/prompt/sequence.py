"""Token rows: one a question."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Row:
    """One question's token sequence, unpadded."""

    ids: tuple[int, ...]
    markers: tuple[int, ...]
    """Positions of the option markers, one an option, in slot order."""
    qtype: int
    """0 choice, 1 score, 2 noul."""
