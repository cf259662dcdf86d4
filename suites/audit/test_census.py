"""The censuses: who catches exceptions, who names devices; and that they find what is new."""

import ast
import re

import pytest

from pytest_laya import audit, audit_census

MODULES = audit_census.sources(audit_census.package_folder())
NUMBERS = {row.number for row in audit.rows()}


def _module(text, file="execution/new.py"):
    return [audit_census.Source(file, tuple(text.splitlines()), ast.parse(text))]


def test_every_place_that_catches_an_exception_is_tagged():
    found = audit_census.excepts(MODULES)
    assert len(found) > 100
    assert audit_census.except_problems(found) == []
    assert {row for one in found for row in one.rows} <= NUMBERS


@pytest.mark.parametrize("index", range(0, 150, 10))
def test_removing_any_one_tag_is_found_with_its_place(index):
    found = audit_census.excepts(MODULES)
    victim = found[index % len(found)]
    (module,) = [one for one in MODULES if one.file == victim.file]
    lines = list(module.lines)
    lines[victim.line - 1] = re.sub(r"\s*#.*$", "", lines[victim.line - 1])
    changed = audit_census.Source(module.file, tuple(lines), module.tree)
    (problem,) = audit_census.except_problems(audit_census.excepts([changed]))
    assert problem.startswith(f"{victim.file}:{victim.line}: an exception is caught without a tag")


@pytest.mark.parametrize(
    ("body", "problem"),
    [
        ("    except OSError:  # warned: row 6 says so\n        pass\n", "neither warns nor records"),
        ("    except OSError:  # warned: says so\n        self.error = 1\n", "names no row"),
        ("    except OSError:  # cleanup: it is over\n        pass\n", "outside of close"),
        ("    except OSError:  # ignored: never mind\n        pass\n", "without a tag"),
        ("    except OSError:\n        pass\n", "without a tag"),
    ],
)
def test_a_tag_that_does_not_hold_is_found(body, problem):
    text = f"def run(self):\n    try:\n        work()\n{body}"
    (found,) = audit_census.except_problems(audit_census.excepts(_module(text)))
    assert found.startswith("execution/new.py:4: ")
    assert problem in found


def test_a_suppress_needs_a_tag_too():
    text = "with suppress(OSError):\n    work()\n"
    assert audit_census.except_problems(audit_census.excepts(_module(text))) == [
        "execution/new.py:1: an exception is caught without a tag (reraise, closed, warned, cleanup: reason)"
    ]


@pytest.mark.laya_audit(12)
def test_compute_units_are_named_where_the_audit_says_and_nowhere_else():
    found = audit_census.units(MODULES)
    assert audit_census.unit_problems(found, audit.document()["unit"]) == []
    others = {
        (file, name) for file, _, name, _ in found if "CPU_AND_NE" not in name and "NeuralEngine" not in name
    }
    assert others == {("artifacts/probe.py", "CPU_ONLY")}


@pytest.mark.parametrize(
    "text",
    [
        'UNITS = "ALL"',
        'load(path, units="CPU_ONLY")',
        "x = ct.ComputeUnit.CPU_AND_GPU",
        "c.set(m.MLComputeUnitsAll)",
    ],
)
def test_a_literal_compute_unit_anywhere_is_found_with_its_place(text):
    found = audit_census.units([*MODULES, *_module(f"\n{text}\n")])
    (problem,) = audit_census.unit_problems(found, audit.document()["unit"])
    assert problem.startswith("execution/new.py:2: a literal compute unit, ")


def test_every_decision_is_covered_by_a_row():
    covers = audit.document()["covers"]
    rows = {one.place: audit_census.rows_of(one, covers) for one in audit_census.decisions(MODULES)}
    assert [place for place, covered in rows.items() if not covered] == []
    assert {row for covered in rows.values() for row in covered} <= NUMBERS
    files = {one.file for one in MODULES}
    assert [one["file"] for one in covers if not any(file.startswith(one["file"]) for file in files)] == []


def test_a_decision_in_a_new_module_is_not_covered():
    (found,) = audit_census.decisions(_module('def choose():\n    return "gpu"\n', "placing/new.py"))
    assert (found.where, found.kind, found.names) == ("choose", "device", ("gpu",))
    assert audit_census.rows_of(found, audit.document()["covers"]) == ()
