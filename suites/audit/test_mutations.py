"""Every guard matters: with one taken away, a pin of its row fails."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

import laya_apple
from pytest_laya import audit, audit_mutate

MUTATIONS = audit_mutate.mutations()
PACKAGE = Path(laya_apple.__file__).parent
PINS = {row.number: row.pins for row in audit.rows()}


def test_there_are_enough_of_them():
    assert len(MUTATIONS) >= 40
    assert len({one.name for one in MUTATIONS}) == len(MUTATIONS)
    assert set(Counter(one.row for one in MUTATIONS)) == set(PINS)


@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda one: one.name)
def test_its_anchor_is_there_exactly_once_and_its_pin_is_the_row_s(mutation):
    text = (PACKAGE / mutation.file).read_text(encoding="utf-8")
    changed = audit_mutate.mutated(text, mutation)
    assert changed != text
    compile(changed, mutation.file, "exec")
    assert mutation.pin in PINS[mutation.row]


def test_an_anchor_that_moved_fails_loudly():
    one = audit_mutate.Mutation("row1-x", 1, "a.py", "f", "return 1", "return 2", "audit/test_x.py::test")
    assert audit_mutate.mutated("def f():\n    return 1\n", one) == "def f():\n    return 2\n"
    for text, why in (
        (
            "def f():\n    return 1\n    return 1\n",
            "the snippet is 2 times in f of laya_apple/a.py, not once",
        ),
        (
            "def f():\n    return 3\nreturn 1\n".replace("\nreturn", "\ndef g():\n    return"),
            "is 0 times in f",
        ),
        ("def g():\n    return 1\n", "laya_apple/a.py has no f"),
    ):
        with pytest.raises(audit_mutate.AnchorError, match=why):
            audit_mutate.mutated(text, one)


@pytest.fixture(scope="session")
def mutants(built, tmp_path_factory, request):
    """The bench, after an unmutated copy has passed everything that the mutants must fail."""
    chosen = [
        item.callspec.params["mutation"]
        for item in request.session.items
        if "mutants" in getattr(item, "fixturenames", ())
    ]
    folder = tmp_path_factory.mktemp("mutants")
    bench = audit_mutate.Bench(folder, PACKAGE, Path(__file__).parents[1], built)
    whole = bench.unmutated(one.pin for one in chosen)
    wrong = {test: outcome for test, outcome in whole.tests.items() if outcome != "passed"}
    missing = {one.pin for one in chosen} - set(whole.tests)
    assert (wrong, missing) == ({}, set()), whole.output
    assert whole.smoke_passed(), whole.output
    bench.start(chosen)
    yield bench
    bench.close()


@pytest.mark.laya_slow
@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda one: one.name)
def test_it_is_killed_by_its_own_row_s_pin(mutation, mutants):
    outcome = mutants.outcome(mutation)
    assert outcome.smoke_passed(), f"{mutation.name} breaks the happy path:\n{outcome.output}"
    assert outcome.tests.get(mutation.pin) == "failed", f"{mutation.name} survives:\n{outcome.output}"
