"""Record a graph without the import of torch's own compilers and of sympy, which takes two seconds and is not used.

Fake tensors and torch's recorder import the packages ``torch._dynamo`` and ``torch._inductor`` and the arithmetic of
symbolic shapes (``light_shapes``) for a few settings and functions. While ``without_dynamo`` lasts, stand-ins have
these; whoever asks for anything else gets the packages themselves, imported then. Nothing of the stand-ins stays:
afterwards ``torch.compile`` does what it always does.

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

from rdukit_compiler.backend.light_shapes import (
    SYMBOLIC_SHAPES,
    SYMPY,
    SYMPY_FUNCTIONS,
    TRITON_KERNELS,
    shape_functions,
    sympy_classes,
    sympy_functions,
    triton_classes,
)

_DYNAMO: Final = "torch._dynamo"
_INDUCTOR: Final = "torch._inductor"
_CONFIG: Final = f"{_DYNAMO}.config"
#: Packages that hold no function of torch's for symbolic shapes.
_OURS: Final = ("rdukit", "sambaflow")
#: What every record imports, and what keeps nothing.
_ALWAYS: Final = ("torch._functorch.config", "torch._subclasses.schema_check_mode")
#: Where torch keeps, on a function, its form that dynamo leaves alone.
_DISABLED: Final = "__dynamo_disable"

_lock = threading.RLock()
#: Under the lock: the stand-ins that are in their places, and an item for everybody who is inside.
_current: "list[_StandIns]" = []
_depth: list[None] = []


@contextlib.contextmanager
def without_dynamo() -> Iterator[None]:
    """While it lasts, what records a graph imports neither ``torch._dynamo`` nor sympy; what is imported stays so.

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
            _current.append(_stand_in_for_compilers())
            if {SYMBOLIC_SHAPES, SYMPY_FUNCTIONS, TRITON_KERNELS} & sys.modules.keys():
                importlib.import_module(TRITON_KERNELS)  # the recorder takes for granted that somebody has
            else:
                _current.append(_stand_in_for_shapes())
        _depth.append(None)


def _leave() -> None:
    with _lock:
        _depth.pop()
        if not _depth:
            while _current:
                _current.pop().retire()


class _StandIn(ModuleType):
    """In the place of a package or a part of it; what it lacks, the real one has."""

    def __init__(self, stand_ins: "_StandIns", name: str, **has: Any) -> None:
        super().__init__(name)
        self.__path__: MutableSequence[str] = []  # a package; ``_StandIns`` finds its parts
        vars(self).update(has)
        vars(self)["_become_real"] = stand_ins.become_real

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") and name != "__version__":  # who walks over all modules asks for such names
            raise AttributeError(name)
        vars(self)["_become_real"]()
        return getattr(importlib.import_module(self.__name__), name)


class _StandIns(importlib.abc.MetaPathFinder):
    """Some that go together; who imports a part of ``packages`` that is not among them gets the real ones first.

    ``real`` is what has to be imported then.
    """

    def __init__(self, packages: Sequence[str], real: Sequence[str]) -> None:
        self._packages = tuple(f"{package}." for package in packages)
        self._real = real
        self._modules: dict[str, ModuleType] = {}
        #: Packages that have a stand-in as an attribute, its name there, and the stand-in.
        self._places: list[tuple[ModuleType, str, ModuleType]] = []
        self._cleanups: list[Callable[[], object]] = []

    def add(self, name: str, **has: Any) -> _StandIn:
        """A stand-in that has these."""
        made = _StandIn(self, name, **has)
        self.add_module(name, made)
        return made

    def add_module(self, name: str, module: ModuleType) -> None:
        """``module`` as it is."""
        self._modules[name] = module

    def take_place(self) -> None:
        """Be found instead of the real ones, also as attributes of the packages that those are parts of."""
        sys.meta_path.insert(0, self)
        sys.modules.update(self._modules)
        for name, module in self._modules.items():
            package, _, attribute = name.rpartition(".")
            if package not in self._modules and package in sys.modules:
                self._places.append((sys.modules[package], attribute, module))
                setattr(sys.modules[package], attribute, module)

    def at_end(self, clean: Callable[[], object]) -> None:
        """Call ``clean`` when they retire."""
        self._cleanups.append(clean)

    def become_real(self) -> None:
        """Make room for the real ones, and import them: they make tensors, which are nobody's graph."""
        self.retire()
        with torch.utils._python_dispatch._disable_current_modes(), torch._C.DisableTorchFunction():
            for name in self._real:
                importlib.import_module(name)

    def find_real(self, module: str, name: str) -> Any:
        """What ``module`` itself has under that name."""
        self.become_real()
        return getattr(importlib.import_module(module), name)

    def retire(self) -> None:
        """Leave no trace of those that are still in their places."""
        if self in sys.meta_path:
            sys.meta_path.remove(self)
        for name, module in self._modules.items():
            if sys.modules.get(name) is module:
                del sys.modules[name]
        for owner, attribute, module in self._places:
            if vars(owner).get(attribute) is module:
                delattr(owner, attribute)
        self._places.clear()
        while self._cleanups:
            self._cleanups.pop()()

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        """Called for what is not in ``sys.modules``."""
        if not self._is_theirs(name):
            return None
        self.become_real()
        if name not in sys.modules:
            return importlib.util.find_spec(name)
        return importlib.machinery.ModuleSpec(name, _Imported(sys.modules[name]))

    def _is_theirs(self, name: str) -> bool:
        """Part of one of the packages; or one that would keep what it finds in its place."""
        return name.startswith(self._packages)


class _Imported(importlib.abc.Loader):
    """Of a module that was imported while somebody looked for it: Python would run it again."""

    def __init__(self, module: ModuleType) -> None:
        self._module, self._spec = module, module.__spec__
        module.__spec__ = None

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType:
        """The module itself."""
        return self._module

    def exec_module(self, module: ModuleType) -> None:
        """It has run already."""
        module.__spec__ = self._spec


class _StandInsForCompilers(_StandIns):
    """Their import is that of symbolic shapes as well, and keeps some of their functions."""

    def become_real(self) -> None:
        for others in _current:
            others.retire()
        super().become_real()


class _StandInsForShapes(_StandIns):
    """Nobody keeps one: whatever else is imported for the first time gets the real ones."""

    def _is_theirs(self, name: str) -> bool:
        package = name.partition(".")[0]
        return package not in sys.stdlib_module_names and not package.startswith(_OURS)


def _stand_in_for_compilers() -> _StandIns:
    made = _StandInsForCompilers((_DYNAMO, _INDUCTOR), (_DYNAMO, _INDUCTOR))

    def leave_alone(function: Callable[..., Any], recursive: bool = True, **_: Any) -> Callable[..., Any]:
        """``torch._dynamo.disable``: nothing compiles what runs here."""
        made.at_end(lambda: vars(function).pop(_DISABLED, None))
        return function

    config = _load_config()
    made.add_module(_CONFIG, config)
    made.add(
        _DYNAMO, config=config, disable=leave_alone, OptimizedModule=_NoModule,
        utils=SimpleNamespace(detect_fake_mode=torch._guards.detect_fake_mode),
    )  # fmt: skip
    # Shapes are numbers: there is nothing that the pass could do.
    symbols = made.add(f"{_INDUCTOR}.fx_passes.dedupe_symint_uses", dedupe_symints=lambda graph: None)
    passes = made.add(f"{_INDUCTOR}.fx_passes", dedupe_symint_uses=symbols)
    made.add(f"{_INDUCTOR}.compiler_bisector", CompilerBisector=_NoBisector)
    settings = made.add(f"{_INDUCTOR}.config", emulate_precision_casts=False)
    made.add(_INDUCTOR, config=settings, fx_passes=passes)
    made.take_place()
    return made


def _stand_in_for_shapes() -> _StandIns:
    for name in _ALWAYS:
        importlib.import_module(name)
    made = _StandInsForShapes((), (SYMBOLIC_SHAPES, TRITON_KERNELS))
    made.add(SYMBOLIC_SHAPES, **shape_functions(made.find_real))
    made.add(SYMPY_FUNCTIONS, **sympy_functions(made.find_real))
    made.add(TRITON_KERNELS, **triton_classes(made.find_real))
    if SYMPY not in sys.modules:
        made.add(SYMPY, **sympy_classes(made.find_real))
    made.take_place()
    return made


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
