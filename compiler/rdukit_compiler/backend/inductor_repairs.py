"""Repairs faults of the pinned torch's code generator for processors while a section's code is written.

Wrong results of inductor are repaired in one of three places. This module changes how inductor orders and writes loops.
``exact_operators`` replaces operators before inductor sees them. ``native_source/elementwise.h`` has functions of one
number. ``docs/native-kernels.md`` lists all of them with their reports.

Additions into memory are made in the order of the loops, in one thread. For several threads inductor writes atomic
operations, one number at a time, in any order of threads. Last bits then differ from run to run, and one thread that
adds vectors is faster. The address of such an addition is also wrong (torch 2.13, ``CppTile2DKernel``; pytorch
issue 191837): in a loop that is tiled in two dimensions the offset within the tile is counted twice, so that gradients
of lookups come out wrong, and memory beyond them is written.
"""

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import reduce
from typing import Any, Final

import numpy
import torch

#: Options of ``aot_compile``: without folding, which takes 0 * x for 0 and x + 0 for x: wrong for NaN, infinity and -0;
#: with the random numbers of torch's generator, which portable kernels draw, too.
OPTIONS: Final[Mapping[str, Any]] = {"joint_graph_constant_folding": False, "fallback_random": True}
#: Batch norm with kept statistics. It is decomposed after our own operators have taken what they compute.
_KEPT_NORM: Final = torch.ops.aten._native_batch_norm_legit_no_training.default
#: Set on a kernel of inductor's that adds into memory.
_ADDS: Final = "rdukit_adds_into_memory"


@contextlib.contextmanager
def repaired() -> Iterator[None]:
    """Make inductor write correct code while the block lasts."""
    from torch._inductor.decomposition import decompositions

    with contextlib.ExitStack() as held:
        for owner, name, value in _replacements():
            if name in vars(owner):
                held.callback(setattr, owner, name, vars(owner)[name])
            else:  # it is a base's
                held.callback(delattr, owner, name)
            setattr(owner, name, value)
        held.callback(decompositions.update, {_KEPT_NORM: decompositions[_KEPT_NORM]})
        decompositions[_KEPT_NORM] = _scaled(decompositions[_KEPT_NORM])
        yield


def _replacements() -> Iterator[tuple[Any, str, Any]]:
    """Yield each replacement: owner, name and new value."""
    from torch._inductor import lowering, sizevars
    from torch._inductor.bounds import ValueRangeAnalysis
    from torch._inductor.codegen import cpp
    from torch._inductor.codegen.cpp import CppKernel, CppKernelProxy, CppOverrides, CppVecKernel, CppVecOverrides
    from torch._inductor.index_propagation import SymPyOps, TypedExpr
    from torch._inductor.ir import StorageBox
    from torch._inductor.scheduler import Scheduler, SchedulerNode

    yield cpp, "stride_at_vec_range", _read_if_linear(sizevars.stride_at_vec_range)
    yield SchedulerNode, "recompute_size_and_body", _keeping_renames(SchedulerNode.recompute_size_and_body)
    yield Scheduler, "compute_dependencies", _drawing_in_order(Scheduler.compute_dependencies)
    yield StorageBox, "should_realize_on_reuse", _computed_once(StorageBox.should_realize_on_reuse)
    for kind in (CppKernel, CppVecKernel):
        yield kind, "store", _adding_in_one_thread(kind.store)
    yield CppKernelProxy, "codegen_loops_impl", _in_one_thread_if_adding(CppKernelProxy.codegen_loops_impl)
    yield CppKernelProxy, "aggregate_reduction_buffers", _with_tails(CppKernelProxy.aggregate_reduction_buffers)
    for name, written in _VECTORS.items():
        yield CppVecOverrides, name, staticmethod(_named(name, written))
    for name in _POLYNOMIALS:
        single = _named_of_two(name, f"rdukit::{name}({{a}}, {{b}})")
        each = CppVecOverrides._scalarize(single)  # type: ignore[no-untyped-call]
        each.__name__ = name
        yield CppOverrides, name, staticmethod(single)
        yield CppVecOverrides, name, staticmethod(each)
    yield TypedExpr, "__post_init__", _in_its_dtype(TypedExpr.__post_init__)
    yield lowering, "_full", _filled_in_its_dtype(lowering._full)
    for name in ("minimum", "maximum"):
        yield SymPyOps, name, staticmethod(_of_whole_numbers(getattr(SymPyOps, name)))
    for name in ("isinf", "isnan", "signbit"):
        yield ValueRangeAnalysis, name, staticmethod(_either)
    for name in ("abs", "minimum", "maximum"):
        yield ValueRangeAnalysis, name, staticmethod(_either_of_truths(getattr(ValueRangeAnalysis, name)))
    yield lowering, "_max_pool_with_offsets", _with_last_none(lowering._max_pool_with_offsets)
    yield lowering, "_max_pool_with_indices", _pooled_by_torch
    yield lowering, "_adaptive_pooling_fn_with_idx", _last_none_of_uneven
    yield CppKernel, "get_to_dtype_expr", _by_instruction(CppKernel.get_to_dtype_expr)
    yield CppVecKernel, "arange", _in_long_steps(CppVecKernel.arange)
    yield CppOverrides, "erfinv", staticmethod(_named("erfinv", _VECTORS["erfinv"]))
    yield CppOverrides, "floordiv", staticmethod(_named_of_two("floordiv", "rdukit::floor_quotient({a}, {b})"))
    yield CppOverrides, "truncdiv", staticmethod(_named_of_two("truncdiv", "rdukit::quotient({a}, {b})"))
    for name, written in {"floordiv": "floor_quotient", "truncdiv": "quotient"}.items():
        yield CppVecOverrides, name, staticmethod(_of_whole(getattr(CppVecOverrides, name), written))


def _scaled(general: Callable[..., Any]) -> Callable[..., Any]:
    """Return a batch norm with kept statistics that computes x * scale + shift, as torch does.

    Inductor subtracts the mean first: an infinite weight then gives infinity where torch gives NaN.
    """

    def batch_norm(x: Any, weight: Any, bias: Any, mean: Any, variance: Any, momentum: float, eps: float) -> Any:
        _, *saved = general(x, weight, bias, mean, variance, momentum, eps)
        scale = 1 / torch.sqrt(variance.float() + eps)
        scale = scale if weight is None else scale * weight
        shift = -mean * scale if bias is None else bias - mean * scale
        scale, shift = (each.reshape([-1] + [1] * (x.dim() - 2)) for each in (scale, shift))
        return (x * scale + shift).to(x.dtype), *saved

    return batch_norm


def _read_if_linear(general: Callable[..., Any]) -> Callable[..., Any]:
    """Return a ``stride_at_vec_range`` that reads the stride of a linear index from the index.

    Sympy's ``simplify``, which inductor uses, gives the same. It takes a quarter of the time in which inductor writes
    code.
    """

    def stride_at_vec_range(index: Any, var: Any, vec_length: int | None = None) -> Any:
        if all(term.is_Symbol or term.is_Number for term in index.as_coefficients_dict()):
            return index.coeff(var)
        return general(index, var, vec_length)

    return stride_at_vec_range


def _drawing_in_order(compute: Callable[[Any], None]) -> Callable[[Any], None]:
    """Return a ``compute_dependencies`` after which random numbers are drawn in the program's order."""

    def compute_dependencies(self: Any) -> None:
        from torch._inductor.virtualized import V

        last: str | None = None
        for node in self.nodes:
            operator = getattr(node.node, "op_overload", None)
            if operator is None or torch.Tag.nondeterministic_seeded not in operator.tags:
                continue
            if last is not None:
                V.graph.additional_buffer_deps[node.get_name()].add(last)
            last = node.get_outputs()[0].get_name()
        compute(self)

    return compute_dependencies


def _keeping_renames(recompute: Callable[..., None]) -> Callable[..., None]:
    """Return a ``recompute_size_and_body`` that keeps a node's renames of overwritten buffers.

    Otherwise a loop whose axes are merged to fit its neighbour's loses its dependency on a scatter into its operand.
    Gradients of ``max(dim)`` are lost next to an ``amax`` of the same shape.
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
    """Return a ``should_realize_on_reuse`` that stores a value with several readers if computing it twice may give two
    values.

    The gradient of ``amax`` looks for the largest value's position: among recomputed values it may not be found.
    """

    def should(self: Any, users: int, **more: Any) -> bool:
        if should_realize(self, users, **more):
            return True
        from torch._inductor.ir import Pointwise, Reduction

        if users < 2 or not isinstance(self.data, Pointwise | Reduction):
            return False
        return bool(_INEXACT & set(self.data.inner_fn_opcount().used_ops))

    return should


def _in_its_dtype(finish: Callable[[Any], None]) -> Callable[[Any], None]:
    """Return a ``__post_init__`` of a constant expression that rounds the constant to f32.

    Inductor computes with constants in Python's numbers, which are f64: 2^24 + 1 - 2^24 is 1 there, and 0 in f32.
    """

    def finished(self: Any) -> None:
        finish(self)
        if isinstance(self.expr, float) and self.dtype == torch.float32:
            self.expr = _rounded(self.expr, self.dtype)

    return finished


def _filled_in_its_dtype(fill: Callable[..., Any]) -> Callable[..., Any]:
    """Return a ``_full`` whose number is one of the tensor's dtype."""

    def filled(fill_value: Any, device: Any, dtype: torch.dtype, size: Any) -> Any:
        value = _rounded(fill_value, dtype) if isinstance(fill_value, float) else fill_value
        return fill(value, device, dtype, size)

    return filled


def _rounded(number: float, dtype: torch.dtype) -> float:
    """Return a number as ``dtype`` has it. Not by torch: inductor works among tensors that have no numbers."""
    if dtype not in {torch.float32, torch.float16, torch.bfloat16}:
        return number
    with numpy.errstate(over="ignore"):
        single = numpy.float32(number)
        if dtype == torch.float16:
            return float(numpy.float16(single))
    if dtype == torch.float32 or not numpy.isfinite(single):
        return float(single)
    bits = int(single.view(numpy.uint32))
    bits += 0x7FFF + (bits >> 16 & 1)  # to the nearest, of two the even one
    return float(numpy.uint32(bits & 0xFFFF0000).view(numpy.float32))


def _of_whole_numbers(choose: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    """Return a ``minimum`` or ``maximum`` of constants that leaves floats to C++: of NaN and -0 Python's differ.

    Sympy has none of truths (pytorch issue 188230).
    """

    def chosen(x: Any, y: Any) -> Any:
        is_whole = all(not each.dtype.is_floating_point and each.dtype != torch.bool for each in (x, y))
        return choose(x, y) if is_whole else NotImplemented

    return chosen


def _either(*_: Any) -> Any:
    """Return the range of a truth. Inductor takes that of ``isinf`` of positions for all numbers; ``isinf(i) & ...`` is
    a number to it then, and it stops at a ``where``.
    """
    from torch.utils._sympy.value_ranges import ValueRanges

    return ValueRanges.unknown_bool()


def _either_of_truths(analyse: Callable[..., Any]) -> Callable[..., Any]:
    """Return a range's function that also takes truths."""

    def analysed(*values: Any) -> Any:
        return _either() if any(getattr(value, "is_bool", False) for value in values) else analyse(*values)

    return analysed


#: Function of vectors of floats → the C++ that is written for it.
_VECTORS: Final[Mapping[str, str]] = {
    # exp(x) - 1 and the logarithm of a quotient lose all digits where x is small.
    "expm1": "{x}.expm1()",
    "atanh": "{x}.atanh()",
    "erf": "rdukit::erf({x})",
    "erfinv": "rdukit::erfinv({x})",
    "acosh": "rdukit::acosh({x})",
    "asinh": "rdukit::asinh({x})",
}


#: Polynomials (x, degree) with functions of our own.
_POLYNOMIALS: Final = (
    "hermite_polynomial_h", "hermite_polynomial_he", "laguerre_polynomial_l", "legendre_polynomial_p",
    "chebyshev_polynomial_t", "chebyshev_polynomial_u", "chebyshev_polynomial_v", "chebyshev_polynomial_w",
)  # fmt: skip


def _named(name: str, written: str) -> Callable[[Any], str]:
    def write(x: Any) -> str:
        return written.format(x=x)

    write.__name__ = name  # inductor finds the scalar form by this name
    return write


def _named_of_two(name: str, written: str) -> Callable[[Any, Any], str]:
    def write(a: Any, b: Any) -> str:
        return written.format(a=a, b=b)

    write.__name__ = name
    return write


def _of_whole(former: Callable[[Any, Any], Any], function: str) -> Callable[[Any, Any], Any]:
    """Return a form of a vector quotient: integers use our function, and unused lanes are divided by 1."""

    def write(a: Any, b: Any) -> Any:
        if a.dtype.is_floating_point:
            return former(a, b)
        from torch._inductor.virtualized import V

        vector = f"decltype({b})"
        return f"rdukit::{function}({a}, {vector}::set({vector}(1), {b}, {V.kernel.num_elems}))"

    write.__name__ = former.__name__
    return write


def _with_last_none(pool: Callable[..., Any]) -> Callable[..., Any]:
    """Return a maximum pooling that returns the index of a window's last NaN, as torch does, and none in the padding.

    It applies to windows that are unrolled; inductor returns the index of the first NaN.
    """

    def pooled(*args: Any, **kwargs: Any) -> Any:
        from torch._inductor import config, ir

        former = getattr(ir, _COMBINE)

        def chosen(kind: str, dtype: Any, *more: Any) -> Any:
            return _later_largest if kind == "argmax" else former(kind, dtype, *more)

        setattr(ir, _COMBINE, chosen)
        try:
            with config.patch(unroll_reductions_threshold=_MOST_WRITTEN_OUT):
                largest, offsets = pool(*args, **kwargs)
        finally:
            setattr(ir, _COMBINE, former)
        return largest, _inside(offsets, *args[1:5])

    return pooled


def _inside(
    offsets: Any, kernel: Sequence[int], stride: Sequence[int], padding: Sequence[int], dilation: Sequence[int]
) -> Any:
    """Return offsets of maxima in windows, none of them in the padding.

    Inductor takes padding for the maximum if all numbers of a window are -inf. Torch takes the first number.
    """
    from sympy import sympify  # type: ignore[import-untyped]
    from torch._inductor.ir import Pointwise
    from torch._inductor.virtualized import ops

    if not any(padding):
        return offsets
    axes, load = len(kernel), offsets.make_loader()

    def whole(number: Any) -> Any:
        return ops.index_expr(sympify(number), torch.int64)

    def inside(place: Sequence[Any]) -> Any:
        first = whole(0)
        for at, size, step, pad, gap in zip(place[-axes:], kernel, stride, padding, dilation, strict=True):
            missing = ops.maximum(whole(pad - at * step), whole(0))
            steps = missing if gap == 1 else ops.truncdiv(missing + whole(gap - 1), whole(gap))
            first = first * whole(size) + steps
        return ops.maximum(load(place), first)

    return Pointwise.create(
        device=offsets.get_device(), dtype=torch.int64, inner_fn=inside, ranges=offsets.get_size()
    )  # fmt: skip


def _last_none_of_uneven(
    start_index: Any, end_index: Any, kernel_maxes: Sequence[int], in_sizes: Sequence[int], out_sizes: Sequence[int],
    pooling_fn: Any,
) -> Callable[..., Any]:  # fmt: skip
    """Return the function of the maximum's position in pooling to a size that does not divide: that of the last NaN.

    The names are inductor's; ``pooling_fn`` is unread.
    """
    from torch._inductor import lowering
    from torch._inductor.virtualized import ops

    windows: Any = lowering.compute_indices_adaptive_pooling
    places = windows(start_index, end_index, *in_sizes, *out_sizes)

    def position(place: Sequence[Any], load: Callable[..., Any]) -> Any:
        *ahead, row, column = place
        top, bottom, left, right = (of(at) for of, at in zip(places, (row, row, column, column), strict=True))

        def element(y: int, x: int) -> tuple[Any, Any]:
            at = ops.index_expr((top + y) * in_sizes[1] + left + x, torch.int64)
            return load(ahead, [y, x], [top, left], [bottom, right]), at

        elements = (element(y, x) for y in range(kernel_maxes[0]) for x in range(kernel_maxes[1]))
        return reduce(_later_largest, elements)[1]

    return position


def _pooled_by_torch(x: Any, kernel: Any, stride: Any, padding: Any, dilation: Any, ceil_mode: bool, n_dim: int) -> Any:
    """Pool windows that are too large to unroll with torch's kernel: inductor's loop takes the first NaN."""
    from torch._inductor.lowering import aten, fallback_handler

    call: Any = fallback_handler
    operator = aten.max_pool2d_with_indices if n_dim == 2 else aten.max_pool3d_with_indices
    sizes = [[each] * n_dim if isinstance(each, int) else list(each) for each in (kernel, stride or kernel)]
    around = [[each] * n_dim if isinstance(each, int) else list(each) for each in (padding, dilation)]
    return call(operator.default, add_to_fallback_set=False)(x, *sizes, *around, ceil_mode)


#: Function of ``torch._inductor.ir`` that says how two values are reduced.
_COMBINE: Final = "get_reduction_combine_fn"
#: One more than the elements of the largest unrolled window; torch's kernel pools larger ones.
_MOST_WRITTEN_OUT: Final = 26


def _later_largest(a: tuple[Any, Any], b: tuple[Any, Any]) -> tuple[Any, Any]:
    """Return value and index of the larger of two, where ``b`` comes later: the first if equal, the last if NaN.

    C++ code of two choices, each by one comparison, has no branches. Branches are slow here: the processor cannot
    predict them.
    """
    from torch._inductor.virtualized import ops

    is_larger, is_none = ops.gt(b[0], a[0]), ops.ne(b[0], b[0])
    largest, place = (
        ops.where(is_none, later, ops.where(is_larger, later, former)) for former, later in zip(a, b, strict=True)
    )
    return largest, place


def _by_instruction(convert: Callable[..., str]) -> Callable[..., str]:
    """Return a ``get_to_dtype_expr`` that converts a float to a 64-bit integer as the processor does, even if the
    number is a C++ constant (pytorch issue 151510).
    """

    def written(self: Any, source: Any, dtype: Any, source_dtype: Any, rounding: bool = False) -> str:
        if str(dtype) == "torch.int64" and str(source_dtype) in {"torch.float32", "torch.float64"}:
            return f"rdukit::whole_of({source})"
        return convert(self, source, dtype, source_dtype, rounding)

    return written


def _in_long_steps(arange: Callable[[Any, Any, Any], Any]) -> Callable[[Any, Any, Any], Any]:
    """Return an ``arange`` with 64-bit steps: products of 32-bit literals wrap (pytorch issue 183901)."""

    def written(self: Any, index: Any, step: Any) -> Any:
        return arange(self, index, f"int64_t({step})")

    return written


def _with_tails(aggregate: Callable[..., None]) -> Callable[..., None]:
    """Return an ``aggregate_reduction_buffers`` that stores the sums of a tiled loop's remainder separately.

    Inductor checks only the next loop for sums in a tile. If a later loop has them, it stores full vectors of sums for
    the remainder of the outer loop: over the next row's, and beyond the end (pytorch issue 196681).
    """

    def aggregated(self: Any, sums_are_inner: bool, outer_loop: Any) -> None:
        if outer_loop is not None and not outer_loop.is_reduction:
            loops = self.loop_nest.loops
            sums_are_inner = any(loop.is_reduction for loop in loops[loops.index(outer_loop) + 1 :])
        aggregate(self, sums_are_inner, outer_loop)

    return aggregated


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
    """Return a ``write_loops`` that keeps loops which add into memory in one thread, and does not mark them free of
    dependencies.
    """
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
