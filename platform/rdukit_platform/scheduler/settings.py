"""Settings of the scheduler."""

from typing import Final

from rdukit.settings import Setting
from rdukit_platform.setting_texts import not_negative

SCHEDULER_POLL_S: Final = Setting(
    "scheduler.poll_s", 0.5, "Longest pause in seconds between two passes over the queue.", float
)
SCHEDULER_REPUBLISH_S: Final = Setting(
    "scheduler.republish_s", 5.0, "Seconds after which a message that no worker claimed is sent again.", float
)
SCHEDULER_LEASE_S: Final = Setting(
    "scheduler.lease_s", 5.0,
    "Seconds of silence after which another scheduler on the same database takes over; equal for all of them.", float,
)  # fmt: skip
SCHEDULER_STARVE_S: Final = Setting(
    "scheduler.starve_s",
    60.0,
    "Seconds of waiting after which a job is overdue: it precedes smaller shares, and no later job delays it.",
    float,
)
SCHEDULER_PRIORITY_SCOPE: Final = Setting(
    "scheduler.priority_scope", "tenant",
    "Scope of priorities: among a tenant's own jobs (tenant), or among all jobs before shares (platform).",
    str, ("tenant", "platform"),
)  # fmt: skip
SCHEDULER_HALF_LIFE_S: Final = Setting(
    "scheduler.half_life_s", 3600.0,
    "Half-life in seconds of a tenant's past use in its share; 0: only current use counts.", float,
)  # fmt: skip
SCHEDULER_PREEMPT_PRIORITY: Final = Setting(
    "scheduler.preempt_priority", 10,
    "Smallest difference of priorities at which a job preempts a preemptible one; 0: never.",
    not_negative(int),
)  # fmt: skip
SCHEDULER_PREEMPT_MIN_RUN_S: Final = Setting(
    "scheduler.preempt_min_run_s", 60.0, "Seconds that an attempt runs before it may be preempted.", not_negative(float)
)
SCHEDULER_PREEMPT_MOST: Final = Setting(
    "scheduler.preempt_most", 5, "How often one job may be preempted; 0: never.", not_negative(int)
)
