"""How much device memory a worker asks for when a part of it is broken."""

import pytest

from rdukit.errors import NoResources
from rdukit_platform.worker.tiles import acquire_share
from support import shows

pytestmark = shows("jobs")


class Node:
    """Grants at most ``left`` bytes."""

    def __init__(self, left: int | None) -> None:
        self.left = left
        self.asked: list[int] = []

    def acquire(self, application: str, tiles: int, memory_bytes: int, wait_s: float = 0.0, **more: object) -> object:
        self.asked.append(memory_bytes)
        if self.left is None or memory_bytes > self.left:
            raise NoResources("no", fits_memory_bytes=self.left)
        return {"id": "l", "memory_bytes": memory_bytes}


def test_the_whole_share_is_asked_for_first() -> None:
    node = Node(100)
    assert acquire_share(node, "a", 1, 100)["memory_bytes"] == 100  # type: ignore[arg-type]


def test_what_is_left_of_a_share_is_taken() -> None:
    node = Node(80)
    assert acquire_share(node, "a", 1, 100)["memory_bytes"] == 80  # type: ignore[arg-type]
    assert node.asked == [100, 80]


@pytest.mark.parametrize("left", [49, None])
def test_less_than_half_of_a_share_or_no_tiles_at_all_is_refused(left: int | None) -> None:
    with pytest.raises(NoResources):
        acquire_share(Node(left), "a", 1, 100)  # type: ignore[arg-type]
