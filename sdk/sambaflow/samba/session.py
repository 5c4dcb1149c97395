"""The session: compile, load, run. One per process, as ``samba.session``.

Source: SDK reference 6. A parameter has a copy on host and device: ``sessions.host_copies`` keeps them equal.
"""

import atexit
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import nn

from rdukit.errors import InvalidArgument, RuntimeFault
from rdukit.files.atomic import write_atomic, write_json_atomic
from rdukit.pef.model import NO_EVALUATION
from rdukit.system.process import gc_paused
from sambaflow.samba import directives
from sambaflow.samba.graph import FwdGraph
from sambaflow.samba.optim.base import optimizer_list
from sambaflow.samba.profiler import Profiler
from sambaflow.samba.sambatensor import DimInfo, SambaTensor, unwrap
from sambaflow.sessions.loaded import LegacyContext, LegacyRun, LoadedPef
from sambaflow.sessions.modes import Modes, Watched, check_traced, find_evaluation, trained_groups, watching_modes
from sambaflow.sessions.multigraph import MultiGraph
from sambaflow.sessions.options import read_dynamic_dims, read_options
from sambaflow.sessions.profiles import HostProfile, profile_runs, runtime_profile
from sambaflow.sessions.spatial import divide, refuse_replicas
from sambaflow.tracing.tied_weights import compiled_apart
from sambaflow.tracing.tracer import TracedModel, flatten_tensors, trace_model

logger = logging.getLogger(__name__)


class SambaSession:
    """A process's traces, compiles and loaded PEF.

    State: nothing traced → ``compile`` writes a PEF and keeps the trace; ``trace_graph`` opens the application, which
    stays open until ``close``, ``reset`` or the end of the process.
    """

    def __init__(self, pef_path: str = "") -> None:
        self.pef_path = pef_path
        #: Options of the command line, set by ``parse_app_args``.
        self.options: dict[str, Any] = {}
        #: Whether a forward is currently traced.
        self.tracing = False
        #: Graph name → its trace; filled by compile and trace.
        self.traced: dict[str, TracedModel] = {}
        #: Traces and added graphs of multigraph.
        self.multigraph = MultiGraph()
        self.output_dict: dict[str, SambaTensor] = {}
        self.buffer_dict: dict[str, SambaTensor] = {}
        #: Optimizer states by symbol name.
        self.optim_dict: dict[str, SambaTensor] = {}
        self.tensor_dict: dict[str, dict[str, SambaTensor]] = {"inputs": {}, "grads": {}}
        #: Tensors named by ``add_aux_tensor``: values of a host run, or of the device after a trace. Ours.
        self.aux_tensors: dict[str, SambaTensor] = {}
        #: Declared dynamic dimensions; graphs are static, so each has its maximum size.
        self.dynamic_dims: dict[str, DimInfo] = {}
        #: Profiler, usable even before a profile is started.
        self.profiler = Profiler()
        self.pinned_memory = False
        #: Compile hints that are active now, by name.
        self._context_directives: dict[str, Any] = {}
        self._host_profile = HostProfile()
        #: Modules whose mode (training or evaluation) the last trace read.
        self._watched: Watched = ()
        #: The PEF that is on the device. Ours, not the vendor's.
        self.loaded: LoadedPef | None = None

    # -- compile -----------------------------------------------------------------------------------------------------

    def compile(
        self, model: nn.Module, inputs: Any, optimizers: Any = None, name: str | None = None,
        app_dir: str | None = None, squeeze_bs_dim: bool = False, init_output_grads: bool = True,
        inference: bool | None = None, config_dict: Mapping[str, Any] | None = None,
        pef_metadata: Mapping[str, Any] | None = None, metadata: Any = None, io_host_memory: Any = None,
        optim: Any = None, **ignored: Any,
    ) -> str:  # fmt: skip
        """Trace and compile ``model``; return the PEF's path, ``<output-folder>/<pef-name>/<pef-name>.pef``.

        Options come from ``config_dict``, or otherwise from ``parse_app_args``. A model without an optimizer is
        compiled for inference. With one, a model that computes differently in evaluation mode also gets an evaluation
        graph, which runs after ``model.eval()``.

        Raises:
            CompileError: the model cannot be compiled; no file is written.
        """
        from rdukit_compiler import TracedGraph
        from sambaflow.sessions.compiling import compile_traced, embed_constants

        chosen = optimizers if optimizers is not None else optim
        config = dict(config_dict) if config_dict is not None else dict(self.options)
        inference = bool(config.get("inference")) if inference is None else inference
        if not optimizer_list(chosen):
            inference = True
        traced = self._trace(model, inputs)
        groups = () if inference else trained_groups(traced, chosen)
        embedded = pef_metadata if pef_metadata is not None else (metadata if isinstance(metadata, Mapping) else {})
        graphs = [TracedGraph(traced.graph, groups)]
        if not inference:
            with self._while_tracing():
                evaluation, why = find_evaluation(model, inputs, traced, self._watched)
            graphs += [TracedGraph(evaluation, evaluates=traced.graph.name)] if evaluation is not None else []
            embedded = {**embedded, NO_EVALUATION: why} if why else embedded
        embedded = embed_constants(embedded, [traced], [each.graph for each in graphs])
        self.pef_path = compile_traced(graphs, name or traced.graph.name, config, inference, embedded)
        return self.pef_path

    def compile_multigraph(
        self, name: str | None = None, config_dict: Mapping[str, Any] | None = None,
        pef_metadata: Mapping[str, Any] | None = None, inference: bool = True, enable_hypersection: bool = True,
        arch: str | None = None, samba_only: bool = False, **ignored: Any,
    ) -> str:  # fmt: skip
        """Compile all added graphs into one PEF; return its path, as ``compile`` does.

        Args:
            samba_only: stop after the front end: check graphs and regions, write no PEF, and return ``""``.
        Raises:
            CompileError: a graph cannot be cut or compiled; InvalidArgument: no graph, or ``inference=False``.
        """
        from rdukit_compiler import TracedGraph
        from sambaflow.sessions.compiling import compile_traced, embed_constants

        if not inference:
            raise InvalidArgument("multigraph is for inference only; expected inference=True")
        cut = self.multigraph.cut_all()
        if samba_only:
            return ""
        config = dict(config_dict) if config_dict is not None else dict(self.options)
        if arch is not None:
            config["arch"] = arch
        self.pef_path = compile_traced(
            [TracedGraph(graph) for graph in cut], name or "multigraph", config, True,
            embed_constants(pef_metadata or {}, self.traced.values(), cut), self.multigraph.regions(),
        )  # fmt: skip
        return self.pef_path

    def setup(self, args: Any) -> None:
        """Set the options from ``argconf`` arguments (or a mapping, or a namespace), as ``parse_app_args`` does.

        Raises:
            InvalidArgument: the argument is of another type.
        """
        self.options = read_options(args)

    # -- trace -------------------------------------------------------------------------------------------------------

    @contextmanager
    def _while_tracing(self) -> Iterator[None]:
        self.tracing = True
        try:
            yield
        finally:
            self.tracing = False

    def _trace(self, model: nn.Module, inputs: Any, apart: Mapping[str, str] | None = None) -> TracedModel:
        graph_name = str(getattr(model, "name", "") or type(model).__name__.lower())
        with self._while_tracing(), watching_modes(model) as watched:
            traced = trace_model(model, inputs, graph_name, apart=apart)
            self._watched = watched()
        if not hasattr(model, "run"):
            model.run = LegacyRun(model)  # type: ignore[assignment]
        return self._remember(model, traced)

    def trace_multigraph(self, model: nn.Module, inputs: Any, trace_prefix: str = "") -> tuple[SambaTensor, ...]:
        """Trace a model from which graphs will be cut: see ``samba.utils.trace_multigraph``."""
        with self._while_tracing():
            traced = self.multigraph.trace(model, inputs, trace_prefix)
        return self._remember(model, traced).outputs

    def _remember(self, model: nn.Module, traced: TracedModel) -> TracedModel:
        self.traced[traced.graph.name] = traced
        self.output_dict.update({tensor.sn_name: tensor for tensor in traced.outputs})
        model.output_tensors = traced.outputs  # type: ignore[assignment]
        return traced

    def add_graph(self, graph: FwdGraph) -> None:
        """Register a graph for ``compile_multigraph`` and ``init_multigraph_runtime``.

        Raises:
            InvalidArgument: it is not a FwdGraph, or its name is taken.
        """
        self.multigraph.add(graph)

    # -- load --------------------------------------------------------------------------------------------------------

    @gc_paused()
    def trace(
        self, model: nn.Module, inputs: Any, optim: Any, pef: str, transfer_device: bool = True,
        init_output_grads: bool = True, loss_indices: Sequence[Any] | None = None, mapping: str = "section",
    ) -> tuple[SambaTensor, ...]:  # fmt: skip
        """Trace again, check that the graph is the compiled one, load the PEF and upload the model's values.

        With ``mapping`` spatial, inputs may hold several compiled batches; a run then makes a step for each.

        Raises:
            PefError: the PEF is missing or unusable, or was compiled from another graph.
            NoResources: the node has too few free tiles or too little memory.
        Source: ours. A PEF that is loaded already is replaced with a warning. The vendor's sessions refuse to trace a
            graph twice, but public programs and notebooks do it.
        """
        self._unload_earlier()
        path = str(pef or self.pef_path)
        inputs, spatial = divide(inputs, path, mapping, self.options)
        traced = self._trace(model, inputs, compiled_apart(model, path))
        optimizers = optimizer_list(optim)
        loaded = self._keep(
            LoadedPef.open(
                path, self.options.get("arch"), traced.state, optimizers, spatial,
                check=lambda pef: check_traced(pef, path, model, traced, optimizers, self._watched),
            ), traced.inputs,
        )  # fmt: skip
        loaded.copies.watch_buffers(model)
        loaded.modes = Modes(model, inputs, traced, self._watched, loaded.pef, path, loaded.add_state)
        loaded.connect_outputs(traced.graph.name, init_output_grads, loss_indices)
        if spatial is not None:
            for output in traced.outputs:
                output._empty = (torch.Size(spatial.joined_shape(output.shape)), output.dtype)
        if transfer_device:
            loaded.to_device()
        profile_runs(loaded)
        return traced.outputs

    def init_multigraph_runtime(self, pef: str = "") -> None:
        """Check that the added graphs are the PEF's, load it, and upload parameters, buffers and inputs with values.

        Raises:
            PefError: the PEF is missing or unusable, or was compiled from other graphs or regions.
            NoResources: the node has too few free tiles or too little memory.
        """
        refuse_replicas(self.options)
        self._unload_earlier()
        path, graphs = str(pef or self.pef_path), self.multigraph
        cut = graphs.cut_all()
        loaded = self._keep(
            LoadedPef.open(
                path, self.options.get("arch"), graphs.state, check=lambda pef: graphs.check_pef(pef, path, cut)
            ), graphs.inputs,
        )  # fmt: skip
        loaded.graph_modes = graphs.modes_by_graph(loaded.pef, path)
        loaded.to_device()
        for symbol, tensor in graphs.inputs.items():
            if loaded.knows(symbol) and tensor.has_data:
                loaded.program.write(symbol, tensor.torch_tensor())
        profile_runs(loaded)

    def _keep(self, loaded: LoadedPef, inputs: Mapping[str, SambaTensor]) -> LoadedPef:
        """Store the loaded PEF until ``close``, without an upload."""
        self.loaded, self.pef_path = loaded, loaded.path
        buffers = {n: b for n, b in loaded.state.items() if not isinstance(b, nn.Parameter)}
        self.buffer_dict.update({name: SambaTensor(buffer, name=name) for name, buffer in buffers.items()})
        self.tensor_dict["inputs"].update(inputs)
        self.optim_dict.update(loaded.optimizer_states())
        loaded.announce_memory()
        atexit.register(self.close)
        return loaded

    def _unload_earlier(self) -> None:
        """Unload the PEF of an earlier trace, with a warning: a process runs one PEF at a time."""
        if self.loaded is not None:
            logger.warning(
                "unloading pef=%s: another trace replaces it; device values that were not copied with "
                "samba.session.to_cpu() are lost", self.loaded.application.path,
            )  # fmt: skip
            self.close()

    def _loaded(self) -> LoadedPef:
        if self.loaded is None:
            raise RuntimeFault(
                "no PEF is loaded; call samba.utils.trace_graph(model, inputs, optim, pef=…), or "
                "samba.session.init_multigraph_runtime(pef), first"
            )
        return self.loaded

    # -- run ---------------------------------------------------------------------------------------------------------

    def run(
        self, input_tensors: Any = None, output_tensors: Any = None, hyperparam_dict: Mapping[str, Any] | None = None,
        data_parallel: bool = False, reduce_on_rdu: bool = False, section_types: Iterable[str] | None = None,
        section_ids: Iterable[int] | None = None, grad_of_outputs: Sequence[Any] | None = None,
        graph_name: str | None = None, **ignored: Any,
    ) -> list[SambaTensor]:  # fmt: skip
        """Upload the inputs, run sections, and return a handle for each requested output.

        Without ``section_types`` and ``section_ids`` all sections run: a whole training step. After ``model.eval()``
        the forward sections of the evaluation graph run, until ``model.train()``. A handle's value is read at its first
        access. With ``data_parallel`` gradients are averaged over the ranks before the optimizer reads them; the first
        such run gives all ranks the parameters of rank 0.

        Raises:
            UnknownTensor, ShapeMismatch: an input that the PEF was not compiled for. InvalidArgument: an unknown
            section or graph, or a backward in evaluation mode. PefMismatch: the PEF has no graph for the mode that the
            model is in; ``data_parallel`` with a PEF that was compiled without it, or ranks with different PEFs.
            PeerLost: another rank died or does not answer.
        """
        return self._loaded().run(
            input_tensors, output_tensors, hyperparam_dict, section_types, section_ids, grad_of_outputs, graph_name,
            data_parallel,
        )  # fmt: skip

    def check_mode(self, graph_name: str | None = None) -> None:
        """Check early that a run of the graph supports its model's current mode. Ours, not the vendor's.

        Raises:
            PefMismatch: the PEF has no graph for that mode.
        """
        self._loaded().graph_now(graph_name)

    def get_dropout_rate_argin_names(self) -> list[str]:
        """Return the dropout rates that ``hyperparam_dict`` may change separately; its ``p`` changes all of them.

        Rates that are 0 or 1 in the model are compiled in.
        """
        return self._loaded().dropout_rates()

    # -- values ------------------------------------------------------------------------------------------------------

    def to_device(self) -> None:
        """Copy all parameters, buffers and optimizer states to the device."""
        self._loaded().to_device()

    def to_cpu(self, *things: Any) -> None:
        """Copy models (parameters and buffers), optimizers (states) and tensors to the host.

        Without a loaded PEF it has no effect, for programs that run on host or device.
        """
        if self.loaded is not None:
            self.loaded.download(things)

    def to_rdu(self, *things: Any) -> None:
        """Copy models, optimizers and tensors to the device; after ``load_state_dict``."""
        self._loaded().upload(things)

    def read_tensor(self, name: str) -> torch.Tensor:
        """Return a copy of a device tensor."""
        return self._loaded().read(name)

    def write_tensor(self, name: str, value: torch.Tensor) -> None:
        """Copy a host tensor to the device."""
        self._loaded().program.write(name, value)
        self._loaded().copies.note_device([name])

    def get_tensors_by_name(self, names: Sequence[str]) -> list[SambaTensor]:
        """Return SambaTensors with the device's values of regions, parameters or outputs."""
        loaded = self._loaded()
        return [SambaTensor(loaded.read(loaded.program.find_tensor(name)), name=name) for name in names]

    def get_tensors(self, tensors: Any) -> list[SambaTensor]:
        """Return traced tensors with the device's values, for older programs."""
        return self.get_tensors_by_name([t.sn_name for t in flatten_tensors(tensors)])

    def _traced_tensors(self) -> list[Any]:
        """Return everything traced that the device holds: inputs, parameters, buffers, outputs; each has ``rdu()``."""
        state = self.loaded.state if self.loaded is not None else {}
        parameters = [tensor for tensor in state.values() if isinstance(tensor, nn.Parameter)]
        inputs, buffers = self.tensor_dict["inputs"], self.buffer_dict
        return [*inputs.values(), *parameters, *buffers.values(), *self.output_dict.values()]

    # -- hints, auxiliary tensors, dynamic dimensions -----------------------------------------------------------------

    @contextmanager
    def _add_directives(self, hints: Mapping[str, Any]) -> Iterator[None]:
        """Add compile hints to operators that are traced inside, without effect on results; inner hints win."""
        before = self._context_directives
        self._context_directives = {**before, **hints}
        try:
            with directives.hints({str(key): str(value) for key, value in hints.items()}):
                yield
        finally:
            self._context_directives = before

    @contextmanager
    def disable_graphamp(self) -> Iterator[None]:
        """Mark operators that are traced inside to keep their declared precision."""
        with self._add_directives({"graphamp": "disabled"}):
            yield

    def use_static_functional(self) -> bool:
        """Return whether a forward is currently traced for the device; False means torch's semantics on the host."""
        return self.tracing

    def is_valid_aux_tensor_name(self, name: str) -> bool:
        """Return whether ``name`` was given to an auxiliary tensor."""
        return name in self.aux_tensors

    def add_aux_tensor(self, tensor: Any, name: str) -> None:
        """Expose an intermediate tensor of forward under ``name``.

        In a trace it becomes an additional output of the graph, but not of the model: ``get_tensors_by_name([name])``
        and ``aux_tensors[name]`` read it after a run. No gradient flows into it. On the host its value is kept.

        Raises:
            InvalidArgument: an empty name, or one that the trace has used.
        """
        if not name:
            raise InvalidArgument("add_aux_tensor needs a name that is not empty")
        plain = unwrap(tensor)
        if not self.tracing:
            self.aux_tensors[name] = SambaTensor(plain.detach(), name=name)
            return
        directives.recording.expose(name, plain)
        self.aux_tensors[name] = SambaTensor(shape=plain.shape, dtype=plain.dtype, name=name)

    def create_dynamic_dim(self, name: str, max: int) -> DimInfo:
        """Declare a dynamic dimension of at most ``max``."""
        return self.dynamic_dims.setdefault(name, DimInfo(int(max)))

    def load_dynamic_dims_config(self, path: "str | Path") -> dict[str, DimInfo]:
        """Declare the dynamic dimensions of a YAML file: a mapping from name to maximum size (or to ``{max: size}``).

        Raises:
            InvalidArgument: the file is not such a mapping.
        """
        for name, largest in read_dynamic_dims(Path(path)).items():
            self.create_dynamic_dim(name, largest)
        return self.dynamic_dims

    @staticmethod
    def disable_lazy_param() -> None:
        """Switch ``lazy_param()`` off from now on: modules get their values when built."""
        from sambaflow.samba import lazy_param

        lazy_param.set_enabled(False)

    def enable_pinned_memory(self) -> None:
        """Set the flag, without effect: the emulated device shares the host's memory."""
        self.pinned_memory = True

    def disable_pinned_memory(self) -> None:
        """Undo ``enable_pinned_memory``."""
        self.pinned_memory = False

    # -- profiles ----------------------------------------------------------------------------------------------------

    def start_samba_profile(self) -> None:
        """Profile this process's Python code until ``end_samba_profile``; a second call restarts the profile."""
        self.profiler.start_profile()
        self._host_profile.start()

    def end_samba_profile(self, filename: "str | Path | None" = None) -> str:
        """Stop, and return the 40 costliest functions as text; write it to ``filename`` if given. Empty if not started.

        The vendor's format is not published (Source: ours).
        """
        text = self._host_profile.stop()
        if text:
            self.profiler.stop_profile()
            if filename:
                write_atomic(Path(filename), text.encode())
        return text

    def report(self) -> dict[str, Any]:
        """Return a report of past runs: emulated (projected) figures and host figures. Ours, not the vendor's."""
        return self._loaded().application.figures()

    def start_runtime_profile(self) -> None:
        """Measure each section from now on; see ``end_runtime_profile``."""
        self._loaded().program.section_seconds = []

    def end_runtime_profile(self, path: "str | Path" = "runtime_profile.json") -> None:
        """Write ``runtime_profile`` since ``start_runtime_profile`` to ``path``, as JSON; no effect if not started."""
        loaded = self._loaded()
        measured, loaded.program.section_seconds = loaded.program.section_seconds, None
        if measured is not None:
            write_json_atomic(Path(path), runtime_profile(loaded.pef, measured))

    # -- ending ------------------------------------------------------------------------------------------------------

    def close(self) -> None:
        """Unload the PEF, and free tiles and memory; traces are kept. Ours, not the vendor's."""
        loaded, self.loaded = self.loaded, None
        atexit.unregister(self.close)
        if loaded is not None:
            loaded.copies.release()
            loaded.application.close()

    def reset(self) -> None:
        """Unload the PEF and drop all traces, so that another program can use the process."""
        self.close()
        options = self.options
        self.__init__()  # type: ignore[misc]
        self.options = options

    def atexit_register(self, fn: Callable[..., Any], *args: Any, **kwargs: Any) -> Callable[..., Any]:
        """Register ``fn`` for the end of the process; return it."""
        return atexit.register(fn, *args, **kwargs)

    @property
    def ctx(self) -> LegacyContext:
        """Low-level access of old programs."""
        return LegacyContext(self)

    @property
    def SambaSession(self) -> type["SambaSession"]:
        """The class, under its documented path: ``sambaflow.samba.session.SambaSession``."""
        return SambaSession
