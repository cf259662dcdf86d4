"""The replay page in a real headless Chromium, from file://."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from browser import Browser, browser, installed
from switchyard_fakes import Behaviour, Stage, default_behaviour, raising, ready_checks

from laya_apple import errors
from laya_apple.demos.switchyard import replay, result, run

TIMES = {"gpu": 9.39, "ane": 8.07, "medium_1q": 35.2, "long_1q": 71.0, "short_4q": 33.2}
WHERE_TO_KEEP_SCREENSHOTS = os.environ.get("LAYA_KEEP_SCREENSHOTS")

pytestmark = pytest.mark.skipif(
    installed() is None, reason="needs Chromium and chromedriver (Debian: chromium, chromium-driver)"
)


def wrong(count: int, oracle: str) -> str:
    return "ABC"["ABC".index(oracle) - 1] if count % 97 == 0 else oracle


@pytest.fixture(scope="module")
def comparison(tmp_path_factory: pytest.TempPathFactory) -> run.Outcome:
    auto = default_behaviour("auto")
    auto.service_ms, auto.answer = TIMES, wrong
    stage = Stage({"gpu": Behaviour(service_ms=TIMES), "auto": auto})
    return stage.run(tmp_path_factory.mktemp("comparison"), duration_s=6)


@pytest.fixture(scope="module")
def gpu_alone(tmp_path_factory: pytest.TempPathFactory) -> run.Outcome:
    checks = ready_checks(load_verified=raising(errors.ArtifactMissingError("L64 is not built")))
    stage = Stage({"gpu": Behaviour(service_ms=TIMES)})
    return stage.run(tmp_path_factory.mktemp("gpu"), checks=checks)


@pytest.fixture(scope="module")
def demoted(tmp_path_factory: pytest.TempPathFactory) -> run.Outcome:
    auto = default_behaviour("auto")
    auto.target = lambda count: "ane" if count < 10 else "gpu"
    return Stage({"auto": auto}).run(tmp_path_factory.mktemp("demoted"))


@pytest.fixture(scope="module")
def chromium(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with browser(tmp_path_factory.mktemp("profile")) as opened:
        yield opened


@pytest.fixture
def page(chromium: Browser) -> Iterator[Browser]:
    """A browser whose page must leave no console message and ask for nothing but itself."""
    chromium.console()
    chromium.requested()
    chromium.size(1280, 900)
    chromium.devtools("Emulation.setEmulatedMedia", features=[])
    yield chromium
    assert chromium.console() == []
    assert [address for address in chromium.requested() if not address.startswith(("file://", "data:"))] == []


def opened(page: Browser, outcome: run.Outcome) -> dict[str, Any]:
    assert outcome.page is not None
    assert outcome.result is not None
    page.open(outcome.page)
    return outcome.result


def counts(page: Browser, config: str) -> dict[str, int]:
    found = page.script(
        "return [...document.querySelectorAll(`[data-count][data-config=${arguments[0]}]`)]"
        ".map((one) => [one.dataset.count, Number(one.textContent)])",
        config,
    )
    return dict(found)


def test_counts_at_the_end_equal_result_json(page: Browser, comparison: run.Outcome) -> None:
    found = opened(page, comparison)
    page.press("End")
    for config, one in found["configs"].items():
        game = one["game"]
        assert counts(page, config) == {
            "delivered": game["delivered"],
            "late": game["late"],
            "misrouted": game["misrouted"],
            "waiting": 0,
        }
    assert found["configs"]["gpu_only"]["game"]["late"] > 0
    assert found["configs"]["hybrid"]["game"]["misrouted"] > 0


@pytest.mark.parametrize("at_ms", [0, 137, 1000, 2222.5, 4000])
def test_counts_at_any_moment_equal_the_trace(page: Browser, comparison: run.Outcome, at_ms: float) -> None:
    found = opened(page, comparison)
    page.seek(at_ms)
    # The scrub bar moves in whole milliseconds.
    now = float(page.script("return Number(document.getElementById('scrub').value)"))
    for one in replay.replay_data(found, comparison.records)["rounds"]:
        gone = [train for train in one["trains"] if train["response_ms"] <= now]
        assert counts(page, one["config"]) == {
            "delivered": sum(train["outcome"] == "delivered" for train in gone),
            "misrouted": sum(train["outcome"] == "misrouted" for train in gone),
            "late": sum(
                train["outcome"] == "late" and train["arrival_ms"] + 100 <= now for train in one["trains"]
            ),
            "waiting": sum(train["arrival_ms"] <= now < train["response_ms"] for train in one["trains"]),
        }


def test_result_card_equals_result_json(page: Browser, comparison: run.Outcome) -> None:
    found = opened(page, comparison)
    for config, one in found["configs"].items():
        cells = dict(
            page.script(
                "return [...document.querySelectorAll(`[data-result][data-config=${arguments[0]}]`)]"
                ".map((one) => [one.dataset.result, one.firstChild.textContent])",
                config,
            )
        )
        latency = one["summary"]["decision_latency"]
        assert cells == {
            "late": str(one["game"]["late"]),
            "delivered": str(one["game"]["delivered"]),
            "misrouted": str(one["game"]["misrouted"]),
            **{p: f"{latency[f'{p}_ms']:.1f} ms" for p in ("p50", "p95", "p99")},
        }
    assert "Both rounds ran the same timetable." in page.text("#agreement")
    differing = found["comparison"]["decision_disagreements"]
    assert f"answered differently in the two rounds: {differing}." in page.text("#agreement")


def test_both_rounds_stand_side_by_side_and_stacked_on_a_phone(
    page: Browser, comparison: run.Outcome, tmp_path: Path
) -> None:
    opened(page, comparison)
    page.seek(900)
    tops = (
        "return [...document.querySelectorAll('.panel')]"
        ".map((one) => Math.round(one.getBoundingClientRect().top))"
    )
    first, second = page.script(tops)
    assert first == second
    keep(page, tmp_path, "wide")
    page.size(390, 844)
    first, second = page.script(tops)
    assert second > first
    keep(page, tmp_path, "phone")


@pytest.mark.parametrize("width", [1280, 390])
def test_nothing_is_wider_than_the_window(page: Browser, comparison: run.Outcome, width: int) -> None:
    page.size(width, 844)
    opened(page, comparison)
    assert page.script("return document.documentElement.scrollWidth") <= width
    cut = page.script(
        "return [...document.querySelectorAll('button, select, h1, h2, .counts b, #clock')]"
        ".filter((one) => one.scrollWidth > one.clientWidth + 1)"
        ".map((one) => one.outerHTML)"
    )
    assert cut == []


def test_playback_starts_at_a_quarter_of_real_time_and_shows_it(
    page: Browser, comparison: run.Outcome
) -> None:
    opened(page, comparison)
    assert page.script("return document.getElementById('speed').value") == "0.25"
    assert page.script("return document.getElementById('speed').selectedOptions[0].text") == "0.25×"
    assert page.text("#play") == "Pause"


def test_keyboard(page: Browser, comparison: run.Outcome) -> None:
    opened(page, comparison)
    page.press(" ")
    assert page.text("#play") == "Play"
    page.press("Home")
    for key, shift, expected in [
        ("ArrowRight", False, "1.000 s"),
        ("ArrowRight", True, "1.050 s"),
        ("ArrowLeft", False, "0.050 s"),
        ("ArrowLeft", False, "0.000 s"),
    ]:
        page.press(key, shift)
        assert page.text("#clock") == expected
    page.press("ArrowUp")
    assert page.script("return document.getElementById('speed').value") == "0.5"
    page.press("ArrowDown")
    page.press("ArrowDown")
    assert page.script("return document.getElementById('speed').value") == "0.1"
    page.press(" ")
    assert page.text("#play") == "Pause"


def test_space_on_the_focused_button_plays_once(page: Browser, comparison: run.Outcome) -> None:
    opened(page, comparison)
    page.seek(0)
    page.script("document.getElementById('play').focus()")
    page.press(" ")
    assert page.text("#play") == "Pause"
    page.press(" ")
    assert page.text("#play") == "Play"


def test_playing_moves_the_clock_and_stops_at_the_end(page: Browser, comparison: run.Outcome) -> None:
    opened(page, comparison)
    end = float(page.script("return Number(document.getElementById('scrub').max)"))
    page.seek(end - 20)
    page.press(" ")
    for _ in range(100):
        if page.text("#play") == "Play":
            break
        page.script("return new Promise((done) => setTimeout(done, 50))")
    assert page.text("#play") == "Play"
    assert float(page.text("#clock").removesuffix(" s")) * 1000 == pytest.approx(end, abs=1)


def test_the_page_draws_something_at_the_signals(page: Browser, comparison: run.Outcome) -> None:
    opened(page, comparison)
    page.seek(900)
    colours = page.script(
        "const canvas = document.querySelector('.yard'), seen = {};"
        "const data = canvas.getContext('2d').getImageData(0, 0, canvas.width, canvas.height).data;"
        "for (let i = 0; i < data.length; i += 4) {"
        "  const key = [data[i], data[i + 1], data[i + 2]].join(); seen[key] = (seen[key] || 0) + 1; }"
        "return seen"
    )
    late, waiting, gpu = "255,100,100", "223,231,238", "245,173,47"
    assert colours[late] > 100
    assert colours[waiting] > 100
    assert colours[gpu] > 20


def test_reduced_motion_starts_paused(page: Browser, comparison: run.Outcome) -> None:
    page.reduce_motion()
    opened(page, comparison)
    assert page.text("#play") == "Play"
    assert page.text("#clock") == "0.000 s"


def test_a_synthetic_run_carries_a_banner(page: Browser, comparison: run.Outcome) -> None:
    opened(page, comparison)
    assert page.text("#banner") == "Virtual Mac, synthetic: no number on this page describes a real machine."


def test_a_real_run_carries_none(page: Browser, comparison: run.Outcome, tmp_path: Path) -> None:
    found = json.loads(json.dumps(comparison.result)) | {"synthetic": False}
    target = replay.write_page(tmp_path, found, comparison.records)
    page.open(target)
    assert page.script("return document.getElementById('banner').offsetHeight") == 0


def test_without_the_ane_only_the_gpu_round_is_shown_with_the_reason(
    page: Browser, gpu_alone: run.Outcome, tmp_path: Path
) -> None:
    found = opened(page, gpu_alone)
    assert page.script("return document.querySelectorAll('.panel').length") == 1
    notice = page.text("#ane")
    assert found["ane"]["reason_text"] in notice
    assert found["ane"]["setup_command"] in notice
    assert "ArtifactMissingError: L64 is not built" in notice
    page.size(390, 844)
    keep(page, tmp_path, "gpu-phone")


def test_a_demoted_round_is_labelled_and_not_shown(page: Browser, demoted: run.Outcome) -> None:
    found = opened(page, demoted)
    assert page.script("return document.querySelectorAll('.panel').length") == 1
    assert counts(page, "hybrid") == {}
    assert page.script("return document.querySelectorAll('[data-result][data-config=hybrid]').length") == 0
    assert page.text("#not-counted") == "The GPU + ANE round is in the data but is not counted."
    assert page.text("#ane-reason") == found["ane"]["reason_text"] + "."


HOSTILE = (
    "</script><script>alert(1)</script><!--<script><img src=x onerror=alert(2)>\u2028 & __SWITCHYARD_DATA__"
)


def test_hostile_text_in_the_data_stays_text(page: Browser, gpu_alone: run.Outcome, tmp_path: Path) -> None:
    found = json.loads(json.dumps(gpu_alone.result))
    found["ane"]["detail"] = found["model"]["name"] = found["machine"]["platform"]["soc"] = HOSTILE
    page.open(replay.write_page(tmp_path, found, gpu_alone.records))
    assert page.script("return document.querySelectorAll('img').length") == 0
    assert page.script("return document.querySelectorAll('script').length") == 2
    assert page.script("return document.getElementById('ane').textContent.includes(arguments[0])", HOSTILE)


def test_the_page_embeds_exactly_the_replay_data(page: Browser, comparison: run.Outcome) -> None:
    opened(page, comparison)
    embedded = page.script("return document.getElementById('switchyard-data').textContent")
    assert comparison.result is not None
    assert json.loads(embedded) == replay.replay_data(comparison.result, comparison.records)


def test_rebuilding_from_the_files_gives_the_same_page(comparison: run.Outcome, tmp_path: Path) -> None:
    assert comparison.page is not None
    assert comparison.result_dir is not None
    for name in (result.RESULT_FILE, result.TRACE_FILE):
        (tmp_path / name).write_bytes((comparison.result_dir / name).read_bytes())
    assert replay.rebuild(tmp_path).read_bytes() == comparison.page.read_bytes()


def keep(page: Browser, folder: Path, name: str) -> None:
    """A screenshot that is a picture; kept where LAYA_KEEP_SCREENSHOTS names a folder."""
    target = Path(WHERE_TO_KEEP_SCREENSHOTS or folder) / f"{name}.png"
    page.screenshot(target)
    assert target.read_bytes().startswith(b"\x89PNG")
