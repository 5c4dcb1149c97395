"""Faults of the pinned torch's code generator for processors, mended while a section's code is written.

What inductor computes wrongly is mended at one of three places: here, in how it orders and writes loops; in
``exact_operators``, where operators become others before it sees them; and in ``native_source/elementwise.h``, in
functions of one number. ``docs/native-kernels.md`` lists all of them with their reports.

Additions into memory are made in the order of the loops, in one thread. For several threads inductor writes atomic
operations, one number at a time, in whatever order threads come by: other last bits in each run, and slower than one
thread that adds vectors. The address of such an addition is wrong besides (torch 2.13, ``CppTile2DKernel``; pytorch
issue 191837): in a loop that is tiled in two dimensions the offset within the tile is counted twice, so that gradients
of lookups come out wrong, and memory beyond them is written.
"""

import contextlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

#: Options of ``aot_compile``: folding takes 0 * x for 0 and x + 0 for x, which NaN, infinity and -0 are not.
OPTIONS: Final[Mapping[str, Any]] = {"joint_graph_constant_folding": False}
#: Set on a kernel of inductor's that adds into memory.
_ADDS: Final = "rdukit_adds_into_memory"


@contextlib.contextmanager
def repaired() -> Iterator[None]:
    """Make inductor write right code, while the block lasts."""
    with contextlib.ExitStack() as held:
        for owner, name, value in _replacements():
            if name in vars(owner):
                held.callback(setattr, owner, name, vars(owner)[name])
            else:  # it is a base's
                held.callback(delattr, owner, name)
            setattr(owner, name, value)
        yield


def _replacements() -> Iterator[tuple[Any, str, Any]]:
    """Yield what is replaced: its owner, its name, and what stands there instead."""
    from torch._inductor.codegen.cpp import CppKernel, CppKernelProxy, CppVecKernel, CppVecOverrides
    from torch._inductor.ir import StorageBox
    from torch._inductor.scheduler import SchedulerNode

    yield SchedulerNode, "recompute_size_and_body", _keeping_renames(SchedulerNode.recompute_size_and_body)
    yield StorageBox, "should_realize_on_reuse", _computed_once(StorageBox.should_realize_on_reuse)
    for kind in (CppKernel, CppVecKernel):
        yield kind, "store", _adding_in_one_thread(kind.store)
    yield CppKernelProxy, "codegen_loops_impl", _in_one_thread_if_adding(CppKernelProxy.codegen_loops_impl)
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


def _adding_in_one_thread(store: Any) -> Any:
    """Return a ``store`` that adds as for a program of one thread: without atomic operations."""

    def stored(self: Any, name: str, index: Any, value: Any, mode: str | None = None) -> Any:
        if mode != "atomic_add":
            return store(self, name, index, value, mode)
        setattr(self, _ADDS, True)
        threads, self.num_threads = self.num_threads, 1
        try:
            return store(self, name, index, value, mode)
        finally:
            self.num_threads = threads

    return stored


def _in_one_thread_if_adding(write_loops: Any) -> Any:
    """Return a ``write_loops`` that splits no loop which adds into memory, nor marks it as free of dependencies."""
    from torch._inductor.codegen.cpp import OuterLoopFusedKernel, ParallelDepth

    def none(most: Any, threads: int) -> Any:
        return ParallelDepth(parallel_depth=0, start_depth=most.start_depth)

    def written(self: Any, nest: Any, code: Any, worksharing: Any) -> None:
        nests = [nest, *(nest.kernel.inner if isinstance(nest.kernel, OuterLoopFusedKernel) else ())]
        kernels = [kernel for inner in nests for kernel in getattr(inner.kernel, "kernels", ())]
        if any(getattr(kernel, _ADDS, False) for kernel in kernels):
            for inner in nests:
                for loop in inner.loops or ():
                    loop.simd_vec = True  # which only keeps it from writing "ivdep"
            nest.kernel.decide_parallel_depth = self.decide_parallel_depth = none
        write_loops(self, nest, code, worksharing)

    return written
