"""Golden files: what upstream PyTorch on the CPU in float32 answered, with the provenance to trust it.

One JSON file a checkpoint, checked against ``data/goldens.schema.json``. Dicts that JSON cannot carry (their
keys, question ids or labels, are numbers or booleans) are written as ``{"$pairs": [[key, value], ...]}``.
"""

from __future__ import annotations

import json
import math
import os
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from importlib import resources
from pathlib import Path
from typing import Any

from laya_apple.errors import LayaAppleError
from laya_apple.prompt.answers import Calibration, softmax

FORMAT = "laya-apple-goldens"
FORMAT_VERSION = 1
GENERATE_COMMAND = "python -m fixtures.goldens"
"""Run in the source tree with the ``reference`` extra; writes the goldens of every fixture checkpoint."""
PUBLISHED_STEP = 1.0001e-4
"""One unit of the 4th decimal, which is all that upstream publishes."""
_PAIRS = "$pairs"
_FLOAT = "$float"


@dataclass(frozen=True, slots=True)
class Provenance:
    """Where a golden file comes from."""

    checkpoint: str
    """Registered name, or the name of the checkpoint's directory."""
    weights_sha256: str
    packages: Mapping[str, str]
    """Versions of what computed the goldens: laya, torch, transformers, tokenizers."""
    command: str
    """What makes the file again."""
    created_utc: str


@dataclass(frozen=True, slots=True)
class GoldenRow:
    """One question as upstream's network saw it and answered it."""

    id: str | int
    ids: tuple[int, ...]
    markers: tuple[int, ...]
    qtype: int
    options: tuple[float, ...]
    """Option logits in slot order."""
    action: tuple[float, ...]
    """Action logits."""
    probabilities: tuple[float, ...]
    """Calibrated, in the caller's order, unrounded."""
    act_probability: float


@dataclass(frozen=True, slots=True)
class GoldenCase:
    """One request. ``answers`` is upstream's, as it returned it."""

    name: str
    context: Any
    questions: Any
    rows: tuple[GoldenRow, ...]
    answers: Mapping[Any, Any]
    truncated: bool
    input_tokens: int


@dataclass(frozen=True, slots=True)
class Goldens:
    """A golden file."""

    provenance: Provenance
    cases: tuple[GoldenCase, ...]


def case_from_reference(
    name: str, context: Any, questions: Mapping[Any, Any], reply: Mapping[str, Any]
) -> GoldenCase:
    """A case from what upstream's network took in and gave out, and from what upstream answered.

    ``reply`` is ``Reference.predict``'s. Upstream publishes rounded probabilities only, so the unrounded ones
    are computed here from its logits and its temperatures, in double precision.
    Raises LayaAppleError when rounding them does not give what upstream published.
    """
    calibration = Calibration(tuple(reply["temperature"]), reply["temperature_by_options"])
    rows = []
    for (key, definition), row in zip(questions.items(), reply["rows"], strict=True):
        count = len(row["options"])
        slots = softmax(row["options"], calibration.temperature(definition["type"], count))
        probabilities = [0.0] * count
        for slot, option in enumerate(definition.get("option_order", range(count))):
            probabilities[option] = slots[slot]
        act_probability = softmax(row["action"])[0]
        answer = reply["answers"][key]
        published = [answer["noul"]] if "noul" in answer else list(answer["probabilities"].values())
        computed = probabilities[1:] if "noul" in answer else probabilities
        pairs = [
            *zip(published, computed, strict=True),
            (answer["action"]["act_probability"], act_probability),
        ]
        if any(abs(one - other) > PUBLISHED_STEP for one, other in pairs):
            raise LayaAppleError(
                f"case {name!r}, question {key!r}: upstream published {answer}, not {computed}"
            )
        rows.append(
            GoldenRow(
                id=key,
                ids=tuple(row["ids"]),
                markers=tuple(row["markers"]),
                qtype=row["qtype"],
                options=tuple(row["options"]),
                action=tuple(row["action"]),
                probabilities=tuple(probabilities),
                act_probability=act_probability,
            )
        )
    return GoldenCase(
        name=name,
        context=context,
        questions=questions,
        rows=tuple(rows),
        answers=reply["answers"],
        truncated=reply["usage"]["truncated"],
        input_tokens=reply["usage"]["input_tokens"],
    )


def encode_value(value: Any) -> Any:
    """``value`` in strict JSON, without loss for dicts of any scalar keys. Raises TypeError for the rest."""
    if isinstance(value, float) and not math.isfinite(value):
        return {_FLOAT: repr(value)}
    if value is None or isinstance(value, str | int | float):
        return value
    if isinstance(value, list):
        return [encode_value(item) for item in value]
    if isinstance(value, dict):
        if all(isinstance(key, str) and not key.startswith("$") for key in value):
            return {key: encode_value(item) for key, item in value.items()}
        return {_PAIRS: [[encode_value(key), encode_value(item)] for key, item in value.items()]}
    raise TypeError(f"a golden file cannot hold a {type(value).__name__}")


def decode_value(value: Any) -> Any:
    """The inverse of ``encode_value``."""
    if isinstance(value, list):
        return [decode_value(item) for item in value]
    if isinstance(value, dict):
        if _PAIRS in value:
            return {decode_value(key): decode_value(item) for key, item in value[_PAIRS]}
        if _FLOAT in value:
            return float(value[_FLOAT])
        return {key: decode_value(item) for key, item in value.items()}
    return value


def load_goldens(path: Path, *, weights_sha256: str | None = None) -> Goldens:
    """Read and check a golden file; with ``weights_sha256`` it must be of those very weights.

    Raises LayaAppleError, naming the command that makes the file, when it is missing, malformed, of another
    format version or of other weights.
    """
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:  # reraise: without goldens nothing passes
        raise LayaAppleError(f"no goldens at {path}; {_mend()}") from error
    except (OSError, ValueError) as error:  # reraise: without goldens nothing passes
        raise LayaAppleError(f"cannot read the goldens at {path}: {error}; {_mend()}") from error
    _check_schema(document, path)
    goldens = _from_document(document)
    if weights_sha256 is not None:
        check_weights(goldens, weights_sha256)
    return goldens


def check_weights(goldens: Goldens, weights_sha256: str) -> None:
    """Raise LayaAppleError unless the goldens were made from exactly these weights."""
    made_from = goldens.provenance.weights_sha256
    if made_from != weights_sha256:
        raise LayaAppleError(
            f"the goldens of {goldens.provenance.checkpoint} were made from weights {made_from[:12]}, "
            f"but the checkpoint's weights are {weights_sha256[:12]}; {_mend()}"
        )


def write_goldens(path: Path, goldens: Goldens) -> None:
    """Write a golden file whole or not at all, one case a line.

    Raises LayaAppleError if it would break the schema.
    """
    cases = [_case_document(case) for case in goldens.cases]
    document = {
        "format": FORMAT,
        "format_version": FORMAT_VERSION,
        "provenance": asdict(goldens.provenance),
        "cases": cases,
    }
    _check_schema(document, path)
    lines = ",\n".join(_dumps(case) for case in cases)
    head = _dumps({key: document[key] for key in ("format", "format_version", "provenance")})
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor, staged = tempfile.mkstemp(dir=path.parent, prefix=path.name, suffix=".tmp")
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.write(f'{head[:-1]}, "cases": [\n{lines}\n]}}\n')
        os.chmod(staged, 0o644)
        os.replace(staged, path)
    except BaseException:  # reraise: the half-written file goes first
        Path(staged).unlink(missing_ok=True)
        raise


def _dumps(value: Any) -> str:
    return json.dumps(value, allow_nan=False, ensure_ascii=False)


def _check_schema(document: Any, path: Path) -> None:
    import jsonschema

    schema = json.loads(
        resources.files("laya_apple").joinpath("data/goldens.schema.json").read_text(encoding="utf-8")
    )
    error = jsonschema.exceptions.best_match(jsonschema.Draft202012Validator(schema).iter_errors(document))
    if error is not None:
        where = error.json_path
        raise LayaAppleError(
            f"the goldens at {path} are malformed: {where}: {error.message[:200]}; {_mend()}"
        )


def _case_document(case: GoldenCase) -> dict[str, Any]:
    return {
        "name": case.name,
        "context": encode_value(case.context),
        "questions": encode_value(case.questions),
        "truncated": case.truncated,
        "input_tokens": case.input_tokens,
        "rows": [
            {key: list(value) if isinstance(value, tuple) else value for key, value in asdict(row).items()}
            for row in case.rows
        ],
        "answers": encode_value(dict(case.answers)),
    }


def _from_document(document: Mapping[str, Any]) -> Goldens:
    provenance = document["provenance"]
    return Goldens(
        Provenance(**{name: provenance[name] for name in Provenance.__slots__}),
        tuple(
            GoldenCase(
                name=case["name"],
                context=decode_value(case["context"]),
                questions=decode_value(case["questions"]),
                rows=tuple(_row(row) for row in case["rows"]),
                answers=decode_value(case["answers"]),
                truncated=case["truncated"],
                input_tokens=case["input_tokens"],
            )
            for case in document["cases"]
        ),
    )


def _row(row: Mapping[str, Any]) -> GoldenRow:
    return GoldenRow(
        id=row["id"],
        ids=tuple(row["ids"]),
        markers=tuple(row["markers"]),
        qtype=row["qtype"],
        options=_floats(row["options"]),
        action=_floats(row["action"]),
        probabilities=_floats(row["probabilities"]),
        act_probability=float(row["act_probability"]),
    )


def _floats(values: Sequence[float]) -> tuple[float, ...]:
    return tuple(float(value) for value in values)


def _mend() -> str:
    return f"make it with `{GENERATE_COMMAND}` (needs the reference extra)"
