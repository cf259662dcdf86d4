"""SHA-256 of a file and of a tree of files."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from pathlib import Path


def file_sha256(path: Path) -> str:
    """Hex SHA-256 of one file. Raises OSError when it cannot be read."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def tree_hash(root: Path, names: Iterable[str] | None = None) -> str:
    """Hex SHA-256 over files, sorted by path components, of (POSIX relative path ++ the file's digest).

    ``names`` are POSIX paths below ``root``; None takes every file below it. Raises OSError when a file
    cannot be read.
    """
    if names is None:
        relative = [path.relative_to(root) for path in root.rglob("*") if path.is_file()]
    else:
        relative = [Path(name) for name in names]
    total = hashlib.sha256()
    for path in sorted(relative, key=lambda path: path.parts):
        total.update(path.as_posix().encode())
        total.update(bytes.fromhex(file_sha256(root / path)))
    return total.hexdigest()
