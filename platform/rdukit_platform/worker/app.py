"""The Celery app, and nothing that it would have to remember: the database does.

Source: serving reference 7 and 10. Late acknowledgement, so that a killed worker's message is not lost; a visibility
timeout beyond any attempt, because it is no means of recovery here (the reconciler is); kombu's search for lost
messages every 2 s instead of every 100 s; no results, no countdowns.
"""

from typing import Final

from celery import Celery

from rdukit_platform.jobs.execution import Ticket

TASK: Final = "rdukit.run_attempt"
QUEUE: Final = "rdukit.attempts"
VISIBILITY_TIMEOUT_S: Final = 7 * 24 * 3600


def make_app(broker_url: str) -> Celery:
    """A Celery app on this broker; the worker registers its task with it."""
    app = Celery("rdukit", broker=broker_url)
    app.conf.update(
        task_default_queue=QUEUE,
        task_acks_late=True,
        task_reject_on_worker_lost=True,
        task_ignore_result=True,
        task_track_started=False,
        task_serializer="json",
        accept_content=["json"],
        worker_prefetch_multiplier=1,
        worker_hijack_root_logger=False,
        worker_enable_remote_control=False,
        worker_cancel_long_running_tasks_on_connection_loss=False,
        broker_connection_retry_on_startup=True,
        broker_connection_max_retries=None,
        broker_transport_options={
            "visibility_timeout": VISIBILITY_TIMEOUT_S,
            "unacked_restore_interval": 2,
            "unacked_restore_throttle": 1,
            "health_check_interval": 10,
            "socket_connect_timeout": 2,
        },
    )
    return app


def publish(app: Celery, ticket: Ticket) -> None:
    """Send the message of an attempt. Sending it twice does no harm.

    Raises:
        kombu.exceptions.OperationalError: the broker is away; the reconciler sends it again.
    """
    app.send_task(TASK, args=[ticket.job_id, ticket.attempt_id, ticket.token], queue=QUEUE, retry=False)
