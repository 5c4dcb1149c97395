"""Arenas of the allocator: threads share the few that a process asks for."""

import pytest

from rdukit.system.allocator import find_glibc, limit_arenas
from support import shows

pytestmark = shows("project")


def test_arenas_are_limited_where_the_allocator_is_glibcs(monkeypatch: pytest.MonkeyPatch) -> None:
    assert limit_arenas(64) is (find_glibc() is not None)
    find_glibc.cache_clear()
    monkeypatch.setenv("LD_PRELOAD", "/usr/lib/libjemalloc.so")
    assert find_glibc() is None
    assert limit_arenas(64) is False
    find_glibc.cache_clear()
