"""Who may connect to a full node daemon, and which idle connection makes room."""

from dataclasses import replace

from rdukit_node.daemon.admission import Admission, ConnectionLimits, OpenConnection, admit
from rdukit_node.leases.allocator import LeaseId
from support import shows

pytestmark = shows("node", "security")

LIMITS = ConnectionLimits(total=10, reserved=3, per_user=4, per_lease=2)
ROOT, ADA, BOB, EVE = 0, 1000, 1001, 1002


def connection(number: int, uid: int, *, needed: bool = False, lease: str | None = None) -> OpenConnection:
    """A connection that is idle since ``number``."""
    return OpenConnection(number, uid, uid == ROOT, None if lease is None else LeaseId(lease), needed, float(number))


def test_whoever_comes_is_admitted_while_there_is_room() -> None:
    assert admit(connection(9, ADA), [connection(1, ADA), connection(2, BOB)], LIMITS) == Admission()


def test_a_user_above_the_limit_loses_the_connection_that_idles_longest() -> None:
    own = [connection(n, ADA) for n in (3, 1, 2, 4)]
    assert admit(connection(9, ADA), [connection(0, BOB), *own], LIMITS) == Admission((1,))


def test_a_connection_with_a_lease_is_never_closed() -> None:
    own = [connection(n, ADA, needed=n < 4) for n in (1, 2, 3, 4)]
    assert admit(connection(9, ADA), own, LIMITS).closes == (4,)
    refused = admit(connection(9, ADA), [replace(each, is_needed=True) for each in own], LIMITS)
    assert not refused.closes and "snd.user_connections" in refusal(refused)


def test_others_do_not_take_the_places_of_root() -> None:
    others = [connection(n, uid, needed=True) for n, uid in enumerate((ADA, ADA, ADA, BOB, BOB, BOB, BOB))]
    assert "already has 7 connections" in refusal(admit(connection(9, EVE), others, LIMITS))
    assert admit(connection(9, ROOT), others, LIMITS) == Admission()


def test_the_user_with_the_most_connections_makes_room_when_all_places_are_taken() -> None:
    others = [connection(n, uid) for n, uid in enumerate((EVE, BOB, BOB, ADA, ADA, ADA, ADA))]
    assert admit(connection(9, EVE), others, LIMITS).closes == (3,)


def test_root_takes_the_place_of_an_idle_user_before_one_of_its_own() -> None:
    roots = [connection(n, ROOT) for n in range(6)]
    assert admit(connection(99, ROOT), [*roots, *(connection(n, ADA) for n in range(6, 10))], LIMITS).closes == (6,)
    assert admit(connection(99, ROOT), [*roots, *(connection(n, ROOT) for n in range(6, 10))], LIMITS).closes == (0,)
    held = [connection(n, ROOT, needed=True) for n in range(10)]
    assert "already has 10 connections" in refusal(admit(connection(99, ROOT), held, LIMITS))


def test_a_stranger_does_not_take_the_places_at_a_leases_own_socket() -> None:
    idle = [connection(n, EVE, lease="L1") for n in (1, 2)]
    assert admit(connection(9, ADA, lease="L1"), idle, LIMITS).closes == (1,)
    assert admit(connection(9, ADA, lease="L2"), idle, LIMITS) == Admission()


def test_a_small_daemon_reserves_a_quarter_of_its_places() -> None:
    assert ConnectionLimits.of(40, 4, 2).reserved == 10


def refusal(admission: Admission) -> str:
    return admission.refusal
