"""Attributes of torch that are others while a model is traced."""

import contextlib
from collections.abc import Iterator
from typing import Any


@contextlib.contextmanager
def replaced(*replacements: tuple[Any, str, Any]) -> Iterator[None]:
    """While it lasts, each (owner, attribute, value) has that value; afterwards what it had before."""
    former = [(owner, name, getattr(owner, name)) for owner, name, _ in replacements]
    try:
        for owner, name, value in replacements:
            setattr(owner, name, value)
        yield
    finally:
        for owner, name, value in former:
            setattr(owner, name, value)
