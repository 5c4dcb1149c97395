"""Settings of ModelBoxes."""

from typing import Final

from rdukit.settings import Setting

CANCEL_GRACE_S: Final = Setting(
    "box.cancel_grace_s", 5.0, "Seconds after which a cancelled operation is killed.", float
)
VERB_NICE: Final = Setting(
    "box.verb_nice", 5,
    "Niceness that a verb's process adds to its box's, so that servers, endpoints and the platform run "
    "first.", int, tuple(range(20)),
)  # fmt: skip
MAX_ROWS: Final = Setting("box.max_rows", 4096, "Largest number of rows in one synchronous inference request.", int)
MAX_OPERATIONS: Final = Setting(
    "box.max_operations", 1000, "Largest number of waiting and running operations; further ones get 429.", int
)

STALL_S: Final = Setting(
    "box.stall_s", 1800.0,
    "Seconds without progress, log line or output after which an operation's process is killed; 0: never.", float,
)  # fmt: skip
CHILD_MEMORY_BYTES: Final = Setting(
    "box.child_memory_bytes", 0,
    "Resident memory above which an operation's process is killed; 0: the limit in the box's YAML.", int,
)  # fmt: skip

REGISTRY_CONFIG: Final = Setting(
    "box.registry_config", "~/.docker/config.json", "File with the credentials that `rdukit box push` uses.", str
)
