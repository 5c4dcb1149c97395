"""The session: compile, load, run. One per process, as ``samba.session``.

Source: SDK reference 6. Two copies of every parameter exist, host and device; only explicit calls synchronise them.
"""

import atexit
import logging
import os
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from rdukit.errors import InvalidArgument, PefMismatch, RdukitError, RuntimeFault, ShapeMismatch, UnknownTensor
from rdukit.pef import read_pef
from rdukit.pef.model import NO_EVALUATION, Graph, Pef, SectionType
from rdukit.system.process import gc_paused
from sambaflow.samba.optim.base import DeviceOptimizer, compiler_groups, optimizer_list
from sambaflow.samba.sambatensor import SambaTensor, unwrap
from sambaflow.sessions.data_parallel import Replicas
from sambaflow.sessions.modes import Modes, Watched, trace_evaluation, watching_modes
from sambaflow.sessions.multigraph_session import MultigraphSession
from sambaflow.sessions.profiles import profile_runs
from sambaflow.sessions.session_extras import SessionExtras, attach_legacy_run
from sambaflow.sessions.session_transfers import SessionTransfers
from sambaflow.sessions.spatial import SpatialBatches, find_batches, first_batch, join_parts
from sambaflow.tracing.tracer import TracedModel, flatten_tensors, trace_model

if TYPE_CHECKING:
    from rdukit_compiler.ir import ModelGraph
    from rdukit_runtime.application import Application

logger = logging.getLogger(__name__)

#: Names under which a program may pass a scalar to ``run`` → the compiler's scalar. Others are tolerated.
_SCALARS = ("lr", "momentum", "weight_decay", "beta1", "beta2", "eps", "max_grad_norm", "p")


class SambaSession(MultigraphSession, SessionTransfers, SessionExtras):
    """What a process has traced, compiled and loaded.

    State: nothing traced → ``compile`` leaves a PEF and forgets nothing; ``trace_graph`` opens the application, which
    stays open until ``close``, ``reset`` or the end of the process.
    """

    def __init__(self, pef_path: str = "") -> None:
        super().__init__()
        self.pef_path = pef_path
        #: Options of the command line, remembered by ``parse_app_args``.
        self.options: dict[str, Any] = {}
        self.tracing = False
        #: Graph name → what was traced; filled by compile and trace.
        self.traced: dict[str, TracedModel] = {}
        self.output_dict: dict[str, SambaTensor] = {}
        self.buffer_dict: dict[str, SambaTensor] = {}
        #: Optimizer states by symbol name.
        self.optim_dict: dict[str, SambaTensor] = {}
        self.tensor_dict: dict[str, dict[str, SambaTensor]] = {"inputs": {}, "grads": {}}
        #: Host tensors of parameters and buffers by symbol name; the last conversion wins.
        self._state: dict[str, torch.Tensor] = {}
        self._optimizers: tuple[DeviceOptimizer, ...] = ()
        self._application: Application | None = None
        self._replicas: Replicas | None = None
        #: Set by a trace with spatial mapping whose inputs hold several batches.
        self._spatial: SpatialBatches | None = None
        self._scalars: dict[str, float] = {}
        #: The last hyperparameters and what they resolved to: programs pass the same dict every step.
        self._scalar_cache: tuple[dict[str, Any], dict[str, float]] | None = None
        #: What a run asks for → the sections, and whether forward and backward ones are among them.
        self._sections: dict[tuple[Any, ...], tuple[tuple[int, ...], bool, bool]] = {}
        #: Modules whose mode the last trace read; and, of a loaded PEF, which graph a run takes by them.
        self._watched: Watched = ()
        self._modes: Modes | None = None
        #: Outputs of the training graph → those of the evaluation graph, if the last run was one of that.
        self._shown: Mapping[str, str] = {}

    # -- compile -----------------------------------------------------------------------------------------------------

    def compile(
        self, model: nn.Module, inputs: Any, optimizers: Any = None, name: str | None = None,
        app_dir: str | None = None, squeeze_bs_dim: bool = False, init_output_grads: bool = True,
        inference: bool | None = None, config_dict: Mapping[str, Any] | None = None,
        pef_metadata: Mapping[str, Any] | None = None, metadata: Any = None, io_host_memory: Any = None,
        optim: Any = None, **ignored: Any,
    ) -> str:  # fmt: skip
        """Trace and compile ``model``; returns the PEF's path, ``<output-folder>/<pef-name>/<pef-name>.pef``.

        Options come from ``config_dict``, or else from what ``parse_app_args`` parsed. A model without an optimizer
        is compiled for inference. With one, a model that computes something else in evaluation mode gets an evaluation
        graph as well, which runs while ``model.eval()`` is in force.

        Raises:
            CompileError: the model cannot be compiled; nothing is written then.
        """
        from rdukit_compiler.pipeline import TracedGraph
        from sambaflow.sessions.compiling import compile_traced

        chosen = optimizers if optimizers is not None else optim
        config = dict(config_dict) if config_dict is not None else dict(self.options)
        inference = bool(config.get("inference")) if inference is None else inference
        if not optimizer_list(chosen):
            inference = True
        traced = self._trace(model, inputs, name)
        groups = () if inference else compiler_groups(chosen)
        embedded = pef_metadata if pef_metadata is not None else (metadata if isinstance(metadata, Mapping) else {})
        graphs = [TracedGraph(traced.graph, groups)]
        if not inference:
            evaluation, why = self._trace_evaluation(model, inputs, traced)
            graphs += [TracedGraph(evaluation, evaluates=traced.graph.name)] if evaluation is not None else []
            embedded = {**embedded, NO_EVALUATION: why} if why else embedded
        path = compile_traced(graphs, name or traced.graph.name, config, inference, embedded)
        self.pef_path = path
        return path

    def _trace(self, model: nn.Module, inputs: Any, name: str | None) -> TracedModel:
        graph_name = str(getattr(model, "name", "") or type(model).__name__.lower())
        self.tracing = True
        try:
            with watching_modes(model) as watched:
                traced = trace_model(model, inputs, graph_name)
            self._watched = watched()
        finally:
            self.tracing = False
        self.traced[traced.graph.name] = traced
        self.output_dict.update({tensor.sn_name: tensor for tensor in traced.outputs})
        model.output_tensors = traced.outputs  # type: ignore[assignment]
        attach_legacy_run(model)
        return traced

    def _trace_evaluation(self, model: nn.Module, inputs: Any, traced: TracedModel) -> "tuple[ModelGraph | None, str]":
        """The evaluation graph to compile; None where there is no need, or no way: then why, also as a warning."""
        self.tracing = True
        try:
            return trace_evaluation(model, inputs, traced, self._watched), ""
        except RdukitError as why:
            logger.warning(
                "the PEF gets no evaluation graph: %s; after model.eval() it will not run", why.message
            )  # fmt: skip
            return None, why.message
        finally:
            self.tracing = False

    # -- load --------------------------------------------------------------------------------------------------------

    @gc_paused()
    def trace(
        self, model: nn.Module, inputs: Any, optim: Any, pef: str, transfer_device: bool = True,
        init_output_grads: bool = True, loss_indices: Sequence[Any] | None = None, mapping: str = "section",
    ) -> tuple[SambaTensor, ...]:  # fmt: skip
        """Trace again, check that the graph is the compiled one, load the PEF and upload what the model holds.

        With ``mapping`` spatial, inputs may hold several of the compiled batches: a run then makes as many steps.

        Raises:
            PefError: there is no such PEF, it cannot be used, or it was compiled from another graph.
            NoResources: the node has no room.
        Source: ours. A PEF that is loaded already is replaced with a warning; real sessions refuse to trace a graph
            twice, but public programs and notebooks do it.
        """
        from rdukit_compiler.capture.signature import check_signature, graph_signature
        from rdukit_node.leases.launch import launch_name
        from rdukit_runtime.application import open_application

        self._unload_earlier()
        path = pef or self.pef_path
        began = time.perf_counter()
        spatial = self._find_spatial(inputs, path) if str(mapping).lower() == "spatial" else None
        inputs = inputs if spatial is None else first_batch(inputs, spatial)
        traced = self._trace(model, inputs, None)
        application = open_application(path, Path(path).stem, self._wanted_arch(), launch_name())
        try:
            signature = application.pef.signature.get(traced.graph.name)
            if signature is None:
                compiled = ", ".join(g.name for g in application.pef.main_graphs())
                raise PefMismatch(
                    f"{path} was compiled from {compiled}, not from {traced.graph.name}; compile this program"
                )
            chosen = optimizer_list(optim)
            traced_groups = compiler_groups(chosen)
            try:
                check_signature(
                    signature,
                    graph_signature(traced.graph, traced_groups),
                    str(path),
                    bool(traced_groups),
                    traced.graph,
                )
            except PefMismatch as cause:
                if application.pef.evaluation_of(traced.graph.name) and not any(mode for _, mode in self._watched):
                    raise PefMismatch(
                        f"{cause.message}. The model is in evaluation mode, and the PEF can train: call model.train() "
                        "before trace_graph, and model.eval() after it"
                    ) from cause
                raise
        except BaseException:
            application.close()
            raise
        self._application, self._optimizers, self.pef_path = application, chosen, str(path)
        self._replicas = Replicas(application)
        self._spatial = spatial
        self._modes = Modes(model, inputs, traced, self._watched, application.pef, str(path), self._upload_more)
        self._scalars = dict(application.pef.hyperparameters)
        self._state.update(traced.state)
        self.buffer_dict.update(
            {n: SambaTensor(b, name=n) for n, b in traced.state.items() if not isinstance(b, nn.Parameter)}
        )
        self.tensor_dict["inputs"].update(traced.inputs)
        self.optim_dict.update(
            {
                symbol: SambaTensor(shape=held.shape, dtype=getattr(torch, held.host_dtype), name=symbol)
                for symbol, held in application.pef.symbols.items()
                if held.kind == "state"
            }
        )
        self._connect_outputs(traced, init_output_grads, loss_indices)
        if spatial is not None:
            for output in traced.outputs:
                output._empty = (torch.Size(spatial.joined_shape(output.shape)), output.dtype)
        self._announce_memory()
        if transfer_device:
            self.to_device()
        profile_runs(self, application)
        atexit.register(self.close)
        logger.info("loaded pef=%s seconds=%.3f", path, time.perf_counter() - began)
        return traced.outputs

    def _find_spatial(self, inputs: Any, path: str) -> SpatialBatches | None:
        named = {t.sn_name: t for t in flatten_tensors(inputs) if isinstance(t, SambaTensor)}
        return find_batches(named, {n: s.shape for n, s in read_pef(path).pef.symbols.items()}, str(path))

    def _unload_earlier(self) -> None:
        """One PEF runs at a time in a process: what an earlier trace loaded goes, and the program is told."""
        if self._application is not None:
            logger.warning(
                "unloading pef=%s: another trace replaces it; device values that were not copied with "
                "samba.session.to_cpu() are lost", self._application.path,
            )  # fmt: skip
            self.close()

    def _wanted_arch(self) -> str | None:
        arch = self.options.get("arch")
        return str(arch) if arch else None

    def _connect_outputs(
        self, traced: TracedModel, init_output_grads: bool, loss_indices: Sequence[Any] | None
    ) -> None:
        """Set which outputs start backward (SDK reference 17); the PEF holds the default."""
        program = self._loaded().program
        graph = program.pef.graphs[traced.graph.name]
        if not graph.seeds:
            return
        if loss_indices is not None:
            wanted = {int(i[0]) if isinstance(i, list | tuple) else int(i) for i in loss_indices}
            for position, output in enumerate(graph.outputs):
                if output in graph.seeds:
                    shape = program.pef.symbols[output].shape
                    program.seed(output, torch.ones(shape) if position in wanted else torch.zeros(shape))
        elif not init_output_grads:
            for output in graph.seeds:
                program.seed(output, torch.zeros(program.pef.symbols[output].shape))

    # -- run ---------------------------------------------------------------------------------------------------------

    def run(
        self, input_tensors: Any = None, output_tensors: Any = None, hyperparam_dict: Mapping[str, Any] | None = None,
        data_parallel: bool = False, reduce_on_rdu: bool = False, section_types: Iterable[str] | None = None,
        section_ids: Iterable[int] | None = None, grad_of_outputs: Sequence[Any] | None = None,
        graph_name: str | None = None, **ignored: Any,
    ) -> list[SambaTensor]:  # fmt: skip
        """Upload the inputs, run sections, and return a handle for each requested output.

        Without ``section_types`` and ``section_ids`` all sections run: a whole training step. After ``model.eval()``
        the forward sections of the evaluation graph run, until ``model.train()``. A handle's value is read when the
        program first looks at it. With ``data_parallel`` gradients are averaged over the ranks before the
        optimizer reads them; the first such run gives all ranks the parameters of rank 0.

        Raises:
            UnknownTensor, ShapeMismatch: an input that the PEF was not compiled for. InvalidArgument: an unknown
            section or graph, or a backward in evaluation mode. PefMismatch: the PEF has no graph for the mode that the
            model is in; ``data_parallel`` with a PEF that was compiled without it, or ranks with different PEFs.
            PeerLost: another rank died or does not answer.
        """
        application = self._loaded()
        program = application.program
        graph = self._graph_now(graph_name)
        requested = [_named(t, "output_tensors") for t in flatten_tensors(output_tensors)]
        key = (
            graph.name,
            None
            if section_types is None
            else tuple([section_types] if isinstance(section_types, str) else section_types),
            None if section_ids is None else tuple(section_ids),
        )
        chosen_before = self._sections.get(key)
        if chosen_before is None:
            chosen_before = self._sections[key] = self._choose_sections(graph, key[1], key[2])
        sections, has_forward, has_backward = chosen_before
        scalars = self._resolve_scalars(hyperparam_dict)
        shown = _outputs_of(program.pef, graph)
        for name in requested:
            program.symbol(name)
        if self._modes is not None:
            self._modes.note(graph, has_forward, has_backward)
        given = [(_named(t, "input_tensors"), t.torch_tensor()) for t in flatten_tensors(input_tensors)]
        if grad_of_outputs is not None:
            self._seed_outputs(requested or list(graph.outputs), grad_of_outputs)

        def step(values: Sequence[tuple[str, torch.Tensor]]) -> list[SambaTensor]:
            program.write_all(values)
            chosen = sections
            if self._replicas is not None:
                chosen = self._replicas.prepare(graph, sections, key[1] is None and key[2] is None, data_parallel)
            self._shown = shown
            application.run(graph.name, chosen, scalars)
            if self._replicas is not None:
                self._replicas.note(chosen)
            return [self._handle(name) for name in requested]

        return step(given) if self._spatial is None else self._run_batches(self._spatial, given, step)

    def check_mode(self, graph_name: str | None = None) -> None:
        """Refuse now what a run of the graph would refuse of the mode that its model is in. Ours, not the vendor's.

        Raises:
            PefMismatch: the PEF has no graph for that mode.
        """
        self._graph_now(graph_name)

    def _graph_now(self, name: str | None) -> Graph:
        """The graph to run for the one called ``name``, by the mode that its model is in."""
        graph = self._loaded().program.find_graph(name)
        if self._modes is not None:
            return self._modes.graph_now(graph)
        if self._graph_modes:
            self._check_modes(graph)
        return graph

    def _choose_sections(
        self, graph: Graph, types: tuple[str, ...] | None, ids: tuple[int, ...] | None
    ) -> tuple[tuple[int, ...], bool, bool]:
        program = self._loaded().program
        if self._modes is not None:
            self._modes.check_sections(graph, types, ids)
        sections = program.choose_sections(graph, types, ids)
        found = {program.pef.sections[number].type for number in sections}
        return sections, SectionType.FWD in found, SectionType.BCKWD in found

    def _upload_more(self, tensors: Mapping[str, torch.Tensor]) -> None:
        """Tensors of the host that the evaluation graph alone reads."""
        self._state.update(tensors)
        for name, tensor in tensors.items():
            if self.knows(name):
                self.write_tensor(name, tensor)

    def _run_batches(
        self, spatial: SpatialBatches, given: Sequence[tuple[str, torch.Tensor]],
        step: Callable[[Sequence[tuple[str, torch.Tensor]]], list[SambaTensor]],
    ) -> list[SambaTensor]:  # fmt: skip
        """A step for each batch of a spatial call; outputs are joined."""
        made: list[list[SambaTensor]] = []
        for number in range(spatial.count):
            for name in spatial.seeds:
                self._loaded().program.seed(name, spatial.seed_part(name, number))
            made.append(step([(name, spatial.part(name, value, number)) for name, value in given]))
        return [
            SambaTensor(join_parts([part.torch_tensor() for part in parts]), name=parts[0].sn_name)
            for parts in zip(*made, strict=True)
        ]

    def _seed_outputs(self, names: Sequence[str], gradients: Any) -> None:
        given = [gradients] if isinstance(gradients, SambaTensor | torch.Tensor) else list(gradients)
        if len(given) > len(names):
            raise InvalidArgument(f"grad_of_outputs holds {len(given)} gradients for {len(names)} outputs")
        for name, gradient in zip(names, given, strict=False):
            if gradient is not None:
                self.seed_output(name, unwrap(gradient))

    def _handle(self, name: str) -> SambaTensor:
        """A live handle: keeps the device's tensor of this run and converts it when read."""
        program = self._loaded().program
        source = self._shown.get(name, name)
        symbol = program.symbol(source)
        device = program.device_tensor(source)
        handle = SambaTensor(shape=symbol.shape, dtype=getattr(torch, symbol.host_dtype), name=name)
        handle._pull, handle._is_output = lambda: program.to_host(device, symbol), True
        return handle

    def _resolve_scalars(self, given: Mapping[str, Any] | None) -> Mapping[str, float]:
        """Every scalar of the PEF: the compiled-in values, overridden by ``given`` (``lr`` sets every ``….lr``)."""
        if not given:
            return self._scalars
        if self._scalar_cache is not None and self._scalar_cache[0] == given:
            return self._scalar_cache[1]
        resolved = dict(self._scalars)
        rates = set(self.get_dropout_rate_argin_names())
        for key in resolved:
            word = "p" if key in rates else key.rpartition(".")[2]
            name = key if key in given else word
            if name in given and (name == key or word in _SCALARS):
                try:
                    resolved[key] = float(given[name])
                except (TypeError, ValueError) as cause:
                    raise InvalidArgument(
                        f"hyperparam_dict[{name!r}] is {given[name]!r}; legal: a number, or a tensor of one element"
                    ) from cause
        self._scalar_cache = (dict(given), resolved)
        return resolved

    # -- ending ------------------------------------------------------------------------------------------------------

    def close(self) -> None:
        """Tear down: free tiles and memory. What was traced stays known. Ours, not the vendor's."""
        application, self._application = self._application, None
        self._replicas = self._spatial = self._scalar_cache = self._modes = None
        self._sections.clear()
        self._shown, self._graph_modes = {}, {}
        atexit.unregister(self.close)
        if application is not None:
            application.close()

    def reset(self) -> None:
        """Tear down and forget everything traced, so that another program can use the process."""
        self.close()
        options, pid = self.options, os.getpid()
        logger.debug("session reset pid=%d", pid)
        self.__init__()  # type: ignore[misc]
        self.options = options

    @property
    def SambaSession(self) -> type["SambaSession"]:
        """The class, under the path that the documentation gives it: ``sambaflow.samba.session.SambaSession``."""
        return SambaSession

    @property
    def averages_gradients(self) -> bool:
        """Whether the loaded PEF was compiled for data parallel. Ours, not the vendor's."""
        return self._replicas is not None and self._replicas.can_reduce

    def _loaded(self) -> "Application":
        if self._application is None:
            raise RuntimeFault(
                "no PEF is loaded; call samba.utils.trace_graph(model, inputs, optim, pef=…), or "
                "samba.session.init_multigraph_runtime(pef), first"
            )
        return self._application


def _outputs_of(pef: Pef, graph: Graph) -> Mapping[str, str]:
    """Outputs of the training graph → those of ``graph`` if it is the evaluation graph; empty for all others."""
    if not graph.evaluates:
        return {}
    return dict(zip(pef.graphs[graph.evaluates].outputs, graph.outputs, strict=True))


def _named(tensor: Any, argument: str) -> str:
    if not isinstance(tensor, SambaTensor):
        raise InvalidArgument(f"{argument} holds a torch tensor; wrap it: samba.from_torch_tensor(t, name='…')")
    return tensor.sn_name


__all__ = ["SambaSession", "ShapeMismatch", "UnknownTensor"]
