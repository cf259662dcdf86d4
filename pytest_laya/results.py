"""The results folder: schema-checked JSON, redacted paths, files that are written whole or not at all."""

from __future__ import annotations

import json
import re
import tempfile
from collections.abc import Mapping
from datetime import UTC, datetime
from functools import lru_cache
from importlib import resources
from pathlib import Path
from typing import Any

SCHEMA_VERSION = 1


def utc_now() -> str:
    """ISO 8601 with a Z, to the second."""
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def utc_stamp() -> str:
    """For a folder's name: ``20260131T115959Z``."""
    return datetime.now(UTC).strftime("%Y%m%dT%H%M%SZ")


def header(name: str, *, synthetic: bool) -> dict[str, Any]:
    """The fields that every file of ours starts with."""
    from laya_apple import __version__

    return {
        "schema": f"laya-apple/{name}",
        "schema_version": SCHEMA_VERSION,
        "tool": "pytest_laya",
        "laya_apple": __version__,
        "created_utc": utc_now(),
        "synthetic": synthetic,
    }


@lru_cache(maxsize=8)
def schema(name: str) -> dict[str, Any]:
    """The JSON Schema of ``<name>.json``."""
    text = resources.files("pytest_laya").joinpath(f"data/{name}.schema.json").read_text(encoding="utf-8")
    loaded: dict[str, Any] = json.loads(text)
    return loaded


def write_text(path: Path, text: str) -> None:
    """Replace ``path`` with ``text`` in one step; a reader never sees half a file."""
    from laya_apple.demos.switchyard.result import write_files

    path.parent.mkdir(parents=True, exist_ok=True)
    write_files(path.parent, {path.name: text})


def write_json(path: Path, name: str, document: Mapping[str, Any], root: Path) -> None:
    """Redact, check against the schema of ``name`` and write. Raises jsonschema.ValidationError."""
    import jsonschema

    clean = redact(document, root)
    jsonschema.validate(clean, schema(name), cls=jsonschema.Draft202012Validator)
    write_text(path, json.dumps(clean, indent=2, allow_nan=False) + "\n")


def redact(value: Any, root: Path) -> Any:
    """``value`` with every path of this machine (project, caches, home, temporary folder) replaced."""
    from laya_apple.demos.switchyard.redact import Redactor

    places = {str(root): "<ROOT>", tempfile.gettempdir(): "<TMP>"}
    return Redactor().value(_replaced(value, places))


def _replaced(value: Any, places: Mapping[str, str]) -> Any:
    if isinstance(value, str):
        for place in sorted(places, key=len, reverse=True):
            if len(place) > 1:
                value = re.sub(re.escape(place) + r"(?![\w.\-])", places[place], value)
        return value
    if isinstance(value, Mapping):
        return {_replaced(key, places): _replaced(item, places) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_replaced(item, places) for item in value]
    return value
