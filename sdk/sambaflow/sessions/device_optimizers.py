"""The optimizers of a loaded PEF: their states on host and device, and a program's accesses between runs.

The device holds the states. Reading ``optimizer.state`` returns the device's states, and the next update uses the
program's changes. Hooks of ``step`` run when the device updates. Source: ours; the vendor copies by explicit calls
only.
"""

import weakref
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch

from rdukit.errors import InvalidArgument
from sambaflow.samba.optim.base import DeviceOptimizer
from sambaflow.samba.sambatensor import unwrap
from sambaflow.sessions.updates import Updates
from sambaflow.tracing.torch_private import mark_stepped, step_hooks

if TYPE_CHECKING:
    from rdukit_runtime.engine.program import LoadedProgram

#: State tensors that a program may have changed: the tensor with its version, by parameter and key.
Shown = dict[tuple[int, str], tuple[Any, int]]


class DeviceOptimizers:
    """Optimizers that were passed to the trace of a loaded PEF, in order."""

    def __init__(
        self, optimizers: Sequence[DeviceOptimizer], program: "LoadedProgram", updates: Updates,
        knows: Callable[[str], bool],
    ) -> None:  # fmt: skip
        self.all = tuple(optimizers)
        self._program = program
        self._updates = updates
        self._knows = knows
        #: ``id`` of an optimizer → number of updates in its states on the host.
        self._copied = {id(optimizer): 0 for optimizer in self.all}
        #: ``id`` of an optimizer → its states that the program has read since the last update.
        self._shown: dict[int, Shown] = {}
        #: The last optimizer of these parameters that the program has created since the trace.
        self._rival: weakref.ref[DeviceOptimizer] | None = None

    def has(self, optimizer: DeviceOptimizer) -> bool:
        """Return whether ``optimizer`` was passed to the trace: the device holds its states."""
        return any(known is optimizer for known in self.all)

    # -- states ------------------------------------------------------------------------------------------------------

    def show(self, optimizer: DeviceOptimizer) -> None:
        """Copy an optimizer's states to the host if the device has updated them, and follow their changes."""
        if self._copied[id(optimizer)] != self._updates.count:
            self.download(optimizer)
        if id(optimizer) not in self._shown:
            self._shown[id(optimizer)] = _versions(optimizer)

    def push(self) -> None:
        """Copy states that the program has changed to the device; removed states are reset."""
        for optimizer in self.all:
            if (shown := self._shown.get(id(optimizer))) is not None and _differ(shown, _versions(optimizer)):
                self.load(optimizer)

    def load(self, optimizer: DeviceOptimizer) -> None:
        """Copy the host's states to the device; states that the host lacks are reset."""
        for parameter, key, symbol in optimizer.named_states(self.first_index(optimizer)):
            if self._knows(symbol) and optimizer.host_states.get(parameter, {}).get(key) is None:
                self._program.write(symbol, torch.zeros(self._program.symbol(symbol).shape))
        self.upload(optimizer)

    def download(self, optimizer: DeviceOptimizer) -> None:
        """Copy the device's states to the host."""
        for parameter, key, symbol in optimizer.named_states(self.first_index(optimizer)):
            if self._knows(symbol):
                optimizer.host_states[parameter][key] = self._program.read(symbol)
        self._copied[id(optimizer)] = self._updates.count
        self._shown[id(optimizer)] = _versions(optimizer)

    def upload(self, optimizer: DeviceOptimizer) -> None:
        """Copy the states that the host holds to the device."""
        self._copied[id(optimizer)] = self._updates.count
        for parameter, key, symbol in optimizer.named_states(self.first_index(optimizer)):
            held = optimizer.host_states.get(parameter, {}).get(key)
            if held is not None and self._knows(symbol):
                self._program.write(symbol, torch.as_tensor(unwrap(held)))
        self._shown[id(optimizer)] = _versions(optimizer)

    def first_index(self, optimizer: DeviceOptimizer) -> int:
        """Return the index of an optimizer's first group among all groups.

        Raises:
            InvalidArgument: it was not passed to the trace.
        """
        first = 0
        for known in self.all:
            if known is optimizer:
                return first
            first += len(known.param_groups)
        raise InvalidArgument(
            "this optimizer was not passed to trace_graph; pass it there to keep its state on the device"
        )

    def host_tensors(self) -> list[Any]:
        """Return the state tensors that the host holds."""
        return [held for optimizer in self.all for kept in optimizer.host_states.values() for held in kept.values()]

    # -- updates -----------------------------------------------------------------------------------------------------

    def note_rival(self, optimizer: DeviceOptimizer, state: Any) -> None:
        """Record a new optimizer of parameters that the trace's optimizers update."""
        if self.all and not self.has(optimizer):
            parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
            if any(state.get(getattr(parameter, "sn_name", "")) is parameter for parameter in parameters):
                self._rival = weakref.ref(optimizer)

    def before_update(self, has_backward: bool) -> None:
        """Act as torch before ``step``: apply changed states, and run pre-hooks.

        Args:
            has_backward: whether the same run computes the gradients.
        Raises:
            InvalidArgument: a pre-hook would run before the gradients exist, or the program has created another
                optimizer, which the device lacks.
        """
        if self._rival is not None and (rival := self._rival()) is not None:
            raise InvalidArgument(
                f"an optimizer ({type(rival).__name__}) was created for traced parameters after trace_graph, but the "
                "device uses the one passed to trace_graph: pass the new one to compile and trace_graph, change "
                "param_groups of the old one, or delete the new one"
            )
        for optimizer in self.all:
            before, _ = step_hooks(optimizer)
            if before and has_backward:
                raise InvalidArgument(
                    f"a pre-hook of {type(optimizer).__name__}.step runs between backward and update; run "
                    "section_types=['fwd', 'bckwd'], then ['opt'] (or ['gradnorm', 'opt'])"
                )
            for hook in before:
                hook(optimizer, (), {})
        if self._shown:
            self.push()
            self._shown.clear()

    def after_update(self) -> None:
        """Act as torch after ``step``: notify schedulers, and run post-hooks."""
        for optimizer in self.all:
            mark_stepped(optimizer)
            for hook in step_hooks(optimizer)[1]:
                hook(optimizer, (), {})


def _versions(optimizer: DeviceOptimizer) -> Shown:
    return {
        (id(parameter), key): (held, held._version if isinstance(held, torch.Tensor) else 0)
        for parameter, states in optimizer.host_states.items()
        for key, held in states.items()
    }


def _differ(before: Shown, now: Shown) -> bool:
    return before.keys() != now.keys() or any(
        held is not now[place][0] or version != now[place][1] for place, (held, version) in before.items()
    )
