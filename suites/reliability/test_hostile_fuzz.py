"""Hostile indexes, and archives and indexes with something wrong somewhere."""

from __future__ import annotations

import gzip
import json
import random
import re
import shutil
from collections.abc import Callable
from typing import Any

import pytest
from hostile_files import fetch_from, flipped, hub_of, watched
from transfer_files import Importing

from laya_apple.errors import ArtifactIntegrityError, ArtifactMissingError, LayaAppleError
from laya_apple.hashing import tree_hash

pytestmark = pytest.mark.filterwarnings("ignore:sys.executable")


# --- indexes


INDEXES: dict[str, tuple[Callable[[dict[str, Any]], Any], str]] = {
    "a list": (lambda d: [d], "is not an index"),
    "another format": (lambda d: d | {"format": "x"}, "is not an index: format"),
    "a newer format": (lambda d: d | {"format_version": 2}, "is of format version 2"),
    "no artifacts": (lambda d: {k: v for k, v in d.items() if k != "artifacts"}, "is not an index"),
    "an absolute path": (lambda d: _entry(d, path="/etc/a.tar.gz"), "no path inside the repository"),
    "a parent path": (lambda d: _entry(d, path="../a.tar.gz"), "no path inside the repository"),
    "a hidden parent": (lambda d: _entry(d, path="x/../../a.tar.gz"), "no path inside the repository"),
    "a backslash": (lambda d: _entry(d, path="..\\a.tar.gz"), "no path inside the repository"),
    "a URL": (lambda d: _entry(d, path="https://x/a.tar.gz"), "no path inside the repository"),
    "another kind of file": (lambda d: _entry(d, path="a.pkl"), "no path inside the repository"),
    "a NUL": (lambda d: _entry(d, path="a\0.tar.gz"), "no path inside the repository"),
    "a short hash": (lambda d: _entry(d, archive_sha256="abc"), "is not an index"),
    "a hash in capitals": (lambda d: _entry(d, archive_sha256="A" * 64), "is not an index"),
    "a negative size": (lambda d: _entry(d, bytes=-1), "is not an index"),
    "a length in words": (lambda d: _entry(d, length="64"), "is not an index"),
    "no platform": (lambda d: _entry(d, platform={}), "is not an index"),
}


def _entry(document: dict[str, Any], **changes: Any) -> dict[str, Any]:
    document["artifacts"][0].update(changes)
    return document


@pytest.mark.parametrize("case", INDEXES)
def test_indexes_that_lie(importing: Importing, case: str) -> None:
    change, says = INDEXES[case]
    hub = hub_of(importing)
    path = hub / "index.json"
    path.write_text(json.dumps(change(json.loads(path.read_text()))), encoding="utf-8")
    with watched(importing), pytest.raises(ArtifactIntegrityError, match=re.escape(says)):
        fetch_from(importing, hub)


@pytest.mark.parametrize("contents", [b"", b"{", b"[" * 200_000, b"\xff\xfe", b'{"format_version": 1e999}'])
def test_indexes_that_cannot_be_read(importing: Importing, contents: bytes) -> None:
    hub = hub_of(importing)
    (hub / "index.json").write_bytes(contents)
    with watched(importing), pytest.raises(ArtifactIntegrityError, match=r"cannot be read|is not an index"):
        fetch_from(importing, hub)


def test_an_index_too_large_is_not_read(importing: Importing) -> None:
    hub = hub_of(importing)
    with (hub / "index.json").open("ab") as file:
        file.truncate(16 * 1024**2 + 1)
    with watched(importing), pytest.raises(ArtifactIntegrityError, match="at most 16777216 are read"):
        fetch_from(importing, hub)


def test_an_archive_behind_a_link_is_not_read(importing: Importing) -> None:
    hub = hub_of(importing)
    [archive] = hub.glob("*.tar.gz")
    archive.unlink()
    archive.symlink_to(importing.archive)
    with watched(importing), pytest.raises(ArtifactIntegrityError, match="leads out of the directory"):
        fetch_from(importing, hub)


# --- fuzz


def _fuzzed(rng: random.Random, good: bytes) -> bytes:
    """A good archive's bytes with something wrong somewhere."""
    kind = rng.randrange(6)
    if kind == 0:  # the compressed file
        at = rng.randrange(len(good))
        return rng.choice(
            [flipped(good, at), good[:at], good[:at] + rng.randbytes(rng.randrange(1, 64)) + good[at:]]
        )
    tar = bytearray(gzip.decompress(good))
    headers = _header_offsets(bytes(tar))
    if kind in (1, 2):  # a header, with its checksum put right
        at = rng.choice(headers)
        for _ in range(rng.randrange(1, 4)):
            tar[at + rng.randrange(512)] = rng.randrange(256)
        block = tar[at : at + 512]
        tar[at + 148 : at + 156] = b"%06o\0 " % (sum(block[:148]) + sum(block[156:]) + 8 * 32)
    elif kind == 3:  # blocks moved, doubled or dropped
        blocks = [bytes(tar[i : i + 512]) for i in range(0, len(tar), 512)]
        one, other = rng.randrange(len(blocks)), rng.randrange(len(blocks))
        action = rng.randrange(3)
        if action == 0:
            blocks[one], blocks[other] = blocks[other], blocks[one]
        elif action == 1:
            blocks.insert(other, blocks[one])
        else:
            del blocks[one]
        tar = bytearray(b"".join(blocks))
    elif kind == 4:  # any byte
        tar[rng.randrange(len(tar))] ^= 1 << rng.randrange(8)
    else:  # a value of the manifest
        size = int(tar[124:135], 8)
        data = json.loads(bytes(tar[512 : 512 + size]))
        _spoil(rng, data)
        text = json.dumps(data).encode()[:size].ljust(size)
        tar[512 : 512 + size] = text
    return gzip.compress(bytes(tar), 1)


def _header_offsets(tar: bytes) -> list[int]:
    offsets, at = [], 0
    while at < len(tar) and tar[at]:
        offsets.append(at)
        at += 512 + (int(tar[at + 124 : at + 135], 8) + 511) // 512 * 512
    return offsets


def _spoil(rng: random.Random, data: Any) -> None:
    """Put another value in one place of a JSON document."""
    while True:
        keys = list(data) if isinstance(data, dict) else list(range(len(data)))
        key = rng.choice(keys)
        inner = data[key]
        if isinstance(inner, (dict, list)) and inner and rng.random() < 0.8:
            data = inner
            continue
        values = [None, True, -1, 2**63, 1e308, "", "../x", [], {}, "0" * 64, 64, "laya", ["x"] * 9]
        data[key] = rng.choice(values)
        return


def fuzz_archives(importing: Importing, cases: range) -> dict[str, int]:
    """Import each fuzzed archive: refused with nothing left, or, if the change is harmless, right."""
    good = importing.archive.read_bytes()
    outside = importing.folder.parent / "outside"
    outside.mkdir()
    counts: dict[str, int] = {}
    path = importing.folder / "fuzzed.tar.gz"
    model = "model.mlmodelc"
    right = importing.load_expected()
    for case in cases:
        path.write_bytes(_fuzzed(random.Random(case), good))
        try:
            importing.run(path)
        except LayaAppleError as error:
            importing.assert_nothing_registered()
            name = type(error).__name__
        else:
            assert importing.load().artifact_sha256 == right, case
            assert tree_hash(importing.directory / model) == right, case
            shutil.rmtree(importing.directory)
            name = "imported"
        counts[name] = counts.get(name, 0) + 1
    assert sorted(p.name for p in importing.folder.iterdir()) == [path.name, importing.archive.name]
    assert list(outside.iterdir()) == []
    return counts


def fuzz_indexes(importing: Importing, cases: range) -> dict[str, int]:
    """Fetch through each fuzzed index."""
    hub = hub_of(importing)
    path = hub / "index.json"
    good = path.read_text(encoding="utf-8")
    counts: dict[str, int] = {}
    for case in cases:
        rng = random.Random(case)
        document = json.loads(good)
        _spoil(rng, document)
        text = json.dumps(document)
        if rng.random() < 0.2:
            at = rng.randrange(len(text))
            text = text[:at] + rng.choice(["", "\0", "}", '"', "\ud7ff", "1e999"]) + text[at + 1 :]
        path.write_text(text, encoding="utf-8")
        try:
            fetch_from(importing, hub)
        except LayaAppleError as error:
            importing.assert_nothing_registered()
            name = type(error).__name__
        else:
            assert importing.load().artifact_sha256 == importing.load_expected(), case
            shutil.rmtree(importing.directory)
            name = "fetched"
        counts[name] = counts.get(name, 0) + 1
    return counts


def test_fuzzed_archives(importing: Importing) -> None:
    counts = fuzz_archives(importing, range(80))
    assert sum(counts.values()) == 80
    assert counts["ArtifactIntegrityError"] > 40


def test_fuzzed_indexes(importing: Importing) -> None:
    counts = fuzz_indexes(importing, range(40))
    assert sum(counts.values()) == 40
    assert counts.keys() >= {"ArtifactIntegrityError", "ArtifactMissingError"}


@pytest.mark.laya_slow
def test_two_thousand_fuzzed_archives_and_indexes(
    importing: Importing, record_property: Callable[[str, object], None]
) -> None:
    archives = fuzz_archives(importing, range(1000, 2600))
    indexes = fuzz_indexes(importing, range(1000, 1400))
    record_property("fuzzed", json.dumps({"archives": archives, "indexes": indexes}))
    assert sum(archives.values()) + sum(indexes.values()) == 2000
    assert ArtifactMissingError.__name__ in indexes
