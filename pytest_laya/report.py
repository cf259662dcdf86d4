"""report.html: one page that links and summarises what a session wrote. No script, no network."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from html import escape
from pathlib import PurePath
from typing import Any
from urllib.parse import quote

_STYLE = """
body { font: 16px/1.5 system-ui, sans-serif; max-width: 62rem; margin: 2rem auto; padding: 0 1rem;
color: #1b1f24 }
h1 { font-size: 1.5rem } h2 { font-size: 1.15rem; margin-top: 2rem }
table { border-collapse: collapse; width: 100% } th, td { text-align: left; padding: .3rem .6rem;
border-bottom: 1px solid #d5dae1; vertical-align: top; overflow-wrap: anywhere }
.banner { background: #fff3c4; border: 2px solid #8a6100; padding: .7rem 1rem; font-weight: 600 }
""".strip()

_BANNER = "Synthetic: this ran on the virtual Mac. No figure on this page was measured on Apple silicon."


def render(session: Mapping[str, Any]) -> str:
    """The page for a session.json document whose paths are already redacted."""
    parts = [
        "<!doctype html>",
        '<html lang="en"><head><meta charset="utf-8"><title>laya-apple session</title>',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        f"<style>{_STYLE}</style></head><body>",
        "<h1>laya-apple session</h1>",
    ]
    if session["synthetic"]:
        parts.append(f'<p class="banner">{escape(_BANNER)}</p>')
    if session["state"] != "finished":
        parts.append(
            f'<p class="banner">The session was {escape(session["state"])}; what finished is kept.</p>'
        )
    parts += _facts(session)
    parts += _section("Verdicts", ("verdict", "claim", "why"), _verdicts(session["verdicts"]))
    parts += _section("Switchyard", ("", "gpu_only", "hybrid"), _switchyard(session["switchyard"]))
    parts += _section("Metrics", ("metric", "value", "interval", "n", "method"), _metrics(session["metrics"]))
    parts += _section("Tests of this plugin", ("outcome", "test", "reason"), _tests(session["laya_tests"]))
    parts += _links(session["files"])
    parts.append("</body></html>")
    return "\n".join(parts) + "\n"


def _facts(session: Mapping[str, Any]) -> list[str]:
    platform, counts = session["platform"], session["tests"]
    rows = [
        ("machine", f"{platform['soc']}, macOS {platform['macos'] or '-'} {platform['macos_build']}".strip()),
        ("virtual", "yes" if platform["virtual"] else "no"),
        ("tests", ", ".join(f"{count} {name}" for name, count in counts.items())),
        ("started", session["started_utc"]),
        ("exit status", session["exit_status"]),
        ("versions", ", ".join(f"{name} {value}" for name, value in session["versions"].items() if value)),
    ]
    return _table(("", ""), rows)


def _verdicts(verdicts: Sequence[Mapping[str, Any]]) -> list[tuple[Any, ...]]:
    return [(one["verdict"], f"{one['group']} {one['name']}", one["reason"]) for one in verdicts]


def _switchyard(runs: Sequence[Mapping[str, Any]]) -> list[tuple[Any, ...]]:
    rows: list[tuple[Any, ...]] = []
    for run in runs:
        summary = run["summary"]
        for label in ("trains", "late", "late rate", "P50 ms", "P95 ms", "P99 ms", "misrouted"):
            rows.append(
                (label, *(summary.get(config, {}).get(label, "-") for config in ("gpu_only", "hybrid")))
            )
        if run["hybrid_reason"]:
            rows.append(("hybrid round", "", run["hybrid_reason"]))
    return rows


def _metrics(metrics: Sequence[Mapping[str, Any]]) -> list[tuple[Any, ...]]:
    return [
        (
            one["name"],
            "-" if one["value"] is None else f"{one['value']:.6g}",
            "-" if one["interval"] is None else " to ".join(f"{end:.6g}" for end in one["interval"]),
            one["n"],
            one["method"],
        )
        for one in metrics
    ]


def _tests(tests: Sequence[Mapping[str, Any]]) -> list[tuple[Any, ...]]:
    return [(one["outcome"], one["test"], one["reason"] or "") for one in tests]


def _links(files: Mapping[str, str]) -> list[str]:
    links = [
        f'<li><a href="{quote(path)}">{escape(name)}</a></li>'
        if not PurePath(path).is_absolute() and not path.startswith(("~", "<"))
        else f"<li>{escape(name)}: {escape(path)}</li>"
        for name, path in sorted(files.items())
        if name != "report.html"
    ]
    return ["<h2>Files</h2>", '<ul><li><a href="session.json">session.json</a></li>', *links, "</ul>"]


def _section(title: str, head: Sequence[str], rows: Sequence[Iterable[Any]]) -> list[str]:
    return [f"<h2>{escape(title)}</h2>", *_table(head, rows)] if rows else []


def _table(head: Sequence[str], rows: Iterable[Iterable[Any]]) -> list[str]:
    lines = ["<table>"]
    if any(head):
        lines.append("<tr>" + "".join(f"<th>{escape(cell)}</th>" for cell in head) + "</tr>")
    lines += ["<tr>" + "".join(f"<td>{escape(str(cell))}</td>" for cell in row) + "</tr>" for row in rows]
    return [*lines, "</table>"]
