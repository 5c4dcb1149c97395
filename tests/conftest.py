"""What holds for all tests."""

import os
import signal
import ssl
from functools import cache
from typing import Any

import pytest
from httpx._config import DEFAULT_TIMEOUT_CONFIG
from httpx._transports import default as transports
from hypothesis import settings

from support.tiers import mark_further_modes, mark_other_days

pytest_plugins = ["support.recording"]


def pytest_configure() -> None:
    """What must hold before the first test.

    Isolation of this process could not be undone, and its domain would bind all later tests; programs that tests start
    with ``support.node.daemons.environment`` have it.

    A compile has one process that builds native kernels: the cores are other tests' too, and a second one would import
    torch's compiler and read its headers once more.

    Examples of properties have no deadline: how long one takes is the machine's matter.

    A shell that runs tests in the background ignores Ctrl-C for them; programs under test must not inherit that.
    """
    settings.register_profile("rdukit", deadline=None)
    settings.load_profile("rdukit")
    os.environ.setdefault("RDUKIT_ISOLATION_MODE", "off")
    os.environ.setdefault("RDUKIT_COMPILE_WORKERS", "1")
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    share_default_contexts()
    make_requests_patient()


@pytest.hookimpl(tryfirst=True)  # before cases are selected by their marks
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """See ``support.tiers``."""
    mark_further_modes(items)
    mark_other_days(items)


def share_default_contexts() -> None:
    """Let httpx make the context that trusts the machine's authorities once, not for each request.

    To read them takes longer than the request that a test is about. Contexts that tests choose stay theirs.
    """
    make = transports.create_ssl_context

    @cache
    def make_default(trust_env: bool, authorities: str | None) -> ssl.SSLContext:
        return make(trust_env=trust_env)

    def create_ssl_context(verify: Any = True, cert: Any = None, trust_env: bool = True) -> ssl.SSLContext:
        if verify is True and cert is None:
            return make_default(trust_env, os.environ.get("SSL_CERT_FILE"))
        return make(verify, cert, trust_env)

    transports.create_ssl_context = create_ssl_context


def make_requests_patient() -> None:
    """Let a request that names no time wait a minute for its answer: httpx's five seconds pass on a busy machine."""
    for part in ("connect", "read", "write", "pool"):
        setattr(DEFAULT_TIMEOUT_CONFIG, part, 60.0)
