"""The results folder: schema-checked JSON, redacted paths, files that are written whole or not at all."""

from __future__ import annotations

import json
import os
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
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.write(text)
        os.chmod(name, 0o644)
        os.replace(name, path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise


def write_json(path: Path, name: str, document: Mapping[str, Any], secrets: Mapping[str, str]) -> None:
    """Redact, check against the schema of ``name`` and write. Raises jsonschema.ValidationError."""
    import jsonschema

    clean = redact(document, secrets)
    jsonschema.validate(clean, schema(name), cls=jsonschema.Draft202012Validator)
    write_text(path, json.dumps(clean, indent=2, allow_nan=False) + "\n")


def machine_paths(root: Path) -> dict[str, str]:
    """Path -> what stands for it in every file: the cache, the Hugging Face folder, the project, home."""
    home = str(Path.home())
    environ = os.environ
    cache_home = environ.get("XDG_CACHE_HOME") or os.path.join(home, ".cache")
    return {
        environ.get("LAYA_APPLE_CACHE") or os.path.join(cache_home, "laya-apple"): "<LAYA_APPLE_CACHE>",
        environ.get("HF_HOME") or os.path.join(cache_home, "huggingface"): "<HF_HOME>",
        str(root): "<ROOT>",
        tempfile.gettempdir(): "<TMP>",
        home: "~",
    }


def redact(value: Any, secrets: Mapping[str, str]) -> Any:
    """``value`` with every machine path in every string replaced, the longest path first."""
    if isinstance(value, str):
        for path in sorted(secrets, key=len, reverse=True):
            if len(path) > 1:
                value = value.replace(path, secrets[path])
        return value
    if isinstance(value, Mapping):
        return {redact(key, secrets): redact(item, secrets) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [redact(item, secrets) for item in value]
    return value
