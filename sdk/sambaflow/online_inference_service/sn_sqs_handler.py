"""Queue: requests of an online inference service, within one process.

Source: ours. Only the name is public. The vendor's class is in front of a cloud queue; this one keeps messages in
memory, with the same two steps: receive, then delete a processed message.
"""

import threading
import time
import uuid
from collections import OrderedDict
from dataclasses import dataclass
from typing import Any

from rdukit.errors import NotFound


@dataclass(frozen=True, slots=True)
class Message:
    """A received message that is not deleted yet."""

    id: str
    body: Any


class Queue:
    """First in, first out; a received message that is not deleted within ``visibility_timeout_s`` is delivered
    again.
    """

    def __init__(self, name: str = "queue", visibility_timeout_s: float = 30.0) -> None:
        self.name = name
        self._timeout_s = visibility_timeout_s
        self._changed = threading.Condition()
        #: Message id → (body, time from which it may be delivered), in order of sending.
        self._messages: OrderedDict[str, tuple[Any, float]] = OrderedDict()

    def __len__(self) -> int:
        with self._changed:
            return len(self._messages)

    def send_message(self, body: Any) -> str:
        """Append a message; returns its id."""
        with self._changed:
            message = uuid.uuid4().hex
            self._messages[message] = (body, 0.0)
            self._changed.notify()
            return message

    def receive_messages(self, max_messages: int = 1, wait_s: float = 0.0) -> list[Message]:
        """Return up to ``max_messages``, after a wait of up to ``wait_s`` for the first; the list may be empty."""
        deadline = time.monotonic() + wait_s
        with self._changed:
            while not (found := self._take(max_messages)) and (left := deadline - time.monotonic()) > 0:
                self._changed.wait(left)
            return found

    def delete_message(self, message_id: str) -> None:
        """Delete a processed message.

        Raises:
            NotFound: there is no such message.
        """
        with self._changed:
            if self._messages.pop(message_id, None) is None:
                raise NotFound(f"queue {self.name} has no message {message_id!r}; it may have been deleted already")

    def _take(self, most: int) -> list[Message]:
        now = time.monotonic()
        found: list[Message] = []
        for message, (body, visible) in self._messages.items():
            if len(found) == most:
                break
            if visible <= now:
                found.append(Message(message, body))
        for taken in found:
            self._messages[taken.id] = (taken.body, now + self._timeout_s)
        return found


__all__ = ["Message", "Queue"]
