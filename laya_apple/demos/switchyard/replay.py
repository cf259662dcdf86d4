"""The replay page: recorded data only, in one self-contained file."""

from __future__ import annotations

import importlib.resources
import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from laya_apple.demos.switchyard import metrics, result, world

FORMAT = "switchyard-replay"
FORMAT_VERSION = 1

_CSS, _JS, _DATA = "/*__SWITCHYARD_CSS__*/", "/*__SWITCHYARD_JS__*/", "__SWITCHYARD_DATA__"
_STAMPS = ("queue_enter", "dispatch", "service_start", "service_end", "response")


def replay_data(found: Mapping[str, Any], records: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The page's whole input. Times are ms since each round's start, rounded to 3 decimals."""
    return {
        "format": FORMAT,
        "format_version": FORMAT_VERSION,
        "result": dict(found),
        "rounds": [_round(one, found) for one in metrics.rounds_of(found, records)],
    }


def _round(one: metrics.Round, found: Mapping[str, Any]) -> dict[str, Any]:
    ordered = sorted(one.records, key=lambda record: (record["arrival_ns"], record["index"]))
    start_ns = one.round_start_ns
    return {
        "index": one.index,
        "config": one.config,
        "duration_s": found["workload"]["duration_s"],
        "deadline_ms": found["workload"]["deadline_ms"],
        "trains": [_train(record, start_ns) for record in ordered if metrics.is_train(record)],
        "background": [
            {"class": record["class"], **_times(record, start_ns)}
            for record in ordered
            if not metrics.is_train(record)
        ],
    }


def _times(record: Mapping[str, Any], start_ns: int) -> dict[str, Any]:
    times: dict[str, Any] = {
        "device": record["target"],
        "arrival_ms": round((record["arrival_ns"] - start_ns) / 1e6, 3),
    }
    for stamp in _STAMPS:
        times[f"{stamp}_ms"] = round((record[f"{stamp}_ns"] - start_ns) / 1e6, 3)
    times["latency_ms"] = round(metrics.latency_ms(record), 3)
    return times


def _train(record: Mapping[str, Any], start_ns: int) -> dict[str, Any]:
    states = world.PATTERNS[record["pattern"]]
    return {
        "id": record["train_id"],
        "line": record["line"],
        "platforms": dict(zip(world.PLATFORMS, states, strict=True)),
        "oracle": record["oracle"],
        "answer": record["answer"],
        "outcome": record["outcome"],
        **_times(record, start_ns),
        "queue_ms": round(metrics.queue_wait_ms(record), 3),
        "service_ms": round(metrics.inference_ms(record), 3),
    }


def bundle(data: Mapping[str, Any]) -> str:
    """``static/index.html`` with the style sheet, the script and the data put in, in a single pass."""
    static = importlib.resources.files("laya_apple.demos.switchyard") / "static"
    page, css, script = (
        (static / name).read_text(encoding="utf-8") for name in ("index.html", "style.css", "app.js")
    )
    parts = {_CSS: css, _JS: script, _DATA: embedded_json(data)}
    # One pass: text that is put in is never searched for markers again.
    markers = re.compile("|".join(re.escape(marker) for marker in parts))
    return markers.sub(lambda match: parts[match.group()], page)


def embedded_json(data: Mapping[str, Any]) -> str:
    """JSON that is safe inside a ``<script>`` element whatever its strings hold."""
    text = json.dumps(data, separators=(",", ":"), allow_nan=False)
    # `<!--` and `<script` would put the HTML parser into a state in which our own end tag does not count.
    text = text.replace("</", "<\\/").replace("<!", "\\u003c!")
    return re.sub(r"<(?=script)", r"\\u003c", text, flags=re.IGNORECASE)


def write_page(folder: Path, found: Mapping[str, Any], records: Sequence[Mapping[str, Any]]) -> Path:
    """Write ``replay.html`` into a run's folder and return its path."""
    page = bundle(replay_data(found, records))
    result.write_files(folder, {result.REPLAY_FILE: page})
    return folder / result.REPLAY_FILE


def rebuild(folder: Path) -> Path:
    """``--replay DIR``: the page again, from the files of a run. Raises ``result.ResultUnreadable``."""
    found, records = result.read(folder)
    return write_page(folder, found, records)
