"""Every option of the plugin, in one table, and the settings they come to.

A value comes from the command line, else from the ini file, else from the table. Bad values are
``pytest.UsageError``: pytest prints one line and exits 4.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeVar

import pytest

Kind = Literal["text", "flag", "list"]
N = TypeVar("N", int, float)

SWITCHYARD_SUITE = "suites/switchyard"


@dataclass(frozen=True)
class Option:
    """One option: ``--laya-NAME`` on the command line and ``laya_NAME`` in the ini file."""

    name: str
    kind: Kind
    help: str
    default: str | bool = ""
    choices: tuple[str, ...] = ()
    metavar: str | None = None
    ini: bool = True

    @property
    def flag(self) -> str:
        return f"--laya-{self.name}"

    @property
    def ini_name(self) -> str:
        return f"laya_{self.name.replace('-', '_')}"


OPTIONS: tuple[Option, ...] = (
    Option(
        "device", "text", "device of the laya fixture and of every suite but Switchyard", "auto",
        ("auto", "gpu", "ane", "cpu"),
    ),
    Option(
        "model", "text",
        "registered name, repository or checkpoint folder (default: laya-typed-decisions on a Mac, else "
        "laya-mini)",
        metavar="ID",
    ),
    Option("dtype", "text", "precision of the MLX backend", "float16", ("float16", "float32")),
    Option("execution", "text", "where the laya fixture runs a forward", "inline", ("inline", "workers")),
    Option(
        "platform", "text",
        "the machine: real, virtual (a stand-in for an Apple-silicon Mac; all results are synthetic), or "
        "auto (real on an Apple-silicon Mac, else virtual)",
        "real", ("real", "virtual", "auto"),
    ),
    Option(
        "require", "list", "fail, instead of skipping, what cannot run for want of it (repeatable)",
        choices=("gpu", "ane", "hardware"),
    ),
    Option(
        "out", "text", "results folder (default: laya-results/<UTC>-<soc>/)", metavar="DIR", ini=False
    ),
    Option("offline", "flag", "nothing goes to the network", False),
    Option("slow", "flag", "run the tests marked laya_slow too", False),
    Option("allow-synthetic", "flag", "let gates and baselines judge synthetic results", False),
    Option(
        "update-goldens", "flag",
        "after a session that passed, have upstream make the goldens its gates used again", False,
    ),
    Option("update-new-goldens", "flag", "have upstream make goldens that are missing", False),
    Option(
        "gate", "list",
        "claim about a recorded metric, as 'hybrid.late.rate <= 0.01'; reported as a test (repeatable)",
        metavar="CLAIM",
    ),
    Option(
        "baseline", "text", "compare with an earlier Switchyard result; one reported test a metric",
        metavar="DIR",
    ),
)  # fmt: skip

TIMEOUT_INI = "laya_timeout"
DEFAULT_TIMEOUT_S = 600.0


@dataclass(frozen=True)
class Settings:
    """What the options come to. ``timeout_s`` is None where the ini file does not set it."""

    device: str
    model: str
    """Empty: the platform's default model."""
    dtype: str
    execution: str
    platform: str
    require: tuple[str, ...]
    out: str
    """Empty: the default results folder."""
    offline: bool
    slow: bool
    allow_synthetic: bool
    update_goldens: bool
    update_new_goldens: bool
    gate: tuple[str, ...]
    baseline: str
    timeout_s: float | None

    def named(self) -> dict[str, Any]:
        """Option name -> value, for session.json."""
        values: dict[str, Any] = {}
        for option in OPTIONS:
            value = getattr(self, option.name.replace("-", "_"))
            values[option.flag] = list(value) if isinstance(value, tuple) else value
        values[TIMEOUT_INI] = DEFAULT_TIMEOUT_S if self.timeout_s is None else self.timeout_s
        return values


def add_options(parser: pytest.Parser) -> None:
    """Register the table's options. Each defaults to None, which means "not given"."""
    group = parser.getgroup("laya", "laya: where on-device inference ran")
    for option in OPTIONS:
        if option.kind == "flag":
            group.addoption(option.flag, action="store_true", default=None, help=option.help)
        else:
            listed = f" [{'/'.join(option.choices)}]" if option.choices else ""
            group.addoption(
                option.flag,
                action="append" if option.kind == "list" else "store",
                default=None,
                metavar=option.metavar or option.name.upper(),
                help=option.help + listed,
            )
        if option.ini:
            kind: Any = {"text": "string", "flag": "bool", "list": "linelist"}[option.kind]
            parser.addini(option.ini_name, f"ini form of {option.flag}", type=kind, default=None)
    parser.addini(
        TIMEOUT_INI,
        "seconds that each phase of a test may take; unset: 600 for tests that use this plugin, none for "
        "others; 0: none",
        default=None,
    )


def read_settings(config: pytest.Config) -> Settings:
    """The settings of this session. Raises pytest.UsageError on a bad value."""
    values = {option.name.replace("-", "_"): _value(config, option) for option in OPTIONS}
    return Settings(**values, timeout_s=_timeout(config))


def platform_option(config: pytest.Config, namespace: Any) -> tuple[str, bool]:
    """The ``--laya-platform`` value this early in start-up, and whether it was given on the command line."""
    given = getattr(namespace, "laya_platform", None)
    option = next(option for option in OPTIONS if option.name == "platform")
    value = given if given is not None else config.getini(option.ini_name)
    return _checked(option, str(value or option.default)), given is not None


def _value(config: pytest.Config, option: Option) -> Any:
    value = config.getoption(option.ini_name)
    if value is None and option.ini:
        value = config.getini(option.ini_name)
    if option.kind == "list":
        return tuple(_checked(option, item) for item in value or ())
    if value is None or value == "":
        value = option.default
    return bool(value) if option.kind == "flag" else _checked(option, str(value))


def _checked(option: Option, value: str) -> str:
    if option.choices and value not in option.choices:
        raise pytest.UsageError(
            f"{option.flag} (ini {option.ini_name}) must be one of {', '.join(option.choices)}, not {value!r}"
        )
    return value


def _timeout(config: pytest.Config) -> float | None:
    text = config.getini(TIMEOUT_INI)
    if text is None or text == "":
        return None
    try:
        seconds = float(text)
    except ValueError:
        seconds = -1.0
    if not 0 <= seconds < float("inf"):
        raise pytest.UsageError(f"ini {TIMEOUT_INI} must be a number of seconds, 0 or more, not {text!r}")
    return seconds


@dataclass(frozen=True)
class SwitchyardOptions:
    """Switchyard's own options as given; the suite checks them before anything loads."""

    seed: int | None
    duration_s: float | None
    out: Path | None
    no_open: bool
    setup_ane: bool
    replay: Path | None

    @property
    def any_given(self) -> bool:
        """Whether any of them was given."""
        return self != SwitchyardOptions(None, None, None, False, False, None)


_SWITCHYARD: tuple[tuple[str, dict[str, Any]], ...] = (
    ("seed", {"metavar": "N", "help": "timetable seed (default 11)"}),
    ("duration", {"metavar": "S", "help": "timed window: whole 3 s burst cycles (default 60)"}),
    ("out", {"metavar": "DIR", "help": "folder of result.json, trace.jsonl and replay.html"}),
    ("no-open", {"action": "store_true", "help": "do not open the replay page"}),
    ("setup-ane", {"action": "store_true", "help": "build and calibrate the Neural Engine path first"}),
    ("replay", {"metavar": "DIR", "help": "rebuild DIR's replay page from its files; measure nothing"}),
)


def add_switchyard_options(parser: pytest.Parser) -> None:
    """Register ``--seed --duration --out --no-open --setup-ane --replay``; calling it again changes nothing.

    A name that another plugin owns is left to it; ``--laya-seed`` … ``--laya-replay`` serve always
    (``--laya-switchyard-out`` for ``--out``, since ``--laya-out`` is the session's folder).
    """
    taken = set(_option_names(parser))
    group = parser.getgroup("laya-switchyard", "laya: the Switchyard benchmark")
    for name, attributes in _SWITCHYARD:
        long_name = "--laya-switchyard-out" if name == "out" else f"--laya-{name}"
        if long_name in taken:
            continue
        names = [long_name] if f"--{name}" in taken else [f"--{name}", long_name]
        dest = "laya_switchyard_" + name.replace("-", "_")
        group.addoption(*names, dest=dest, default=None, **attributes)


def read_switchyard_options(config: pytest.Config) -> SwitchyardOptions:
    """What was given; all None and False where the suite's options are not registered.

    Raises pytest.UsageError on a value that is no number.
    """

    def given(name: str) -> Any:
        return config.getoption(f"laya_switchyard_{name}", None)

    return SwitchyardOptions(
        seed=_number("--seed", given("seed"), int),
        duration_s=_number("--duration", given("duration"), float),
        out=Path(given("out")) if given("out") else None,
        no_open=bool(given("no_open")),
        setup_ane=bool(given("setup_ane")),
        replay=Path(given("replay")) if given("replay") else None,
    )


def _number(flag: str, text: str | None, kind: type[N]) -> N | None:
    if text is None:
        return None
    try:
        return kind(text)
    except ValueError:
        what = "a whole number" if kind is int else "a number of seconds"
        raise pytest.UsageError(f"{flag} must be {what}, not {text!r}") from None


def names_switchyard(arguments: Iterable[str]) -> bool:
    """Whether a command-line argument names the Switchyard suite, by path or by package."""
    return any(
        SWITCHYARD_SUITE in argument.replace("\\", "/").replace(".", "/")
        for argument in arguments
        if not argument.startswith("-")
    )


def _option_names(parser: pytest.Parser) -> Iterable[str]:
    # pytest has no public way to ask which options exist, and before pytest 9 it reports a clash between
    # two plugins only when it parses, for the whole command line.
    groups = {id(group): group for group in (*parser._groups, parser._anonymous)}
    for group in groups.values():
        for option in group.options:
            yield from option.names()
