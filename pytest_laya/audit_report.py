"""What people and machines read of the audit: the terminal's table, audit.json, audit.md and the document."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from pytest_laya.audit import LEGEND, Judged, Row

_INTRODUCTION = """\
A silent fallback is any way a request could run somewhere other than where the caller or the router said \
(another device, other compute units, another artifact or bucket, another precision, the network when \
offline was asked for) with nothing in the result or the exception showing it."""

_RULES = """\
1. Explicit devices: `gpu` runs on MLX or raises; `ane` runs the exact validated artifact on CPU_AND_NE in \
float16, or raises.
2. Routing decides before a request runs, and `RuntimeInfo.routing_reason` says why. It never reacts to a \
failure by running the request elsewhere.
3. A failure on a device stays on that device. Later `auto` requests may avoid it, with a recorded reason \
and a warning.
4. An artifact that fails any check is never loaded."""


def counts(judged: Sequence[Judged]) -> str:
    """``29 rows: 28 PINNED, 0 BROKEN, 1 NOT EXERCISED``."""
    found = Counter(one.verdict for one in judged)
    said = ", ".join(f"{found[verdict]} {verdict}" for verdict in ("PINNED", "BROKEN", "NOT EXERCISED"))
    return f"{len(judged)} rows: {said}"


def table(judged: Sequence[Judged]) -> list[str]:
    """The terminal's lines: what is guaranteed, and whether it was proven in this session."""
    lines = ["no silent fallback: what is guaranteed, and what this session proved of it", ""]
    for one in judged:
        lines.append(f"{one.row.number:>3}  {one.verdict:<13}  {one.row.guarantee}")
        if one.verdict != "PINNED":
            lines.append(f"{'':18}  ! {one.why}")
    return [*lines, "", LEGEND, counts(judged)]


def to_json(
    judged: Sequence[Judged], excepts: Sequence[Mapping[str, Any]], decisions: Sequence[Mapping[str, Any]]
) -> dict[str, Any]:
    """The body of audit.json."""
    return {
        "rows": [
            {
                "row": one.row.number,
                "path": one.row.path,
                "handling": one.row.handling,
                "evidence": one.row.evidence,
                "verdict": one.verdict,
                "pins": [{"test": pin, "outcome": outcome} for pin, outcome in one.outcomes],
            }
            for one in judged
        ],
        "excepts": [dict(one) for one in excepts],
        "decisions": [dict(one) for one in decisions],
    }


def to_markdown(document: Mapping[str, Any]) -> str:
    """audit.md: an audit.json document for people."""
    verdicts = Counter(one["verdict"] for one in document["rows"])
    lines = ["# No silent fallback: this session", ""]
    if document["synthetic"]:
        lines += ["**Synthetic**: this ran on the virtual Mac; nothing was measured on Apple silicon.", ""]
    lines += [", ".join(f"{count} {verdict}" for verdict, count in sorted(verdicts.items())) + ".", ""]
    lines += ["| # | Verdict | Path | Handling |", "|---|---|---|---|"]
    for one in document["rows"]:
        lines.append(f"| {one['row']} | {one['verdict']} | {_cell(one['path'])} | {_cell(one['handling'])} |")
    lines += ["", LEGEND, ""]
    for one in document["rows"]:
        lines += [f"## Row {one['row']}", "", f"Evidence: {one['evidence']}.", ""]
        lines += [f"- `{pin['test']}`: {pin['outcome']}" for pin in one["pins"]] + [""]
    tags = Counter(one["tag"] for one in document["excepts"])
    lines += ["## Censuses", ""]
    lines += [
        f"{len(document['excepts'])} places catch an exception: "
        + ", ".join(f"{count} {tag}" for tag, count in sorted(tags.items()))
        + ".",
        f"{len(document['decisions'])} places name a device, compute units, a bucket or a precision; "
        "audit.json lists each with the rows that cover it.",
        "",
    ]
    return "\n".join(lines)


def to_page(rows: Sequence[Row], verdicts: Mapping[int, str], warned: Sequence[Mapping[str, Any]]) -> str:
    """docs/no-silent-fallback.md, from the table and the verdicts of a run."""
    lines = [
        "# No silent fallback",
        "",
        "<!-- generated: python -m pytest_laya.audit_page; do not edit -->",
        "",
    ]
    lines += [_INTRODUCTION, "", "## Rules", "", _RULES, "", "## Paths, handling, verdicts", ""]
    lines += [
        "Each row is pinned by tests that drive the real path with the row's fault, on the virtual Mac (a "
        "stand-in, so every verdict here is synthetic: nothing was measured on Apple silicon), and by at "
        "least one mutation that deletes the guard and must make a test of the row fail. Run it: "
        "`pytest suites/audit --laya-audit=strict`; the mutations: `pytest suites/audit --laya-mutate`.",
        "",
        "| # | Path | Handling | Verdict |",
        "|---|---|---|---|",
    ]
    for row in rows:
        lines.append(f"| {row.number} | {_cell(row.path)} | {_cell(row.handling)} | {verdicts[row.number]} |")
    lines += ["", LEGEND, "", "## Pinned by", ""]
    for row in rows:
        names: dict[str, None] = dict.fromkeys(pin.partition("[")[0] for pin in row.pins)
        lines.append(f"- {row.number} ({row.evidence}): " + ", ".join(f"`{name}`" for name in names))
    lines += [
        "",
        "## Places that catch an exception and carry on with a warning or a record",
        "",
        "Every `except` clause of the package carries one of four tags with its reason: `reraise`, `closed` "
        "(fails closed), `warned` (warns or records; names its row) or `cleanup`. The `warned` ones:",
        "",
    ]
    lines += [
        f"- `{one['file']}`, `{one['where']}`: row {', '.join(map(str, one['rows']))}" for one in warned
    ]
    return "\n".join(lines) + "\n"


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")
