"""What the session offers besides compile, load and run: hints, profiles, names. Source: SDK reference 6.3."""

import atexit
import io
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from rdukit.errors import InvalidArgument
from rdukit.files.atomic import write_atomic, write_json_atomic
from sambaflow.samba import directives
from sambaflow.samba.profiler import Profiler
from sambaflow.samba.sambatensor import DimInfo, SambaTensor, unwrap
from sambaflow.sessions.profiles import runtime_profile

if TYPE_CHECKING:
    import cProfile

    from rdukit_runtime.application import Application


class SessionExtras:
    """Mixed into ``SambaSession``; needs its ``options`` and ``tracing``."""

    options: dict[str, Any]
    tracing: bool

    if TYPE_CHECKING:  # SambaSession's own

        def _loaded(self) -> "Application": ...

    # -- options -----------------------------------------------------------------------------------------------------

    def setup(self, args: Any) -> None:
        """Take the options of ``argconf`` arguments (or a mapping, or a namespace), as ``parse_app_args`` does.

        Raises:
            InvalidArgument: something else was given.
        """
        if hasattr(args, "model_dump"):
            values = args.model_dump()
        elif isinstance(args, Mapping):
            values = dict(args)
        elif hasattr(args, "__dict__"):
            values = dict(vars(args))
        else:
            raise InvalidArgument(f"session.setup takes CompileArgs, RunArgs or a mapping, not {type(args).__name__}")
        self.options = {str(name): value for name, value in values.items()}

    # -- hints -------------------------------------------------------------------------------------------------------

    @cached_property
    def _context_directives(self) -> dict[str, Any]:
        """Hints that are active now, by name."""
        return {}

    @contextmanager
    def _add_directives(self, hints: Mapping[str, Any]) -> Iterator[None]:
        """Compile hints for what is traced inside; nested ones win. Recorded on the operators, no effect on results."""
        before = dict(self._context_directives)
        self._context_directives.update(hints)
        try:
            with directives.hints({str(key): str(value) for key, value in hints.items()}):
                yield
        finally:
            self._context_directives.clear()
            self._context_directives.update(before)

    @contextmanager
    def disable_graphamp(self) -> Iterator[None]:
        """Mark operators traced inside: they keep their declared precision."""
        with self._add_directives({"graphamp": "disabled"}):
            yield

    def use_static_functional(self) -> bool:
        """Whether a forward is being traced for the device; False means torch semantics on the host."""
        return bool(self.tracing)

    # -- auxiliary tensors -------------------------------------------------------------------------------------------

    @cached_property
    def aux_tensors(self) -> dict[str, SambaTensor]:
        """What ``add_aux_tensor`` named, by name: of a host run its value, of a trace what the device has. Ours."""
        return {}

    def is_valid_aux_tensor_name(self, name: str) -> bool:
        """Whether ``name`` was given to an auxiliary tensor."""
        return name in self.aux_tensors

    def add_aux_tensor(self, tensor: Any, name: str) -> None:
        """Expose an intermediate tensor of forward under ``name``.

        When traced it becomes one more output of the graph: not of the model, but ``get_tensors_by_name([name])`` and
        ``aux_tensors[name]`` read it after a run. No gradient flows into it. On the host its value is kept.

        Raises:
            InvalidArgument: an empty name, or one that the trace has used.
        """
        if not name:
            raise InvalidArgument("add_aux_tensor needs a name that is not empty")
        plain = unwrap(tensor)
        if not self.tracing:
            self.aux_tensors[name] = SambaTensor(plain.detach(), name=name)
            return
        if name in directives.recording.auxiliary:
            raise InvalidArgument(f"add_aux_tensor: {name!r} is used twice in this forward; names must differ")
        directives.recording.auxiliary[name] = plain
        self.aux_tensors[name] = SambaTensor(shape=plain.shape, dtype=plain.dtype, name=name)

    # -- dynamic dimensions ------------------------------------------------------------------------------------------

    @cached_property
    def dynamic_dims(self) -> dict[str, DimInfo]:
        """Declared dynamic dimensions; graphs are static, so each stands for its largest size."""
        return {}

    def create_dynamic_dim(self, name: str, max: int) -> DimInfo:
        """Declare a dynamic dimension of at most ``max``."""
        return self.dynamic_dims.setdefault(name, DimInfo(int(max)))

    def load_dynamic_dims_config(self, path: "str | Path") -> dict[str, DimInfo]:
        """Declare those of a YAML file: a mapping from name to largest size (or to ``{max: size}``).

        Raises:
            InvalidArgument: the file is no such mapping.
        """
        import yaml

        values = yaml.safe_load(Path(path).read_text()) or {}
        if not isinstance(values, dict):
            raise InvalidArgument(f"{path} must map names of dimensions to largest sizes")
        for name, value in values.items():
            largest = value.get("max") if isinstance(value, dict) else value
            if not isinstance(largest, int) or largest < 1:
                raise InvalidArgument(f"{path}: {name}: {value!r} is not legal; legal: a positive size, or max: size")
            self.create_dynamic_dim(str(name), largest)
        return self.dynamic_dims

    # -- profiles ----------------------------------------------------------------------------------------------------

    @cached_property
    def profiler(self) -> Profiler:
        """The session's profiler; usable whether or not a profile was started."""
        return Profiler()

    def start_samba_profile(self) -> None:
        """Profile this process's Python code until ``end_samba_profile``; started again, it starts anew."""
        import cProfile

        if (running := self.__dict__.pop("_host_profile", None)) is not None:
            running.disable()
        self.profiler.start_profile()
        self._host_profile = cProfile.Profile()
        self._host_profile.enable()

    def end_samba_profile(self, filename: "str | Path | None" = None) -> str:
        """Stop, and return the 40 costliest functions as text, written to ``filename`` if given; empty if not started.

        The vendor's format is not published (Source: ours).
        """
        import pstats

        running: cProfile.Profile | None = self.__dict__.pop("_host_profile", None)
        if running is None:
            return ""
        running.disable()
        self.profiler.stop_profile()
        stream = io.StringIO()
        pstats.Stats(running, stream=stream).sort_stats("cumulative").print_stats(40)
        if filename:
            write_atomic(Path(filename), stream.getvalue().encode())
        return stream.getvalue()

    def report(self) -> dict[str, Any]:
        """What has run: emulated figures (projections of the cost model) and host figures. Ours, not the vendor's."""
        return self._loaded().figures()

    def start_runtime_profile(self) -> None:
        """Measure each section from now on; see ``end_runtime_profile``."""
        self._loaded().program.section_seconds = []

    def end_runtime_profile(self, path: "str | Path" = "runtime_profile.json") -> None:
        """Write what each section took since ``start_runtime_profile`` to ``path``, as JSON; nothing if not started.

        Per section: runs, ``emulated_seconds`` (the cost model's projection for the chip) and ``host_seconds`` (this
        machine), both in total. The vendor's file format is not published (Source: ours).
        """
        application = self._loaded()
        measured, application.program.section_seconds = application.program.section_seconds, None
        if measured is not None:
            write_json_atomic(Path(path), runtime_profile(application.pef, measured))

    def get_dropout_rate_argin_names(self) -> list[str]:
        """Names of dropout rates that ``hyperparam_dict`` may change one by one; its ``p`` changes all of them.

        Rates that are 0 or 1 in the model are compiled in.
        """
        pef = self._loaded().pef
        return [name for name in pef.hyperparameters if name in pef.symbols]

    # -- what was traced ---------------------------------------------------------------------------------------------

    def _traced_tensors(self) -> list[Any]:
        """Everything traced that the device holds: inputs, parameters, buffers, outputs; each has ``rdu()``."""
        state: dict[str, Any] = self.__dict__.get("_state", {})
        buffers: dict[str, Any] = self.__dict__.get("buffer_dict", {})
        parameters = [tensor for tensor in state.values() if isinstance(tensor, nn.Parameter)]
        inputs = self.__dict__.get("tensor_dict", {}).get("inputs", {})
        outputs = self.__dict__.get("output_dict", {})
        return [*inputs.values(), *parameters, *buffers.values(), *outputs.values()]

    @property
    def ctx(self) -> "LegacyContext":
        """Old programs' low-level access."""
        return LegacyContext(self)

    # -- the process -------------------------------------------------------------------------------------------------

    pinned_memory = False

    def enable_pinned_memory(self) -> None:
        """Accepted and remembered; the emulated device shares the host's memory, so nothing is copied faster."""
        self.pinned_memory = True

    def disable_pinned_memory(self) -> None:
        """Undo ``enable_pinned_memory``."""
        self.pinned_memory = False

    @staticmethod
    def disable_lazy_param() -> None:
        """From now on ``lazy_param()`` has no effect: modules get their values when built."""
        from sambaflow.samba import lazy_param

        lazy_param.set_enabled(False)

    def atexit_register(self, fn: Callable[..., Any], *args: Any, **kwargs: Any) -> Callable[..., Any]:
        """Call ``fn`` when the process ends; returns it."""
        return atexit.register(fn, *args, **kwargs)


class LegacyContext:
    """``session.ctx`` of old programs."""

    def __init__(self, session: Any) -> None:
        self._session = session

    def set_tensors(self, tensors: Mapping[str, Any]) -> None:
        """Copy arrays or tensors to the device, by symbol name."""
        for name, value in tensors.items():
            self._session.write_tensor(name, torch.as_tensor(unwrap(value)))


def attach_legacy_run(model: nn.Module) -> None:
    """Give a traced model the ``run`` of old programs; its own ``run`` stays."""
    if not hasattr(model, "run"):
        model.run = LegacyRun(model)  # type: ignore[assignment]


class LegacyRun:
    """A traced model's ``run``; a type of its own, so that ``torch.load`` can be told that it is safe."""

    def __init__(self, model: nn.Module) -> None:
        self.model = model

    def __call__(self, inputs: Any, *args: Any, **kwargs: Any) -> Any:
        return _legacy_run(self.model, inputs, *args, **kwargs)


def _legacy_run(model: nn.Module, inputs: Any, *args: Any, **kwargs: Any) -> Any:
    from sambaflow import samba

    if args:
        kwargs.setdefault("section_types", args[0])
    return samba.session.run(inputs, kwargs.pop("output_tensors", model.output_tensors), **kwargs)
