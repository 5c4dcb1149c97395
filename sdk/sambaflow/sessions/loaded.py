"""A PEF on the device: load it, run its sections, and copy values between the host and the device.

Source: SDK reference 6.3 and 19. Two copies of every parameter exist; only explicit calls synchronize them.
"""

import logging
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from rdukit.errors import InvalidArgument
from rdukit.pef.model import Graph, Pef
from sambaflow.samba.conversion import buffers_of, parameters_of
from sambaflow.samba.lazy_param import value_of
from sambaflow.samba.nn.parameter import SambaParameter, fill_parameter_
from sambaflow.samba.optim.base import DeviceOptimizer
from sambaflow.samba.sambatensor import SambaTensor, unwrap
from sambaflow.sessions import current_session
from sambaflow.sessions.data_parallel import Replicas
from sambaflow.sessions.device_optimizers import DeviceOptimizers
from sambaflow.sessions.host_copies import HostCopies
from sambaflow.sessions.loop_requests import active_autocast, refuse_autocast
from sambaflow.sessions.modes import Modes
from sambaflow.sessions.scalars import RunScalars
from sambaflow.sessions.spatial import SpatialBatches, join_parts
from sambaflow.sessions.updates import Updates, section_kinds
from sambaflow.sessions.virtual_ranks import VirtualRanks
from sambaflow.tracing.torch_private import DisableTorchFunctionSubclass
from sambaflow.tracing.tracer import flatten_tensors

if TYPE_CHECKING:
    from rdukit_runtime.application import Application

logger = logging.getLogger(__name__)


class LoadedPef:
    """A PEF from its load until it is closed.

    Args:
        state: host tensors of parameters and buffers by symbol name. optimizers: those whose states the device holds.
        spatial: set by a trace whose inputs hold several batches: with spatial mapping, or of virtual ranks.
    """

    def __init__(
        self, path: str, application: "Application", state: Mapping[str, torch.Tensor],
        optimizers: Sequence[DeviceOptimizer] = (), spatial: SpatialBatches | None = None,
    ) -> None:  # fmt: skip
        self.path = path
        self.application = application
        self.program = application.program
        self.pef = application.pef
        #: Symbols by path; the last conversion takes precedence.
        self.state = dict(state)
        self.copies = HostCopies(self.pef, self.state, self.program.read, self.program.write)
        self.replicas = Replicas(application)
        #: Chooses the graph of a run by the mode of the traced model.
        self.modes: Modes | None = None
        #: Graph of a multigraph PEF → its models whose mode forward reads.
        self.graph_modes: dict[str, list[Modes]] = {}
        self._spatial = spatial
        self._virtual = VirtualRanks(application, spatial) if spatial is not None and spatial.are_replicas else None
        #: Devices whose autocast was on when the model was traced.
        self.autocast = active_autocast()
        self.updates = Updates(application.pef, application.program)
        self.scalars = RunScalars(application.pef, optimizers, self.dropout_rates())
        self.optimizers = DeviceOptimizers(optimizers, self.program, self.updates, self.knows)
        #: Graph, types and ids of a run → its sections, and whether there are forward, backward and updating ones.
        self._sections: dict[tuple[Any, ...], tuple[tuple[int, ...], bool, frozenset[int], bool]] = {}
        #: Outputs of the training graph → those of the evaluation graph, if the last run used it.
        self._shown: Mapping[str, str] = {}

    @classmethod
    def open(
        cls, path: str, arch: object, state: Mapping[str, torch.Tensor], optimizers: Sequence[DeviceOptimizer] = (),
        spatial: SpatialBatches | None = None, *, check: Callable[[Pef], None],
    ) -> "LoadedPef":  # fmt: skip
        """Load the PEF at ``path``, without an upload.

        Args:
            arch: the program's chip, or None for any. check: raises if the PEF is not the program's.
        Raises:
            PefError: the PEF is missing or unusable, or ``check`` refuses it. NoResources: the node has too few free
                tiles or too little memory.
        """
        from rdukit_node.leases.launch import launch_name
        from rdukit_node.logs.files import application_log
        from rdukit_runtime.application import PROGRAM, open_application

        began = time.perf_counter()
        application_log(PROGRAM).announce()
        application = open_application(path, Path(path).stem, str(arch) if arch else None, launch_name())
        try:
            check(application.pef)
            made = cls(path, application, state, optimizers, spatial)
        except BaseException:
            application.close()
            raise
        logger.info("loaded pef=%s seconds=%.3f", path, time.perf_counter() - began)
        return made

    # -- run ---------------------------------------------------------------------------------------------------------

    def run(
        self, input_tensors: Any, output_tensors: Any, hyperparameters: Mapping[str, Any] | None,
        section_types: Iterable[str] | None, section_ids: Iterable[int] | None, grad_of_outputs: Sequence[Any] | None,
        graph_name: str | None, data_parallel: bool,
    ) -> list[SambaTensor]:  # fmt: skip
        """Upload the inputs, run sections and return a handle for each requested output: see ``SambaSession.run``."""
        program = self.program
        self.copies.push()
        if self.modes is not None and self.modes.check_changes():
            self.scalars.set_rates(self.modes.rates)
        graph = self.graph_now(graph_name)
        self.copies.note_traced()
        requested = [_named(t, "output_tensors") for t in flatten_tensors(output_tensors)]
        types = [section_types] if isinstance(section_types, str) else section_types
        if types is None and section_ids is None:
            types = self._types_of_whole_run(graph)
        key = graph.name, None if types is None else tuple(types), None if section_ids is None else tuple(section_ids)
        chosen_before = self._sections.get(key)
        if chosen_before is None:
            chosen_before = self._sections[key] = self._choose_sections(graph, key[1], key[2])
        sections, has_forward, backward, has_update = chosen_before
        is_whole_step = key[1] is None and key[2] is None
        refuse_autocast(self.autocast)
        self.updates.check(backward, has_update, is_whole_step)
        shown = self._outputs_of(graph)
        for name in requested:
            program.symbol(name)
        if self.modes is not None:
            self.modes.note(graph, has_forward, bool(backward))
        given = [(_named(t, "input_tensors"), t.torch_tensor()) for t in flatten_tensors(input_tensors)]
        if grad_of_outputs is not None:
            self._seed_outputs(requested or list(graph.outputs), grad_of_outputs)

        if has_update:
            self.optimizers.before_update(bool(backward))
        scalars = self.resolve_scalars(hyperparameters, has_update)

        def step(values: Sequence[tuple[str, torch.Tensor]]) -> list[SambaTensor]:
            chosen = self.replicas.prepare(graph, sections, is_whole_step, data_parallel)
            self._shown = shown
            if self._virtual is None:
                program.write_all(values)
                self.application.run(graph.name, chosen, scalars)
            else:
                names = [shown.get(name, name) for name in requested]
                self._virtual.run(graph, chosen, values, names, scalars, data_parallel)
            self.replicas.note(chosen)
            self.copies.note_run(chosen)
            if data_parallel:
                self.copies.note_device(self.state)
            self.copies.refresh()
            self.updates.note(backward, has_update)
            return [self.handle(name) for name in requested]

        spatial = self._spatial if self._virtual is None else None
        made = step(given) if spatial is None else self._run_batches(spatial, given, step)
        if has_update:
            self.optimizers.after_update()
        return made

    def graph_now(self, name: str | None) -> Graph:
        """Return the graph to run for the graph ``name``, according to its model's mode.

        Raises:
            PefMismatch: the PEF has no graph for that mode.
        """
        graph = self.program.find_graph(name)
        if self.modes is not None:
            return self.modes.graph_now(graph)
        for modes in self.graph_modes.get(graph.name, ()):
            modes.evaluation_now()
        return graph

    def _types_of_whole_run(self, graph: Graph) -> tuple[str, ...] | None:
        """Return the section types of a run without a choice: under ``torch.no_grad()`` only forward ones.

        Raises:
            InvalidArgument: the model is in evaluation mode, and gradients are enabled.
        """
        if not torch.is_grad_enabled():
            return ("fwd",)
        if self.modes is not None and not self.pef.inference:
            self.modes.check_whole_step(graph)
        return None

    def _choose_sections(
        self, graph: Graph, types: tuple[str, ...] | None, ids: tuple[int, ...] | None
    ) -> tuple[tuple[int, ...], bool, frozenset[int], bool]:
        if self.modes is not None:
            self.modes.check_sections(graph, types, ids)
        sections = self.program.choose_sections(graph, types, ids)
        return sections, *section_kinds(self.pef, sections)

    def _outputs_of(self, graph: Graph) -> Mapping[str, str]:
        """Map the training graph's outputs to those of ``graph`` if it is the evaluation graph; otherwise return no
        mapping.
        """
        if not graph.evaluates:
            return {}
        return dict(zip(self.pef.graphs[graph.evaluates].outputs, graph.outputs, strict=True))

    def _run_batches(
        self, spatial: SpatialBatches, given: Sequence[tuple[str, torch.Tensor]],
        step: Callable[[Sequence[tuple[str, torch.Tensor]]], list[SambaTensor]],
    ) -> list[SambaTensor]:  # fmt: skip
        """Make a step for each batch of a spatial call, and join the outputs."""
        made: list[list[SambaTensor]] = []
        for number in range(spatial.count):
            for name in spatial.seeds:
                self.program.seed(name, spatial.seed_part(name, number))
            made.append(step([(name, spatial.part(name, value, number)) for name, value in given]))
        return [
            SambaTensor(join_parts([part.torch_tensor() for part in parts]), name=parts[0].sn_name)
            for parts in zip(*made, strict=True)
        ]

    def handle(self, name: str) -> SambaTensor:
        """Return a handle that keeps the device's tensor of this run, and converts it at its first read."""
        program = self.program
        source = self._shown.get(name, name)
        if self._virtual is not None and source in self._virtual.outputs:
            return SambaTensor(self._virtual.outputs[source], name=name)
        symbol = program.symbol(source)
        device = program.device_tensor(source)
        handle = SambaTensor(shape=symbol.shape, dtype=getattr(torch, symbol.host_dtype), name=name)
        handle._pull, handle._is_output = lambda: program.to_host(device, symbol), True
        return handle

    # -- scalars and output gradients --------------------------------------------------------------------------------

    def resolve_scalars(self, given: Mapping[str, Any] | None, has_update: bool) -> Mapping[str, float]:
        """Return the scalars of a run: see ``RunScalars``."""
        return self.scalars.resolve(given, has_update)

    def dropout_rates(self) -> list[str]:
        """Return the names of dropout rates that a run may change; rates of 0 or 1 are compiled in."""
        return [name for name in self.pef.hyperparameters if name in self.pef.symbols]

    def connect_outputs(
        self, graph_name: str, init_output_grads: bool, loss_indices: Sequence[Any] | None
    ) -> None:  # fmt: skip
        """Set which outputs start backward (SDK reference 17); the PEF holds the default."""
        graph = self.pef.graphs[graph_name]
        if not graph.seeds:
            return
        if loss_indices is not None:
            wanted = {int(i[0]) if isinstance(i, list | tuple) else int(i) for i in loss_indices}
            for position, output in enumerate(graph.outputs):
                if output in graph.seeds:
                    shape = self.pef.symbols[output].shape
                    self.program.seed(output, torch.ones(shape) if position in wanted else torch.zeros(shape))
        elif not init_output_grads:
            for output in graph.seeds:
                self.program.seed(output, torch.zeros(self.pef.symbols[output].shape))

    def seed_output(self, name: str, value: torch.Tensor | None) -> None:
        """Set an output's incoming gradient, until the next call."""
        if self._spatial is not None:
            self._spatial.seeds.pop(name, None)
            joined = self._spatial.joined_shape(self.program.symbol(name).shape)
            if value is not None and tuple(value.shape) == joined:
                self._spatial.seeds[name] = value
                return
        self.program.seed(name, value)

    def _seed_outputs(self, names: Sequence[str], gradients: Any) -> None:
        given = [gradients] if isinstance(gradients, SambaTensor | torch.Tensor) else list(gradients)
        if len(given) > len(names):
            raise InvalidArgument(f"grad_of_outputs holds {len(given)} gradients for {len(names)} outputs")
        for name, gradient in zip(names, given, strict=False):
            if gradient is not None:
                self.seed_output(name, unwrap(gradient))

    # -- values by name ----------------------------------------------------------------------------------------------

    def knows(self, name: str) -> bool:
        """Return whether the PEF has a tensor of this name."""
        return name in self.pef.symbols

    def has_value(self, name: str) -> bool:
        """Return whether the PEF has a tensor of this name that holds a value."""
        return self.knows(name) and self.program.has_value(self._shown.get(name, name))

    def read(self, name: str) -> torch.Tensor:
        """Return a copy of a device tensor."""
        source = self._shown.get(name, name)
        if self._virtual is not None and source in self._virtual.outputs:
            return self._virtual.outputs[source].clone()
        return self.program.read(source)

    def read_gradient(self, name: str) -> torch.Tensor | None:
        """Return a tensor's gradient of the last backward; None where none flows into it."""
        gradient = self.updates.gradient_of(name)
        if gradient is not None and self._spatial is not None and name in self._spatial.axes:
            raise InvalidArgument(
                f"the gradient of input {name!r} is not kept: a call runs {self._spatial.count} batches; trace with "
                "mapping='section', without --virtual-ranks, and run one batch at a time"
            )
        return gradient

    def follows_gradient(self, name: str) -> bool:
        """Return whether the PEF was compiled with a gradient for input ``name``."""
        return any(name in graph.get("differentiable", ()) for graph in self.pef.signature.values())

    # -- models and optimizers ---------------------------------------------------------------------------------------

    def adopt(self, model: nn.Module, tensors: Mapping[str, torch.Tensor]) -> None:
        """Replace the traced model by one that was converted later; ``tensors``: symbol name → tensor."""
        if self.modes is not None:
            self.modes.follow(model)
        known = {n: t for n, t in tensors.items() if n in self.state and self.state[n].shape == t.shape}
        self.state.update(known)
        self.copies.note(known)

    def add_state(self, tensors: Mapping[str, torch.Tensor]) -> None:
        """Upload host tensors that only the evaluation graph reads."""
        self.state.update(tensors)
        for name, tensor in tensors.items():
            if self.knows(name):
                self.program.write(name, tensor)
        self.copies.replace(tensors)

    def to_device(self) -> None:
        """Copy all parameters, buffers and optimizer states to the device."""
        for name, tensor in self.state.items():
            if self.knows(name) and tensor.device.type != "meta":
                self.program.write(name, _plain(tensor))
            elif self.knows(name) and getattr(tensor, "materializer", None) is not None:
                self.program.write(name, value_of(tensor))  # a lazy parameter: the host's copy stays empty
        self.copies.note(self.state)
        for optimizer in self.optimizers.all:
            self.optimizers.upload(optimizer)

    def load_states(self, optimizer: DeviceOptimizer) -> None:
        """Copy states that were loaded into an optimizer to the device; states that it lacks are reset."""
        self.optimizers.load(optimizer)
        self.scalars.follow()

    def download(self, things: Iterable[Any]) -> None:
        """Copy models (parameters and buffers), optimizers (states) and tensors to the host.

        The program's changes of a model since the last run are copied to the device first, as before a run.
        """
        self.copies.push()
        self.optimizers.push()
        with self.program.checkpointing():
            for thing in _flat(things):
                if isinstance(thing, DeviceOptimizer):
                    self.optimizers.download(thing)
                elif isinstance(thing, nn.Module):
                    self._copy_model(thing, self._download)
                    for name in self.copies.stale_constants():
                        self._download(name, self.state[name])
                elif isinstance(thing, SambaTensor):
                    thing.cpu()

    def upload(self, things: Iterable[Any]) -> None:
        """Copy models, optimizers and tensors to the device."""
        for thing in _flat(things):
            if isinstance(thing, DeviceOptimizer):
                self.optimizers.upload(thing)
            elif isinstance(thing, nn.Module):
                self._copy_model(thing, self.upload_tensor)
            elif isinstance(thing, SambaTensor):
                thing.rdu()

    def _copy_model(self, model: nn.Module, copy: Callable[[str, torch.Tensor], None]) -> None:
        for name, tensor in [*parameters_of(model).items(), *buffers_of(model).items()]:
            if self.knows(name):
                copy(name, tensor)

    def upload_tensor(self, name: str, tensor: torch.Tensor) -> None:
        """Copy a parameter or buffer to the device; a newer value of the device is copied to ``tensor`` before."""
        self.copies.pull(name, tensor)
        self.program.write(name, _plain(tensor))
        if self.state.get(name) is tensor:
            self.copies.note([name])
        else:
            self.copies.note_device([name])

    def _download(self, name: str, tensor: torch.Tensor) -> None:
        if isinstance(tensor, SambaParameter) and not tensor.has_data:
            fill_parameter_(tensor, self.read(name))
            return
        with torch.no_grad():
            _plain(tensor).copy_(self.read(name))
        if self.state.get(name) is tensor:
            self.copies.note([name])

    def optimizer_states(self) -> dict[str, SambaTensor]:
        """Return handles of the optimizer states by symbol name."""
        return {
            symbol: SambaTensor(shape=held.shape, dtype=getattr(torch, held.host_dtype), name=symbol)
            for symbol, held in self.pef.symbols.items()
            if held.kind == "state"
        }

    def announce_memory(self) -> None:
        """Log a line before the first run: the PEF's planned memory, and the size of the program's own copies."""
        if not logger.isEnabledFor(logging.INFO):
            return
        from rdukit.pef.inspect import memory_line

        held = [unwrap(tensor) for tensor in (*self.state.values(), *self.optimizers.host_tensors())]
        host_bytes = sum(t.nbytes for t in held if isinstance(t, torch.Tensor) and t.device.type != "meta")
        logger.info("%s", memory_line(self.pef, host_bytes))


class LegacyContext:
    """``session.ctx`` of old programs."""

    def __init__(self, session: Any) -> None:
        self._session = session

    def set_tensors(self, tensors: Mapping[str, Any]) -> None:
        """Copy arrays or tensors to the device, by symbol name."""
        for name, value in tensors.items():
            self._session.write_tensor(name, torch.as_tensor(unwrap(value)))


class LegacyRun:
    """A traced model's ``run``; a separate class, so that ``torch.load`` can allow it."""

    def __init__(self, model: nn.Module) -> None:
        self.model = model

    def __call__(self, inputs: Any, *args: Any, **kwargs: Any) -> Any:
        if args:
            kwargs.setdefault("section_types", args[0])
        return current_session().run(inputs, kwargs.pop("output_tensors", self.model.output_tensors), **kwargs)


def _named(tensor: Any, argument: str) -> str:
    if not isinstance(tensor, SambaTensor):
        raise InvalidArgument(f"{argument} holds a torch tensor; wrap it: samba.from_torch_tensor(t, name='…')")
    return tensor.sn_name


def _plain(tensor: torch.Tensor) -> torch.Tensor:
    with DisableTorchFunctionSubclass():
        return tensor.data if isinstance(tensor, nn.Parameter) else tensor


def _flat(things: Iterable[Any]) -> list[Any]:
    found: list[Any] = []
    for thing in things:
        found.extend(_flat(thing) if isinstance(thing, list | tuple) else [thing])
    return found
