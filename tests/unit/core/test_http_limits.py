"""What an HTTP connection may do: heads, names, silence, and who has to go."""

import pytest

from rdukit.http.connections import MAX_HELD_BYTES, ConnectionRegistry
from rdukit.http.limits import (
    LINGER_BYTES,
    LINGER_S,
    MIN_BODY_BYTES_S,
    ConnectionWatch,
    HostRule,
    HttpLimits,
    check_head,
)
from support import shows

pytestmark = shows("security", "settings")

LIMITS = HttpLimits(1000, "box.max_header_bytes", silence_s=60, idle_s=5)


def code(version: str = "1.1", *headers: tuple[bytes, bytes], hosts: HostRule | None = None) -> str:
    error = check_head(LIMITS, 10, version, headers, hosts)
    return "" if error is None else f"{error.code}:{error.detail.get('field')}"


def test_a_head_is_refused_for_its_host_its_version_and_its_length() -> None:
    host = (b"host", b"box")
    assert code("1.1", host) == "" and code("1.0") == "" and code("1.0", host) == ""
    assert code("1.1") == "malformed-request:host"
    assert code("1.1", host, host) == "malformed-request:host"
    assert code("1.0", host, (b"transfer-encoding", b"chunked")) == "malformed-request:transfer-encoding"
    assert code("1.1", host, (b"transfer-encoding", b"chunked")) == ""
    assert code("1.1", host, (b"x", b"y" * 1000)) == "headers-too-large:headers"


@pytest.mark.parametrize(
    ("bound", "host", "is_legal"),
    [
        ("127.0.0.1", b"127.0.0.1:9000", True), ("127.0.0.1", b"localhost", True), ("127.0.0.1", b"[::1]:9000", True),
        ("127.0.0.1", b"LOCALHOST:9000", True), ("127.0.0.1", b"localhost.", True), ("127.0.0.1", b"box.example", True),
        ("127.0.0.1", b"evil.example", False), ("127.0.0.1", b"localhost.evil.example", False),
        ("127.0.0.1", b"10.0.0.1", False), ("10.0.0.1", b"10.0.0.1:9000", True), ("10.0.0.1", b"10.0.0.2", False),
        ("0.0.0.0", b"10.0.0.1:9000", True), ("0.0.0.0", b"evil.example:9000", False), ("::", b"[fd00::1]", True),
        ("127.0.0.1", b"", False), ("127.0.0.1", b"[", False), ("127.0.0.1", b"\xff", False),
        ("127.0.0.1", b"evil@localhost", True), ("127.0.0.1", b"localhost@evil.example", False),
        ("127.0.0.1", b"127.0.0.1.evil.example", False), ("127.0.0.1", b"2130706433", False),
    ],
)  # fmt: skip
def test_a_box_answers_to_loopback_names_its_address_and_what_is_set(bound: str, host: bytes, is_legal: bool) -> None:
    rule = HostRule(bound, ["box.example", " "])
    for _ in range(2):  # the second time it is known
        assert rule.allows(host) is is_legal
    assert (code("1.1", (b"host", host), hosts=rule) == "") is is_legal
    assert HostRule(bound, ["*"]).allows(host)


def test_pages_of_other_places_may_not_call() -> None:
    rule, host = HostRule("127.0.0.1"), (b"host", b"127.0.0.1:9000")
    for legal in (b"http://127.0.0.1:9000", b"http://localhost:3000", b"https://localhost"):
        assert code("1.1", host, (b"origin", legal), hosts=rule) == ""
    for foreign in (b"http://evil.example", b"null", b"", b"file://localhost", b"localhost"):
        assert code("1.1", host, (b"origin", foreign), hosts=rule) == "permission-denied:origin"


def test_silence_ends_a_connection_and_a_body_gets_time_by_its_bytes() -> None:
    watch = ConnectionWatch(LIMITS, 0)
    assert watch.idle_since == 0 and watch.seconds_left(4) == 1
    watch.count(10)
    assert watch.seconds_left(4) == 5 and watch.seconds_left(59) == 1 and watch.seconds_left(61) < 0
    watch.begin_body(50)
    assert watch.idle_since is None
    watch.take_body(10 * MIN_BODY_BYTES_S, 100)
    assert watch.seconds_left(119) == 1, "ten of the fifty seconds are made up for"
    watch.take_body(1 << 30, 110)
    assert watch.seconds_left(169) == 1, "no more than that, however much has come"
    watch.end_request(160, is_answered=False)
    assert watch.seconds_left(10_000) > 0, "it is being worked on"
    watch.end_answer(10_000)
    assert watch.seconds_left(10_004) == 1
    watch.unread_since = 10_000
    assert watch.seconds_left(10_061) < 0


@pytest.mark.parametrize(("bytes_s", "is_ended"), [(0.25, True), (0.9, True), (1.0, False), (8.0, False)])
def test_a_body_that_trickles_is_ended_and_an_honest_slow_one_is_not(bytes_s: float, is_ended: bool) -> None:
    """``bytes_s``: in parts of ``MIN_BODY_BYTES_S``."""
    watch, every_s = ConnectionWatch(LIMITS, 0), 4.0
    watch.begin_body(0)
    for part in range(1, 1000):
        if watch.seconds_left(part * every_s) <= 0:
            break
        watch.take_body(int(bytes_s * MIN_BODY_BYTES_S * every_s), part * every_s)
    assert (part < 999) is is_ended


def test_a_body_is_not_behind_while_the_server_takes_no_more_of_it() -> None:
    watch = ConnectionWatch(LIMITS, 0)
    watch.begin_body(0)
    watch.excuse(59)
    assert watch.seconds_left(118) == 1
    watch.end_answer(60)
    watch.excuse(64)
    assert watch.seconds_left(64) == 1, "the rest of an answered request has its own time"


def test_what_is_no_body_has_an_end_and_a_body_in_small_chunks_has_none() -> None:
    watch = ConnectionWatch(LIMITS, 0)
    watch.begin_body(0)
    for _ in range(10_000):
        watch.count(6)
        watch.take_body(1, 0)
        assert watch.refusal() is None
    watch.count(900)
    assert watch.refusal() is None
    watch.count(200)
    error = watch.refusal()
    assert error is not None and "trailers" in error.message


def test_the_rest_of_an_answered_request_is_taken_for_a_while() -> None:
    watch = ConnectionWatch(LIMITS, 0)
    watch.begin_body(0)
    watch.end_answer(1)
    watch.take_body(5000, 100)
    assert watch.is_lingering and watch.seconds_left(1 + LINGER_S) == 0
    watch.count(LINGER_BYTES)
    assert not watch.is_over and watch.refusal() is None
    watch.count(1)
    assert watch.is_over


class Connection:
    def __init__(self, idle_since: float | None) -> None:
        self.idle_since = idle_since

    def give_up(self) -> None:
        raise AssertionError("deciding ends nothing")


def test_beyond_the_most_of_an_address_its_own_longest_idle_one_goes() -> None:
    registry = ConnectionRegistry(100, 2)
    other, busy, idle, newest = Connection(0), Connection(None), Connection(1), Connection(2)
    assert [registry.enter(each, of) for each, of in ((other, "b"), (busy, "a"), (idle, "a"))] == [None] * 3
    assert registry.enter(newest, "a") is idle
    registry.leave(idle)
    registry.leave(idle)
    one, two = Connection(None), Connection(3)
    assert registry.enter(one, "a") is newest
    registry.leave(newest)
    assert registry.enter(two, "a") is two, "all others are in use"
    for each in (other, busy, one, two):
        registry.leave(each)
    assert len(registry) == 0


def test_proxies_and_unix_sockets_have_no_limit_of_one_address() -> None:
    registry = ConnectionRegistry(100, 1, ["10.0.0.1", "10.1.0.0/16", ""])
    for address in ("10.0.0.1", "10.1.2.3", None):
        assert [registry.enter(Connection(0), address) for _ in range(5)] == [None] * 5
    assert registry.enter(Connection(0), "10.0.0.2") is None and registry.enter(Connection(0), "10.0.0.2") is not None


def test_beyond_the_most_of_all_the_longest_idle_one_goes() -> None:
    registry = ConnectionRegistry(3, 3)
    all_of_them = [Connection(None), Connection(5), Connection(4)]
    for number, each in enumerate(all_of_them):
        assert registry.enter(each, str(number)) is None
    assert registry.enter(Connection(9), "x") is all_of_them[2]


def test_a_flood_takes_the_places_of_idle_ones_at_a_bounded_rate() -> None:
    registry = ConnectionRegistry(40, 20)
    for _ in range(20):
        assert not registry.is_full_for("a", 0) and registry.enter(Connection(0), "a") is None
    assert [registry.is_full_for("a", 100.0) for _ in range(22)] == [False] * 20 + [True] * 2
    assert not registry.is_full_for("a", 100.06), "a twentieth of a second later there is one more"
    assert registry.is_full_for("a", 100.06)
    for number in range(20):
        registry.enter(Connection(0), "b" if number < 18 else "c")
    assert not any(registry.is_full_for("c", 200.0) for _ in range(1000)), "who has few is always let in"
    assert not any(registry.is_full_for("b", 200.0) for _ in range(200))
    assert registry.is_full_for("b", 200.0)


def test_unfinished_heads_have_a_budget_together() -> None:
    registry = ConnectionRegistry(10_000, 10_000)
    first, second = Connection(0), Connection(0)
    assert registry.hold(first, MAX_HELD_BYTES // 2) == [] and registry.hold(second, MAX_HELD_BYTES // 2) == []
    assert registry.hold(third := Connection(0), 1) == [first]
    registry.release(first)
    assert registry.hold(third, 1000) == []
