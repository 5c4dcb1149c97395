"""The tables of lease and tile states."""

import pytest

from rdukit.errors import InvalidTransition
from rdukit_node.states import (
    LEASE_TRANSITIONS,
    EndReason,
    LeaseEvent,
    LeaseState,
    LeaseStep,
    TileEvent,
    TileState,
    next_lease_state,
    next_tile_state,
)
from support import shows

pytestmark = shows("node")


def test_each_lease_event_is_possible_while_the_lease_is_active_and_none_afterwards() -> None:
    assert {event for state, event in LEASE_TRANSITIONS if state is LeaseState.ACTIVE} == set(LeaseEvent)
    assert {state for state, _ in LEASE_TRANSITIONS} == {LeaseState.ACTIVE}


def test_a_step_that_ends_a_lease_has_a_reason_whose_final_state_is_the_one_reached() -> None:
    reasons = {reason for _, reason in LEASE_TRANSITIONS.values() if reason is not None}
    assert reasons == set(EndReason)
    for state, reason in LEASE_TRANSITIONS.values():
        assert state is (LeaseState.ACTIVE if reason is None else reason.final_state)


def test_an_impossible_step_names_the_possible_ones_and_carries_the_history() -> None:
    history = [LeaseStep(1.0, "grant", LeaseState.ACTIVE), LeaseStep(2.0, "release", LeaseState.RELEASED)]
    with pytest.raises(InvalidTransition, match=r"lease-1 is released.*final") as caught:
        next_lease_state("lease-1", LeaseState.RELEASED, LeaseEvent.ATTACH, history)
    assert caught.value.detail["history"] == [
        {"at": 1.0, "event": "grant", "state": "active"},
        {"at": 2.0, "event": "release", "state": "released"},
    ]


def test_a_tile_is_granted_only_while_it_is_free() -> None:
    assert next_tile_state("/NODE/T", TileState.FREE, TileEvent.GRANT) is TileState.LEASED
    with pytest.raises(InvalidTransition, match="possible: \\['end'\\]"):
        next_tile_state("/NODE/T", TileState.LEASED, TileEvent.GRANT)
