"""What one user may hold of a node, where the settings say so."""

from rdukit_node.leases.user_limits import MAX_WAITING_OF_ONE, UserLimits
from support import shows
from support.node.harness import DaemonHarness, acquire

pytestmark = shows("node", "security")

ADA, BOB = {"uid": 1000, "user": "ada"}, {"uid": 1001, "user": "bob"}


def test_a_user_has_no_more_tiles_than_the_limit_and_others_have_theirs() -> None:
    desk = DaemonHarness("SN10-8", user_limits=UserLimits(tiles=4))
    for number, who in ((1, ADA), (2, ADA), (3, BOB)):
        desk.connect(number, **who)
    acquire(desk, 1, 3)
    refused = desk.error(2, "acquire", application="more", tiles=2, memory_bytes=0, wait_s=60)
    assert refused["code"] == "no-resources"
    assert "user ada has 3 tiles and requests 2 more; the limit of one user is 4 (snd.user_tiles)" in refused["message"]
    acquire(desk, 2, 1)
    acquire(desk, 3, 4)
    desk.daemon.validate()


def test_what_waits_counts_as_held() -> None:
    desk = DaemonHarness("TEST-1", user_limits=UserLimits(tiles=4))
    for number, who in ((1, BOB), (2, ADA), (3, ADA)):
        desk.connect(number, **who)
    acquire(desk, 1, 4)
    assert desk.find_answer(2, "acquire", application="a", tiles=3, memory_bytes=0, wait_s=60) is None
    assert desk.code(3, "acquire", application="a", tiles=2, memory_bytes=0, wait_s=60) == "no-resources"


def test_a_launch_is_one_application_of_its_user() -> None:
    desk = DaemonHarness("SN10-8", user_limits=UserLimits(applications=1))
    for number in (1, 2, 3):
        desk.connect(number, **ADA)
    acquire(desk, 1, 1, launch="l1")
    acquire(desk, 2, 1, launch="l1")
    assert "snd.user_applications" in desk.error(3, "acquire", application="b", tiles=1, memory_bytes=0)["message"]


def test_administrators_have_no_limits() -> None:
    desk = DaemonHarness("SN10-8", user_limits=UserLimits(tiles=1, applications=1))
    for number in (1, 2):
        desk.connect(number, is_admin=True)
        acquire(desk, number, 2)


def test_one_user_does_not_fill_the_queue() -> None:
    desk = DaemonHarness("TEST-1")
    desk.connect(0, **BOB)
    acquire(desk, 0, 4)
    for number in range(1, MAX_WAITING_OF_ONE + 2):
        desk.connect(number, **ADA)
    ask = {"application": "a", "tiles": 1, "memory_bytes": 0, "wait_s": 60}
    for number in range(1, MAX_WAITING_OF_ONE + 1):
        assert desk.find_answer(number, "acquire", **ask) is None
    assert desk.code(MAX_WAITING_OF_ONE + 1, "acquire", **ask) == "no-resources"
    desk.connect(9999, **BOB)
    assert desk.find_answer(9999, "acquire", **ask) is None
