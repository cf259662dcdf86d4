"""``result.json`` and ``trace.jsonl``: checked against the schema, then written whole or not at all."""

from __future__ import annotations

import contextlib
import hashlib
import importlib.resources
import json
import os
import re
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from laya_apple.errors import LayaAppleError

SCHEMA = "laya-apple/switchyard-result"
SCHEMA_VERSION = 1
TOOL = "laya-apple switchyard"

RESULT_FILE = "result.json"
TRACE_FILE = "trace.jsonl"
REPLAY_FILE = "replay.html"


class ResultInvalid(LayaAppleError):
    """A result does not match its schema."""


class ResultUnreadable(LayaAppleError):
    """A folder does not hold what a Switchyard run writes."""


def schema() -> dict[str, Any]:
    """The JSON Schema of ``result.json``."""
    text = (importlib.resources.files("laya_apple") / "data" / "switchyard-result.schema.json").read_text(
        encoding="utf-8"
    )
    loaded: dict[str, Any] = json.loads(text)
    return loaded


def validate(result: Mapping[str, Any]) -> None:
    """Raise ResultInvalid, naming the place, unless ``result`` matches the schema."""
    import jsonschema

    checker = jsonschema.Draft202012Validator(schema())
    errors = sorted(checker.iter_errors(result), key=lambda error: list(map(str, error.absolute_path)))
    if errors:
        place = "/".join(map(str, errors[0].absolute_path)) or "the top level"
        raise ResultInvalid(f"{RESULT_FILE} does not match its schema at {place}: {errors[0].message}")


def trace_text(records: Sequence[Mapping[str, Any]]) -> str:
    """``trace.jsonl``: one compact JSON object a line, in round and schedule order."""
    return "".join(json.dumps(one, separators=(",", ":"), allow_nan=False) + "\n" for one in records)


def write(out: Path, result: Mapping[str, Any], records: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Validate, then write both files into ``out`` (made if missing); returns the result as written.

    Each file is complete or absent at every moment. ``trace_sha256`` ties the pair together, so a crash
    between the two renames over an older run is noticed by :func:`read`. Raises ResultInvalid or OSError.
    """
    lines = trace_text(records)
    written = {**result, "trace_sha256": hashlib.sha256(lines.encode()).hexdigest()}
    validate(written)
    text = json.dumps(written, indent=2, allow_nan=False) + "\n"
    out.mkdir(parents=True, exist_ok=True)
    write_files(out, {TRACE_FILE: lines, RESULT_FILE: text})
    return written


def write_files(out: Path, texts: Mapping[str, str]) -> None:
    """Write every file beside its place first, and rename them only once all are on disk."""
    staged: list[tuple[Path, Path]] = []
    try:
        for name, text in texts.items():
            handle, temporary = tempfile.mkstemp(dir=out, prefix=f".{name}.")
            staged.append((Path(temporary), out / name))
            with os.fdopen(handle, "w", encoding="utf-8", newline="\n") as file:
                file.write(text)
                file.flush()
                os.fsync(file.fileno())
                os.fchmod(file.fileno(), 0o644)
        for source, target in staged:
            os.replace(source, target)
    finally:
        for source, _ in staged:
            with contextlib.suppress(FileNotFoundError):  # closed: there is no draft left to remove
                source.unlink()


def read(folder: Path) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """The result and the trace records of a folder that a run wrote.

    Raises ResultUnreadable when a file is missing, unreadable, of a newer schema, or not of that run.
    """
    try:
        text = (folder / RESULT_FILE).read_text(encoding="utf-8")
        lines = (folder / TRACE_FILE).read_text(encoding="utf-8")
        result = json.loads(text)
        records = [json.loads(line) for line in lines.splitlines()]
    except (OSError, ValueError) as error:  # reraise: as one line that names the folder
        raise ResultUnreadable(f"{folder} was not written by a Switchyard run: {error}") from error
    if not isinstance(result, dict) or result.get("schema") != SCHEMA:
        raise ResultUnreadable(f"{folder / RESULT_FILE} is not a Switchyard result")
    version = result.get("schema_version")
    if not isinstance(version, int) or version > SCHEMA_VERSION:
        raise ResultUnreadable(
            f"{folder / RESULT_FILE} has schema_version {version}; this version reads up to {SCHEMA_VERSION}"
        )
    try:
        validate(result)
    except ResultInvalid as error:  # reraise: with the folder's name
        raise ResultUnreadable(f"{folder}: {error}") from error
    if result.get("trace_sha256", (found := hashlib.sha256(lines.encode()).hexdigest())) != found:
        raise ResultUnreadable(f"{folder / TRACE_FILE} is not the trace of the {RESULT_FILE} beside it")
    return result, records


def soc_slug(soc: str) -> str:
    """The chip's name as a folder name: ``apple-m4-max``."""
    return re.sub(r"[^a-z0-9]+", "-", soc.lower()).strip("-") or "unknown"
