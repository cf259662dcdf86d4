"""Three questions about one text, and where the answers were computed.

python examples/first_answer.py --device cpu --model laya-mini
"""

import argparse

from laya_apple import Laya

TEXT = "My parcel was due on Monday and nobody answers the phone. I want my money back."
QUESTIONS = {
    "team": {
        "type": "choice",
        "instructions": "Which team should handle this?",
        "criteria": {"billing": "refunds and invoices", "shipping": "late or lost parcels"},
    },
    "urgency": {
        "type": "score",
        "instructions": "How urgent is it?",
        "criteria": ["can wait", "this week", "today"],
    },
    "angry": {"type": "noul", "instructions": "The customer is angry."},
}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", default="laya-mini")
    parser.add_argument("--device", default="cpu")
    args = parser.parse_args()

    with Laya.from_pretrained(args.model, args.device) as laya:
        result = laya.predict(TEXT, QUESTIONS)

    print("team:   ", result.answers["team"]["choice"], result.answers["team"]["probabilities"])
    print("urgency:", result.answers["urgency"]["score"])
    print("angry:  ", result.answers["angry"]["noul"])
    # Never a guess: the device, the precision, the exact weights and why this device was chosen.
    runtime = result.runtime
    print(f"ran on {runtime.device} ({runtime.artifact_revision}), because {runtime.routing_reason}")


if __name__ == "__main__":
    main()
