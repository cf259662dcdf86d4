"""The frozen timetable, wording and oracle of workload switchyard-v1."""

from __future__ import annotations

from collections import Counter

import pytest

from laya_apple.demos.switchyard import world


def test_default_schedule_has_the_published_counts_and_hash() -> None:
    schedule = world.schedule()
    assert len(schedule) == 2410
    assert sum(arrival.train is not None for arrival in schedule) == 1422
    assert (
        world.schedule_sha256(schedule) == "bf84ed5699072c8d561ae8c65b61bd6fd71b89c2d467f2b2c5686caad0ccf99d"
    )


def test_template_hash_is_the_published_one() -> None:
    assert (
        world.prompt_template_sha256() == "a7569c1f9b8e5592b7fc1e7a14f78d099ba26cee64037fa596998db45084e7fe"
    )


def test_another_seed_or_one_changed_train_gives_another_hash() -> None:
    default = world.schedule(duration_s=3)
    assert world.schedule_sha256(default) != world.schedule_sha256(world.schedule(seed=12, duration_s=3))
    index = next(i for i, arrival in enumerate(default) if arrival.train)
    train = default[index].train
    assert train is not None
    moved = world.Train(train.line % 6 + 1, train.train_id, train.pattern, train.occupants)
    changed = (
        *default[:index],
        world.Arrival(default[index].offset_s, world.TRAIN, moved),
        *default[index + 1 :],
    )
    assert world.schedule_sha256(changed) != world.schedule_sha256(default)


def test_a_shorter_schedule_is_the_beginning_of_a_longer_one() -> None:
    assert world.schedule(duration_s=6) == world.schedule()[: len(world.schedule(duration_s=6))]


def test_warmup_is_the_schedule_of_seed_plus_100_over_5_seconds() -> None:
    assert world.warmup_schedule(11) == world.schedule(seed=111, duration_s=5)


def test_there_are_12_patterns_with_exactly_one_clear_platform() -> None:
    assert len(set(world.PATTERNS)) == 12
    for states in world.PATTERNS:
        assert Counter(states)[world.CLEAR] == 1
        assert set(states) <= {world.CLEAR, world.OCCUPIED, world.CLOSED}
    assert Counter(states.index(world.CLEAR) for states in world.PATTERNS) == {0: 4, 1: 4, 2: 4}


def test_oracle_cases_are_pattern_major_and_seeded() -> None:
    cases = world.oracle_cases()
    assert len(cases) == 240
    assert [case.pattern for case in cases] == [pattern for pattern in range(12) for _ in range(20)]
    assert cases == world.oracle_cases(seed=0)
    assert len(world.oracle_cases(seed=1, variants=50)) == 600
    assert cases != world.oracle_cases(seed=1)


def test_every_train_is_well_formed() -> None:
    for train in (*world.oracle_cases(), *(a.train for a in world.schedule() if a.train)):
        assert 1 <= train.line <= 6
        ids = [train.train_id, *(other for other in train.occupants if other is not None)]
        assert len(set(ids)) == len(ids)
        assert all(1000 <= one <= 9999 for one in ids)
        for state, other in zip(train.states, train.occupants, strict=True):
            assert (other is not None) == (state == world.OCCUPIED)
        assert train.states["ABC".index(train.oracle)] == world.CLEAR


def test_prompt_is_the_frozen_wording() -> None:
    train = world.Train(3, 4127, world.PATTERNS.index(("occupied", "closed", "clear")), (2290, None, None))
    request = world.prompt(train)
    assert request.context == (
        "Line 3 inbound. Train 4127 is approaching the junction. Platform A is occupied by train 2290. "
        "Platform B is closed for maintenance. Platform C is clear and open."
    )
    assert request.questions == {
        "platform": {
            "type": "choice",
            "instructions": "Train 4127 must be routed to the clear platform. Which platform is clear?",
            "criteria": ["A", "B", "C"],
        }
    }


@pytest.mark.parametrize(
    ("duration_s", "whole"),
    [(3, True), (60, True), (6.0, True), (0, False), (-3, False), (1, False), (4.5, False)],
)
def test_whole_burst_cycles(duration_s: float, whole: bool) -> None:
    assert world.is_whole_cycles(duration_s) is whole
