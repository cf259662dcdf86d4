"""Archives made to do harm: refused, nothing registered, nothing written but in staging."""

from __future__ import annotations

import copy
import gzip
import re
import tarfile
import unicodedata
import zlib
from collections.abc import Callable
from typing import Any

import pytest
from hostile_files import flipped, watched
from transfer_files import Importing, Members, member, members_of, tar_of

from laya_apple.artifacts.transfer import Expected
from laya_apple.errors import (
    ArtifactIntegrityError,
    ArtifactParityError,
    ArtifactRevisionError,
    ComputeUnitMismatchError,
    LayaAppleError,
    UnsupportedShapeError,
)
from laya_apple.hashing import file_sha256, tree_hash

pytestmark = pytest.mark.filterwarnings("ignore:sys.executable")

INSIDE = "model.mlmodelc/x"
GIB = 1024**3


def _appended(info: tarfile.TarInfo, contents: bytes = b"x") -> Callable[[Members], Members]:
    return lambda members: [*members, (info, contents)]


def _renamed(old: str, new: str) -> Callable[[Members], Members]:
    def change(members: Members) -> Members:
        for info, _ in members:
            if info.name == old:
                info.name = new
        return members

    return change


def _without(name: str) -> Callable[[Members], Members]:
    return lambda members: [(info, contents) for info, contents in members if info.name != name]


COMPOSED = "model.mlmodelc/\u00e9"

MEMBERS: dict[str, tuple[Callable[[Members], Members], str]] = {
    "absolute name": (_appended(member("/model.mlmodelc/x")), "is not an accepted name"),
    "parent in a name": (_appended(member("model.mlmodelc/../../x")), "is not an accepted name"),
    "name of the parent": (_appended(member("../x")), "is not an accepted name"),
    "dot in a name": (_appended(member("./model.mlmodelc/x")), "is not an accepted name"),
    "empty part": (_appended(member("model.mlmodelc//x")), "is not an accepted name"),
    "backslash": (_appended(member("model.mlmodelc\\..\\..\\x")), "is not an accepted name"),
    "line break": (_appended(member("model.mlmodelc/a\nb")), "is not an accepted name"),
    "right to left mark": (_appended(member("model.mlmodelc/a\u202eb")), "is not an accepted name"),
    "not UTF-8": (_appended(member("model.mlmodelc/\udcff")), "is not an accepted name"),
    "long name": (_appended(member("model.mlmodelc/" + "a" * 200)), "is not an accepted name"),
    "deep name": (_appended(member("model.mlmodelc/" + "/".join("a" * 20))), "is not an accepted name"),
    "symbolic link": (
        _appended(member(INSIDE, tarfile.SYMTYPE, linkname="/etc/passwd")),
        "neither a plain file nor a directory",
    ),
    "symbolic link inside": (
        _appended(member(INSIDE, tarfile.SYMTYPE, linkname="model.mil")),
        "neither a plain file nor a directory",
    ),
    "hard link": (
        _appended(member(INSIDE, tarfile.LNKTYPE, linkname="manifest.json")),
        "neither a plain file nor a directory",
    ),
    "character device": (
        _appended(member(INSIDE, tarfile.CHRTYPE, devmajor=1, devminor=3)),
        "neither a plain file nor a directory",
    ),
    "block device": (_appended(member(INSIDE, tarfile.BLKTYPE)), "neither a plain file nor a directory"),
    "pipe": (_appended(member(INSIDE, tarfile.FIFOTYPE)), "neither a plain file nor a directory"),
    "unknown type": (_appended(member(INSIDE, b"Z")), "neither a plain file nor a directory"),
    "contiguous file": (_appended(member(INSIDE, tarfile.CONTTYPE)), "neither a plain file nor a directory"),
    "second manifest": (_appended(member("manifest.json"), b"{}"), "is in it twice"),
    "second file": (_appended(member("model.mlmodelc/model.mil")), "is in it twice"),
    "same name in capitals": (_appended(member("model.mlmodelc/MODEL.mil")), "is in it twice"),
    "same name composed otherwise": (
        lambda m: [
            *m,
            (member(COMPOSED), b"x"),
            (member(unicodedata.normalize("NFD", COMPOSED)), b"x"),
        ],
        "is in it twice",
    ),
    "directory in capitals": (_appended(member("model.mlmodelc/WEIGHTS/x")), "is in it twice"),
    "file below a file": (_appended(member("model.mlmodelc/model.mil/x")), "lies below a file"),
    "file in a directory's place": (_appended(member("model.mlmodelc/weights")), "is in it twice"),
    "unexpected file": (_appended(member("README.md")), "does not belong in an artifact"),
    "unexpected directory": (
        _appended(member("model.mlmodelc2", tarfile.DIRTYPE)),
        "does not belong in an artifact",
    ),
    "withheld manifest": (_appended(member("manifest.pending.json")), "does not belong in an artifact"),
    "model is a file": (
        lambda m: [m[0], (member("model.mlmodelc"), b"x")],
        "is of the wrong kind",
    ),
    "manifest is a directory": (
        lambda m: [(member("manifest.json", tarfile.DIRTYPE), b""), *m[1:]],
        "its first member is not manifest.json",
    ),
    "manifest is a link": (
        lambda m: [(member("manifest.json", tarfile.SYMTYPE, linkname="/etc/passwd"), b""), *m[1:]],
        "its first member is not manifest.json",
    ),
    "manifest comes later": (lambda m: [*m[1:], m[0]], "its first member is not manifest.json"),
    "no manifest": (_without("manifest.json"), "its first member is not manifest.json"),
    "no model": (lambda m: m[:1], "it holds no model.mlmodelc"),
    "nothing": (lambda m: [], "its first member is not manifest.json"),
    "manifest is not JSON": (lambda m: [(m[0][0], b"{"), *m[1:]], "its manifest is corrupt"),
    "manifest is nested deep": (lambda m: [(m[0][0], b"[" * 200_000), *m[1:]], "its manifest is corrupt"),
    "manifest is not UTF-8": (lambda m: [(m[0][0], b"\xff\xfe{}"), *m[1:]], "its manifest is corrupt"),
    "manifest is huge": (
        lambda m: [(m[0][0], b" " * (4 * 1024**2 + 1)), *m[1:]],
        "its manifest declares 4194305 bytes",
    ),
    "many members": (
        lambda m: [*m, *((member(f"model.mlmodelc/{i}"), b"") for i in range(260))],
        "it has more than 256 members",
    ),
    "another file": (_appended(member(INSIDE)), "hash to"),
    "a file less": (_without("model.mlmodelc/coremldata.bin"), "hash to"),
    "a renamed file": (_renamed("model.mlmodelc/model.mil", "model.mlmodelc/model2.mil"), "hash to"),
    "a changed file": (
        lambda m: [(i, c[:-1] + bytes([c[-1] ^ 1]) if i.name.endswith("weight.bin") else c) for i, c in m],
        "hash to",
    ),
}
"""What is done to the members of a good archive -> what the refusal says."""


@pytest.mark.parametrize("case", MEMBERS)
def test_members_that_do_not_belong(importing: Importing, case: str) -> None:
    change, says = MEMBERS[case]
    hostile = importing.write(change(copy.deepcopy(members_of(importing.archive))))
    with (
        watched(importing),
        pytest.raises(ArtifactIntegrityError, match=re.escape(says)) as caught,
    ):
        importing.run(hostile)
    assert type(caught.value) is ArtifactIntegrityError


def _header(name: str, size: int, kind: bytes = tarfile.REGTYPE) -> bytes:
    """A header that declares ``size``, whatever follows."""
    info = member(name, kind)
    info.size = size
    return info.tobuf(tarfile.GNU_FORMAT)


def _negative(name: str) -> bytes:
    """A header whose size is negative, in GNU's base 256."""
    block = bytearray(_header(name, 0))
    block[124:136] = (-(2**20)).to_bytes(12, "big", signed=True)
    block[148:156] = b"%06o\0 " % (sum(block[:148]) + sum(block[156:]) + 8 * 32)
    return bytes(block)


def _sparse(name: str) -> bytes:
    block = bytearray(_header(name, 512, tarfile.GNUTYPE_SPARSE))
    block[386:398], block[398:410] = b"00000000000\0", b"00000001000\0"
    block[483:495] = b"77777777777\0"
    block[148:156] = b"%06o\0 " % (sum(block[:148]) + sum(block[156:]) + 8 * 32)
    return bytes(block) + b"x" * 512


RAW: dict[str, tuple[Callable[[bytes], bytes], str]] = {
    "declares 5 GiB": (lambda t: t + _header(INSIDE, 5 * GIB), "it declares more than 4294967296 bytes"),
    "declares 5 GiB in two": (
        lambda t: t + _header(INSIDE, 0) + _header(f"{INSIDE}2", 5 * GIB),
        "it declares more than 4294967296 bytes",
    ),
    "a directory of 5 GiB": (
        lambda t: t + _header(f"{INSIDE}d", 5 * GIB, tarfile.DIRTYPE),
        "declares 5368709120 bytes",
    ),
    "a long name of 5 GiB": (
        lambda t: t + _header("././@LongLink", 5 * GIB, tarfile.GNUTYPE_LONGNAME),
        "one of its headers declares 5368709120 bytes",
    ),
    "an extended header of 5 GiB": (
        lambda t: t + _header("PaxHeader", 5 * GIB, tarfile.XHDTYPE),
        "one of its headers declares 5368709120 bytes",
    ),
    "a negative size": (lambda t: t + _negative(INSIDE), "negative|backwards|declares -|broken"),
    "a sparse file": (lambda t: t + _sparse(INSIDE), "neither a plain file nor a directory|broken"),
    "contents cut off": (lambda t: t + _header(INSIDE, 4096) + b"x" * 512, "is broken"),
    "no end mark": (lambda t: t, "it has no end mark"),
    "a broken header": (lambda t: t + b"x" * 512 + bytes(1024), "it has no end mark|is broken"),
    "data behind the end mark": (lambda t: t + bytes(1024) + b"x" * 512, "there is data behind its end mark"),
}
"""What is put behind the members' blocks of a good archive, whose end mark was taken away."""


@pytest.mark.parametrize("case", RAW)
def test_headers_that_lie(importing: Importing, case: str) -> None:
    change, says = RAW[case]
    blocks = tar_of(members_of(importing.archive)).rstrip(b"\0")
    blocks += bytes(-len(blocks) % 512)
    path = importing.folder / "raw.tar.gz"
    path.write_bytes(gzip.compress(change(blocks)))
    with watched(importing), pytest.raises(ArtifactIntegrityError, match=says):
        importing.run(path)


FILES: dict[str, tuple[Callable[[bytes], bytes], str]] = {
    "empty": (lambda g: b"", "is broken|its first member"),
    "not gzip": (lambda g: b"PK\x03\x04" + g[4:], "is broken"),
    "plain tar": (lambda g: gzip.decompress(g), "is broken"),
    "cut in the header": (lambda g: g[:7], "is broken"),
    "cut early": (lambda g: g[: len(g) // 10], "is broken"),
    "cut in the middle": (lambda g: g[: len(g) // 2], "is broken"),
    "cut by a byte": (lambda g: g[:-1], "is broken"),
    "cut before the checksum": (lambda g: g[:-8], "is broken"),
    "wrong checksum": (lambda g: flipped(g, len(g) - 6), "is broken"),
    "wrong length": (lambda g: flipped(g, len(g) - 2), "is broken"),
    "rubbish behind": (lambda g: g + b"rubbish", "is broken"),
    "another archive behind": (lambda g: g + g, "there is data behind its end mark"),
}


@pytest.mark.parametrize("case", FILES)
def test_files_that_are_no_archives(importing: Importing, case: str) -> None:
    change, says = FILES[case]
    path = importing.folder / "file.tar.gz"
    path.write_bytes(change(importing.archive.read_bytes()))
    with watched(importing), pytest.raises(ArtifactIntegrityError, match=says):
        importing.run(path)


def test_zeros_behind_the_end_mark_are_read_and_not_written(importing: Importing) -> None:
    whole = gzip.decompress(importing.archive.read_bytes())
    path = importing.folder / "padded.tar.gz"
    path.write_bytes(gzip.compress(whole + bytes(8 * 1024**2), 1))
    importing.run(path)
    assert importing.load().artifact_sha256 == tree_hash(importing.directory / "model.mlmodelc")


@pytest.mark.laya_slow
def test_a_bomb_stops_at_the_limit(importing: Importing) -> None:
    """Zeros that unpack to more than 4 GiB and weigh a few megabytes."""
    packer = zlib.compressobj(9, zlib.DEFLATED, 31)
    zeros = bytes(16 * 1024**2)
    path = importing.folder / "bomb.tar.gz"
    with path.open("wb") as file:
        file.write(packer.compress(gzip.decompress(importing.archive.read_bytes())))
        for _ in range(4 * GIB // len(zeros) + 1):
            file.write(packer.compress(zeros))
        file.write(packer.flush())
    assert path.stat().st_size < 8 * 1024**2
    with watched(importing), pytest.raises(ArtifactIntegrityError, match="unpacks to more than 4294967296"):
        importing.run(path)


@pytest.mark.parametrize("what", ["a directory", "nothing"])
def test_no_archive_at_all(importing: Importing, what: str) -> None:
    path = importing.folder / "none.tar.gz"
    if what == "a directory":
        path.mkdir()
    with pytest.raises(ArtifactIntegrityError, match="cannot be read"):
        importing.run(path)
    importing.assert_nothing_registered()


MANIFESTS: dict[str, tuple[dict[str, Any], type[LayaAppleError]]] = {
    "another model": ({"source__model": "laya"}, ArtifactRevisionError),
    "another revision": ({"source__revision": "0" * 40}, ArtifactRevisionError),
    "other weights": ({"source__weights_sha256": "0" * 64}, ArtifactRevisionError),
    "another chip": ({"platform__soc": "Apple M9"}, ArtifactRevisionError),
    "another macOS": ({"platform__macos": "15.5"}, ArtifactRevisionError),
    "another coremltools": ({"platform__coremltools": "8.3.0"}, ArtifactRevisionError),
    "a real Mac": ({"synthetic": False}, ArtifactRevisionError),
    "another graph": ({"artifact__graph": "bc1s"}, ArtifactRevisionError),
    "another bucket": ({"artifact__length": 96}, ArtifactRevisionError),
    "a bucket that is not offered": ({"artifact__length": 80}, UnsupportedShapeError),
    "a newer format": ({"format_version": 2}, ArtifactRevisionError),
    "other compute units": ({"placement__compute_units": "ALL"}, ComputeUnitMismatchError),
    "operations on the CPU": ({"placement__ops": {"ane": 1, "gpu": 0, "cpu": 1}}, ComputeUnitMismatchError),
    "no parity": ({"parity__passed": False}, ArtifactParityError),
    "rejected": ({"status": "rejected"}, ArtifactParityError),
    "another hash": ({"integrity__artifact_sha256": "0" * 64}, ArtifactIntegrityError),
    "another format": ({"format": "something-else"}, ArtifactIntegrityError),
}


@pytest.mark.parametrize("case", MANIFESTS)
def test_manifests_that_do_not_fit(importing: Importing, case: str) -> None:
    changes, error = MANIFESTS[case]
    hostile = importing.with_manifest(**changes)
    with watched(importing), pytest.raises(error) as caught:
        importing.run(hostile)
    assert type(caught.value) is error


def test_tampered_after_it_was_hashed(importing: Importing) -> None:
    expected = Expected(
        file_sha256(importing.archive), importing.archive.stat().st_size, importing.load_expected()
    )
    changed = importing.with_manifest(created_at="2020-01-01T00:00:00Z")
    with watched(importing), pytest.raises(ArtifactIntegrityError, match="the index says"):
        importing.run(changed, expected=expected)
