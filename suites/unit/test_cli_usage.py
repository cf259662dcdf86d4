"""A usage problem is one line on standard error that says where to look, and exit code 2."""

from __future__ import annotations

import pytest

from laya_apple.cli import main


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        ([], "laya-apple: the following arguments are required: COMMAND; see laya-apple --help\n"),
        (["predict", "--bogus"], "laya-apple: unrecognized arguments: --bogus; see laya-apple --help\n"),
        (
            ["switchyard", "--duration", "abc"],
            "laya-apple switchyard: argument --duration: invalid float value: 'abc'; "
            "see laya-apple switchyard --help\n",
        ),
    ],
)
def test_one_line(arguments: list[str], line: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    assert ended.value.code == 2
    assert capsys.readouterr() == ("", line)
