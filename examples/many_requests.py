"""Many requests at once through a worker process, and where each one spent its time.

python examples/many_requests.py --device cpu --model laya-mini
"""

import argparse
import asyncio
import queue

from laya_apple import Laya, RequestTrace

QUESTION = {"spam": {"type": "noul", "instructions": "The message is an advertisement."}}
MESSAGES = [f"Message {number}: the meeting moves to room {number + 100}." for number in range(12)]


async def answer_all(laya: Laya) -> list[float]:
    """The event loop stays free: tokenising happens here, the network runs in the worker."""
    results = await asyncio.gather(*(laya.apredict(message, QUESTION) for message in MESSAGES))
    return [result.answers["spam"]["noul"] for result in results]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", default="laya-mini")
    parser.add_argument("--device", default="cpu")
    args = parser.parse_args()

    # The callback runs on the thread that answers requests, so it only puts the trace aside.
    traces: queue.SimpleQueue[RequestTrace] = queue.SimpleQueue()
    with Laya.from_pretrained(
        args.model, args.device, execution="workers", trace=traces.put, max_pending=100
    ) as laya:
        shares = asyncio.run(answer_all(laya))

    print(f"{len(shares)} answers, {sum(share >= 0.5 for share in shares)} advertisements")
    waited_ms = []
    while not traces.empty():
        waited_ms.append(traces.get().queue_ms)
    print(f"{len(waited_ms)} traces; the longest wait in the queue was {max(waited_ms):.1f} ms")


if __name__ == "__main__":
    main()
