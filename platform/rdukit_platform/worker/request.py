"""How a worker acknowledges the message of an attempt: a failure to is a lost connection."""

from typing import Any

from celery.worker.request import Request
from kombu.message import Message


class AttemptRequest(Request):  # type: ignore[misc]
    """Lets the consumer reconnect if the broker cannot be told that an attempt has ended.

    Celery only logs such an error, and the message counts as being worked on for ever. A worker whose slots all ended
    while the broker was away then took no message again, and had no connection left whose end it could notice. The
    database knows what has ended, so a message that comes a second time is dropped.
    """

    def __init__(self, message: Message, **options: Any) -> None:
        super().__init__(message, **{**options, "connection_errors": ()})
