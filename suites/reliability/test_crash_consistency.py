"""Killed at any file-system step, a build, import, replace, fetch, quarantine or prune leaves the old
artifact, the new one or none; the next try succeeds, and prune takes away what is left and nothing else."""

from __future__ import annotations

import functools
import json
import os
import shutil
import signal
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from crash_client import Cache, Crashes, crash_server

from laya_apple.hashing import file_sha256

EVERY = 10
"""The fast tier takes one point in ten."""
LEAST_POINTS = 300


@dataclass(frozen=True)
class Scenario:
    """One piece of work on one state of the cache."""

    operation: str
    """Which of the six operations it belongs to."""
    work: str
    before: str
    """What is registered when it starts."""
    spoil: Callable[[Cache], None] | None = None
    retry: str = ""
    """What is tried after the kill; the same work if empty."""
    after: frozenset[str] = frozenset({"new", "none"})
    """What may be registered after a kill."""


def pending(cache: Cache, work: str = "import") -> None:
    """As an import leaves it that was killed while it validated at the registered path."""
    templates = cache.crashes.templates
    if work not in templates:
        steps = cache.crashes.cache(cache.path).do(work, count=True)["steps"]
        for at in range(steps, 0, -1):
            tried = cache.crashes.cache(cache.path)
            tried.do(work, at=at)
            if "manifest.pending.json" in tried.leftovers():
                templates[work] = tried.path
                break
    shutil.rmtree(cache.path)
    shutil.copytree(templates[work], cache.path, symlinks=True)


def corrupt_manifest(cache: Cache) -> None:
    (cache.artifact / "manifest.json").write_text("{", encoding="utf-8")


def corrupt_model(cache: Cache) -> None:
    with (cache.artifact / "model.mlmodelc" / "model.mil").open("ab") as file:
        file.write(b"\n")


def littered(cache: Cache) -> None:
    """A pending artifact, staging directories, half-written stamps, and links that lead out of the cache."""
    pending(cache)
    slug = f"{'-'.join(cache.artifact.parts[-3:])}"
    staging = cache.artifacts / ".staging"
    for name in ("dead1", "dead2", "discard-dead3"):
        shutil.copytree(cache.crashes.folder / "hub", staging / f"{slug}~{name}" / "artifact")
    os.symlink(cache.crashes.folder / "hub", staging / f"{slug}~dead1" / "inner")
    os.symlink(cache.crashes.folder / "hub", staging / f"{slug}~link")
    verified = cache.root / "verified"
    verified.mkdir(exist_ok=True)
    (verified / f"{slug}.json.4711").write_text("{", encoding="utf-8")
    (verified / "other.json").write_text('{"key": "kept"}', encoding="utf-8")


OLD = frozenset({"old", "new", "none"})
SPOILT = frozenset({"corrupt", "new", "none"})

SCENARIOS = {
    "build": Scenario("build", "build", "none"),
    "build over a registered one": Scenario("build", "rebuild", "old", after=OLD),
    "build over a pending one": Scenario("build", "build", "none", pending),
    "import": Scenario("import", "import", "none"),
    "import over a pending one": Scenario("import", "import", "none", pending),
    "import over a corrupt one": Scenario("import", "import", "old", corrupt_model, after=SPOILT),
    "replace": Scenario("replace", "replace", "old", after=OLD),
    "replace after a killed replace": Scenario(
        "replace", "replace", "old", functools.partial(pending, work="replace"), after=OLD
    ),
    "fetch": Scenario("fetch", "fetch", "none"),
    "fetch over a pending one": Scenario("fetch", "fetch", "none", pending),
    "fetch over a registered one": Scenario("fetch", "refetch", "old", after=OLD),
    "quarantine for its manifest": Scenario(
        "quarantine", "load", "old", corrupt_manifest, retry="import", after=SPOILT
    ),
    "quarantine for its files": Scenario(
        "quarantine", "load", "old", corrupt_model, retry="import", after=SPOILT
    ),
    "prune": Scenario("prune", "prune_aged", "none", littered, retry="import"),
    "prune after a killed replace": Scenario(
        "prune",
        "prune_aged",
        "old",
        functools.partial(pending, work="replace"),
        retry="replace",
        after=frozenset({"old", "none"}),
    ),
}


@pytest.fixture(scope="module")
def crashes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Crashes]:
    with crash_server(tmp_path_factory.mktemp("crashes")) as crashes:
        yield crashes


@pytest.fixture(scope="module")
def prepared(crashes: Crashes) -> Callable[[str], tuple[Path, int]]:
    """The cache a scenario starts from, and the number of steps its work takes."""

    @functools.cache
    def prepare(name: str) -> tuple[Path, int]:
        scenario = SCENARIOS[name]
        cache = crashes.cache(crashes.folder / "old")
        shutil.rmtree(cache.root / "verified", ignore_errors=True)
        if scenario.before == "none":
            shutil.rmtree(cache.artifact)
        for path in must_stay(cache):
            if not path.exists():
                path.mkdir(parents=True)
                (path / "manifest.json").write_text(json.dumps({"of": path.name}), encoding="utf-8")
        if scenario.spoil is not None:
            scenario.spoil(cache)
        counted = crashes.cache(cache.path).do(scenario.work, count=True)
        assert counted["signal"] == 0
        return cache.path, counted["steps"]

    return prepare


def must_stay(cache: Cache) -> list[Path]:
    """What no operation on the bucket may touch: another bucket's artifact, and what is kept on purpose."""
    other = cache.artifact.with_name(cache.artifact.name.replace("L64", "L96"))
    slug = "-".join(other.parts[-3:])
    return [
        other,
        cache.artifacts / ".previous" / f"{slug}~00000000000000000001-decoy",
        cache.artifacts / "quarantine" / "decoy",
        cache.artifacts / "rejected" / "decoy",
    ]


def fingerprint(cache: Cache) -> dict[str, str]:
    """Every file that must stay, those outside the cache among them."""
    roots = [*must_stay(cache), cache.crashes.folder / "hub", cache.crashes.folder / "tiny"]
    files = [path for root in roots for path in root.rglob("*") if path.is_file()]
    assert len(files) > 10
    return {os.path.relpath(path, cache.path): file_sha256(path) for path in files}


def check_point(crashes: Crashes, scenario: Scenario, template: Path, at: int, *, prunes: bool) -> None:
    """Kill at one step and look at everything."""
    cache = crashes.cache(template)
    stays = fingerprint(cache)
    quarantined = cache.quarantined()

    died = cache.do(scenario.work, at=at)
    assert died == {"signal": signal.SIGKILL}
    state = cache.registered()
    assert state in scenario.after
    moved = len(cache.quarantined()) - len(quarantined)

    # What load_verified says is what is there.
    assert_told(cache, state, moved)

    if prunes:
        before = state if state != "corrupt" else "none"
        aside = [path for path in cache.previous() if "L64" in path.name]
        young = cache.do("prune")
        if scenario.operation != "prune":
            assert young["removed"] == []
        aged = cache.do("prune_aged")
        assert cache.leftovers() == []
        restored = "old" if before == "none" and aside else before
        assert cache.registered() == restored
        kept = [path for path in cache.previous() if "L64" in path.name]
        assert kept == ([] if restored == "old" else aside)
        assert {str(path) for path in kept} <= set(aged["kept"])
        assert_told(cache, restored, 0)

    done = cache.do(scenario.retry or scenario.work)
    assert done.get("artifact_sha256") == crashes.facts["new"], done
    assert cache.registered() == "new"
    assert cache.leftovers() == []
    assert cache.do("load") == {"signal": 0, "artifact_sha256": crashes.facts["new"]}
    assert fingerprint(cache) == stays
    cache.drop()


def assert_told(cache: Cache, state: str, moved: int) -> None:
    """``load_verified`` loads what is registered, and quarantines nothing but what is corrupt."""
    before = len(cache.quarantined())
    told = cache.do("load")
    if state in ("old", "new"):
        assert told == {"signal": 0, "artifact_sha256": cache.crashes.facts[state]}
    else:
        error = {"none": "ArtifactMissingError", "corrupt": "ArtifactIntegrityError"}[state]
        assert told.get("error") == error, told
        assert "laya-apple artifacts build" in told["message"]
    assert len(cache.quarantined()) - before == (state == "corrupt")
    assert moved in (0, 1)


def test_the_server_holds_no_mlx(crashes: Crashes) -> None:
    assert crashes.facts["mlx"] is False


@pytest.mark.parametrize("name", SCENARIOS)
def test_killed_at_one_step_in_ten(
    crashes: Crashes, prepared: Callable[[str], tuple[Path, int]], name: str
) -> None:
    template, steps = prepared(name)
    # Another offset for each scenario, so that together they meet early, middle and late steps.
    first = 1 + list(SCENARIOS).index(name) * 3 % EVERY
    for at in range(min(first, steps), steps + 1, EVERY):
        check_point(crashes, SCENARIOS[name], template, at, prunes=at % 2 == 0)


@pytest.mark.laya_slow
@pytest.mark.parametrize("name", SCENARIOS)
def test_killed_at_every_step(
    crashes: Crashes, prepared: Callable[[str], tuple[Path, int]], name: str
) -> None:
    template, steps = prepared(name)
    for at in range(1, steps + 1):
        check_point(crashes, SCENARIOS[name], template, at, prunes=True)
        if at % 2:
            check_point(crashes, SCENARIOS[name], template, at, prunes=False)


@pytest.mark.laya_slow
def test_there_are_enough_points_over_the_six_operations(
    prepared: Callable[[str], tuple[Path, int]], record_property: Callable[[str, object], None]
) -> None:
    counts = {name: prepared(name)[1] for name in SCENARIOS}
    record_property("crash_points", json.dumps(counts))
    assert {scenario.operation for scenario in SCENARIOS.values()} == {
        "build",
        "import",
        "replace",
        "fetch",
        "quarantine",
        "prune",
    }
    assert sum(counts.values()) >= LEAST_POINTS
    assert min(counts.values()) >= 3
