"""Weights of a checkpoint in the PEF's memory form, in a mapped file that is prepared once, next to the server.

Loading an expert is then mapping a file, and several servers of it share the pages.
"""

import os
import queue
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple

from rdukit.errors import RdukitError, RuntimeFault
from rdukit.files.atomic import atomic_target
from rdukit.pef import Pef
from rdukit.pef.memory import parameter_layout
from rdukit_runtime.engine.device import engine_device, return_freed_memory
from rdukit_runtime.engine.parameter_sets import ParameterSet, write_parameters
from rdukit_serving.device.adapters import place_adapters
from rdukit_serving.device.parameters import merged_parameters, text_parameters
from rdukit_serving.shape import shape_of


def prepare_weights(pef: Pef, checkpoint: Path, file: Path, adapters: Mapping[str, Path] | None = None) -> None:
    """Write a checkpoint's parameters for a PEF to ``file``, with its adapters, unless they are there.

    Raises:
        NotFound, InvalidArgument: there is no such checkpoint, it is damaged, or of another model; an adapter does not
            fit.
    """
    if file.is_file() and file.stat().st_size == parameter_layout(pef)[1]:
        return
    with merged_parameters(checkpoint, wanted=shape_of(pef, pef.name)) as (_, parameters):
        if adapters:
            parameters = {**parameters, **place_adapters(pef, parameters, adapters)}
        with atomic_target(file) as temporary:
            write_parameters(pef, text_parameters(pef, parameters), temporary)
    return_freed_memory()


class WeightsRead(NamedTuple):
    """Outcome of a request for weights: the weights in memory, or an error."""

    number: int
    parameters: ParameterSet | None
    error: RdukitError | None = None


class WeightsReader:
    """Thread that prepares, maps and touches weights while texts continue.

    ``fileno`` is readable when an outcome can be taken.
    """

    def __init__(self, pef: Pef) -> None:
        self._pef = pef
        self._asked: queue.SimpleQueue[tuple[int, Callable[[], ParameterSet]]] = queue.SimpleQueue()
        self._outcomes: queue.SimpleQueue[WeightsRead] = queue.SimpleQueue()
        self._event = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        threading.Thread(target=self._work, name="rdukit-weights", daemon=True).start()

    def fileno(self) -> int:
        """Return the descriptor to wait for."""
        return self._event

    def ask(self, number: int, checkpoint: Path, file: Path, adapters: Mapping[str, Path]) -> None:
        """Request the weights of a checkpoint with its adapters, prepared as ``file``."""

        def read() -> ParameterSet:
            prepare_weights(self._pef, checkpoint, file, adapters)
            parameters = ParameterSet(self._pef, file, engine_device())
            parameters.touch()
            return parameters

        self._asked.put((number, read))

    def take(self) -> list[WeightsRead]:
        """Return the outcomes since the last call."""
        try:
            count = os.eventfd_read(self._event)
        except BlockingIOError:
            return []
        return [self._outcomes.get() for _ in range(count)]

    def _work(self) -> None:
        while True:
            number, read = self._asked.get()
            try:
                outcome = WeightsRead(number, read())
            except RdukitError as error:
                outcome = WeightsRead(number, None, error)
            except Exception as error:  # noqa: BLE001 the thread's boundary: a damaged file harms its expert only
                outcome = WeightsRead(number, None, RuntimeFault(f"the weights cannot be read: {error}"))
            self._outcomes.put(outcome)
            os.eventfd_write(self._event, 1)
