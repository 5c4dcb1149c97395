"""Settings of synchronous inference."""

from typing import Final

from rdukit.settings import Setting

PEF: Final = Setting("box.pef", "", "PEF that a box serves from the beginning; also --pef.", str)
CHECKPOINT: Final = Setting("box.checkpoint", "", "Parameters to serve it with; also --checkpoint.", str)
LOAD_TIMEOUT_S: Final = Setting("box.load_timeout_s", 60.0, "Seconds that loading a model may take.", float)
INFER_TIMEOUT_S: Final = Setting(
    "box.infer_timeout_s", 30.0, "Seconds one batch may take before its process is killed and started again.", float
)
DRAIN_S: Final = Setting(
    "box.drain_s", 30.0, "Seconds that waiting requests have to finish when a model version is unloaded.", float
)
MAX_QUEUE: Final = Setting(
    "box.max_queue", 1024, "Most inference requests that wait; more are refused with 429. A box may say its own.", int
)
RESTART_BACKOFF_S: Final = Setting(
    "box.restart_backoff_s", 1.0, "First pause before a model that cannot be loaded again is tried once more.", float
)
READY_TIMEOUT_S: Final = Setting(
    "box.ready_timeout_s", 2.0, "Seconds that the small inference of a readiness probe may take.", float
)
MAX_INFER_BYTES: Final = Setting("box.max_infer_bytes", 64 << 20, "Largest body of an inference request.", int)
TEMPLATE_S: Final = Setting("box.template_s", 2.0, "Seconds that a model's chat template may take for one chat.", float)
TOKENS: Final = Setting(
    "box.tokens", "", "File with one token a line that callers must send; empty: no token is asked for.", str
)
ACCESS_LOG: Final = Setting(
    "box.access_log", "", "File that gets one JSON line per inference request; - is stdout, empty: none.", str
)

SERVING_SETTINGS: Final = (
    PEF, CHECKPOINT, LOAD_TIMEOUT_S, INFER_TIMEOUT_S, DRAIN_S, MAX_QUEUE, RESTART_BACKOFF_S, READY_TIMEOUT_S,
    MAX_INFER_BYTES, TEMPLATE_S, TOKENS, ACCESS_LOG,
)  # fmt: skip
