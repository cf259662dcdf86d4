"""How a measured fact travels from the test's process to the controller: in the report's user_properties."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any

PROPERTY = "laya_facts"


@dataclass(frozen=True)
class Fact:
    """One recorded thing. ``machine`` is empty on this host, the xdist worker's id on another."""

    id: str
    """Unique in the session: every report of a test carries the test's facts again."""
    kind: str
    """``metrics``, ``switchyard``, ``conditions``, ``parity``, ``probe``, ``sentinel`` or ``trace``."""
    data: dict[str, Any]
    test: str = ""
    machine: str = ""


def encode(facts: Iterable[Fact]) -> tuple[str, str]:
    """The user property that holds ``facts``."""
    return PROPERTY, json.dumps([asdict(fact) for fact in facts])


def take(properties: list[tuple[str, object]]) -> list[Fact]:
    """Remove our properties from a report's list and return the facts in them."""
    found: list[Fact] = []
    for _, value in [one for one in properties if one[0] == PROPERTY]:
        found.extend(Fact(**fields) for fields in json.loads(str(value)))
    properties[:] = [one for one in properties if one[0] != PROPERTY]
    return found
