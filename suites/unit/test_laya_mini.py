"""laya-mini, the checkpoint in the wheel: what it must know, through our own runtime in half precision."""

from __future__ import annotations

import json
import struct
from random import Random

import pytest

from fixtures.laya_mini import measure, pin, tickets
from fixtures.laya_mini.measure import Mini, share_right
from laya_apple import Laya
from laya_apple.checkpoint import CHECKPOINT_FILES, open_checkpoint
from laya_apple.demos.switchyard import world
from laya_apple.registry import resolve

SPEC = resolve("laya-mini")
LONGEST_TRAIN = 64
MARGIN = 0.3
FLOOR = 0.95
"""Share of ticket questions answered rightly. fixtures/laya_mini/README.md says what is reached."""
LONG_FLOOR = 0.7


@pytest.fixture(scope="module")
def mini() -> Mini:
    return Mini()


class TestFiles:
    def test_the_registry_pins_the_files(self) -> None:
        assert {
            "LAYA_MINI_REVISION": SPEC.revision,
            "LAYA_MINI_WEIGHTS_SHA256": SPEC.weights_sha256,
        } == pin.constants()

    def test_the_directory_holds_a_checkpoint_and_nothing_else(self) -> None:
        assert SPEC.path is not None
        files = [path for path in SPEC.path.rglob("*") if path.is_file()]
        assert {path.relative_to(SPEC.path).as_posix() for path in files} == set(CHECKPOINT_FILES)
        assert {path.stat().st_mode & 0o777 for path in files} == {0o644}
        assert sum(path.stat().st_size for path in files) < 1_000_000

    def test_the_weights_are_half_precision_and_marked_as_pytorch(self) -> None:
        assert SPEC.path is not None
        with (SPEC.path / "model.safetensors").open("rb") as file:
            header = json.loads(file.read(struct.unpack("<Q", file.read(8))[0]))
        assert header.pop("__metadata__") == {"format": "pt"}
        assert {tensor["dtype"] for tensor in header.values()} == {"F16"}

    def test_shape(self, mini: Mini) -> None:
        encoder = open_checkpoint("laya-mini").encoder
        assert (encoder.layers, encoder.hidden_size, encoder.heads, encoder.intermediate_size) == (
            2,
            64,
            2,
            128,
        )
        assert (mini.config.head_layers, mini.config.max_len, encoder.decision_heads) == (1, 1024, 1)
        tokenizer = mini.tokenizer
        assert (tokenizer.pad_id, tokenizer.cls_id, tokenizer.sep_id, tokenizer.mask_id) == (0, 2, 3, 4)


class TestTrains:
    def test_every_prompt_fits_the_smallest_compiled_length(self, mini: Mini) -> None:
        scheduled = [arrival.train for arrival in world.schedule() if arrival.train is not None]
        assert len(scheduled) == 1422
        examples = [measure.train_example(train) for train in scheduled]
        examples += measure.oracle(0, 20) + measure.oracle(1, 50)
        lengths = {mini.prepare(example).sequence_length for example in examples}
        assert max(lengths) == LONGEST_TRAIN
        assert SPEC.ane_buckets[0] >= LONGEST_TRAIN

    @pytest.mark.parametrize(("seed", "variants"), [(0, 20), (1, 50), (20260, 20), (987654321, 20)])
    def test_oracle_gate(self, mini: Mini, seed: int, variants: int) -> None:
        margins = mini.margins(measure.oracle(seed, variants))
        assert len(margins) == 12 * variants
        assert min(margins) > MARGIN

    def test_reordered_sentences_and_criteria(self, mini: Mini) -> None:
        margins = mini.margins(measure.reordered())
        assert len(margins) == 12 * 36
        assert min(margins) > 0

    def test_two_platforms(self, mini: Mini) -> None:
        margins = mini.margins(measure.two_platforms())
        assert len(margins) == 24 * 2 * 2 * 2
        assert min(margins) > 0

    def test_other_wordings_and_other_sentences_between(self, mini: Mini) -> None:
        assert share_right(mini.margins(measure.other_wordings())) > 0.97

    def test_probabilities_are_not_saturated(self, mini: Mini) -> None:
        answers = mini.answers(measure.oracle(0, 2))
        assert max(answer["answer_confidence"] for answer in answers) < 0.99


class TestTickets:
    @pytest.mark.parametrize("kind", tickets.FACTS)
    def test_answers_of_every_kind(self, mini: Mini, kind: str) -> None:
        """Chance is a half for yes or no, and less for the others."""
        assert share_right(mini.margins(measure.ticket_questions(kind))) > FLOOR

    def test_long_texts(self, mini: Mini) -> None:
        """Positions far beyond a train's prompt are used rightly, up to the longest row."""
        examples = measure.long_tickets()
        assert min(mini.prepare(example).sequence_length for example in examples) > 900
        assert share_right(mini.margins(examples)) > LONG_FLOOR

    def test_the_action_head_tells_stated_from_unstated(self, mini: Mini) -> None:
        """It was trained to act where the ticket says what is asked, and not to where it does not."""
        rng = Random(31)
        act = {}
        for stated in (True, False):
            facts = [fact for fact in tickets.FACTS if stated or fact != "urgency"]
            examples = [tickets.ask(rng, tickets.ticket(rng, facts, 2), "urgency") for _ in range(100)]
            acts = [answer["action"]["act_probability"] for answer in mini.answers(examples)]
            act[stated] = sum(acts) / len(acts)
        assert act[True] > act[False] + 0.3


def test_the_public_api_gives_the_same_answers(mini: Mini) -> None:
    train = world.oracle_cases(seed=0, variants=1)[5]
    request = world.prompt(train)
    with Laya.from_pretrained("laya-mini", device="cpu") as laya:
        result = laya.predict(request.context, request.questions)
    answer = result.answers[world.QUESTION_ID]
    assert answer["choice"] == train.oracle
    assert result.runtime.model_revision == SPEC.revision
    assert result.usage["input_tokens"] <= LONGEST_TRAIN
    batched = mini.answers([measure.train_example(train)])[0]
    assert answer["probabilities"] == pytest.approx(batched["probabilities"], abs=2e-3)
    assert answer["action"] == pytest.approx(batched["action"], abs=2e-3)
