"""The session's part for values: from the host to the device, back, and by name.

Source: SDK reference 6.3 and 19. Only explicit calls synchronise the two copies of a parameter.
"""

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from rdukit.errors import InvalidArgument
from sambaflow.samba.conversion import buffers_of, parameters_of
from sambaflow.samba.lazy_param import value_of
from sambaflow.samba.nn.parameter import SambaParameter, fill_parameter_
from sambaflow.samba.optim.base import DeviceOptimizer
from sambaflow.samba.sambatensor import SambaTensor, unwrap
from sambaflow.sessions.modes import Modes
from sambaflow.sessions.spatial import SpatialBatches

if TYPE_CHECKING:
    from rdukit_runtime.application import Application


logger = logging.getLogger(__name__)


class SessionTransfers:
    """What ``SambaSession`` moves between host and device."""

    _state: dict[str, torch.Tensor]
    _optimizers: tuple[DeviceOptimizer, ...]
    _application: "Application | None"
    _spatial: SpatialBatches | None
    _shown: Mapping[str, str]
    _modes: Modes | None

    if TYPE_CHECKING:  # SambaSession's own

        def _loaded(self) -> "Application": ...

    def adopt(self, model: nn.Module, tensors: Mapping[str, torch.Tensor]) -> None:
        """Take a model that was converted after tracing, with its tensors by symbol name. Ours, not the vendor's."""
        if self._modes is not None:
            self._modes.follow(model)
        if self._application is not None:
            self._state.update(
                {n: t for n, t in tensors.items() if n in self._state and self._state[n].shape == t.shape}
            )  # fmt: skip

    def to_device(self) -> None:
        """Host to device: all parameters, buffers and optimizer states."""
        program = self._loaded().program
        for name, tensor in self._state.items():
            if name in program.pef.symbols and tensor.device.type != "meta":
                program.write(name, _plain(tensor))
            elif name in program.pef.symbols and getattr(tensor, "materializer", None) is not None:
                program.write(name, value_of(tensor))  # a lazy parameter: the host's copy stays empty
        for optimizer, first in self._numbered_optimizers():
            self._upload_optimizer(optimizer, first)

    def _announce_memory(self) -> None:
        """One line, before the first run: what the plan says of the PEF, and what the program's own copies take."""
        if not logger.isEnabledFor(logging.INFO):
            return
        from rdukit.pef.inspect import memory_line

        states = [held for optimizer in self._optimizers for kept in optimizer.state.values() for held in kept.values()]
        held = [unwrap(tensor) for tensor in (*self._state.values(), *states)]
        host_bytes = sum(t.nbytes for t in held if isinstance(t, torch.Tensor) and t.device.type != "meta")
        logger.info("%s", memory_line(self._loaded().pef, host_bytes))

    def knows(self, name: str) -> bool:
        """Whether the loaded PEF has a tensor of this name."""
        return self._application is not None and name in self._application.pef.symbols

    def has_value(self, name: str) -> bool:
        """Whether the loaded PEF has a tensor of this name, and something has put a value there."""
        return self.knows(name) and self._loaded().program.has_value(self._shown.get(name, name))

    def read_tensor(self, name: str) -> torch.Tensor:
        """A copy of a device tensor."""
        return self._loaded().program.read(self._shown.get(name, name))

    def write_tensor(self, name: str, value: torch.Tensor) -> None:
        """Copy a host tensor to the device."""
        self._loaded().program.write(name, value)

    def read_gradient(self, name: str) -> torch.Tensor | None:
        """A tensor's gradient of the last backward; None where none flows into an input, parameter or buffer."""
        gradient = self._loaded().program.gradient(name)
        if gradient is not None and self._spatial is not None and name in self._spatial.axes:
            raise InvalidArgument(
                f"the gradient of input {name!r} is not kept with spatial mapping, which runs {self._spatial.count} "
                "steps a call; trace with mapping='section' and run one batch at a time"
            )
        return gradient

    def follows_gradient(self, name: str) -> bool:
        """Whether the loaded PEF was compiled with a gradient for input ``name``. Ours, not the vendor's."""
        return any(name in graph.get("differentiable", ()) for graph in self._loaded().pef.signature.values())

    def seed_output(self, name: str, value: torch.Tensor | None) -> None:
        """Supply an output's incoming gradient, until set again."""
        if self._spatial is not None:
            self._spatial.seeds.pop(name, None)
            joined = self._spatial.joined_shape(self._loaded().program.symbol(name).shape)
            if value is not None and tuple(value.shape) == joined:
                self._spatial.seeds[name] = value
                return
        self._loaded().program.seed(name, value)

    def get_tensors_by_name(self, names: Sequence[str]) -> list[SambaTensor]:
        """SambaTensors with the device's values of regions, parameters or outputs."""
        program = self._loaded().program
        return [SambaTensor(self.read_tensor(program.find_tensor(name)), name=name) for name in names]

    def to_cpu(self, *things: Any) -> None:
        """Device to host: models (parameters and buffers), optimizers (states), tensors.

        While no PEF is loaded the host's values are the only ones: nothing happens (programs that run on either).
        """
        if self._application is None:
            return
        with self._application.program.checkpointing():
            for thing in _flat(things):
                if isinstance(thing, DeviceOptimizer):
                    self._download_optimizer(thing)
                elif isinstance(thing, nn.Module):
                    self._copy_model(thing, self._download)
                elif isinstance(thing, SambaTensor):
                    thing.cpu()

    def to_rdu(self, *things: Any) -> None:
        """Host to device: models, optimizers, tensors; after ``load_state_dict``."""
        for thing in _flat(things):
            if isinstance(thing, DeviceOptimizer):
                self._upload_optimizer(thing, self._first_index(thing))
            elif isinstance(thing, nn.Module):
                self._copy_model(thing, self._upload)
            elif isinstance(thing, SambaTensor):
                thing.rdu()

    def _copy_model(self, model: nn.Module, copy: Callable[[str, torch.Tensor], None]) -> None:
        program = self._loaded().program
        for name, tensor in [*parameters_of(model).items(), *buffers_of(model).items()]:
            if name in program.pef.symbols:
                copy(name, tensor)

    def _download(self, name: str, tensor: torch.Tensor) -> None:
        if isinstance(tensor, SambaParameter) and not tensor.has_data:
            fill_parameter_(tensor, self.read_tensor(name))
            return
        with torch.no_grad():
            _plain(tensor).copy_(self.read_tensor(name))

    def _upload(self, name: str, tensor: torch.Tensor) -> None:
        self.write_tensor(name, _plain(tensor))

    def _numbered_optimizers(self) -> list[tuple[DeviceOptimizer, int]]:
        found, first = [], 0
        for optimizer in self._optimizers:
            found.append((optimizer, first))
            first += len(optimizer.param_groups)
        return found

    def _first_index(self, optimizer: DeviceOptimizer) -> int:
        for known, first in self._numbered_optimizers():
            if known is optimizer:
                return first
        raise InvalidArgument(
            "this optimizer was not passed to trace_graph; pass it there to keep its state on the device"
        )

    def _upload_optimizer(self, optimizer: DeviceOptimizer, first: int) -> None:
        program = self._loaded().program
        for parameter, key, symbol in optimizer.named_states(first):
            held = optimizer.state.get(parameter, {}).get(key)
            if held is not None and symbol in program.pef.symbols:
                program.write(symbol, _plain(torch.as_tensor(unwrap(held))))

    def _download_optimizer(self, optimizer: DeviceOptimizer) -> None:
        program = self._loaded().program
        for parameter, key, symbol in optimizer.named_states(self._first_index(optimizer)):
            if symbol in program.pef.symbols:
                optimizer.state[parameter][key] = program.read(symbol)


def _plain(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.data if isinstance(tensor, nn.Parameter) else tensor


def _flat(things: Iterable[Any]) -> list[Any]:
    found: list[Any] = []
    for thing in things:
        found.extend(_flat(thing) if isinstance(thing, list | tuple) else [thing])
    return found
