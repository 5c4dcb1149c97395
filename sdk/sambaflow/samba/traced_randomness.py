"""Random numbers while a model is traced: those of torch are drawn on the device in every run, others only now."""

import contextlib
import logging
import random
import sys
from collections.abc import Callable, Iterator
from typing import Any, Final

import torch

from rdukit.errors import UnsupportedOperator
from sambaflow.samba.replaced import replaced

logger = logging.getLogger(__name__)

#: Functions that seed torch's generator, in ``torch`` and in ``torch.random``.
_SEEDS: Final = ("manual_seed", "seed", "set_rng_state")


@contextlib.contextmanager
def device_randomness(model: str) -> Iterator[None]:
    """Refuse that forward of ``model`` seeds torch, and warn where it draws from a generator of the host.

    Raises:
        UnsupportedOperator: forward seeds: a run would not, and go on with other numbers than eager torch.
    """
    before = _host_states()
    with replaced(*((owner, name, _refusing(name)) for owner in (torch, torch.random) for name in _SEEDS)):
        yield
    after = _host_states()
    drawn = [word for word, state in after.items() if word not in before or not _are_equal(before[word], state)]
    if drawn:
        logger.warning(
            "[warning Samba]: forward of %s draws from %s: it did so once, while traced, and every run uses those "
            "numbers; draw with torch.rand, which the device does in every run, or pass the numbers in as an input",
            model, " and ".join(drawn),
        )  # fmt: skip


def _host_states() -> dict[str, Any]:
    states: dict[str, Any] = {"Python's random": random.getstate()}
    if (of_numpy := sys.modules.get("numpy.random")) is not None:  # numpy imports it when it is first used
        states["numpy.random"] = of_numpy.get_state()
    return states


def _are_equal(one: Any, other: Any) -> bool:
    """States of a generator; numpy's hold an array."""
    return len(one) == len(other) and all(bool((a == b) if not hasattr(a, "all") else (a == b).all())
                                          for a, b in zip(one, other, strict=True))  # fmt: skip


def _refusing(name: str) -> Callable[..., Any]:
    def refuse(*args: Any, **kwargs: Any) -> Any:
        raise UnsupportedOperator(
            f"forward calls torch.{name}: the device's generator goes on from run to run; call "
            "samba.utils.set_seed before session.run, or pass the random numbers in as an input"
        )

    return refuse
