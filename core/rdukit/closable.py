"""What holds connections or files until it is closed."""

from abc import ABC, abstractmethod
from types import TracebackType
from typing import Self


class Closable(ABC):
    """A base of classes with ``close``: as the context of a ``with`` block they are closed at its end."""

    __slots__ = ()

    @abstractmethod
    def close(self) -> None:
        """Let go of everything; a second call does nothing."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
