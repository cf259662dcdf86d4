"""Evidence that the model answers trains as the oracle does, for every wording that was tried.

    python -m laya_apple.demos.switchyard.oracle --device gpu|ane|cpu [--model ID] [--out DIR]

The wording of workload switchyard-v1 is frozen (number 14); the others are kept as the record of the choice.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Protocol

from laya_apple import __version__, registry
from laya_apple.demos.switchyard import result, run, runtime, world
from laya_apple.demos.switchyard.conditions import now_utc
from laya_apple.demos.switchyard.redact import Redactor
from laya_apple.errors import LayaAppleError
from laya_apple.platform import Platform, current_platform
from laya_apple.result import Result
from laya_apple.workload import Request

OUT = Path("benchmarks/switchyard/oracle")
DEVICES = ("gpu", "ane", "cpu")
HELD_OUT_SEED, HELD_OUT_VARIANTS = 1, 50

_OCCUPIED = "Platform {platform} is occupied by train {other}."
_CLOSED = "Platform {platform} is closed for maintenance."
_CLEAR = "Platform {platform} is clear."
_QUESTION = "Which platform should train {train} be routed to?"
_WHICH_IS_CLEAR = "Which platform is clear for train {train}?"
_CLEAR_AND_OPEN = "Platform {platform} is clear and open."
_BLOCKED = "Platform {platform} is blocked by train {other}."


@dataclass(frozen=True)
class Wording:
    """One row of the seed's table: the original contract wording with the named sentences changed."""

    number: int
    change: str
    question: str = _QUESTION
    clear: str = _CLEAR
    occupied: str = _OCCUPIED
    closed: str = _CLOSED
    described_criteria: bool = False

    def request(self, train: world.Train) -> Request:
        """A train's request in this wording."""
        sentences = {world.CLEAR: self.clear, world.OCCUPIED: self.occupied, world.CLOSED: self.closed}
        lines = [world.HEADER.format(line=train.line, train=train.train_id)]
        for platform, state, other in zip(world.PLATFORMS, train.states, train.occupants, strict=True):
            lines.append(sentences[state].format(platform=platform, other=other))
        criteria: Any = list(world.PLATFORMS)
        if self.described_criteria:
            criteria = {platform: f"platform {platform}" for platform in world.PLATFORMS}
        question = {
            "type": "choice",
            "instructions": self.question.format(train=train.train_id),
            "criteria": criteria,
        }
        return Request(" ".join(lines), {world.QUESTION_ID: question})


WORDINGS = (
    Wording(1, "none (original contract wording)"),
    Wording(2, "question", question=_WHICH_IS_CLEAR),
    Wording(3, "question", question="Which platform is clear?"),
    Wording(4, "question", question=world.QUESTION),
    Wording(5, "question", question="Which platform is free for train {train} to enter?"),
    Wording(6, "clear", clear=_CLEAR_AND_OPEN),
    Wording(7, "clear", clear="Platform {platform} is clear and available for train arrivals."),
    Wording(8, "closed", closed="Platform {platform} is closed."),
    Wording(9, "occupied and closed", occupied=_BLOCKED, closed="Platform {platform} is closed."),
    Wording(10, "criteria with descriptions", described_criteria=True),
    Wording(11, "2 and 6", question=_WHICH_IS_CLEAR, clear=_CLEAR_AND_OPEN),
    Wording(12, "2, 6 and occupied", question=_WHICH_IS_CLEAR, clear=_CLEAR_AND_OPEN, occupied=_BLOCKED),
    Wording(
        13,
        "question and 6",
        question="Which platform is clear and open for train {train}?",
        clear=_CLEAR_AND_OPEN,
    ),
    Wording(14, "4 and 6 (frozen)", question=world.QUESTION, clear=world.SENTENCES[world.CLEAR]),
)
FROZEN = WORDINGS[-1]
DEVICE_WORDINGS = {"gpu": WORDINGS, "cpu": WORDINGS, "ane": (WORDINGS[0], FROZEN)}


class Predicts(Protocol):
    """The part of ``laya_apple.Laya`` used here."""

    def predict(self, context: Any, questions: Any) -> Result: ...


def check(laya: Predicts, wording: Wording, trains: Sequence[world.Train]) -> dict[str, Any]:
    """Every case and the summary of one set: accuracy, smallest margin of a correct answer, most tokens.

    A case's margin is the oracle's probability less the best other one: negative when the answer is wrong.
    """
    cases = []
    for train in trains:
        request = wording.request(train)
        answered = laya.predict(request.context, request.questions)
        answer = answered.answers[world.QUESTION_ID]
        probabilities = answer["probabilities"]
        others = [p for platform, p in probabilities.items() if platform != train.oracle]
        cases.append(
            {
                "pattern": train.pattern,
                "line": train.line,
                "train_id": train.train_id,
                "oracle": train.oracle,
                "answer": answer["choice"],
                "margin": round(probabilities[train.oracle] - max(others), 4),
                "tokens": answered.runtime.sequence_length,
            }
        )
    right = [case for case in cases if case["answer"] == case["oracle"]]
    return {
        "cases": len(cases),
        "correct": len(right),
        "min_margin": min((case["margin"] for case in right), default=None),
        "max_tokens": max((case["tokens"] for case in cases), default=None),
        "every_case": cases,
    }


def evidence(
    laya: Predicts,
    device: str,
    spec: registry.ModelSpec,
    platform: Platform,
    progress: Callable[[str], None] = lambda line: None,
) -> dict[str, Any]:
    """The evidence file of one device. The held-out set is run only for wordings that pass the gate."""
    gate_set = world.oracle_cases()
    held_out_set = world.oracle_cases(HELD_OUT_SEED, HELD_OUT_VARIANTS)
    rows = []
    for wording in DEVICE_WORDINGS[device]:
        gate = check(laya, wording, gate_set)
        passed = gate["correct"] == gate["cases"]
        held_out = check(laya, wording, held_out_set) if passed else None
        progress(_line(wording, gate, held_out))
        rows.append({**asdict(wording), "passed": passed, "gate": gate, "held_out": held_out})
    return {
        "format": "switchyard-oracle",
        "format_version": 1,
        "synthetic": platform.virtual,
        "created_utc": now_utc(),
        "laya_apple": __version__,
        "device": device,
        "model": {"name": spec.name, "revision": spec.revision, "weights_sha256": spec.weights_sha256},
        "platform": runtime.machine(platform, ())["platform"],
        "prompt_template_sha256": world.prompt_template_sha256(),
        "gate_set": {"seed": 0, "cases": len(gate_set)},
        "held_out_set": {"seed": HELD_OUT_SEED, "cases": len(held_out_set)},
        "wordings": rows,
    }


def _line(wording: Wording, gate: dict[str, Any], held_out: dict[str, Any] | None) -> str:
    text = f"wording {wording.number}: gate {gate['correct']}/{gate['cases']}, margin {gate['min_margin']}"
    if held_out is not None:
        text += f"; held out {held_out['correct']}/{held_out['cases']}, margin {held_out['min_margin']}"
    return text


def main(argv: Sequence[str] | None = None) -> int:
    """Write ``<out>/<device>.json``. Exit code 1 when the frozen wording fails the gate, 2 for usage."""
    parser = argparse.ArgumentParser(prog="python -m laya_apple.demos.switchyard.oracle")
    parser.add_argument("--device", choices=DEVICES, required=True)
    parser.add_argument("--model", help="default laya-typed-decisions, on the virtual Mac laya-mini")
    parser.add_argument("--out", type=Path, default=OUT, help="folder; default %(default)s")
    args = parser.parse_args(argv)
    from laya_apple import Laya

    try:
        platform = current_platform()
        model = args.model or run.model_for(platform)
        spec = registry.resolve(model)
        with Laya.from_pretrained(model, device=args.device) as laya:
            found = evidence(laya, args.device, spec, platform, progress=print)
    except LayaAppleError as error:  # reraise: as one line and an exit code
        print(f"oracle: {error}", file=sys.stderr)
        return 2
    args.out.mkdir(parents=True, exist_ok=True)
    text = json.dumps(Redactor().value(found), indent=1, allow_nan=False) + "\n"
    result.write_files(args.out, {f"{args.device}.json": text})
    print(f"wrote {args.out / (args.device + '.json')}")
    return 0 if found["wordings"][-1]["passed"] else 1


if __name__ == "__main__":
    sys.exit(main())
