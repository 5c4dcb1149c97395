"""Collections that programs use. Source: SDK reference 14.5."""

from collections.abc import Hashable, Iterable, Iterator, MutableSet
from typing import TypeVar

T = TypeVar("T", bound=Hashable)


class OrderedSet(MutableSet[T]):
    """A set that iterates in the order of insertion; parameters count by identity."""

    def __init__(self, items: Iterable[T] = ()) -> None:
        self._items: dict[T, None] = dict.fromkeys(items)

    def __contains__(self, item: object) -> bool:
        return item in self._items

    def __iter__(self) -> Iterator[T]:
        return iter(self._items)

    def __len__(self) -> int:
        return len(self._items)

    def add(self, value: T) -> None:
        self._items[value] = None

    def discard(self, value: T) -> None:
        self._items.pop(value, None)

    def update(self, *others: Iterable[T]) -> None:
        """Add everything in ``others``, in order."""
        for other in others:
            self._items.update(dict.fromkeys(other))

    def __repr__(self) -> str:
        return f"OrderedSet({list(self._items)!r})"
