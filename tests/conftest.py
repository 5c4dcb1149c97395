"""What holds for all tests."""

import signal


def pytest_configure() -> None:
    """A shell that runs tests in the background ignores Ctrl-C for them; programs under test must not inherit that."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
