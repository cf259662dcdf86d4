"""The markers: always registered, never misspelled, never with arguments they do not take."""

import pytest
from recording import ON_MAC

MARKED = """
    import pytest
    @pytest.mark.{marker}
    def test_it():
        pass
"""


@pytest.mark.parametrize(
    "marker",
    [
        "laya_audit(7)",
        "laya_audit(3, 5)",
        'laya_parity("laya-mini", "gpu", "float16")',
        'laya_parity(model="laya-mini")',
        "laya_probe(64)",
        'laya_round("gpu_only")',
        "laya_exclusive",
    ],
)
def test_known_markers_pass_under_strict_markers(inner, marker):
    inner(MARKED.format(marker=marker), "--strict-markers").assert_outcomes(passed=1)


def test_markers_are_listed_with_their_arguments(pytester):
    result = pytester.runpytest_inprocess("--markers")
    result.stdout.fnmatch_lines(
        [
            "@pytest.mark.laya_slow: *",
            "@pytest.mark.laya_audit(row, [*]rows): *",
            "@pytest.mark.laya_parity(model, device, dtype): *",
            "@pytest.mark.laya_probe(bucket): *",
            "@pytest.mark.laya_round(config): *",
            "@pytest.mark.laya_hardware: *",
            "@pytest.mark.laya_exclusive: *",
        ]
    )


@pytest.mark.parametrize(
    ("marker", "message"),
    [
        ("laya_audit", "marker laya_audit(row, *rows): missing a required argument: 'row'"),
        ('laya_audit("7")', "marker laya_audit: rows are positive whole numbers, not ('7',)"),
        ("laya_probe(64, 96)", "marker laya_probe(bucket): too many positional arguments"),
        (
            'laya_parity(models="x")',
            "marker laya_parity(model, device, dtype): got an unexpected keyword argument 'models'",
        ),
        ('laya_round("both")', "marker laya_round: config must be gpu_only or hybrid, not 'both'"),
        ("laya_exclusive(1)", "marker laya_exclusive(): too many positional arguments"),
        ("laya_hardwre", "unknown marker laya_hardwre; the plugin has laya_audit, laya_exclusive, *"),
    ],
)
def test_wrong_markers_are_refused(inner, marker, message):
    result = inner(MARKED.format(marker=marker))
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines([f"ERROR: test_inner.py::test_it: {message}"])


def test_hardware_tests_run_on_hardware_alone(inner):
    result = inner(MARKED.format(marker="laya_hardware"), "-rs", "--laya-platform=real")
    result.assert_outcomes(passed=ON_MAC, skipped=not ON_MAC)


def test_the_virtual_mac_is_no_hardware(inner):
    result = inner(MARKED.format(marker="laya_hardware"), "-rs", "--laya-platform", "virtual")
    result.assert_outcomes(skipped=1)
    result.stdout.fnmatch_lines(["SKIPPED * needs real Apple silicon; this is: virtual Mac, synthetic: *"])
