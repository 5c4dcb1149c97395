"""Settings of webhooks: attempts and storage of messages, permitted targets, and automatic disabling."""

from typing import Final

from rdukit.settings import Setting

WEBHOOK_TIMEOUT_S: Final = Setting(
    "webhook.timeout_s", 10.0, "Timeout in seconds for the answer of a webhook's receiver.", float
)
WEBHOOK_RETRY_S: Final = Setting(
    "webhook.retry_s", 86400.0, "Seconds for which a message to a webhook is retried before it fails.", float
)
WEBHOOK_KEEP_DAYS: Final = Setting(
    "webhook.keep_days", 7.0, "Days for which delivered and failed messages to webhooks are kept.", float
)
WEBHOOK_MAX_FAILURES: Final = Setting(
    "webhook.max_failures", 20,
    "Consecutive failed attempts, over webhook.failing_hours, after which a webhook is disabled; 0: never.", int,
)  # fmt: skip
WEBHOOK_FAILING_HOURS: Final = Setting(
    "webhook.failing_hours", 24.0, "Hours for which a webhook must fail before it is disabled.", float
)
WEBHOOK_NETWORKS: Final = Setting(
    "webhook.allowed_networks", "none",
    "Non-public networks to which tenants' webhooks may send, such as 10.0.0.0/8.", str,
)  # fmt: skip
