"""The replay's data model and the bundling of the page."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from switchyard_fakes import Stage

from laya_apple.cli import main
from laya_apple.demos.switchyard import replay, result, run, world

FIXTURE = Path(__file__).resolve().parents[2] / "fixtures" / "switchyard"


@pytest.fixture(scope="module")
def outcome(tmp_path_factory: pytest.TempPathFactory) -> run.Outcome:
    return Stage().run(tmp_path_factory.mktemp("run"))


@pytest.fixture(scope="module")
def data(outcome: run.Outcome) -> dict[str, Any]:
    assert outcome.result is not None
    return replay.replay_data(outcome.result, outcome.records)


def test_data_model_is_the_seeds(data: dict[str, Any], outcome: run.Outcome) -> None:
    assert set(data) == {"format", "format_version", "result", "rounds"}
    assert (data["format"], data["format_version"]) == ("switchyard-replay", 1)
    assert data["result"] == outcome.result
    for one in data["rounds"]:
        assert set(one) == {"index", "config", "duration_s", "deadline_ms", "trains", "background"}
        assert (one["duration_s"], one["deadline_ms"]) == (3, 100)
        for train in one["trains"]:
            assert set(train) == {
                "id", "line", "platforms", "oracle", "answer", "device", "outcome", "arrival_ms",
                "queue_enter_ms", "dispatch_ms", "service_start_ms", "service_end_ms", "response_ms",
                "latency_ms", "queue_ms", "service_ms",
            }  # fmt: skip
            assert train["outcome"] in {"delivered", "late", "misrouted"}
            assert train["device"] in {"gpu", "ane"}
            assert train["platforms"][train["oracle"]] == "clear"
            assert set(train["platforms"]) == {"A", "B", "C"}
        for request in one["background"]:
            assert set(request) == {
                "class", "device", "arrival_ms", "queue_enter_ms", "dispatch_ms", "service_start_ms",
                "service_end_ms", "response_ms", "latency_ms",
            }  # fmt: skip


def test_times_are_relative_to_the_rounds_start_with_3_decimals_in_arrival_order(
    data: dict[str, Any], outcome: run.Outcome
) -> None:
    schedule = world.schedule(duration_s=3)
    for one in data["rounds"]:
        arrivals = [train["arrival_ms"] for train in one["trains"]]
        assert arrivals == sorted(arrivals)
        expected = [round(arrival.offset_s * 1e3, 3) for arrival in schedule if arrival.train]
        assert arrivals == pytest.approx(expected, abs=0.0011)
        for train in one["trains"]:
            for key, value in train.items():
                if key.endswith("_ms"):
                    assert value == round(value, 3)
            assert train["latency_ms"] == pytest.approx(
                train["response_ms"] - train["arrival_ms"], abs=0.0011
            )


def test_the_cards_counts_are_recomputed_from_the_data(data: dict[str, Any], outcome: run.Outcome) -> None:
    assert outcome.result is not None
    for one, stored in zip(data["rounds"], outcome.result["rounds"], strict=True):
        outcomes = [train["outcome"] for train in one["trains"]]
        assert {name: outcomes.count(name) for name in ("delivered", "late", "misrouted")} == {
            name: stored["game"][name] for name in ("delivered", "late", "misrouted")
        }


def test_the_page_is_one_file_that_names_no_other(outcome: run.Outcome) -> None:
    assert outcome.page is not None
    page = outcome.page.read_text(encoding="utf-8")
    assert "__SWITCHYARD_" not in page
    markup = re.sub(r"<script.*?</script>|<style>.*?</style>", "", page, flags=re.DOTALL)
    assert re.findall(r"""(?:src|href)=["']([^"']*)""", markup) == ["data:,"]
    assert not re.search(r"https?://|@import|url\(|fetch\(|XMLHttpRequest|WebSocket|import\(", page)


@given(st.text())
def test_embedded_json_is_the_same_value_and_never_ends_the_script(text: str) -> None:
    embedded = replay.embedded_json({"x": text, text: ["</script>", "<!--", "<SCRIPT"]})
    assert json.loads(embedded) == {"x": text, text: ["</script>", "<!--", "<SCRIPT"]}
    assert not re.search(r"</|<!--|<script", embedded, flags=re.IGNORECASE)


def test_an_end_tag_is_escaped_as_the_seed_says() -> None:
    assert replay.embedded_json({"x": "</b>"}) == '{"x":"<\\/b>"}'


def test_text_that_looks_like_a_marker_is_not_filled_in(outcome: run.Outcome) -> None:
    found = json.loads(json.dumps(outcome.result))
    found["model"]["name"] = "__SWITCHYARD_DATA__ /*__SWITCHYARD_JS__*/"
    page = replay.bundle(replay.replay_data(found, outcome.records))
    assert page.count("__SWITCHYARD_DATA__ /*__SWITCHYARD_JS__*/") == 1


def test_replay_option_rebuilds_the_page_on_any_machine(
    outcome: run.Outcome, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("LAYA_APPLE_PLATFORM", "switchyard_fakes:linux")
    assert outcome.page is not None
    assert outcome.result_dir is not None
    before = outcome.page.read_bytes()
    outcome.page.unlink()
    assert main(["switchyard", "--replay", str(outcome.result_dir), "--no-open"]) == 0
    assert outcome.page.read_bytes() == before
    assert capsys.readouterr().out.strip() == str(outcome.page)


def test_the_page_opens_unless_told_otherwise(outcome: run.Outcome, monkeypatch: pytest.MonkeyPatch) -> None:
    import webbrowser

    shown: list[str] = []
    monkeypatch.setattr(webbrowser, "open", shown.append)
    assert outcome.page is not None
    assert main(["switchyard", "--replay", str(outcome.result_dir), "--no-open"]) == 0
    assert shown == []
    assert main(["switchyard", "--replay", str(outcome.result_dir)]) == 0
    assert shown == [outcome.page.resolve().as_uri()]


def test_the_stored_synthetic_run_is_labelled_and_still_readable() -> None:
    found, records = result.read(FIXTURE)
    assert found["synthetic"] is True
    assert found["standard"] is False
    assert len(records) == 2 * len(world.schedule(duration_s=3))
    assert replay.replay_data(found, records)["rounds"][0]["trains"]
