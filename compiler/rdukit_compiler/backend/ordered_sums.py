"""Makes inductor add into memory in the order of its loops, in one thread. Private to torch: see ``torch_private``.

What inductor writes for several threads adds with atomic operations, one number at a time, in whatever order threads
come by: other last bits in each run, and slower than one thread that adds vectors. The address of such an addition is
wrong besides (torch 2.13, ``CppTile2DKernel``; pytorch issue 191837): in a loop that is tiled in two dimensions the
offset within the tile is counted twice, so that gradients of lookups come out wrong, and memory beyond them is written.
"""

import contextlib
from collections.abc import Iterator
from typing import Any, Final

#: Set on a kernel of inductor's that adds into memory.
_ADDS: Final = "rdukit_adds_into_memory"


@contextlib.contextmanager
def ordered_sums() -> Iterator[None]:
    """Within the block, what inductor writes adds into memory in order; other loops are split for threads as ever."""
    from torch._inductor.codegen.cpp import CppKernel, CppKernelProxy, CppVecKernel

    stores = [(kind, kind.store) for kind in (CppKernel, CppVecKernel)]
    loops = CppKernelProxy.codegen_loops_impl
    try:
        for kind, store in stores:
            kind.store = _adding_in_one_thread(store)  # type: ignore[method-assign]
        CppKernelProxy.codegen_loops_impl = _in_one_thread_if_adding(loops)  # type: ignore[method-assign]
        yield
    finally:
        for kind, store in stores:
            kind.store = store  # type: ignore[method-assign]
        CppKernelProxy.codegen_loops_impl = loops  # type: ignore[method-assign]


def _adding_in_one_thread(store: Any) -> Any:
    """``store`` that adds as for a program of one thread: without atomic operations."""

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
    """``write_loops`` that splits no loop which adds into memory, nor promises that its turns are independent."""
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
