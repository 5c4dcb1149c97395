"""Keep unit tests pure: a case that starts a process, uses a socket or sleeps fails."""

import sys
import time
from collections.abc import Generator
from typing import Any

import pytest

#: Audit events that are refused, by what unit tests do not do.
REFUSED = {
    "start no process": ("os.exec", "os.fork", "os.forkpty", "os.posix_spawn", "os.system", "subprocess.Popen"),
    "use no socket": ("socket.bind", "socket.connect", "socket.getaddrinfo", "socket.sendto"),
    "never sleep": ("time.sleep",),
}
RULES = {event: rule for rule, events in REFUSED.items() for event in events}


class Guard:
    """Refuses events while a case of this folder runs, in any of its threads."""

    def __init__(self) -> None:
        self.is_on = False
        #: Events refused since the guard was switched on.
        self.refused: list[str] = []

    def check(self, event: str, arguments: tuple[object, ...]) -> None:
        """Raise an error if the guard is on and the event is one that it refuses."""
        if not self.is_on or (rule := RULES.get(event)) is None:
            return
        self.refused.append(f"unit tests {rule}: move this case to tests/integration ({event}{arguments!r:.200})")
        raise AssertionError(self.refused[-1])


GUARD = Guard()
sys.addaudithook(GUARD.check)  # an audit hook cannot be removed

if sys.version_info < (3, 13):  # where time.sleep raises no audit event
    python_sleep = time.sleep

    def sleep(seconds: float) -> None:
        """Raise the event that newer versions of Python raise, then sleep."""
        sys.audit("time.sleep", seconds)
        python_sleep(seconds)

    time.sleep = sleep


def watch() -> Generator[None, Any, Any]:
    """Switch the guard on for a step of a case. Fails a step that swallowed the guard's error."""
    GUARD.refused.clear()
    GUARD.is_on = True
    try:
        result = yield
    finally:
        GUARD.is_on = False
    if GUARD.refused:
        raise AssertionError(GUARD.refused[0])
    return result


# pytest calls the hooks of this file only for cases of this folder.
@pytest.hookimpl(wrapper=True)
def pytest_runtest_setup() -> Generator[None, Any, Any]:
    return (yield from watch())


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call() -> Generator[None, Any, Any]:
    return (yield from watch())


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown() -> Generator[None, Any, Any]:
    return (yield from watch())


@pytest.fixture
def refused() -> list[str]:
    """What the guard has refused in this step of a case. The step passes all the same if the case clears it."""
    return GUARD.refused
