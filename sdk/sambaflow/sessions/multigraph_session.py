"""The session's part for multigraph: trace, register, compile, load.

Source: SDK reference 12. The decisions are in ``multigraph.py``; ``session.run`` runs one graph by its name.
"""

import atexit
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from rdukit.errors import InvalidArgument, PefMismatch
from rdukit.pef.model import Graph, Pef
from sambaflow.samba.graph import FwdGraph
from sambaflow.samba.sambatensor import SambaTensor
from sambaflow.sessions.modes import Modes
from sambaflow.sessions.multigraph import MultiGraph
from sambaflow.sessions.profiles import profile_runs
from sambaflow.tracing.tracer import TracedModel

if TYPE_CHECKING:
    from rdukit_runtime.application import Application


class MultigraphSession:
    """What ``SambaSession`` can do with several graphs in one PEF."""

    pef_path: str
    options: dict[str, Any]
    tracing: bool
    traced: dict[str, TracedModel]
    output_dict: dict[str, SambaTensor]
    buffer_dict: dict[str, SambaTensor]
    tensor_dict: dict[str, dict[str, SambaTensor]]
    _state: dict[str, torch.Tensor]
    _scalars: dict[str, float]
    _application: "Application | None"

    if TYPE_CHECKING:  # SambaSession's own

        def _unload_earlier(self) -> None: ...
        def _wanted_arch(self) -> str | None: ...
        def to_device(self) -> None: ...
        def _announce_memory(self) -> None: ...
        def close(self) -> None: ...

    def __init__(self) -> None:
        #: What was traced and added for multigraph.
        self.multigraph = MultiGraph()
        #: Graph of a loaded multigraph PEF → the models in it whose mode forward reads.
        self._graph_modes: dict[str, list[Modes]] = {}

    def trace_multigraph(self, model: nn.Module, inputs: Any, trace_prefix: str = "") -> tuple[SambaTensor, ...]:
        """See ``samba.utils.trace_multigraph``."""
        self.tracing = True
        try:
            traced = self.multigraph.trace(model, inputs, trace_prefix)
        finally:
            self.tracing = False
        self.traced[traced.graph.name] = traced
        self.output_dict.update({tensor.sn_name: tensor for tensor in traced.outputs})
        model.output_tensors = traced.outputs  # type: ignore[assignment]
        return traced.outputs

    def _check_modes(self, graph: Graph) -> None:
        """Refuse to run a graph one of whose models computes something else in the mode that it is in now.

        Raises:
            PefMismatch: it does.
        """
        for modes in self._graph_modes.get(graph.name, ()):
            modes.evaluation_now()

    def _modes_by_graph(self, pef: Pef, path: str) -> dict[str, list[Modes]]:
        found: dict[str, list[Modes]] = {}
        for model, inputs, traced, watched in self.multigraph.traced:
            modes = Modes(model, inputs, traced, watched, pef, path, lambda _: None)
            names = {operator.name for operator in traced.graph.operators}
            for graph in pef.graphs.values() if watched else ():
                if not names.isdisjoint(name for number in graph.schedule for name in pef.sections[number].operators):
                    found.setdefault(graph.name, []).append(modes)
        return found

    def add_graph(self, graph: FwdGraph) -> None:
        """Register a graph for ``compile_multigraph`` and ``init_multigraph_runtime``.

        Raises:
            InvalidArgument: it is no FwdGraph, or its name is taken.
        """
        self.multigraph.add(graph)

    def compile_multigraph(
        self, name: str | None = None, config_dict: Mapping[str, Any] | None = None,
        pef_metadata: Mapping[str, Any] | None = None, inference: bool = True, enable_hypersection: bool = True,
        arch: str | None = None, samba_only: bool = False, **ignored: Any,
    ) -> str:  # fmt: skip
        """Compile all added graphs into one PEF; returns its path, as ``compile`` does.

        Args:
            samba_only: stop after the frontend: graphs and regions are checked, no PEF is made, the path is ``""``.
        Raises:
            CompileError: a graph cannot be cut or compiled; InvalidArgument: no graph, or ``inference=False``.
        """
        from rdukit_compiler.pipeline import TracedGraph
        from sambaflow.sessions.compiling import compile_traced

        if not inference:
            raise InvalidArgument("multigraph is for inference only; legal: inference=True")
        cut = self.multigraph.cut_all()
        if samba_only:
            return ""
        config = dict(config_dict) if config_dict is not None else dict(self.options)
        if arch is not None:
            config["arch"] = arch
        self.pef_path = compile_traced(
            [TracedGraph(graph) for graph in cut], name or "multigraph", config, True, pef_metadata or {},
            self.multigraph.regions(),
        )  # fmt: skip
        return self.pef_path

    def init_multigraph_runtime(self, pef: str = "") -> None:
        """Check that the added graphs are the PEF's, load it, and upload parameters, buffers and inputs with values.

        Raises:
            PefError: there is no such PEF, it cannot be used, or it was compiled from other graphs or regions.
            NoResources: the node has no room.
        """
        from rdukit_compiler.capture.signature import check_signature, graph_signature
        from rdukit_runtime.application import open_application

        self._unload_earlier()
        path = str(pef or self.pef_path)
        cut = self.multigraph.cut_all()
        application = open_application(path, name=Path(path).stem, arch=self._wanted_arch())
        try:
            compiled, ours = list(application.pef.signature), [graph.name for graph in cut]
            if sorted(compiled) != sorted(ours):
                raise PefMismatch(
                    f"{path} was compiled from graphs {', '.join(compiled)}; this program added {', '.join(ours)}"
                )
            for graph in cut:
                check_signature(application.pef.signature[graph.name], graph_signature(graph, ()), path, False, graph)
            self.multigraph.check_regions(application.pef, path)
        except BaseException:
            application.close()
            raise
        self._application = application
        self._scalars = dict(application.pef.hyperparameters)
        self._state.update(self.multigraph.state)
        self._announce_memory()
        self.buffer_dict.update(
            {n: SambaTensor(b, name=n) for n, b in self._state.items() if not isinstance(b, nn.Parameter)}
        )
        self.tensor_dict["inputs"].update(self.multigraph.inputs)
        self.to_device()
        for symbol, tensor in self.multigraph.inputs.items():
            if symbol in application.pef.symbols and tensor.has_data:
                application.program.write(symbol, tensor.torch_tensor())
        self._graph_modes = self._modes_by_graph(application.pef, path)
        profile_runs(self, application)
        atexit.register(self.close)
