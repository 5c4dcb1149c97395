"""Lazy imports of torch's compilers and sympy: they take a third of a small compile's time, and a record needs neither.

Fake tensors and torch's recorder import ``torch._dynamo``, ``torch._inductor`` and symbolic shapes for a few settings
and functions. While ``without_dynamo`` lasts, stand-ins provide these; any other access imports the packages
themselves. Afterwards the stand-ins are removed, and ``torch.compile`` works as usual.

The recorder calls a few functions of ``torch.fx.experimental.symbolic_shapes`` for every shape. Our records have shapes
of numbers, for which stand-ins compute the result; any other call is passed to torch's own functions.

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
from torch.utils._ordered_set import OrderedSet

_DYNAMO: Final = "torch._dynamo"
_INDUCTOR: Final = "torch._inductor"
_CONFIG: Final = f"{_DYNAMO}.config"
#: Packages that do not keep references to torch's functions for symbolic shapes.
_OURS: Final = ("rdukit", "sambaflow")
#: Packages that every record imports, and that keep no references to stand-ins.
_ALWAYS: Final = ("torch._functorch.config", "torch._subclasses.schema_check_mode")
#: Attribute in which torch keeps a function's form that dynamo does not compile.
_DISABLED: Final = "__dynamo_disable"

_lock = threading.RLock()
#: Under the lock: the active stand-ins, and an item for each caller that is inside ``without_dynamo``.
_current: "list[_StandIns]" = []
_depth: list[None] = []

SYMBOLIC_SHAPES: Final = "torch.fx.experimental.symbolic_shapes"
#: The recorder checks recorded values against two classes of this module, which imports the package above.
TRITON_KERNELS: Final = "torch._higher_order_ops.triton_kernel_wrap"
#: Imported for every result of a fake operator, but used only for symbols.
SYMPY: Final = "sympy"
#: torch's functions over sympy's expressions; torch imports one of them for every shape.
SYMPY_FUNCTIONS: Final = "torch.utils._sympy.functions"
#: Imports a module and returns its attribute: (module, name).
FindReal = Callable[[str, str], Any]


@contextlib.contextmanager
def without_dynamo() -> Iterator[None]:
    """Record graphs without importing ``torch._dynamo`` and sympy, while the block lasts; imported modules stay.

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
                importlib.import_module(TRITON_KERNELS)  # the recorder assumes that these are imported
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
    """Stand-in for a package or a part of it; attributes that it lacks come from the real one."""

    def __init__(self, stand_ins: "_StandIns", name: str, **has: Any) -> None:
        super().__init__(name)
        self.__path__: MutableSequence[str] = []  # marks a package; ``_StandIns`` finds its submodules
        vars(self).update(has)
        vars(self)["_become_real"] = stand_ins.become_real

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") and name != "__version__":  # code that walks over all modules reads such names
            raise AttributeError(name)
        vars(self)["_become_real"]()
        return getattr(importlib.import_module(self.__name__), name)


class _StandIns(importlib.abc.MetaPathFinder):
    """A group of stand-ins. Importing a submodule of ``packages`` that is not in the group imports the real packages
    first.

    ``real``: the modules to import then.
    """

    def __init__(self, packages: Sequence[str], real: Sequence[str]) -> None:
        self._packages = tuple(f"{package}." for package in packages)
        self._real = real
        self._modules: dict[str, ModuleType] = {}
        #: Packages that have a stand-in as an attribute, the attribute's name, and the stand-in.
        self._places: list[tuple[ModuleType, str, ModuleType]] = []
        self._cleanups: list[Callable[[], object]] = []

    def add(self, name: str, **has: Any) -> _StandIn:
        """Add a stand-in with these attributes."""
        made = _StandIn(self, name, **has)
        self.add_module(name, made)
        return made

    def add_module(self, name: str, module: ModuleType) -> None:
        """Add ``module`` unchanged."""
        self._modules[name] = module

    def take_place(self) -> None:
        """Install the stand-ins in ``sys.modules`` and as attributes of their packages."""
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
        """Remove the stand-ins and import the real modules, outside any recording: their import creates tensors."""
        self.retire()
        with torch.utils._python_dispatch._disable_current_modes(), torch._C.DisableTorchFunction():
            for name in self._real:
                importlib.import_module(name)

    def find_real(self, module: str, name: str) -> Any:
        """Import ``module`` and return its attribute ``name``."""
        self.become_real()
        return getattr(importlib.import_module(module), name)

    def retire(self) -> None:
        """Remove the stand-ins that are still installed."""
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
        """Find a module that is not in ``sys.modules``."""
        if not self._is_theirs(name):
            return None
        self.become_real()
        if name not in sys.modules:
            return importlib.util.find_spec(name)
        return importlib.machinery.ModuleSpec(name, _Imported(sys.modules[name]))

    def _is_theirs(self, name: str) -> bool:
        """Return whether a module is part of one of the packages, or would keep references to stand-ins."""
        return name.startswith(self._packages)


class _Imported(importlib.abc.Loader):
    """Loader of a module that was imported during its own lookup: Python would run it again."""

    def __init__(self, module: ModuleType) -> None:
        self._module, self._spec = module, module.__spec__
        module.__spec__ = None

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType:
        """Return the module itself."""
        return self._module

    def exec_module(self, module: ModuleType) -> None:
        """Restore the spec: the module has run already."""
        module.__spec__ = self._spec


class _StandInsForCompilers(_StandIns):
    """Stand-ins whose real modules also import symbolic shapes, and keep some of their functions."""

    def become_real(self) -> None:
        for others in _current:
            others.retire()
        super().become_real()


class _StandInsForShapes(_StandIns):
    """Stand-ins to which no module keeps references: any other first import gets the real modules."""

    def _is_theirs(self, name: str) -> bool:
        package = name.partition(".")[0]
        return package not in sys.stdlib_module_names and not package.startswith(_OURS)


def _stand_in_for_compilers() -> _StandIns:
    made = _StandInsForCompilers((_DYNAMO, _INDUCTOR), (_DYNAMO, _INDUCTOR))

    def leave_alone(function: Callable[..., Any], recursive: bool = True, **_: Any) -> Callable[..., Any]:
        """Replace ``torch._dynamo.disable`` by the identity: no compiler is active here."""
        made.at_end(lambda: vars(function).pop(_DISABLED, None))
        return function

    config = _load_config()
    made.add_module(_CONFIG, config)
    made.add(
        _DYNAMO, config=config, disable=leave_alone, OptimizedModule=_NoModule,
        utils=SimpleNamespace(detect_fake_mode=torch._guards.detect_fake_mode),
    )  # fmt: skip
    # Shapes are numbers: the pass has no effect.
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
    """Bisector that disables nothing."""

    @staticmethod
    def disable_subsystem(*_: object, **__: object) -> bool:
        return False


class _NoModule:
    """Class without instances: a compiled module exists only where the package is imported."""


@cache
def _folder() -> Path:
    return Path(torch.__file__).parent / "_dynamo"


@cache
def _load_config() -> ModuleType:
    """Return the settings, in a module of their own: importing the package creates its own."""
    spec = importlib.util.spec_from_file_location(_CONFIG, _folder() / "config.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    with _in_place(module):
        spec.loader.exec_module(module)
    return module


@contextlib.contextmanager
def _in_place(module: ModuleType) -> Iterator[None]:
    """Put ``module`` in ``sys.modules``, where its code looks itself up."""
    sys.modules[_CONFIG] = module
    try:
        yield
    finally:
        del sys.modules[_CONFIG]


def shape_functions(find_real: FindReal) -> dict[str, Callable[..., Any]]:
    """Return the functions of ``SYMBOLIC_SHAPES`` that records with plain shapes call or import."""

    def answers(name: str, is_plain: Callable[..., bool], answer: Callable[..., Any]) -> Callable[..., Any]:
        def function(*args: Any, **kwargs: Any) -> Any:
            if not kwargs and is_plain(*args):
                return answer(*args)
            return find_real(SYMBOLIC_SHAPES, name)(*args, **kwargs)

        return function

    made = {}
    for name in ("guard_or_false", "guard_or_true", "guard_size_oblivious", "statically_known_true", "expect_true"):
        made[name] = answers(name, _is_flag, _itself)
    for name in ("guard_int", "guarding_hint_or_throw"):
        made[name] = answers(name, _is_size, _itself)
    for name in ("is_nested_int", "is_symbolic"):
        made[name] = answers(name, _is_number, lambda number: False)
    for name in ("has_free_symbols", "has_free_unbacked_symbols"):
        made[name] = answers(name, _holds_no_symbol, lambda value: False)
    for name in ("_iterate_exprs", "_iterate_nodes"):
        made[name] = answers(name, _holds_no_symbol, lambda value: iter(()))
    for name in ("constrain_range", "_constrain_range_for_size"):  # called only for symbols
        made[name] = answers(name, lambda *_: False, _itself)
    made["free_unbacked_symbols"] = answers("free_unbacked_symbols", _holds_no_symbol, lambda value: OrderedSet())
    made["has_guarding_hint"] = answers("has_guarding_hint", _is_number, lambda number: True)
    made["sym_and"] = answers("sym_and", _are_flags, lambda *flags: all(flags))
    made["sym_or"] = answers("sym_or", _are_flags, lambda *flags: any(flags))
    made["sym_eq"] = answers("sym_eq", _are_sizes, lambda one, other: _listed(one) == _listed(other))
    made["compute_unbacked_bindings"] = answers("compute_unbacked_bindings", _is_without, lambda *_: None)
    made["is_accessor_node"] = answers("is_accessor_node", _reads_no_size, lambda node: False)
    made["ShapeEnv"] = _stand_in_class(SYMBOLIC_SHAPES, "ShapeEnv", find_real)
    made["GuardOnDataDependentSymNode"] = _NoGuard
    return made


class _NoGuard(Exception):
    """Raised by torch for a guard on a symbol without a value."""


def sympy_classes(find_real: FindReal) -> dict[str, type]:
    """Return the class of ``SYMPY`` that torch checks every operand against."""
    return {"Basic": _stand_in_class(SYMPY, "Basic", find_real)}


def sympy_functions(find_real: FindReal) -> dict[str, type]:
    """Return the functions of ``SYMPY_FUNCTIONS`` that the check of strides imports, and calls only for symbols."""
    return {"Max": _stand_in_class(SYMPY_FUNCTIONS, "Max", find_real)}


def triton_classes(find_real: FindReal) -> dict[str, type]:
    """Return the classes of ``TRITON_KERNELS`` that the recorder checks against."""
    names = ("TritonKernelWrapperFunctional", "TritonKernelWrapperMutation")
    return {name: _stand_in_class(TRITON_KERNELS, name, find_real) for name in names}


def _stand_in_class(module: str, name: str, find_real: FindReal) -> type:
    """Create a stand-in for a class: it has no instances until its module is imported; calling it creates a real
    instance.
    """

    class StandIn(type):
        def __instancecheck__(cls, instance: object) -> bool:
            real = getattr(sys.modules.get(module), name, cls)
            return real is not cls and isinstance(instance, real)

        def __call__(cls, *args: Any, **kwargs: Any) -> Any:
            return find_real(module, name)(*args, **kwargs)

    return StandIn(name, (), {})


def _itself(value: Any) -> Any:
    return value


def _is_flag(*values: object) -> bool:
    return len(values) == 1 and type(values[0]) is bool


def _are_flags(*values: object) -> bool:
    return len(values) > 0 and all(type(value) is bool for value in values)


def _is_size(*values: object) -> bool:
    return len(values) == 1 and type(values[0]) is int


def _is_number(*values: object) -> bool:
    return len(values) == 1 and type(values[0]) in {bool, int, float}


def _are_sizes(*values: object) -> bool:
    """Return whether the values are two sizes, or two sequences of them."""
    if len(values) != 2 or isinstance(values[0], int) is not isinstance(values[1], int):
        return False
    return all(type(size) is int for value in values for size in _listed(value))


def _listed(value: Any) -> list[Any]:
    return list(value) if isinstance(value, list | tuple) else [value]


def _holds_no_symbol(*values: object) -> bool:
    return len(values) == 1 and _is_concrete(values[0])


def _is_concrete(value: object) -> bool:
    if isinstance(value, torch.Tensor):
        return value.layout is torch.strided and all(
            type(number) is int for number in (*value.shape, *value.stride(), value.storage_offset())
        )
    if isinstance(value, list | tuple):
        return all(_is_concrete(item) for item in value)
    return value is None or type(value) in {bool, int, float, str}


def _is_without(*arguments: object) -> bool:
    """Return whether the arguments are None, as environment of symbols, and a result."""
    return len(arguments) == 2 and arguments[0] is None


def _reads_no_size(*nodes: Any) -> bool:
    """Return whether a node reads no size or stride: operators that do are called ``sym_…``."""
    return len(nodes) == 1 and nodes[0].op != "call_method" and "sym_" not in str(nodes[0].target)
