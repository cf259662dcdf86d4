"""Run the Switchyard rounds and check what they recorded. How late trains were is a result, never a test."""

import pytest

from laya_apple.demos.switchyard import metrics, result, world


@pytest.mark.laya_round("gpu_only")
def test_gpu_only_round(switchyard):
    found = switchyard.round("gpu_only")
    assert found["ane_verified"] is None
    assert set(found["systems"]["secondary"]["devices"]) == {"gpu"}
    check_every_request_is_recorded(switchyard, found)


@pytest.mark.laya_round("hybrid")
def test_hybrid_round(switchyard):
    found = switchyard.round("hybrid")
    assert found["ane_verified"] is True
    assert found["systems"]["secondary"]["devices"]["ane"] > 0
    check_every_request_is_recorded(switchyard, found)


@pytest.mark.laya_round("hybrid")
def test_both_rounds_played_the_same_timetable(switchyard):
    switchyard.round("gpu_only")
    switchyard.round("hybrid")
    assert switchyard.result["comparison"]["available"] is True
    assert switchyard.result["comparison"]["same_schedule_sha256"] is True


@pytest.mark.laya_round("gpu_only")
def test_the_files_say_what_was_measured(switchyard):
    switchyard.round("gpu_only")
    stored, records = result.read(switchyard.folder)
    assert stored == switchyard.result
    assert records == list(switchyard.records)
    recomputed = metrics.recompute(metrics.rounds_of(stored, records))
    assert recomputed["comparison"] == stored["comparison"]
    assert recomputed["statistics"] == stored["statistics"]
    for computed, told in zip(recomputed["rounds"], stored["rounds"], strict=True):
        assert told.items() >= computed.items()
    for config, computed in recomputed["configs"].items():
        assert stored["configs"][config].items() >= computed.items()
    assert switchyard.page == switchyard.folder / "replay.html"
    assert '"format":"switchyard-replay"' in switchyard.page.read_text(encoding="utf-8").replace(" ", "")


def check_every_request_is_recorded(switchyard, found):
    """One line a request of the timetable, in order, and the timetable is the seed's."""
    asked = switchyard.result["workload"]
    schedule = world.schedule(asked["seed"], asked["duration_s"])
    lines = [record for record in switchyard.records if record["round"] == found["index"]]
    assert [line["index"] for line in lines] == list(range(len(schedule)))
    assert [line["class"] for line in lines] == [arrival.cls for arrival in schedule]
    assert found["game"]["trains"] == sum(arrival.train is not None for arrival in schedule)
    assert asked["schedule_sha256"] == world.schedule_sha256(schedule)
