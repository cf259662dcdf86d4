"""Where each compiled length runs: the compute plan before loading, the probe after it."""

import pytest

from laya_apple.artifacts.locations import MODEL_DIRECTORY, Locations
from laya_apple.artifacts.manifest import read_manifest
from laya_apple.artifacts.placement import inspect_placement
from laya_apple.artifacts.probe import PROBE_MAX_RATIO


@pytest.mark.laya_probe(64)
def test_every_loaded_bucket_runs_on_the_neural_engine(laya_factory, laya_probe):
    ane = laya_factory(device="ane")
    probes = ane.info()["ane_probes"]
    assert probes
    for bucket, probe in probes.items():
        assert laya_probe.verdict(ane, bucket) == "PLACED"
        assert probe["ratio"] == pytest.approx(probe["ane_ms"] / probe["cpu_ms"])
        assert 0 < probe["ratio"] <= PROBE_MAX_RATIO


@pytest.mark.laya_probe(64)
def test_the_compute_plan_puts_every_operation_on_the_neural_engine(laya_factory, laya_platform):
    loaded = set(laya_factory(device="ane").info()["backends"]["ane"]["artifact_sha256"].values())
    directories = [
        path.parent
        for path in Locations.of(laya_platform).artifacts.glob("*/*/*/manifest.json")
        if read_manifest(path).artifact_sha256 in loaded
    ]
    assert len(directories) == len(loaded) > 0
    for directory in directories:
        report = inspect_placement(directory / MODEL_DIRECTORY)
        assert report.why() == ""
        assert (report.gpu, report.cpu, report.transitions) == (0, 0, 0)
        assert report.ane > 100


@pytest.mark.laya_probe(64)
def test_every_answer_says_that_it_was_placed(laya_factory):
    ane = laya_factory(device="ane")
    question = {"type": "noul", "instructions": "Is platform A clear?"}
    runtime = ane.predict("Platform A is clear and open.", {"clear": question}).runtime
    assert (runtime.device, runtime.placement, runtime.compute_units) == ("ane", "PLACED", "CPU_AND_NE")
    assert runtime.routing_reason == "ane_requested"
