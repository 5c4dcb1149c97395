"""Faults of the pinned torch's code generator for processors, mended while a section's code is written.

What inductor computes wrongly is mended at one of three places: here, in how it orders and writes loops; in
``exact_operators``, where operators become others before it sees them; and in ``native_source/elementwise.h``, in
functions of one number. ``docs/native-kernels.md`` lists all of them with their reports.
"""

import contextlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

#: Options of ``aot_compile``: folding takes 0 * x for 0 and x + 0 for x, which NaN, infinity and -0 are not.
OPTIONS: Final[Mapping[str, Any]] = {"joint_graph_constant_folding": False}


@contextlib.contextmanager
def repaired() -> Iterator[None]:
    """Make inductor write right code, while the block lasts."""
    with contextlib.ExitStack() as held:
        for owner, name, value in _replacements():
            held.callback(setattr, owner, name, vars(owner)[name])
            setattr(owner, name, value)
        yield


def _replacements() -> Iterator[tuple[Any, str, Any]]:
    """Yield what is replaced: its owner, its name, and what stands there instead."""
    from torch._inductor.codegen.cpp import CppVecOverrides
    from torch._inductor.ir import StorageBox
    from torch._inductor.scheduler import SchedulerNode

    yield SchedulerNode, "recompute_size_and_body", _keeping_renames(SchedulerNode.recompute_size_and_body)
    yield StorageBox, "should_realize_on_reuse", _computed_once(StorageBox.should_realize_on_reuse)
    for name, written in _VECTORS.items():
        yield CppVecOverrides, name, staticmethod(_named(name, written))


def _keeping_renames(recompute: Callable[..., None]) -> Callable[..., None]:
    """Return a ``recompute_size_and_body`` after which a node still reads what others have overwritten meanwhile.

    Without, a loop whose axes are joined to fit a neighbour's forgets that it comes after a scatter into what it reads:
    gradients of ``max(dim)`` are lost beside an ``amax`` of the same shape.
    """

    def recomputed(self: Any, *args: Any, **kwargs: Any) -> None:
        recompute(self, *args, **kwargs)
        self.set_read_writes(self.read_writes.rename(self.mutation_renames))

    return recomputed


#: Functions whose last bit depends on whether a loop computes vectors.
_INEXACT: Final = frozenset(
    "exp exp2 expm1 log log2 log10 log1p sin cos tan sinh cosh tanh asin acos atan asinh acosh atanh erf erfc erfinv "
    "sigmoid pow lgamma digamma rsqrt atan2 hypot".split()
)


def _computed_once(should_realize: Callable[..., bool]) -> Callable[..., bool]:
    """Return a ``should_realize_on_reuse`` that stores what several read, where computing it twice may give two values.

    The gradient of ``amax`` asks where the largest value stands: among values computed anew it may stand nowhere.
    """

    def should(self: Any, users: int, **more: Any) -> bool:
        if should_realize(self, users, **more):
            return True
        from torch._inductor.ir import Pointwise, Reduction

        if users < 2 or not isinstance(self.data, Pointwise | Reduction):
            return False
        return bool(_INEXACT & set(self.data.inner_fn_opcount().used_ops))

    return should


#: Functions of vectors of floats, and what is written for them.
_VECTORS: Final[Mapping[str, str]] = {
    # exp(x) - 1 and a logarithm of a quotient have no digits left where x is small.
    "expm1": "{x}.expm1()",
    "atanh": "{x}.atanh()",
    "erf": "rdukit::erf({x})",
    "erfinv": "rdukit::erfinv({x})",
    "acosh": "rdukit::acosh({x})",
    "asinh": "rdukit::asinh({x})",
}


def _named(name: str, written: str) -> Callable[[Any], str]:
    def write(x: Any) -> str:
        return written.format(x=x)

    write.__name__ = name  # by which the scalar form is found
    return write
