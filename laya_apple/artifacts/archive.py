"""Artifact archives: ``.tar.gz`` files of one manifest and one compiled model, written and read safely.

Reading trusts nothing: members are judged one by one before anything of them is written, sizes are limited
before and while they are unpacked, and the bytes that were unpacked are the bytes that are hashed.
"""

from __future__ import annotations

import gzip
import hashlib
import json
import os
import tarfile
import unicodedata
import uuid
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, cast

from laya_apple.artifacts.locations import MANIFEST_FILE, MODEL_DIRECTORY
from laya_apple.artifacts.manifest import Manifest, ManifestError, check_manifest
from laya_apple.errors import ArtifactIntegrityError, BackendUnavailableError

ARCHIVE_SUFFIX = ".tar.gz"
MAX_UNPACKED_BYTES = 4 * 1024**3
MAX_MANIFEST_BYTES = 4 * 1024**2
MAX_MEMBERS = 256
MAX_DEPTH = 16
MAX_NAME_BYTES = 200
_CHUNK_BYTES = 1024**2
_BLOCK_BYTES = tarfile.BLOCKSIZE
# The largest piece that tarfile asks for at once is a member's extended header.
_MAX_READ_BYTES = 1024**2
_TOLD_BYTES = 16 * 1024**2
# FP16 weights hardly compress: more effort buys next to nothing.
_COMPRESSION = 1
_FILE_MODE = 0o644
_DIRECTORY_MODE = 0o755
_BROKEN = (
    tarfile.TarError,
    gzip.BadGzipFile,
    zlib.error,
    EOFError,
    ValueError,
    OverflowError,
    IndexError,
    KeyError,
    RecursionError,
)

Progress = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class ArchiveFacts:
    """What was read."""

    archive_sha256: str
    """Of the very bytes that were unpacked."""
    bytes: int


def require_safe_extraction() -> None:
    """Raises BackendUnavailableError where tarfile has no data filter (Python below 3.11.4)."""
    if not hasattr(tarfile, "data_filter"):
        raise BackendUnavailableError(
            "artifact archives need tarfile's data filter, which Python 3.11.4 brought; use a newer Python"
        )


def write_archive(directory: Path, archive: Path) -> str:
    """Write the artifact in ``directory`` to ``archive`` in one atomic step; returns the archive's SHA-256.

    The same files always give the same bytes: sorted members, no owners, no times. ``manifest.json`` comes
    first. Raises OSError when the disk refuses; nothing of the archive is left then.
    """
    draft = archive.with_name(f".{archive.name}.{uuid.uuid4().hex[:8]}.part")
    try:
        with draft.open("wb") as file:
            writer = _HashingWriter(file)
            with (
                gzip.GzipFile(
                    filename="", mode="wb", fileobj=writer, compresslevel=_COMPRESSION, mtime=0
                ) as packed,
                tarfile.open(fileobj=packed, mode="w", format=tarfile.PAX_FORMAT) as tar,
            ):
                for path in (directory / MANIFEST_FILE, *_model_paths(directory / MODEL_DIRECTORY)):
                    _add(tar, path, path.relative_to(directory).as_posix())
        os.replace(draft, archive)
    finally:
        draft.unlink(missing_ok=True)
    return writer.hexdigest()


def read_archive_manifest(archive: Path) -> Manifest:
    """The manifest of an archive, without unpacking anything.

    Raises ArtifactIntegrityError when the archive does not begin with a manifest, BackendUnavailableError
    where Python cannot unpack safely.
    """
    with _opened(archive) as (tar, _):
        member = _first(tar)
        if member.size > MAX_MANIFEST_BYTES:
            raise _Refused(f"its manifest declares {member.size} bytes")
        data = bytearray()
        with _contents(tar, member) as file:
            while piece := file.read(_CHUNK_BYTES):
                data += piece
        try:
            return check_manifest(json.loads(data.decode("utf-8")))
        except (ManifestError, ValueError, RecursionError) as error:  # reraise: as what is wrong with it
            raise _Refused(f"its manifest is corrupt: {error}") from error


def unpack(archive: Path, directory: Path, progress: Progress = lambda line: None) -> ArchiveFacts:
    """Unpack the artifact into ``directory``, which exists and is empty.

    Only ``manifest.json``, first, and what lies below ``model.mlmodelc`` may be in it, once each, as plain
    files and directories; at most 4 GiB. Owners, modes and times are not taken over.

    Raises ArtifactIntegrityError for anything else, with the reason; ``directory`` may then hold a part of
    it. OSError when the disk refuses, BackendUnavailableError where Python cannot unpack safely.
    """
    with _opened(archive) as (tar, reader):
        member: tarfile.TarInfo | None = _first(tar)
        names = _Names()
        total_bytes = 0
        while member is not None:
            names.admit(member)
            total_bytes += member.size
            if total_bytes > MAX_UNPACKED_BYTES:
                raise _Refused(f"it declares more than {MAX_UNPACKED_BYTES} bytes")
            if member.size >= _TOLD_BYTES:
                progress(f"{archive.name}: unpacking {member.name}, {member.size / 1e6:.0f} MB")
            tar.extract(member, directory, set_attrs=False, filter="data")
            member = tar.next()
        if MODEL_DIRECTORY not in names.directories:
            raise _Refused(f"it holds no {MODEL_DIRECTORY}")
        reader.finish()
        return ArchiveFacts(reader.sha256.hexdigest(), reader.compressed_bytes)


class _Refused(Exception):
    """Why an archive is not accepted; turned into ArtifactIntegrityError with the archive's name."""


class _HashingWriter:
    """A binary file that hashes what is written to it."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self._sha256 = hashlib.sha256()

    def write(self, data: Any) -> int:
        self._sha256.update(data)
        return self._file.write(data)

    def flush(self) -> None:
        self._file.flush()

    def hexdigest(self) -> str:
        return self._sha256.hexdigest()


class _HashingReader:
    """A binary file that hashes what is read from it."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self.sha256 = hashlib.sha256()
        self.count_bytes = 0

    def read(self, size: int = -1) -> bytes:
        data = self._file.read(size)
        self.sha256.update(data)
        self.count_bytes += len(data)
        return data


class _Reader:
    """The unpacked stream as tarfile reads it: forward only, in small pieces, and no longer than allowed.

    tarfile follows offsets and sizes that the archive declares, so a header could send it backwards for ever
    or have it read gigabytes into memory.
    """

    def __init__(self, file: IO[bytes]) -> None:
        self._source = _HashingReader(file)
        self._file = gzip.GzipFile(fileobj=cast(Any, self._source), mode="rb")
        self._position = 0
        self._last = b""

    @property
    def sha256(self) -> Any:
        return self._source.sha256

    @property
    def compressed_bytes(self) -> int:
        return self._source.count_bytes

    def tell(self) -> int:
        return self._position

    def read(self, size: int = -1) -> bytes:
        if not 0 <= size <= _MAX_READ_BYTES:
            raise _Refused(f"one of its headers declares {size} bytes")
        data: bytes = self._file.read(size)
        self._position += len(data)
        # Headers and padding come on top of the members, whose sizes are judged one by one.
        if self._position > MAX_UNPACKED_BYTES + MAX_MEMBERS * 8 * _BLOCK_BYTES:
            raise _Refused(f"it unpacks to more than {MAX_UNPACKED_BYTES} bytes")
        self._last = data
        return data

    def seek(self, position: int, whence: int = os.SEEK_SET) -> int:
        if whence != os.SEEK_SET or position < self._position:
            raise _Refused("one of its headers points backwards")
        while self._position < position:
            if not self.read(min(_CHUNK_BYTES, position - self._position)):
                break
        return self._position

    def finish(self) -> None:
        """Read to the end: gzip checks its own sum there, and nothing may hide behind the archive's end."""
        if len(self._last) != _BLOCK_BYTES or any(self._last):
            raise _Refused("it has no end mark")
        while data := self.read(_CHUNK_BYTES):
            if any(data):
                raise _Refused("there is data behind its end mark")


class _Names:
    """The members seen so far; refuses what may not be in an artifact."""

    def __init__(self) -> None:
        self.directories: set[str] = set()
        self._seen: set[str] = set()
        self._files: set[str] = set()

    def admit(self, member: tarfile.TarInfo) -> None:
        """Judge one member. Directories of a file that were not listed count as seen."""
        name = member.name
        if len(self._seen) >= MAX_MEMBERS:
            raise _Refused(f"it has more than {MAX_MEMBERS} members")
        if member.type not in (tarfile.REGTYPE, tarfile.AREGTYPE, tarfile.DIRTYPE) or member.issparse():
            raise _Refused(f"{name!r} is neither a plain file nor a directory")
        if member.size < 0 or (member.isdir() and member.size):
            raise _Refused(f"{name!r} declares {member.size} bytes")
        parts = name.split("/")
        if (
            not _plain(name)
            or len(name.encode("utf-8", "surrogatepass")) > MAX_NAME_BYTES
            or len(parts) > MAX_DEPTH
            or any(part in ("", ".", "..") for part in parts)
        ):
            raise _Refused(f"{name!r} is not an accepted name")
        if name != MANIFEST_FILE and parts[0] != MODEL_DIRECTORY:
            raise _Refused(f"{name!r} does not belong in an artifact")
        if (name in (MANIFEST_FILE, MODEL_DIRECTORY)) and member.isdir() != (name == MODEL_DIRECTORY):
            raise _Refused(f"{name!r} is of the wrong kind")
        # Two names that differ in case or composition alone are one file on a Mac's disk.
        folded = _folded(name)
        if folded in self._seen:
            raise _Refused(f"{name!r} is in it twice")
        parents = ["/".join(parts[:depth]) for depth in range(1, len(parts))]
        if any(_folded(parent) in self._files for parent in parents):
            raise _Refused(f"{name!r} lies below a file")
        for parent in parents:
            if parent not in self.directories and _folded(parent) in self._seen:
                raise _Refused(f"{parent!r} is in it twice")
            self.directories.add(parent)
            self._seen.add(_folded(parent))
        self._seen.add(folded)
        if member.isdir():
            self.directories.add(name)
        else:
            self._files.add(folded)


def _plain(name: str) -> bool:
    return "\\" not in name and name.isprintable() and not any(unicodedata.category(c) == "Cs" for c in name)


def _folded(name: str) -> str:
    return unicodedata.normalize("NFD", unicodedata.normalize("NFD", name).casefold())


def _model_paths(model: Path) -> Iterator[Path]:
    yield model
    yield from sorted(model.rglob("*"), key=lambda path: path.parts)


def _add(tar: tarfile.TarFile, path: Path, name: str) -> None:
    member = tarfile.TarInfo(name)
    if path.is_dir():
        member.type, member.mode = tarfile.DIRTYPE, _DIRECTORY_MODE
        tar.addfile(member)
        return
    with path.open("rb") as file:
        member.size, member.mode = os.fstat(file.fileno()).st_size, _FILE_MODE
        tar.addfile(member, file)


@contextmanager
def _opened(archive: Path) -> Iterator[tuple[tarfile.TarFile, _Reader]]:
    """The archive for reading; whatever is wrong with it comes out as ArtifactIntegrityError."""
    require_safe_extraction()
    try:
        file = archive.open("rb")
    except OSError as error:  # reraise: there is no such archive
        raise ArtifactIntegrityError(f"{archive} cannot be read: {error.strerror or error}") from error
    with file:
        try:
            reader = _Reader(file)
            with tarfile.open(fileobj=reader, mode="r:", errorlevel=2) as tar:  # type: ignore[call-overload]
                yield tar, reader
        except _Refused as error:  # reraise: with the archive's name
            raise ArtifactIntegrityError(f"{archive.name} is not an artifact archive: {error}") from error
        except _BROKEN as error:  # reraise: tarfile raises many types for malformed headers
            raise ArtifactIntegrityError(f"{archive.name} is broken: {error}") from error


def _first(tar: tarfile.TarFile) -> tarfile.TarInfo:
    """The first member, which must be the manifest, so that it can be read without unpacking the rest."""
    member = tar.next()
    if member is None or member.name != MANIFEST_FILE or not member.isreg():
        raise _Refused(f"its first member is not {MANIFEST_FILE}")
    return member


def _contents(tar: tarfile.TarFile, member: tarfile.TarInfo) -> IO[bytes]:
    file = tar.extractfile(member)
    if file is None:
        raise _Refused(f"{member.name!r} has no contents")
    return file
