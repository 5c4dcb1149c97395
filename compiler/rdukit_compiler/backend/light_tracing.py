"""Record a graph without the import of torch's own compilers, which takes over a second and is not used.

Fake tensors and torch's recorder import the packages ``torch._dynamo`` and ``torch._inductor`` for a few settings and
functions. While ``without_dynamo`` lasts, stand-ins have these; whoever asks for anything else gets the packages
themselves, imported then. Nothing of the stand-ins stays: afterwards ``torch.compile`` does what it always does.

All of it is private to torch. Source: ours.
"""

import contextlib
import importlib
import importlib.abc
import importlib.machinery
import importlib.util
import sys
import threading
from collections.abc import Callable, Iterator, MutableSequence, Sequence
from functools import cache
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any, Final

import torch

_DYNAMO: Final = "torch._dynamo"
_INDUCTOR: Final = "torch._inductor"
_CONFIG: Final = f"{_DYNAMO}.config"
#: Where torch keeps, on a function, its form that dynamo leaves alone.
_DISABLED: Final = "__dynamo_disable"

_lock = threading.RLock()
#: Under the lock: the stand-ins that are in their places, if they are, and an item for everybody who is inside.
_current: "list[_StandIns]" = []
_depth: list[None] = []


@contextlib.contextmanager
def without_dynamo() -> Iterator[None]:
    """While it lasts, what records a graph does not import ``torch._dynamo``; no effect once that is imported.

    It may be entered again inside, and by several threads: the last one that leaves ends it.
    """
    _enter()
    try:
        yield
    finally:
        _leave()


def _enter() -> None:
    with _lock:
        if not _current and not {_DYNAMO, _INDUCTOR} & sys.modules.keys():
            _current.append(_StandIns())
        _depth.append(None)


def _leave() -> None:
    with _lock:
        _depth.pop()
        if not _depth and _current:
            _current.pop().retire()


class _StandIn(ModuleType):
    """In the place of a package or a part of it; what it lacks, the real one has."""

    def __init__(self, stand_ins: "_StandIns", name: str, **has: Any) -> None:
        super().__init__(name)
        self.__path__: MutableSequence[str] = []  # a package; ``_StandIns`` finds its parts
        vars(self).update(has)
        vars(self)["_become_real"] = stand_ins.become_real

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        vars(self)["_become_real"]()
        return getattr(importlib.import_module(self.__name__), name)


class _StandIns(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """All of them; who imports what is not among them gets the real packages first, and then that."""

    def __init__(self) -> None:
        self._left_alone: list[Any] = []
        dynamo = _StandIn(
            self, _DYNAMO, config=_load_config(), disable=self._leave_alone, OptimizedModule=_NoModule,
            utils=SimpleNamespace(detect_fake_mode=torch._guards.detect_fake_mode),
        )  # fmt: skip
        # Shapes are numbers: there is nothing that the pass could do.
        symbols = _StandIn(self, f"{_INDUCTOR}.fx_passes.dedupe_symint_uses", dedupe_symints=lambda graph: None)
        passes = _StandIn(self, f"{_INDUCTOR}.fx_passes", dedupe_symint_uses=symbols)
        bisector = _StandIn(self, f"{_INDUCTOR}.compiler_bisector", CompilerBisector=_NoBisector)
        settings = _StandIn(self, f"{_INDUCTOR}.config", emulate_precision_casts=False)
        inductor = _StandIn(self, _INDUCTOR, config=settings, fx_passes=passes)
        self._modules = {m.__name__: m for m in (dynamo, dynamo.config, inductor, settings, passes, symbols, bisector)}
        self._attributes = {"_dynamo": dynamo, "_inductor": inductor}
        vars(torch).update(self._attributes)
        sys.meta_path.insert(0, self)
        sys.modules.update(self._modules)
        # The recorder reads it from torch's namespace, where the packages' import would have put it.
        importlib.import_module("torch._higher_order_ops.triton_kernel_wrap")

    def become_real(self) -> None:
        """Make room for the packages themselves, and import them: they make tensors, which are nobody's graph."""
        self.retire()
        with torch.utils._python_dispatch._disable_current_modes(), torch._C.DisableTorchFunction():
            importlib.import_module(_DYNAMO)
            importlib.import_module(_INDUCTOR)

    def retire(self) -> None:
        """Leave no trace of those that are still in their places."""
        if self in sys.meta_path:
            sys.meta_path.remove(self)
        for name, module in self._modules.items():
            if sys.modules.get(name) is module:
                del sys.modules[name]
        for name, module in self._attributes.items():
            if vars(torch).get(name) is module:
                delattr(torch, name)
        for function in self._left_alone:
            vars(function).pop(_DISABLED, None)
        self._left_alone.clear()

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        """Called for parts that are not in ``sys.modules``."""
        if not name.startswith((f"{_DYNAMO}.", f"{_INDUCTOR}.")):
            return None
        self.become_real()
        importlib.import_module(name)
        return importlib.machinery.ModuleSpec(name, self)

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType:
        """The part itself."""
        return sys.modules[spec.name]

    def exec_module(self, module: ModuleType) -> None:
        """It has run already."""

    def _leave_alone(self, function: Callable[..., Any], recursive: bool = True, **_: Any) -> Callable[..., Any]:
        """``torch._dynamo.disable``: nothing compiles what runs here."""
        self._left_alone.append(function)
        return function


class _NoBisector:
    """Nothing is left out on trial."""

    @staticmethod
    def disable_subsystem(*_: object, **__: object) -> bool:
        return False


class _NoModule:
    """Nothing is an instance of it: a compiled module exists only where the package is imported."""


@cache
def _folder() -> Path:
    return Path(torch.__file__).parent / "_dynamo"


@cache
def _load_config() -> ModuleType:
    """The settings, in a module of their own: the package's are made anew when it is imported."""
    spec = importlib.util.spec_from_file_location(_CONFIG, _folder() / "config.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    with _in_place(module):
        spec.loader.exec_module(module)
    return module


@contextlib.contextmanager
def _in_place(module: ModuleType) -> Iterator[None]:
    """The file looks itself up in ``sys.modules``."""
    sys.modules[_CONFIG] = module
    try:
        yield
    finally:
        del sys.modules[_CONFIG]
