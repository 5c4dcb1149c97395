"""Training and evaluation mode of a traced model: chooses the graph of a run.

A model is traced in its current mode. Forward may depend on ``module.training``: dropout, batch norms, a program's own
branches. Therefore the trace records the modules whose mode forward reads. While these modes are unchanged, a run uses
the traced graph. Otherwise the model is traced again, and the run uses the PEF's graph for the new trace, or is
refused. Source: ours; the vendor's documents do not say what ``model.eval()`` does on a device.
"""

import collections
import contextlib
import logging
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

import torch
from torch import fx, nn

from rdukit.errors import CompileError, InvalidArgument, PefMismatch, RdukitError
from rdukit.pef.model import NO_EVALUATION, Graph, Pef
from rdukit_compiler import (
    ModelGraph,
    OptimizerGroup,
    computes_the_same,
    evaluation_graph,
    evaluation_name,
    with_shared_names,
)
from sambaflow.samba.optim.base import compiler_groups
from sambaflow.sessions.module_changes import ModuleChanges
from sambaflow.tracing.module_state import temporary_numbers
from sambaflow.tracing.tied_weights import check_apart, tied_elsewhere
from sambaflow.tracing.tracer import TracedModel, trace_model

logger = logging.getLogger(__name__)

_OWN: Final = ("train", "eval")
#: Maximum number of new traces because of one attribute without a warning.
_OFTEN: Final = 3

#: Modules whose mode forward reads → the traced mode of each.
Watched = tuple[tuple[nn.Module, bool], ...]


@contextlib.contextmanager
def watching_modes(model: nn.Module) -> Iterator[Callable[[], Watched]]:
    """Record modules whose ``training`` is read inside the block; yield a function that returns them.

    Modules that override ``train`` or ``eval`` are always among them, because these may change anything.
    """
    read: dict[int, nn.Module] = {}

    def get(module: nn.Module) -> bool:
        try:
            value: bool = module.__dict__["training"]
        except KeyError:
            raise AttributeError("training") from None
        read[id(module)] = module
        return value

    def put(module: nn.Module, value: bool) -> None:
        module.__dict__["training"] = value

    def found() -> Watched:
        inside = {id(m): m for m in model.modules()}
        own = {number: m for number, m in inside.items() if _has_own_switch(m)}
        # The tracer's own modules do not count.
        seen = {
            number: m for number, m in read.items() if number in inside or type(m) not in (nn.Module, fx.GraphModule)
        }
        return tuple((m, m.__dict__["training"]) for m in {**seen, **own}.values() if "training" in m.__dict__)

    nn.Module.training = property(get, put)  # type: ignore[assignment]
    try:
        yield found
    finally:
        del nn.Module.training


@contextlib.contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Put ``model`` into evaluation mode in the block, and restore each module's mode afterwards."""
    modes = [(module, module.training) for module in model.modules()]
    was = model.training
    model.eval()
    try:
        yield
    finally:
        if any(_has_own_switch(module) for module, _ in modes):
            model.train(was)
        for module, mode in modes:
            module.training = mode


def find_evaluation(
    model: nn.Module, inputs: Any, traced: TracedModel, watched: Watched
) -> tuple[ModelGraph | None, str]:  # fmt: skip
    """Return the evaluation graph to compile; None if unneeded, or with a logged reason if impossible."""
    try:
        return _trace_evaluation(model, inputs, traced, watched), ""
    except RdukitError as why:
        logger.warning("the PEF gets no evaluation graph: %s; after model.eval() it will not run", why.message)
        return None, why.message


def _trace_evaluation(model: nn.Module, inputs: Any, traced: TracedModel, watched: Watched) -> ModelGraph | None:
    """Return the evaluation graph to compile with a training graph; None if the training graph's forward computes the
    same.

    Raises:
        RdukitError: the model cannot be traced in evaluation mode, or the trace cannot replace the training graph; the
            message has the reason.
    """
    if not any(mode for _, mode in watched):
        return None
    tensors = [*model.parameters(), *model.buffers()]
    before = [(id(tensor), tensor._version) for tensor in tensors]
    with evaluating(model):
        now = [*model.parameters(), *model.buffers()]
        if [(id(tensor), tensor._version) for tensor in now] != before:
            raise CompileError("train() or eval() changes parameters or buffers on the host but not on the device")
        evaluated = _trace_again(model, inputs, traced)
    return evaluation_graph(traced.graph, evaluated.graph)


def _trace_again(
    model: nn.Module, inputs: Any, traced: TracedModel, changes_constants: bool = False
) -> TracedModel:  # fmt: skip
    """Trace ``model`` in its mode, under the evaluation graph's name; equal tensors get equal names.

    Args:
        changes_constants: whether tensors other than parameters and buffers may have new values under their names.
    """
    made = trace_model(model, inputs, evaluation_name(traced.graph.name), apart=traced.apart)
    own = {name: tensor for name, tensor in traced.state.items() if name not in made.state}
    constants: dict[str, str] = {}
    for name, tensor in made.state.items():
        if name in traced.state:
            continue
        likely = traced.graph.name + name.removeprefix(made.graph.name)
        first = {likely: own[likely]} if likely in own else {}
        ours = next((n for n, t in {**first, **own}.items() if _is_equal(t, tensor)), None)
        if ours is None and changes_constants and likely in own and _is_of_one_form(own[likely], tensor):
            ours = likely
        if ours is not None:
            constants[name] = ours
    made.graph = with_shared_names(traced.graph, made.graph, constants)
    made.state = {constants.get(name, name): tensor for name, tensor in made.state.items()}
    return made


def trained_groups(traced: TracedModel, optimizers: Any) -> tuple[OptimizerGroup, ...]:
    """Return the groups of a program's optimizers, in the compiler's form.

    Raises:
        TraceError: the memory of a trained parameter has another name in the trace.
    """
    groups = compiler_groups(optimizers)
    check_apart(traced.state, {name for group in groups for name in group.parameters})
    return groups


def check_traced(
    pef: Pef, path: str, model: nn.Module, traced: TracedModel, optimizers: Any, watched: Watched
) -> None:  # fmt: skip
    """Check that ``pef`` was compiled from the trace of ``model``.

    Raises:
        PefMismatch: it was compiled from another trace. TraceError: see ``trained_groups``.
    """
    from rdukit_compiler import check_signature, graph_signature

    name = traced.graph.name
    signature = pef.signature.get(name)
    if signature is None:
        compiled = ", ".join(graph.name for graph in pef.main_graphs())
        raise PefMismatch(f"{path} was compiled from {compiled}, not from {name}; compile this program")
    try:
        groups = trained_groups(traced, optimizers)
        check_signature(signature, graph_signature(traced.graph, groups), path, bool(groups), traced.graph)
    except PefMismatch as cause:
        if hint := tied_elsewhere(model, signature["parameters"]):
            raise PefMismatch(f"{cause.message}{hint}") from cause
        if pef.evaluation_of(name) and not any(mode for _, mode in watched):
            raise PefMismatch(
                f"{cause.message}. The model is in evaluation mode, and the PEF can train: call model.train() "
                "before trace_graph, and model.eval() after it"
            ) from cause
        raise


class Modes:
    """The graphs of a loaded PEF by the mode of the model that a session has traced.

    ``watched``: see ``watching_modes``. ``upload`` receives the host's tensors that only an evaluation graph reads.
    """

    def __init__(
        self, model: nn.Module, inputs: Any, traced: TracedModel, watched: Watched, pef: Pef, path: str,
        upload: Callable[[Mapping[str, torch.Tensor]], None],
    ) -> None:  # fmt: skip
        self._model = model
        self._inputs = inputs
        self._traced = traced
        self._watched = watched
        self._pef = pef
        self._path = path
        self._upload = upload
        #: Modes of the model's modules, in their order → the evaluation graph, or None for the graph as traced.
        self._known: dict[tuple[bool, ...], Graph | None] = {}
        #: Changed attribute → number of new traces that it caused.
        self._traced_for: collections.Counter[str] = collections.Counter()
        self._changes = self._watch(model)
        #: Rates of dropouts that the program set after tracing, by the names of the scalars.
        self.rates: dict[str, float] = {}
        #: Whether the model itself was in training mode when it was traced.
        self._was_training = model.training
        #: Whether, since the last forward, an evaluation has overwritten inputs that the next backward would read.
        self._is_interrupted = False

    def graph_now(self, graph: Graph) -> Graph:
        """Return the graph to run instead of ``graph``: itself, or its evaluation graph.

        Raises:
            PefMismatch: the PEF has no graph for the model's mode.
        """
        if graph.name != self._traced.graph.name and graph.evaluates != self._traced.graph.name:
            return graph
        found = self.evaluation_now() or self._pef.graphs[self._traced.graph.name]
        if graph.evaluates and found is not graph:
            raise InvalidArgument(
                f"graph {graph.name!r} computes in evaluation mode, in which the model is not; call model.eval() first"
            )
        return found

    def check_changes(self) -> bool:
        """Refuse changes of the model since its trace, if it computes something else now.

        Rates of dropouts are the exception: the device takes them at each run. Returns whether ``rates`` changed.

        Raises:
            PefMismatch: the graph differs now, or a hook, a parameter or a module was added or replaced.
        """
        found = self._changes.find()
        if not found:
            return False
        if (refusal := self._changes.refusal()) is not None:
            raise PefMismatch(f"{refusal}; the graph stays as it was traced: compile and trace the model again")
        self._known.clear()
        began = time.perf_counter()
        same_mode = all(module.training is mode for module, mode in self._watched)
        try:
            now = _trace_again(self._model, self._inputs, self._traced, changes_constants=same_mode)
        except RdukitError as cause:
            raise PefMismatch(
                f"{found} changed after tracing, and the model can no longer be traced: {cause.message}"
            ) from cause
        rates = dict(zip(self._traced.graph.rates, now.graph.rates.values(), strict=False))
        if len(rates) != len(now.graph.rates) or (same_mode and not computes_the_same(self._traced.graph, now.graph)):
            raise PefMismatch(
                f"{found} changed after tracing, so the model no longer computes what {self._path} was compiled for; "
                "compile and trace the model again. For a number that changes, fill a buffer (register_buffer), "
                "which each run reads, or pass an input"
            )
        if same_mode:
            replaced = {
                name: tensor for name, tensor in now.state.items()
                if name in self._traced.state and tensor is not self._traced.state[name]
                and not isinstance(tensor, nn.Parameter)
            }  # fmt: skip
            self._traced.state.update(replaced)
            self._upload(replaced)
            self.rates = {name: rate for name, rate in rates.items() if rate != self._traced.graph.rates[name]}
        self._changes = self._watch(self._model)
        self._traced_for[found] += 1
        if self._traced_for[found] == _OFTEN:
            logger.warning(
                "%s changed before %d runs, and each change traces the model again (%.0f ms); fill a buffer in place "
                "instead (register_buffer), make it an input, or keep it outside the model", found, _OFTEN,
                (time.perf_counter() - began) * 1e3,
            )  # fmt: skip
        return True

    def evaluation_now(self) -> Graph | None:
        """Return the evaluation graph if the model's mode needs it; None if the model computes the traced graph.

        Raises:
            PefMismatch: the model computes another graph, which the PEF lacks.
        """
        if all(module.training is mode for module, mode in self._watched):
            return None
        modes = tuple(m.training for m in (*self._model.modules(), *(m for m, _ in self._watched)))
        if modes not in self._known:
            self._known[modes] = self._find()
        return self._known[modes]

    def follow(self, model: nn.Module) -> None:
        """Use the modes of ``model`` from now on: it was converted after tracing and replaces the traced model.

        A model without the watched modules is ignored.
        """
        places = {id(module): path for path, module in self._model.named_modules()}
        new = dict(model.named_modules())
        paths = {places[id(module)] for module, _ in self._watched if id(module) in places}
        if type(model) is type(self._model) and paths <= new.keys():
            moved = tuple((new[places[id(m)]] if id(m) in places else m, mode) for m, mode in self._watched)
            self._model, self._watched, self._known = model, moved, {}
            self._changes = self._watch(model)

    def _watch(self, model: nn.Module) -> ModuleChanges:
        """Watch the model, except parameters and buffers that each run uploads anyway."""
        fixed = {id(b) for b in temporary_numbers(model)}
        taken = [b for b in (*model.parameters(), *model.buffers()) if id(b) not in fixed]
        return ModuleChanges(model, [*taken, *(self._traced.state[name] for name in self._traced.graph.updates)])

    def _find(self) -> Graph | None:
        from rdukit_compiler import check_signature, graph_signature

        name = self._traced.graph.name
        now_training = {module.training for module, _ in self._watched}
        mode = "a mixed" if len(now_training) > 1 else "training" if True in now_training else "evaluation"
        try:
            now = _trace_again(self._model, self._inputs, self._traced)
        except RdukitError as cause:
            raise PefMismatch(f"the model cannot run in {mode} mode: {cause.message}") from cause
        if computes_the_same(self._traced.graph, now.graph):
            return None
        found = self._pef.evaluation_of(name)
        if found is None:
            raise PefMismatch(self._missing(mode))
        signature = self._pef.signature.get(found.name, {})
        try:
            check_signature(signature, graph_signature(now.graph, ()), self._path, False, now.graph)
        except PefMismatch as cause:
            raise PefMismatch(
                f"{self._path} has a graph for evaluation mode, but the model now computes something else: "
                f"{cause.message}; call model.eval(), which puts all of its modules into that mode, or model.train()"
            ) from cause
        self._upload({n: t for n, t in now.state.items() if n not in self._traced.state})
        return found

    def _missing(self, mode: str) -> str:
        said = f"the model is in {mode} mode, and computes something else there than {self._path} was compiled for"
        if self._pef.inference and not mode.startswith("a "):
            return f"{said}; call model.{'eval' if mode == 'evaluation' else 'train'}() before compile and trace"
        if mode == "evaluation" and self._traced_in_training:
            if why := self._pef.metadata.get(NO_EVALUATION):
                return f"{said}, which has no evaluation graph, because {why}; call model.train()"
            return f"{said}, which has no evaluation graph; compile this program again, or call model.train()"
        return f"{said}; put the model into the mode in which it was traced, or compile and trace it in this one"

    @property
    def _traced_in_training(self) -> bool:
        return any(mode for _, mode in self._watched)

    def check_whole_step(self, graph: Graph) -> None:
        """Refuse a complete training step of a model that was traced in training mode and is in evaluation mode now.

        This also holds if forward computes the same in both modes: a validation loop must not train.

        Raises:
            InvalidArgument: the model is in evaluation mode.
        """
        if self._was_training and not self._model.training:
            raise InvalidArgument(_refuse_training(graph.evaluates or graph.name, "a whole step"))

    def check_sections(self, graph: Graph, types: tuple[str, ...] | None, ids: tuple[int, ...] | None) -> None:
        """Refuse sections that the evaluation graph lacks.

        Raises:
            InvalidArgument: a complete step, or sections other than forward ones.
        """
        if not graph.evaluates or ids is not None:
            return
        if types is None or {word.lower().lstrip("$") for word in types} != {"fwd"}:
            asked = "a whole step" if types is None else f"sections of type {', '.join(types)}"
            raise InvalidArgument(_refuse_training(graph.evaluates, asked))

    def note(self, graph: Graph, has_forward: bool, has_backward: bool) -> None:
        """Record the sections that run next.

        Raises:
            InvalidArgument: an evaluation has run between a backward and its forward.
        """
        if graph.evaluates:
            self._is_interrupted = True
        elif has_forward:
            self._is_interrupted = False
        elif has_backward and self._is_interrupted:
            raise InvalidArgument(
                "backward needs activations of a forward in training mode, but the model was evaluated since; run "
                "'fwd' in training mode first, or evaluate after the step"
            )


def _refuse_training(name: str, asked: str) -> str:
    return (
        f"the model is in evaluation mode, in which {name!r} runs forward sections only, and {asked} cannot run; pass "
        "section_types=['fwd'] to evaluate, or call model.train() to train; under torch.no_grad() a whole run evaluates"
    )


def _has_own_switch(module: nn.Module) -> bool:
    return any(getattr(type(module), name) is not getattr(nn.Module, name) for name in _OWN)


def _is_of_one_form(one: torch.Tensor, other: torch.Tensor) -> bool:
    if isinstance(one, nn.Parameter) or one.is_meta or other.is_meta:
        return False
    return one.dtype == other.dtype and one.shape == other.shape


def _is_equal(one: torch.Tensor, other: torch.Tensor) -> bool:
    if one is other:
        return True
    return _is_of_one_form(one, other) and bool(torch.equal(one, other))
