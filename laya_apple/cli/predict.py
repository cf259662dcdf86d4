"""``laya-apple predict``: ask a text typed questions from the command line."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from laya_apple.errors import InvalidRequestError

if TYPE_CHECKING:
    from laya_apple.result import Result

DEFAULT_MODEL = "laya-typed-decisions"
_EPILOG = """\
examples:
  laya-apple predict "My parcel never came" --choice "Which team?" billing shipping
  laya-apple predict --device cpu --model laya-mini "..." --noul "The customer is angry" --json
  cat mail.txt | laya-apple predict - --questions questions.json
"""


def add_parser(subparsers: Any) -> None:
    """Add the subcommand; loads nothing heavy."""
    parser = subparsers.add_parser(
        "predict",
        help="answer questions about a text",
        description="Answer typed questions about one text, and say where the answer was computed.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("text", nargs="?", help="the text; - reads standard input")
    parser.add_argument("--file", type=Path, metavar="PATH", help="read the text from a UTF-8 file")
    parser.add_argument(
        "--conversation", action="store_true", help="the text is a JSON list of turns; the newest are kept"
    )
    asked = parser.add_argument_group("questions, any number of each; ids are q1, q2, ... in this order")
    asked.add_argument(
        "--choice",
        action=_Ask,
        nargs="+",
        metavar=("QUESTION", "LABEL"),
        help="which of these labels; LABEL may be 'label=description'",
    )
    asked.add_argument(
        "--score",
        action=_Ask,
        nargs="+",
        metavar=("QUESTION", "LEVEL"),
        help="how much, from the first level up",
    )
    asked.add_argument("--noul", action=_Ask, nargs=1, metavar="STATEMENT", help="does this statement hold")
    asked.add_argument(
        "--questions",
        type=Path,
        metavar="FILE",
        help="a JSON object id -> definition; - reads standard input",
    )
    parser.add_argument("--model", default=DEFAULT_MODEL, help=f"default: {DEFAULT_MODEL}")
    parser.add_argument("--device", default="auto", help="auto, gpu, ane or cpu; default: auto")
    parser.add_argument("--dtype", default="float16", help="float16 or float32, of MLX; default: float16")
    parser.add_argument("--local-files-only", action="store_true", help="never go to the network")
    parser.add_argument("--json", action="store_true", help="print the whole result as one JSON object")
    parser.set_defaults(run=run, asked=[])


class _Ask(argparse.Action):
    """Keeps the questions in the order they were given, whatever their type."""

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: Any,
        option_string: str | None = None,
    ) -> None:
        namespace.asked = [*namespace.asked, (self.dest, values)]


def run(args: argparse.Namespace) -> int:
    """Answer; 0, or an error that the command prints as one line and exit code 2."""
    questions = _questions(args)
    context = _context(args)

    from laya_apple import Laya

    try:
        laya = Laya.from_pretrained(
            args.model, args.device, dtype=args.dtype, local_files_only=args.local_files_only
        )
    except ValueError as error:  # reraise: an option's value, said in one line
        raise InvalidRequestError(str(error)) from error
    with laya:
        result = laya.predict(context, questions)
    print(json.dumps(result.to_dict(), ensure_ascii=False) if args.json else render(result))
    return 0


def render(result: Result) -> str:
    """The answers for a reader, and a last line that says where they come from."""
    lines = [_line(str(name), answer) for name, answer in result.answers.items()]
    ran = result.runtime
    if ran.backend == "none":
        return "no questions, so nothing ran"
    cut = ", text cut to fit" if ran.truncated else ""
    where = f"{ran.backend} on {ran.device}, {ran.dtype}, {ran.routing_reason}"
    virtual = ", synthetic: a virtual machine" if ran.synthetic else ""
    lines.append(
        f"{ran.model} by {where}: {ran.latency_ms:.1f} ms, {ran.sequence_length} tokens{cut}{virtual}"
    )
    return "\n".join(lines)


def _line(name: str, answer: dict[str, Any]) -> str:
    if answer["type"] == "noul":
        verdict = "yes" if answer["noul"] >= 0.5 else "no"
        return f"{name}: {verdict} ({answer['noul']:.4f} that it holds)"
    shares = ", ".join(f"{label} {share:.4f}" for label, share in answer["probabilities"].items())
    found = answer["choice"] if answer["type"] == "choice" else f"{answer['score']:.4f}"
    return f"{name}: {found} ({shares})"


def _context(args: argparse.Namespace) -> object:
    given = [one for one in (args.text, args.file) if one is not None]
    if len(given) == 2:
        raise InvalidRequestError("give the text or --file, not both")
    from_stdin = args.text == "-" or (not given and str(args.questions) != "-" and not sys.stdin.isatty())
    if not given and not from_stdin:
        raise InvalidRequestError("no text; give it as an argument, with --file, or on standard input")
    if from_stdin and str(args.questions) == "-":
        raise InvalidRequestError("standard input can hold the text or the questions, not both")
    if from_stdin:
        text = _read_stdin()
    elif args.file is not None:
        text = _read(args.file)
    else:
        text = args.text
    if not args.conversation:
        return text
    turns = _json(text, "the conversation")
    if not isinstance(turns, list):
        raise InvalidRequestError("--conversation needs a JSON list of turns")
    return turns


def _questions(args: argparse.Namespace) -> object:
    if args.questions is not None:
        if args.asked:
            raise InvalidRequestError("give --questions or --choice, --score and --noul, not both")
        text = _read_stdin() if str(args.questions) == "-" else _read(args.questions)
        return _json(text, str(args.questions))
    if not args.asked:
        raise InvalidRequestError(
            'no question; ask one, as --choice "Which team?" billing shipping, or give --questions FILE'
        )
    return {f"q{number}": _definition(*asked) for number, asked in enumerate(args.asked, start=1)}


def _definition(kind: str, values: list[str]) -> dict[str, Any]:
    instructions, *rest = values
    if kind == "noul":
        return {"type": kind, "instructions": instructions}
    if not rest:
        raise InvalidRequestError(
            f"--{kind} {instructions!r} needs {'labels' if kind == 'choice' else 'levels'}"
        )
    if kind == "score":
        return {"type": kind, "instructions": instructions, "criteria": rest}
    if any("=" in label for label in rest):
        pairs = [label.partition("=") for label in rest]
        if len({label for label, _, _ in pairs}) != len(pairs):
            raise InvalidRequestError(f"--choice {instructions!r} names a label twice")
        return {
            "type": kind,
            "instructions": instructions,
            "criteria": {label: description or None for label, _, description in pairs},
        }
    return {"type": kind, "instructions": instructions, "criteria": rest}


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:  # reraise: in one line
        raise InvalidRequestError(f"{path} cannot be read: {error}") from error


def _read_stdin() -> str:
    try:
        return sys.stdin.buffer.read().decode("utf-8")
    except UnicodeDecodeError as error:  # reraise: in one line
        raise InvalidRequestError(f"standard input is not UTF-8: {error}") from error


def _json(text: str, name: str) -> object:
    try:
        found: object = json.loads(text)
    except (ValueError, RecursionError) as error:  # reraise: in one line
        raise InvalidRequestError(f"{name} is not JSON: {error}") from error
    return found
