"""Settings of ModelBoxes."""

from typing import Final

from rdukit.settings import Setting

CANCEL_GRACE_S: Final = Setting(
    "box.cancel_grace_s", 5.0, "Seconds a cancelled operation has to end by itself before it is killed.", float
)
CHILD_START_S: Final = Setting(
    "box.child_start_s", 60.0, "Seconds a process for synchronous inference may take to start.", float
)
ROWS_TIMEOUT_S: Final = Setting(
    "box.rows_timeout_s", 30.0, "Seconds one synchronous inference may take before its process is killed.", float
)
ROWS_IDLE_S: Final = Setting(
    "box.rows_idle_s", 120.0, "Seconds after which an idle process for synchronous inference ends.", float
)
MAX_ROWS: Final = Setting("box.max_rows", 4096, "Most rows in one synchronous inference request.", int)

MODELBOX_SETTINGS: Final = (CANCEL_GRACE_S, CHILD_START_S, ROWS_TIMEOUT_S, ROWS_IDLE_S, MAX_ROWS)
