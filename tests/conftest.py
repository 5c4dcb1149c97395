"""What holds for all tests."""

import os
import signal

from hypothesis import settings


def pytest_configure() -> None:
    """What must hold before the first test.

    Isolation of this process could not be undone, and its domain would bind all later tests; programs that tests start
    with ``support.node.daemons.environment`` have it.

    Examples of properties have no deadline: how long one takes is the machine's matter.

    A shell that runs tests in the background ignores Ctrl-C for them; programs under test must not inherit that.
    """
    settings.register_profile("rdukit", deadline=None)
    settings.load_profile("rdukit")
    os.environ.setdefault("RDUKIT_ISOLATION_MODE", "off")
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
