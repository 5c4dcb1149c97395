"""How long a stream of a job's events waits until it looks again."""

from contextlib import ExitStack

from rdukit_platform.api.context import BRISK_STREAMS, POLL_S, Followers
from support import shows

pytestmark = shows("jobs")


def test_a_stream_looks_soon_after_a_change_and_then_less_often() -> None:
    pauses = [Followers().pause_s("one", looks) for looks in range(6)]
    assert pauses == [0.025, 0.05, 0.1, POLL_S, POLL_S, POLL_S]


def test_a_stream_of_days_looks_as_often_as_one_of_minutes() -> None:
    assert Followers().pause_s("one", 10_000_000) == POLL_S


def test_of_many_streams_of_a_tenant_each_looks_less_often_and_those_of_others_do_not() -> None:
    followers = Followers()
    with ExitStack() as streams:
        for _ in range(3 * BRISK_STREAMS):
            streams.enter_context(followers.following("one"))
        assert followers.pause_s("one", 5) == 3 * POLL_S
        assert followers.pause_s("another", 5) == POLL_S
    assert followers.pause_s("one", 5) == POLL_S
