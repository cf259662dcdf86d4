"""Comparing answers: everything exact but numbers, which upstream publishes to 4 decimals."""

from __future__ import annotations

from typing import Any

ONE_UNIT = 1.0001e-4


def differences(ours: Any, theirs: Any, where: str = "answers") -> list[str]:
    """Where two answers differ in type, key, order or value; a float by more than one unit."""
    if type(ours) is not type(theirs):
        return [f"{where}: {ours!r} instead of {theirs!r}"]
    if isinstance(ours, dict):
        # 1, 1.0 and True are one key to Python, but not to a caller.
        keys, expected = ([(type(key), repr(key)) for key in side] for side in (ours, theirs))
        if keys != expected:
            return [f"{where}: keys {list(ours)} instead of {list(theirs)}"]
        return [
            found
            for (key, value), other in zip(ours.items(), theirs.values(), strict=True)
            for found in differences(value, other, f"{where}[{key!r}]")
        ]
    same = abs(ours - theirs) <= ONE_UNIT if isinstance(ours, float) else ours == theirs
    # A label may be an infinity or not a number.
    return [] if same or repr(ours) == repr(theirs) else [f"{where}: {ours!r} instead of {theirs!r}"]
