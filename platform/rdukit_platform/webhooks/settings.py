"""Settings of webhooks: attempts and storage of messages, permitted targets, and automatic disabling."""

from typing import Final

from rdukit.settings import Setting

WEBHOOK_TIMEOUT_S: Final = Setting("webhook.timeout_s", 10.0, "Seconds a webhook's receiver has to answer.", float)
WEBHOOK_RETRY_S: Final = Setting(
    "webhook.retry_s", 86400.0, "Seconds that a message to a webhook is tried again before it is given up.", float
)
WEBHOOK_KEEP_DAYS: Final = Setting(
    "webhook.keep_days", 7.0, "Days that delivered and given up messages to webhooks are kept.", float
)
WEBHOOK_MAX_FAILURES: Final = Setting(
    "webhook.max_failures", 20,
    "Tries that fail one after another, over webhook.failing_hours, by which a webhook is disabled; 0: never.", int,
)  # fmt: skip
WEBHOOK_FAILING_HOURS: Final = Setting(
    "webhook.failing_hours", 24.0, "Hours that a webhook has to fail before it is disabled.", float
)
WEBHOOK_NETWORKS: Final = Setting(
    "webhook.allowed_networks", "none",
    "Networks that tenants' webhooks may go to although they are not public, such as 10.0.0.0/8.", str,
)  # fmt: skip
