"""``laya-apple predict`` and ``benchmark`` as a newcomer runs them, and the examples."""

from __future__ import annotations

import io
import json
import subprocess
import sys
from pathlib import Path

import pytest
from exec_case import checkpoint

from laya_apple.cli import main

__all__ = ["checkpoint"]

ROOT = Path(__file__).parents[2]
ASKED = ["--choice", "word1?", "word2", "word3", "--noul", "word4", "--score", "word5", "word6", "word7"]


@pytest.fixture(autouse=True)
def real_machine(monkeypatch):
    monkeypatch.delenv("LAYA_APPLE_PLATFORM", raising=False)


@pytest.fixture
def predict(checkpoint, capsys):
    def call(*arguments: str) -> tuple[int, str, str]:
        code = main(["predict", *arguments, "--device", "cpu", "--model", str(checkpoint)])
        out, err = capsys.readouterr()
        return code, out, err

    return call


def stdin(monkeypatch, data: bytes) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(data), encoding="utf-8"))


def test_answers_for_a_reader(predict):
    code, out, err = predict("word8 word9", *ASKED)
    lines = out.splitlines()
    assert (code, err, len(lines)) == (0, "", 4)
    assert lines[0].startswith(("q1: word2 (word2 0.", "q1: word3 (word2 0."))
    assert lines[1].startswith(("q2: yes (", "q2: no ("))
    assert lines[2].startswith("q3: ")
    assert lines[3].startswith("local:tiny by mlx on cpu, float16, cpu_requested: ")


def test_json_is_one_object_on_standard_output(predict, checkpoint):
    from laya_apple import Laya

    code, out, err = predict("word8 word9", *ASKED, "--json")
    assert (code, err) == (0, "")
    found = json.loads(out)
    questions = {
        "q1": {"type": "choice", "instructions": "word1?", "criteria": ["word2", "word3"]},
        "q2": {"type": "noul", "instructions": "word4"},
        "q3": {"type": "score", "instructions": "word5", "criteria": ["word6", "word7"]},
    }
    with Laya.from_pretrained(checkpoint, "cpu") as laya:
        assert found["answers"] == laya.predict("word8 word9", questions).answers
    assert found["runtime"]["device"] == "cpu"


def test_json_pipes_between_processes(checkpoint):
    command = [sys.executable, "-m", "laya_apple", "predict", "-", "--device", "cpu"]
    done = subprocess.run(
        [*command, "--model", str(checkpoint), "--noul", "word1", "--json"],
        input="word2 wörd".encode(),
        capture_output=True,
        check=True,
    )
    assert list(json.loads(done.stdout)["answers"]) == ["q1"]
    assert done.stderr == b""


def test_the_text_may_come_from_a_file_or_standard_input(predict, tmp_path, monkeypatch):
    _, expected, _ = predict("word8 wörd", "--noul", "word1", "--json")
    path = tmp_path / "text"
    path.write_text("word8 wörd", encoding="utf-8")
    stdin(monkeypatch, "word8 wörd".encode())
    for source in (["--file", str(path)], ["-"]):
        _, out, _ = predict(*source, "--noul", "word1", "--json")
        assert json.loads(out)["answers"] == json.loads(expected)["answers"]
    stdin(monkeypatch, "word8 wörd".encode())
    _, out, _ = predict("--noul", "word1", "--json")
    assert json.loads(out)["answers"] == json.loads(expected)["answers"]


def test_questions_may_come_from_a_file(predict, tmp_path, monkeypatch):
    definition = {"team": {"type": "choice", "instructions": "word1", "criteria": {"a": "word2", "b": None}}}
    path = tmp_path / "questions.json"
    path.write_text(json.dumps(definition), encoding="utf-8")
    _, from_file, _ = predict("word3", "--questions", str(path), "--json")
    stdin(monkeypatch, json.dumps(definition).encode())
    _, from_stdin, _ = predict("word3", "--questions", "-", "--json")
    _, given, _ = predict("word3", "--choice", "word1", "a=word2", "b", "--json")
    assert list(json.loads(from_file)["answers"]) == ["team"]
    assert json.loads(from_stdin)["answers"] == json.loads(from_file)["answers"]
    assert json.loads(given)["answers"]["q1"] == json.loads(from_file)["answers"]["team"]


def test_a_conversation_keeps_its_newest_turns(predict):
    turns = [{"role": "user", "text": f"word{i}"} for i in range(60)]
    code, out, _ = predict(json.dumps(turns), "--conversation", "--noul", "word1")
    assert code == 0
    assert ", text cut to fit" in out


def test_no_questions_is_said(predict, tmp_path):
    path = tmp_path / "none.json"
    path.write_text("{}", encoding="utf-8")
    assert predict("word1", "--questions", str(path)) == (0, "no questions, so nothing ran\n", "")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["word1"], "no question; ask one"),
        (["word1", "--choice", "word2"], "--choice 'word2' needs labels"),
        (["word1", "--score", "word2"], "--score 'word2' needs levels"),
        (["word1", "--choice", "word2", "a=1", "a=2"], "--choice 'word2' names a label twice"),
        (["word1", "--choice", "word2", "a", "a"], "'q1'"),
        (["word1", "--noul", " "], "'q1'"),
        (["word1", "--noul", "word2", "--questions", "x.json"], "not both"),
        (["word1", "--questions", "no-such-file.json"], "no-such-file.json cannot be read"),
        (["--file", "no-such-file", "--noul", "word2"], "no-such-file cannot be read"),
        (["word1", "--file", "x", "--noul", "word2"], "give the text or --file, not both"),
        (["-", "--questions", "-"], "standard input"),
        (["word1", "--conversation", "--noul", "word2"], "the conversation is not JSON"),
        (["{}", "--conversation", "--noul", "word2"], "--conversation needs a JSON list"),
        (["word1", "--noul", "word2", "--dtype", "int4"], "dtype must be one of float16, float32"),
    ],
)
def test_bad_input_is_one_line_and_exit_2(predict, monkeypatch, arguments, message):
    stdin(monkeypatch, b"{}")
    code, out, err = predict(*arguments)
    assert (code, out) == (2, "")
    assert len(err.splitlines()) == 1
    assert err.startswith("laya-apple: ")
    assert message in err


@pytest.mark.parametrize(
    ("option", "value", "message"),
    [("--device", "npu", "device must be one of"), ("--model", "gpt", "'gpt' is not a model")],
)
def test_an_unknown_device_or_model_is_one_line_and_exit_2(capsys, option, value, message):
    assert main(["predict", "word1", "--noul", "word2", option, value]) == 2
    out, err = capsys.readouterr()
    assert (out, len(err.splitlines())) == ("", 1)
    assert message in err


def test_standard_input_that_is_not_text_is_refused(predict, monkeypatch):
    stdin(monkeypatch, b"\xff\xfe")
    code, _, err = predict("-", "--noul", "word1")
    assert code == 2
    assert "standard input is not UTF-8" in err


def benchmark(capsys, checkpoint, *arguments: str) -> tuple[int, str, str]:
    code = main(
        [
            "benchmark",
            "--model",
            str(checkpoint),
            "--device",
            "cpu",
            "--requests",
            "3",
            "--warmup",
            "1",
            *arguments,
        ]
    )
    return (code, *capsys.readouterr())


def test_benchmark_measures_each_length(capsys, checkpoint):
    code, out, _ = benchmark(capsys, checkpoint, "--lengths", "60,200", "--json")
    assert code == 0
    report = json.loads(out)
    assert report["format"] == "laya-apple-benchmark"
    assert (report["loop"], report["device"], report["synthetic"]) == ("closed", "cpu", False)
    assert [row["length"] for row in report["lengths"]] == [60, 200]
    for row in report["lengths"]:
        assert row["latency"]["n"] == row["device"]["n"] == 3
        assert row["latency"]["p50_ms"] >= row["device"]["p50_ms"]
        assert row["ran_on"] == ["mlx:cpu:float16"]
        assert row["routing_reasons"] == ["cpu_requested"]
    assert len(report["conditions"]["loadavg"]["start"]) == 3
    code, out, _ = benchmark(capsys, checkpoint, "--lengths", "60")
    assert (code, out.splitlines()[2].split()[:2]) == (0, ["60", "3"])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--lengths", "9999"], "the model reads at most 256 tokens"),
        (["--questions", "9"], "questions must be 1 to 4"),
        (["--lengths", "60", "--execution", "threads"], "execution must be one of inline, workers"),
    ],
)
def test_benchmark_refuses_in_one_line(capsys, checkpoint, arguments, message):
    code, out, err = benchmark(capsys, checkpoint, *arguments)
    assert (code, out, len(err.splitlines())) == (2, "", 1)
    assert message in err


@pytest.mark.parametrize("value", ["0", "-5", "x", "64,,96"])
def test_benchmark_refuses_odd_numbers(capsys, value):
    with pytest.raises(SystemExit) as caught:
        main(["benchmark", "--lengths", value])
    assert caught.value.code == 2
    assert "invalid _lengths value" not in capsys.readouterr().err


@pytest.mark.parametrize(
    ("name", "lines", "last"),
    [("first_answer.py", 4, "because cpu_requested"), ("many_requests.py", 2, "12 traces; the longest wait")],
)
def test_the_examples_run(checkpoint, name, lines, last):
    done = subprocess.run(
        [sys.executable, ROOT / "examples" / name, "--model", str(checkpoint), "--device", "cpu"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stderr == ""
    found = done.stdout.splitlines()
    assert len(found) == lines
    assert last in found[-1]
