"""Turns of a tenant's requests: a burst waits for itself, and for nobody else."""

import asyncio

import pytest

from rdukit_platform.api.turns import TURNS, Turns
from rdukit_platform.gateway.permissions import has_own_threads
from rdukit_platform.gateway.routes import PERMISSIONS
from support import shows

pytestmark = shows("jobs", "security")


async def test_a_burst_waits_for_its_own_turns_and_others_do_not() -> None:
    turns, took = Turns(), list[int]()

    async def ask(number: int) -> None:
        turn = await turns.take("mallory")
        took.append(number)
        await go_on.wait()
        turn.end()

    go_on = asyncio.Event()
    burst = [asyncio.create_task(ask(number)) for number in range(3 * TURNS)]
    await asyncio.sleep(0)
    (await turns.take("alice")).end()
    assert len(took) == TURNS
    go_on.set()
    await asyncio.gather(*burst)
    assert took == list(range(3 * TURNS)) and turns._limiters == {}


async def test_a_turn_that_ends_twice_or_is_never_taken_leaves_nothing() -> None:
    turns = Turns()
    held = [await turns.take("mallory") for _ in range(TURNS)]
    waiting = asyncio.create_task(turns.take("mallory"))
    await asyncio.sleep(0)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    for turn in held:
        turn.end()
        turn.end()
    assert turns._limiters == {}


def test_every_route_without_turns_is_one() -> None:
    assert [route for route in PERMISSIONS if has_own_threads(route)]
    assert not has_own_threads("GET /v1/jobs")
