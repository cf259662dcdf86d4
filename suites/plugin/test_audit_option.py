"""``--laya-audit``: row verdicts from what ran, the table, audit.json and audit.md; ``--laya-mutate``."""

import json
import textwrap
from pathlib import Path

import jsonschema
import pytest

from pytest_laya import audit, audit_page, audit_report, results

ROOT = Path(__file__).resolve().parents[2]
ROWS = audit.rows()
PINS = [pin for row in ROWS for pin in row.pins]

# Row 2 has three pins, none with parameters; these stand in for them.
ROW_2 = """
import pytest

@pytest.mark.laya_audit(2)
def test_a_busy_engine_hands_its_next_request_to_the_gpu(): pass

@pytest.mark.laya_audit(2)
def test_a_busy_gpu_hands_its_next_request_to_an_explicit_only_bucket(): {second}

@pytest.mark.laya_audit(2)
def test_long_and_multi_question_requests_never_go_to_the_engine(): pass
"""


@pytest.fixture
def audited(inner, pytester):
    """``audited(*arguments, second=…)`` runs stand-ins of row 2's pins; gives result and audit.json."""

    def run(*arguments, second="pass", platform="virtual"):
        folder = pytester.path / "audit"
        folder.mkdir(exist_ok=True)
        (folder / "test_scheduling.py").write_text(textwrap.dedent(ROW_2.format(second=second)))
        source = "def test_of_another_project(): pass"
        result = inner(
            source, "audit", "test_inner.py", "--laya-out", "out", "--laya-platform", platform, *arguments,
            plugins=True,
        )  # fmt: skip
        path = pytester.path / "out" / "audit.json"
        return result, json.loads(path.read_text()) if path.is_file() else None

    return run


def test_the_table_has_rows_1_to_29_and_every_pin_once_a_row():
    assert [row.number for row in ROWS] == list(range(1, 30))
    for row in ROWS:
        assert row.pins
        assert len(set(row.pins)) == len(row.pins)
        assert row.guarantee
        assert row.path
        assert row.handling


def test_a_row_is_pinned_when_every_pin_passed(audited):
    result, document = audited()
    result.assert_outcomes(passed=4)
    result.stdout.fnmatch_lines(
        [
            "  1  NOT EXERCISED  *",
            "  2  PINNED         a busy queue moves a request before it is submitted, and says so",
            "PINNED: every test listed for the row ran in this session and passed.*",
            "29 rows: 1 PINNED, 0 BROKEN, 28 NOT EXERCISED",
        ]
    )
    jsonschema.validate(document, results.schema("audit"), cls=jsonschema.Draft202012Validator)
    row = document["rows"][1]
    assert (row["row"], row["verdict"], document["synthetic"]) == (2, "PINNED", True)
    assert [pin["outcome"] for pin in row["pins"]] == ["passed"] * 3
    assert len(document["excepts"]) > 100
    assert {one["kind"] for one in document["decisions"]} == {
        "device",
        "compute units",
        "bucket",
        "precision",
    }
    assert all(one["rows"] for one in document["decisions"])


@pytest.mark.parametrize(
    ("arguments", "second", "verdict", "outcome"),
    [
        (("--deselect", "audit/test_scheduling.py::test_a_busy_engine_hands_its_next_request_to_the_gpu"),
         "pass", "NOT EXERCISED", "not run"),
        (("-k", "not test_a_busy_engine"), "pass", "NOT EXERCISED", "not run"),
        ((), "pytest.skip('cannot be had here')", "NOT EXERCISED", "skipped"),
        ((), "assert False", "BROKEN", "failed"),
    ],
    ids=["deselected", "not-selected", "skipped", "failed"],
)  # fmt: skip
def test_strict_fails_what_was_not_proven(audited, arguments, second, verdict, outcome):
    result, document = audited("--laya-audit=strict", *arguments, second=second)
    assert result.ret == 1
    row = document["rows"][1]
    assert row["verdict"] == verdict
    assert outcome in [pin["outcome"] for pin in row["pins"]]
    result.stdout.fnmatch_lines([f"FAILED laya-audit::row-2*{verdict}*"])
    result.stdout.fnmatch_lines(["FAILED laya-audit::row-13*NOT EXERCISED*"])


def test_two_workers_give_the_verdicts_of_one(audited, pytester):
    alone, one = audited("--laya-audit=strict", "-n", "0", second="assert False")
    (pytester.path / "out" / "audit.json").unlink()
    both, two = audited("--laya-audit=strict", "-n", "2", second="assert False")
    assert one["rows"] == two["rows"]
    assert alone.parseoutcomes() == both.parseoutcomes() == {"passed": 3, "failed": 30}


def test_off_says_nothing(audited):
    result, document = audited("--laya-audit=off")
    result.assert_outcomes(passed=4)
    result.stdout.no_fnmatch_line("*NOT EXERCISED*")
    assert document is None


def test_a_session_without_a_pin_says_nothing(inner, pytester):
    result = inner("def test_it(laya_platform): pass", "--laya-platform", "virtual", "--laya-out", "out")
    result.assert_outcomes(passed=1)
    result.stdout.no_fnmatch_line("*NOT EXERCISED*")
    assert not (pytester.path / "out" / "audit.json").exists()


def test_strict_without_a_pin_fails_every_row(inner):
    result = inner("def test_it(): pass", "--laya-platform", "virtual", "--laya-audit=strict")
    result.assert_outcomes(passed=1, failed=29)


def test_a_bad_value_is_a_usage_error(inner):
    result = inner("def test_it(): pass", "--laya-audit=always")
    assert result.ret == 4
    result.stderr.fnmatch_lines(["*--laya-audit*must be one of off, report, strict, not 'always'*"])


def test_with_any_one_pin_missing_its_row_is_not_exercised():
    everything = dict.fromkeys((f"suites/{pin}" for pin in PINS), "passed")
    assert {one.verdict for one in audit.judge(everything)} == {"PINNED"}
    for missing in PINS:
        ran = {test: outcome for test, outcome in everything.items() if test != f"suites/{missing}"}
        for one in audit.judge(ran):
            assert one.verdict == ("NOT EXERCISED" if missing in one.row.pins else "PINNED")


def test_a_failure_outweighs_what_did_not_run():
    row = ROWS[0]
    one, *_ = audit.judge({f"anywhere/suites/{row.pins[0]}": "error"})
    assert (one.verdict, one.why) == ("BROKEN", f"{row.pins[0]}: error")


def test_the_markdown_says_what_the_json_says(audited):
    _, document = audited()
    text = Path("out/audit.md").read_text()
    assert text == audit_report.to_markdown(document)
    assert "**Synthetic**" in text
    assert "| 2 | PINNED |" in text


def test_the_page_is_not_stale():
    page = (ROOT / "docs" / "no-silent-fallback.md").read_text(encoding="utf-8")
    assert page == audit_page.page({row.number: "PINNED" for row in ROWS}), (
        "run `pytest suites/audit --laya-audit=strict --laya-out DIR`, then "
        "`python -m pytest_laya.audit_page DIR/audit.json docs/no-silent-fallback.md`"
    )


def test_the_page_is_written_from_a_run(audited, pytester, capsys):
    audited()
    assert audit_page.main([str(pytester.path / "out" / "audit.json"), "page.md"]) == 0
    text = Path("page.md").read_text(encoding="utf-8")
    assert "request before it is submitted" not in text  # the guarantee is the terminal's
    assert "auto with busy queues takes the other device" in text
    assert text.count("| NOT EXERCISED |") == 28
    assert audit_page.main([]) == 2
    assert "usage:" in capsys.readouterr().err
