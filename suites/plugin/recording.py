"""Inner tests that record metrics of a chosen sample, as the switchyard fixture does after a run."""

import platform
import sys

ON_MAC = sys.platform == "darwin" and platform.machine() == "arm64"
"""There, inner runs get a process of their own: a virtual Mac would replace this one's Core ML bridge."""

RECORD = """
    import pytest
    from pytest_laya import session
    from pytest_laya.gates import Metric

    def record(config, name, value, low, high, n=100, latency=False, synthetic=False, adverse=()):
        interval = None if low is None else (low, high)
        metric = Metric(name, value, interval, n, 0.95, "chosen here", latency=latency,
                        synthetic=synthetic, adverse=tuple(adverse))
        session.of(config).record("metrics", {"metrics": [metric.to_dict()]})
"""


def recording(*calls):
    """An inner test file with one test that records each metric of ``calls`` (arguments as source)."""
    body = "".join(f"\n        record(request.config, {call})" for call in calls)
    return f"{RECORD}\n    def test_measured(request, laya_conditions):{body or ' pass'}\n"
