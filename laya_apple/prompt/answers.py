"""From option and action logits to calibrated, rounded answers. Plain Python: options are few."""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from laya_apple.errors import LayaAppleError, UnsupportedModelError
from laya_apple.prompt.questions import QTYPES, Question, QuestionId

if TYPE_CHECKING:
    from laya_apple.backends.base import RowOutput
    from laya_apple.config import AgentConfig

TEMPERATURE_MIN = 0.5
TEMPERATURE_MAX = 5.0
DECIMALS = 4
BUCKETS = ("2", "3-5", "6-10", "11+")


@dataclass(frozen=True, slots=True)
class Calibration:
    """Softmax temperatures, each in [0.5, 5.0]: by question type, and by type and option-count bucket."""

    by_type: tuple[float, float, float]
    by_options: Mapping[str, float]
    """``{type}:{bucket}`` -> temperature, bucket one of 2, 3-5, 6-10, 11+."""

    @classmethod
    def from_config(cls, config: AgentConfig) -> Calibration:
        """Read the checkpoint's temperatures; one RuntimeWarning names everything that was replaced.

        Raises UnsupportedModelError when ``temperature`` does not hold exactly 3 entries or
        ``temperature_by_options`` is no object.
        """
        given = config.temperature
        if not isinstance(given, list | tuple) or len(given) != len(QTYPES):
            raise UnsupportedModelError(
                f"rl_agent_config.json: temperature is {given!r}; it must hold exactly 3 numbers, "
                "one for each of choice, score and noul"
            )
        replaced: list[str] = []
        by_type = tuple(
            _temperature(f"temperature[{kind}]", value, replaced)
            for kind, value in zip(QTYPES, given, strict=True)
        )
        raw = {} if config.temperature_by_options is None else config.temperature_by_options
        if not isinstance(raw, dict):
            raise UnsupportedModelError(
                f"rl_agent_config.json: temperature_by_options is {raw!r}; it must map buckets such as "
                "'choice:3-5' to numbers"
            )
        by_options = {
            str(name): _temperature(f"temperature_by_options[{name}]", value, replaced)
            for name, value in raw.items()
        }
        if replaced:
            warnings.warn(
                "rl_agent_config.json holds temperatures outside "
                f"[{TEMPERATURE_MIN}, {TEMPERATURE_MAX}]; replaced: {', '.join(replaced)}",
                RuntimeWarning,
                stacklevel=2,
            )
        return cls((by_type[0], by_type[1], by_type[2]), by_options)

    def temperature(self, question_type: str, options: int) -> float:
        """The temperature for a question of ``options`` options."""
        found = self.by_options.get(f"{question_type}:{bucket(options)}")
        return self.by_type[QTYPES[question_type]] if found is None else found


def bucket(options: int) -> str:
    """The option-count bucket: 2, 3-5, 6-10 or 11+."""
    if options <= 2:
        return BUCKETS[0]
    if options <= 5:
        return BUCKETS[1]
    return BUCKETS[2] if options <= 10 else BUCKETS[3]


def probabilities(question: Question, output: RowOutput, calibration: Calibration) -> list[float]:
    """Calibrated probabilities in the caller's order, unrounded.

    Raises LayaAppleError when a logit is not finite or there are fewer logits than options.
    """
    count = len(question.option_texts)
    logits = output.options.tolist()[:count]
    if len(logits) != count or not all(map(math.isfinite, logits)):
        raise LayaAppleError(
            f"question {question.id!r}: the backend returned {_described(logits, count)}; no answer was made"
        )
    slots = softmax(logits, calibration.temperature(question.type, count))
    if question.option_order is None:
        return slots
    ordered = [0.0] * count
    for slot, option in enumerate(question.option_order):
        ordered[option] = slots[slot]
    return ordered


def act_probability(question: Question, output: RowOutput) -> float:
    """Probability of the first action, unrounded. Raises LayaAppleError when a logit is not finite."""
    logits = output.action.tolist()
    if not logits or not all(map(math.isfinite, logits)):
        raise LayaAppleError(
            f"question {question.id!r}: the backend returned a non-finite action logit; no answer was made"
        )
    return softmax(logits)[0]


def format_answers(
    questions: Sequence[Question], outputs: Sequence[RowOutput], calibration: Calibration
) -> dict[QuestionId, dict[str, Any]]:
    """Answers by question id, in the caller's order; numbers rounded to 4 decimals.

    ``outputs`` hold logits in slot order, one entry a question. Raises LayaAppleError when they are not
    finite or not as many as the questions.
    """
    if len(questions) != len(outputs):
        raise LayaAppleError(f"the backend returned {len(outputs)} rows for {len(questions)} questions")
    return {
        question.id: _answer(
            question, probabilities(question, output, calibration), act_probability(question, output)
        )
        for question, output in zip(questions, outputs, strict=True)
    }


def _answer(question: Question, p: list[float], act: float) -> dict[str, Any]:
    action = {"act_probability": round(act, DECIMALS)}
    best = max(p)
    if question.type == "noul":
        confidence = round(max(p[1], 1.0 - p[1]), DECIMALS)
        return {
            "type": "noul",
            "noul": round(p[1], DECIMALS),
            "confidence": confidence,
            "answer_confidence": confidence,
            "action": action,
        }
    rounded = [round(value, DECIMALS) for value in p]
    if question.type == "choice":
        return {
            "type": "choice",
            "choice": question.labels[p.index(best)],
            "probabilities": dict(zip(question.labels, rounded, strict=True)),
            "confidence": _confidence(p),
            "answer_confidence": round(best, DECIMALS),
            "action": action,
        }
    levels = [str(level) for level in range(len(p))]
    return {
        "type": "score",
        "score": round(sum(level * value for level, value in enumerate(p)), DECIMALS),
        "legend": dict(zip(levels, question.labels, strict=True)),
        "probabilities": dict(zip(levels, rounded, strict=True)),
        "confidence": _confidence(p),
        "answer_confidence": round(best, DECIMALS),
        "action": action,
    }


def _confidence(p: list[float]) -> float:
    """1 - normalised entropy; 1.0 for a single option."""
    if len(p) < 2:
        return 1.0
    entropy = -sum(value * math.log(value) for value in p if value > 0.0)
    return round(min(1.0, max(0.0, 1.0 - entropy / math.log(len(p)))), DECIMALS)


def softmax(logits: Sequence[float], temperature: float = 1.0) -> list[float]:
    """softmax(logits / temperature) of finite logits, in double precision."""
    top = max(logits)
    weights = [math.exp((value - top) / temperature) for value in logits]
    total = sum(weights)
    return [weight / total for weight in weights]


def _temperature(name: str, value: object, replaced: list[str]) -> float:
    number = 1.0
    if isinstance(value, int | float | str) and not isinstance(value, bool):
        try:
            number = float(value)
        except (ValueError, OverflowError):  # closed: not a number, so 1.0 below
            number = math.nan
        if math.isfinite(number):
            clamped = min(TEMPERATURE_MAX, max(TEMPERATURE_MIN, number))
            if clamped != number:
                replaced.append(f"{name}={value!r} by {clamped}")
            return clamped
    replaced.append(f"{name}={value!r} by 1.0")
    return 1.0


def _described(logits: list[float], count: int) -> str:
    if len(logits) != count:
        return f"{len(logits)} option logits for {count} options"
    return "a non-finite option logit"
