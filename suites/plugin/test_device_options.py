"""--laya-device, -model, -dtype, -execution, -offline: what the ``laya`` fixtures load."""

import json
from pathlib import Path

import pytest

CHECKPOINT = Path(__file__).resolve().parents[2] / "fixtures" / "checkpoints" / "window16"
MODEL = f"--laya-model={CHECKPOINT}"

ASK = """
    QUESTIONS = {"lost": {"type": "noul", "instructions": "Is a parcel lost?"}}
    def test_it(laya):
        runtime = laya.predict("My parcel never came.", QUESTIONS).runtime
        print("ran:", runtime.backend, runtime.device, runtime.dtype, runtime.execution, runtime.synthetic)
"""


def ran(result):
    result.assert_outcomes(passed=1)
    return next(line[line.index("ran:") :] for line in result.outlines if "ran:" in line)


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["--laya-device=cpu"], "ran: mlx cpu float16 inline False"),
        (["--laya-device=cpu", "--laya-dtype=float32"], "ran: mlx cpu float32 inline False"),
        (["--laya-device=gpu", "--laya-platform=virtual"], "ran: mlx gpu float16 inline True"),
        (
            ["--laya-device=gpu", "--laya-platform=virtual", "--laya-execution=workers"],
            "ran: mlx gpu float16 workers True",
        ),
    ],
)
def test_the_fixture_loads_what_the_options_say(inner, arguments, told):
    assert ran(inner(ASK, "-s", MODEL, *arguments, subprocess=True)) == told


def test_the_ini_file_serves_and_the_command_line_wins(inner):
    ini = f"laya_device = gpu\nlaya_model = {CHECKPOINT}\nlaya_dtype = float32\n"
    assert ran(inner(ASK, "-s", "--laya-device=cpu", ini=ini)) == "ran: mlx cpu float32 inline False"


@pytest.mark.parametrize("device", ["gpu", "auto"])
def test_without_a_gpu_the_test_is_skipped_or_red(inner, pytester, monkeypatch, device):
    pytester.makepyfile(
        nogpu="""
        from dataclasses import fields
        from laya_apple.platform import Platform, detect
        class NoGpu(Platform):
            def mlx_gpu_device(self):
                return None
        def platform():
            here = detect()
            return NoGpu(**{one.name: getattr(here, one.name) for one in fields(here)})
        """
    )
    pytester.syspathinsert()
    monkeypatch.setenv("LAYA_APPLE_PLATFORM", "nogpu:platform")
    result = inner(ASK, MODEL, f"--laya-device={device}", "-rs")
    result.assert_outcomes(skipped=1)
    result.stdout.fnmatch_lines([f"SKIPPED *: device '{device}' needs a GPU that MLX can use, and *"])
    result = inner(ASK, MODEL, f"--laya-device={device}", "--laya-require=gpu")
    result.assert_outcomes(errors=1)


def test_an_artifact_that_was_never_built_is_a_skip_for_want_of_the_neural_engine(inner):
    arguments = (MODEL, "--laya-device=ane", "--laya-platform=virtual")
    result = inner(ASK, *arguments, "-rs", subprocess=True)
    result.assert_outcomes(skipped=1)
    result.stdout.fnmatch_lines(["SKIPPED *laya-apple artifacts build*"])
    inner(ASK, *arguments, "--laya-require=ane", subprocess=True).assert_outcomes(errors=1)


def test_offline_never_goes_to_the_network(inner, monkeypatch, tmp_path):
    monkeypatch.setenv("HF_HOME", str(tmp_path / "empty"))
    result = inner(ASK, "--laya-model=laya", "--laya-device=cpu", "--laya-offline")
    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines(["E *BackendUnavailableError: *laya-apple download laya*"])


@pytest.mark.parametrize(
    ("option", "value", "choices"),
    [
        ("device", "npu", "auto, gpu, ane, cpu"),
        ("dtype", "bfloat16", "float16, float32"),
        ("execution", "threads", "inline, workers"),
    ],
)
@pytest.mark.parametrize("how", ["command line", "ini"])
def test_a_bad_value_is_refused(inner, option, value, choices, how):
    arguments = [f"--laya-{option}={value}"] if how == "command line" else []
    result = inner(ASK, *arguments, ini=f"laya_{option} = {value}\n" if how == "ini" else "")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(
        [f"ERROR: --laya-{option} (ini laya_{option}) must be one of {choices}, not '{value}'"]
    )


def test_an_unknown_model_is_refused_before_collection(inner):
    result = inner(ASK, "--laya-model=laya-huge")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(
        ["ERROR: --laya-model: 'laya-huge' is not a model this runtime knows; *laya-mini*"]
    )


def test_the_factory_takes_any_argument_and_closes_after_the_test(inner):
    inner(
        """
        import pytest
        from laya_apple import LayaAppleError
        made = []
        def test_open(laya_factory):
            one, two = laya_factory(), laya_factory(dtype="float32", device="cpu")
            made.extend([one, two])
            ask = {"lost": {"type": "noul", "instructions": "Is a parcel lost?"}}
            assert [made.predict("text", ask).runtime.dtype for made in (one, two)] == ["float16", "float32"]
        def test_closed():
            assert len(made) == 2
            for one in made:
                with pytest.raises(LayaAppleError):
                    one.predict("text", {"lost": {"type": "noul", "instructions": "Is a parcel lost?"}})
        """,
        MODEL, "--laya-device=cpu",
    ).assert_outcomes(passed=2)  # fmt: skip


def test_every_option_stands_in_session_json_with_its_value(inner, pytester):
    from pytest_laya import options

    inner("def test_it(laya_conditions): pass", "--laya-out=out", "--laya-slow", "--laya-offline", MODEL)
    told = json.loads((pytester.path / "out" / "session.json").read_text())["options"]
    assert set(told) == {option.flag for option in options.OPTIONS} | {"laya_timeout"}
    assert (told["--laya-slow"], told["--laya-offline"], told["--laya-device"]) == (True, True, "auto")
    assert told["--laya-model"].endswith("window16")
