"""Which device a request runs on, decided before it runs."""

from laya_apple.routing.decide import (
    DEVICES,
    MAX_ANE_OPTIONS,
    AneState,
    Decision,
    decide,
    fitting_bucket,
)
from laya_apple.routing.derivation import derive_auto_buckets
from laya_apple.routing.queueing import (
    EMPTY_QUEUE,
    ServiceTable,
    decide_queued,
    previous_bucket,
    published_table,
)

__all__ = [
    "DEVICES",
    "EMPTY_QUEUE",
    "MAX_ANE_OPTIONS",
    "AneState",
    "Decision",
    "ServiceTable",
    "decide",
    "decide_queued",
    "derive_auto_buckets",
    "fitting_bucket",
    "previous_bucket",
    "published_table",
]
