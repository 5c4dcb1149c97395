"""Room for the bodies of one owner: who is over waits for its own others, and nobody else does."""

import asyncio

import pytest

from rdukit.errors import Overloaded
from rdukit_platform.api import bodies as module
from rdukit_platform.api.bodies import BODIES_AT_ONCE, Bodies
from rdukit_platform.settings import MAX_BODY_BYTES
from support import shows

pytestmark = shows("jobs", "security")

MOST = BODIES_AT_ONCE * MAX_BODY_BYTES.default


async def test_others_do_not_wait_for_an_owner_that_is_full() -> None:
    bodies = Bodies()
    async with bodies.room_for("mallory", MOST), bodies.room_for("alice", MOST):
        assert bodies._held == {"mallory": MOST, "alice": MOST}
    assert bodies._held == {} and bodies._waiting == {}


async def test_a_body_comes_as_soon_as_the_owners_others_leave_room() -> None:
    bodies, order = Bodies(), list[str]()

    async def second() -> None:
        async with bodies.room_for("mallory", 2):
            order.append("second")

    async with bodies.room_for("mallory", MOST) as room:
        waiting = asyncio.create_task(second())
        await asyncio.sleep(0)
        order.append("first")
        room.shrink(10)
        await waiting
        order.append("first left")
    assert order == ["first", "second", "first left"]
    assert bodies._held == {} and bodies._waiting == {}


async def test_who_waits_too_long_is_told_so_and_leaves_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "WAIT_S", 0.0)
    bodies = Bodies()
    async with bodies.room_for("mallory", MOST):
        with pytest.raises(Overloaded, match="send fewer at once"):
            async with bodies.room_for("mallory", 1):
                pass
    assert bodies._held == {} and bodies._waiting == {}


async def test_a_caller_that_goes_away_while_it_waits_leaves_nothing() -> None:
    bodies = Bodies()

    async def wait() -> None:
        async with bodies.room_for("mallory", 1):
            pass

    async with bodies.room_for("mallory", MOST):
        waiting = asyncio.create_task(wait())
        await asyncio.sleep(0)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
    assert bodies._held == {} and bodies._waiting == {}
