"""Rows 4 to 6, 8, 10, 11 and 14 to 20: nothing answers in the place of what was asked for."""

from __future__ import annotations

import json
import socket
import threading

import pytest
from audit_case import (
    CLEAR,
    HOSTS,
    INLINE_AND_THREAD,
    LONG,
    MEASURED,
    MIDDLE,
    READY,
    SHORT,
    Home,
    edit_json,
    no_warnings,
    without_canary,
)

from laya_apple import (
    ArtifactIntegrityError,
    ArtifactMissingError,
    BackendUnavailableError,
    ComputeUnitMismatchError,
    Laya,
    LayaAppleError,
    routing,
)
from laya_apple.cli import main
from laya_apple.routing import Decision

DROPPED = r"laya-mini L64 was dropped from the Neural Engine, its requests go to MLX: "


@pytest.mark.laya_audit(4)
@pytest.mark.parametrize("arguments", HOSTS)
def test_explicit_ane_never_pads_up_to_a_larger_bucket(home: Home, arguments):
    home.remove(64)
    laya = home.load("ane", **arguments)
    before = home.predictions()
    with pytest.raises(ArtifactMissingError, match="artifacts build --model laya-mini --bucket 64"):
        laya.predict(SHORT, CLEAR)
    assert (home.predictions(), home.gpu_forwards()) == (before, 0)
    assert laya.predict(MIDDLE, CLEAR).runtime.buckets == (96,)


@pytest.mark.laya_audit(5)
@pytest.mark.parametrize("arguments", HOSTS)
def test_explicit_ane_refuses_a_corrupt_bucket_at_load(home: Home, arguments):
    home.mac.change_file(home.own(64) / "model.mlmodelc" / "model.mil")
    with pytest.raises(ArtifactIntegrityError, match=r"laya-mini L64: the files of model\.mlmodelc hash to"):
        home.load("ane", **arguments)
    assert home.gpu_forwards() == 0


@pytest.mark.laya_audit(6)
@pytest.mark.parametrize("arguments", HOSTS)
def test_auto_with_a_rejected_bucket_warns_and_records_the_reason(home: Home, arguments):
    home.calibrate(64)
    home.mac.change_file(home.own(64) / "model.mlmodelc" / "model.mil")
    with pytest.warns(RuntimeWarning, match=DROPPED + "ArtifactIntegrityError") as caught:
        laya = home.load("auto", **arguments)
    assert len([one for one in caught if "L64 was dropped" in str(one.message)]) == 1
    runtime = laya.predict(SHORT, CLEAR).runtime
    assert (runtime.device, runtime.routing_reason) == ("gpu", "ane_artifact_unavailable")
    assert laya.info()["ane_dropped"][64].startswith("ArtifactIntegrityError: ")
    assert 64 not in laya.info()["ane_buckets"]


@pytest.mark.laya_audit(6)
@pytest.mark.parametrize("arguments", INLINE_AND_THREAD)
def test_auto_that_loses_the_whole_engine_warns_and_records_it(home: Home, arguments):
    home.calibrate(64)
    home.mac.fault("other_platform", macos="14.7")
    home.calibrate(64)
    with pytest.warns(RuntimeWarning, match=r"uses MLX only \(ane_runtime_unavailable\): Backend.*macOS 15"):
        laya = home.load("auto", **arguments)
    runtime = laya.predict(SHORT, CLEAR).runtime
    assert (runtime.device, runtime.routing_reason) == ("gpu", "ane_runtime_unavailable")
    assert "this Mac runs 14.7" in laya.info()["ane_error"]


def _change(home: Home, what: str) -> None:
    model = home.artifact() / "model.mlmodelc" / "model.mil"
    if what == "macos_build":
        home.mac.fault("other_platform", macos_build="VIRTUAL2")
    else:
        home.mac.change_file(model, what)


@pytest.mark.laya_audit(8)
@pytest.mark.parametrize("what", ["mtime", "inode", "macos_build"])
def test_changed_artifact_files_invalidate_the_verification_stamp(home: Home, what):
    home.stamped(64)
    plans = home.plans()
    home.load("ane")
    assert home.plans() == plans  # the stamp holds: no check is run again
    _change(home, what)
    with without_canary():
        home.load("ane")
    assert home.plans() == plans + 1


@pytest.mark.laya_audit(8)
def test_changed_contents_under_a_stamp_are_found(home: Home):
    home.stamped(64)
    _change(home, "size")
    with pytest.raises(ArtifactIntegrityError, match="hash to"):
        home.load("ane")


@pytest.mark.laya_audit(8)
def test_an_unreadable_stamp_means_full_verification(home: Home):
    home.stamped(64)
    home.locations.stamp(home.spec, 64).write_text("{", encoding="utf-8")
    plans = home.plans()
    with without_canary():
        home.load("ane")
    assert home.plans() == plans + 1


# Row 10: the placement probe


@pytest.mark.laya_audit(10)
@pytest.mark.parametrize("arguments", HOSTS)
def test_placement_probe_stops_explicit_ane(home: Home, arguments):
    home.slow()
    home.mac.fault("ane_compile_failed", bucket=64)
    with pytest.raises(ComputeUnitMismatchError, match=r"L64: .*does not run on the .* \(FELL_BACK"):
        home.load("ane", **arguments)
    assert home.gpu_forwards() == 0


@pytest.mark.laya_audit(10)
@pytest.mark.parametrize("arguments", INLINE_AND_THREAD)
def test_placement_probe_drops_a_bucket_under_auto(home: Home, arguments):
    home.calibrate(64)
    home.slow()
    home.mac.fault("ane_compile_failed", bucket=64)
    with pytest.warns(RuntimeWarning, match=DROPPED + "ComputeUnitMismatchError"):
        laya = home.load("auto", **arguments)
    assert laya.predict(SHORT, CLEAR).runtime.routing_reason == "ane_artifact_unavailable"
    assert laya.info()["ane_probes"][64]["verdict"] == "FELL_BACK"


@pytest.mark.laya_audit(10)
def test_placement_probe_runs_at_every_load_and_is_reported(home: Home):
    for loads in (1, 2):
        laya = home.load("ane")
        cpu = [one for one in home.mac.events("load") if one["units"] == "CPU_ONLY"]
        assert [one["bucket"] for one in cpu] == [64, 96] * loads
        for probe in laya.info()["ane_probes"].values():
            assert probe["verdict"] == "PLACED"
            assert probe["ratio"] == pytest.approx(probe["ane_ms"] / probe["cpu_ms"])
            assert probe["ratio"] <= 0.8
    assert laya.predict(SHORT, CLEAR).runtime.placement == "PLACED"


@pytest.mark.laya_audit(10)
def test_placement_probe_without_a_comparison_is_no_pass(home: Home):
    home.mac.fault("load_error", units="CPU_ONLY", message="no CPU instance")
    with pytest.raises(ComputeUnitMismatchError, match=r"UNKNOWN.: placement unknown: .*no CPU instance"):
        home.load("ane")


# Row 11: precision


@pytest.mark.laya_audit(11)
def test_ane_refuses_any_dtype_but_float16(home: Home):
    with pytest.raises(ValueError, match="device='ane' runs in float16 only, not float32"):
        home.load("ane", dtype="float32")
    assert home.mac.events("load") == []


@pytest.mark.laya_audit(11)
@pytest.mark.parametrize("device", ["auto", "gpu", "ane", "cpu"])
def test_unknown_dtype_is_refused_for_every_device(home: Home, device):
    with pytest.raises(ValueError, match="dtype must be one of float16, float32, not 'bfloat16'"):
        home.load(device, dtype="bfloat16")


@pytest.mark.laya_audit(11)
@pytest.mark.parametrize("arguments", INLINE_AND_THREAD)
def test_dtype_under_auto_is_of_mlx_and_what_ran_is_recorded(home: Home, arguments):
    home.calibrate(64)
    laya = home.load("auto", dtype="float32", **arguments)
    gpu, ane = laya.predict(LONG, CLEAR).runtime, laya.predict(SHORT, CLEAR).runtime
    assert (gpu.device, gpu.dtype, gpu.artifact_revision[-8:]) == ("gpu", "float32", ":float32")
    assert (ane.device, ane.dtype, ane.routing_reason) == ("ane", "float16", READY)


# Rows 14 to 16: a Neural Engine that dies or never comes


@pytest.mark.laya_audit(14)
@pytest.mark.parametrize("placement", ["process", "thread"])
def test_dead_ane_worker_under_auto_is_recorded_and_warned_once(home: Home, placement):
    home.calibrate(64)
    laya = home.load("auto", execution="workers", ane_placement=placement, request_timeout=5.0)
    assert laya.predict(SHORT, CLEAR).runtime.device == "ane"
    killed = placement == "process"
    home.mac.fault("worker_killed" if killed else "prediction_hang")
    died = "was killed by SIGKILL" if killed else "did not answer within request_timeout=5 s"
    with pytest.raises(BackendUnavailableError, match=died):
        laya.predict(SHORT, CLEAR)
    with pytest.warns(RuntimeWarning, match=died) as caught:
        later = [laya.predict(SHORT, CLEAR).runtime for _ in range(3)]
    assert len(caught) == 1
    assert [(one.device, one.routing_reason) for one in later] == [("gpu", "ane_runtime_unavailable")] * 3
    assert laya.info()["ane_unavailable"] == "ane_runtime_unavailable"


@pytest.mark.laya_audit(15)
@pytest.mark.parametrize("placement", ["process", "thread"])
def test_dead_ane_worker_under_explicit_ane_keeps_raising(home: Home, placement):
    laya = home.load("ane", execution="workers", ane_placement=placement, request_timeout=5.0)
    home.mac.fault("worker_killed" if placement == "process" else "prediction_hang")
    for _ in range(3):
        with pytest.raises(BackendUnavailableError, match=r"killed by SIGKILL|did not answer within"):
            laya.predict(SHORT, CLEAR)
    assert home.gpu_forwards() == 0
    assert laya.wait_for_ane(0) is False


@pytest.mark.laya_audit(16)
@pytest.mark.parametrize(
    ("placement", "fault", "why"),
    [
        ("process", {"name": "load_kills"}, "killed by SIGKILL"),
        ("thread", {"name": "other_platform", "macos": "14.7"}, "needs macOS 15 or newer"),
    ],
    ids=["process-killed", "thread-raises"],
)
def test_background_startup_failure_is_warned_and_recorded(home: Home, placement, fault, why):
    arguments = dict(fault)
    home.mac.fault(arguments.pop("name"), **arguments)
    home.calibrate(64)
    laya = home.load("auto", execution="workers", ane_startup="background", ane_placement=placement)
    with pytest.warns(RuntimeWarning, match=f"ane_runtime_unavailable.*{why}") as caught:
        assert laya.wait_for_ane(30) is False
    assert len(caught) == 1
    with no_warnings():
        for _ in range(2):
            runtime = laya.predict(SHORT, CLEAR).runtime
            assert (runtime.device, runtime.routing_reason) == ("gpu", "ane_runtime_unavailable")
    assert why in laya.info()["ane_error"]


# Row 17: unreachable by design, so the router itself is replaced


@pytest.mark.laya_audit(17)
@pytest.mark.parametrize(("device", "wrong"), [("gpu", "ane"), ("ane", "gpu")])
@pytest.mark.parametrize("execution", ["inline", "workers"])
def test_route_to_a_missing_backend_raises_instead_of_using_the_other(
    home: Home, monkeypatch, device, wrong, execution
):
    laya = home.load(device, execution=execution)
    before = (home.predictions(), home.gpu_forwards())

    def misroute(*_: object, **__: object) -> Decision:
        return Decision(wrong, "a bug")

    monkeypatch.setattr(routing, "decide", misroute)
    monkeypatch.setattr(routing, "decide_queued", misroute)
    with pytest.raises(LayaAppleError, match=rf"chose {wrong} \(a bug\).*nothing ran in its place"):
        laya.predict(SHORT, CLEAR)
    assert (home.predictions(), home.gpu_forwards()) == before


# Rows 18 and 19: local profiles


def _ignored(home: Home, why: str) -> None:
    with pytest.warns(RuntimeWarning, match=f"the local profile .* is ignored.*{why}"):
        laya = home.load("auto")
    runtime = laya.predict(SHORT, CLEAR).runtime
    assert (runtime.device, runtime.routing_reason) == ("gpu", "platform_not_validated")
    assert laya.info()["ane_buckets"] == []


@pytest.mark.laya_audit(18)
@pytest.mark.parametrize(
    ("buckets", "why"),
    [
        ([64, 72], r"lists buckets \[72\] that are not offered for laya-mini"),
        ([96], r"its buckets \[96\] are not a prefix of the offered"),
        ([64, 96, 64], "are not a prefix of the offered"),
        ("64", "not a list of lengths"),
    ],
    ids=["unoffered", "no-prefix", "repeated", "no-list"],
)
def test_local_profile_with_unoffered_buckets_is_ignored(home: Home, buckets, why):
    edit_json(home.calibrate(64), ("models", "laya-mini", "auto_buckets"), buckets)
    _ignored(home, why)


@pytest.mark.laya_audit(18)
def test_local_profile_whose_buckets_do_not_follow_from_its_times_is_ignored(home: Home):
    path = home.calibrate(64, table=MEASURED)
    edit_json(path, ("models", "laya-mini", "ane_ms", "64"), 1e6)
    _ignored(home, "do not follow from its own times")


@pytest.mark.laya_audit(19)
@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("{", "it cannot be read"),
        (json.dumps({"format": "another"}), "it is not a laya-apple-profile file"),
        (json.dumps({"format": "laya-apple-profile", "format_version": 99}), "its format_version is 99"),
        (json.dumps({"format": "laya-apple-profile", "format_version": 1}), "no models or no platform"),
    ],
    ids=["unreadable", "another-format", "unknown-version", "empty"],
)
def test_unreadable_local_profile_is_warned(home: Home, text, why):
    home.calibrate(64).write_text(text, encoding="utf-8")
    _ignored(home, why)


@pytest.mark.laya_audit(19)
@pytest.mark.parametrize(
    ("fields", "why"),
    [({"soc": "Apple M9"}, "measured with soc 'Apple M9'"), ({"macos": "25.1"}, "on macOS 25, this is")],
    ids=["soc", "macos"],
)
def test_a_profile_of_another_machine_is_ignored(home: Home, fields, why):
    path = home.calibrate(64)
    for field, value in fields.items():
        edit_json(path, ("platform", field), value)
    _ignored(home, why)


# Row 20: offline


@pytest.mark.laya_audit(20)
@pytest.mark.parametrize("asked", ["local_files_only", "HF_HUB_OFFLINE", "command-line"])
def test_offline_with_an_uncached_checkpoint_raises_and_never_downloads(
    home: Home, monkeypatch, tmp_path, capsys, asked
):
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "empty"))
    monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
    tried: list[object] = []
    lock = threading.Lock()

    def refuse(*address: object, **_: object) -> None:
        with lock:
            tried.append(address)
        raise OSError("the network is forbidden in this test")

    monkeypatch.setattr(socket, "getaddrinfo", refuse)
    monkeypatch.setattr(socket.socket, "connect", refuse)
    if asked == "command-line":
        monkeypatch.setenv("HF_HUB_OFFLINE", "1")
        assert main(["download", "laya"]) != 0
        assert "laya cannot be downloaded while HF_HUB_OFFLINE is set" in capsys.readouterr().err
    else:
        if asked == "HF_HUB_OFFLINE":
            monkeypatch.setenv("HF_HUB_OFFLINE", "1")
        with pytest.raises(BackendUnavailableError, match="forbids the network; run `laya-apple download"):
            Laya.from_pretrained("laya", "gpu", local_files_only=asked == "local_files_only")
    assert tried == []
