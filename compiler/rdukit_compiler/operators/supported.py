"""Operators that the device supports, the nearest ones to those that it lacks, and errors that name a refused operator.

The device runs ATen operators on static tensors. Matrix decompositions, which no tiled dataflow chip runs, and
operators of other libraries are not supported. torch's CPU kernels refuse some calls that fake tensors accept; a
compiled program with these would fail when it runs. ``scripts/cpu_kernels.py`` finds both lists by running torch's own
samples of every operator; run it after an upgrade.

Source: compiler reference 6 and SDK reference 23 (unsupported operators fail at compile, naming operator and module);
the families and the nearest operators are ours, as the vendor's full list is not public.
"""

import contextlib
import difflib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Final

from rdukit.errors import CompileError, PefCorrupt, PefNotAllowed, RdukitError, UnsupportedOperator
from rdukit.pef.kernel import parse_operator
from rdukit_compiler.ir import Operator
from rdukit_compiler.operators.custom_gradients import CUSTOM_FUNCTION, backward_operators

#: Namespaces whose operators the device supports.
_NAMESPACES: Final = frozenset({"aten", "prims"})

#: Operators that libraries call instead of ``torch.nn.functional.grouped_mm``, with its first three arguments.
GROUPED_MM_OF_OTHERS: Final = frozenset({"transformers.grouped_mm_fallback.default"})

#: Unsupported operators → the nearest supported ones.
_NEAREST: Final[Mapping[str, str]] = {
    **dict.fromkeys(
        "inverse linalg_inv linalg_inv_ex linalg_solve linalg_solve_ex "
        "cholesky cholesky_inverse cholesky_solve linalg_cholesky linalg_cholesky_ex linalg_pinv linalg_lstsq "
        "lu_solve _lu_with_info linalg_lu linalg_lu_factor linalg_lu_factor_ex linalg_lu_solve linalg_ldl_factor "
        "linalg_ldl_factor_ex linalg_ldl_solve linalg_tensorsolve linalg_tensorinv".split(),
        "matmul with an inverse that the host has computed and that is passed as an input",
    ),
    **dict.fromkeys(
        "svd linalg_svd linalg_svdvals linalg_eig linalg_eigh linalg_eigvals linalg_eigvalsh _linalg_eigh _linalg_svd "
        "qr linalg_qr geqrf ormqr linalg_householder_product linalg_matrix_rank linalg_cond".split(),
        "matmul with factors that the host has computed and that are passed as inputs",
    ),
    **dict.fromkeys(
        "det logdet slogdet linalg_det linalg_slogdet _linalg_det _linalg_slogdet".split(),
        "mul and sum over elements that are computed in forward, or a value that the host passes as an input",
    ),
    **dict.fromkeys("matrix_exp linalg_matrix_exp linalg_matrix_power matrix_power".split(), "repeated matmul"),
}  # fmt: skip

#: Operators that only autograd itself calls → why a graph cannot have them, and the alternative.
REFUSED: Final[Mapping[str, str]] = {
    "aten._make_dual.default": "forward-mode differentiation by dual tensors (torch.autograd.forward_ad) cannot be "
    "compiled; use torch.func.jvp, which is",
}

#: (condition [] bool, message, token) → token; checks the condition when it runs: see ``capture.constant_folding``.
GUARD: Final = "aten._functional_assert_async.msg"
#: Label of an operator that runs on the host.
HOST_LABEL: Final = "host"

_POWERS: Final = frozenset({"linalg_matrix_power", "matrix_power"})

#: Names among which to find the nearest to another library's operator. Source: compiler reference 6.2.
_KNOWN: Final = (
    "add sub mul div neg pow abs reciprocal rsqrt sqrt exp log minimum maximum cumsum linear matmul bmm addmm einsum "
    "relu gelu silu tanh sigmoid softmax log_softmax leaky_relu dropout layer_norm rms_norm batch_norm group_norm "
    "scaled_dot_product_attention logical_or logical_and bitwise_not bitwise_and eq ge le gt lt all any mean sum max "
    "min argmax topk view reshape flatten transpose permute squeeze unsqueeze expand cat stack split "
    "repeat_interleave embedding index_select gather scatter masked_fill where triu tril arange full ones zeros "
    "cross_entropy mse_loss nll_loss conv1d conv2d conv3d conv_transpose2d max_pool2d avg_pool2d upsample lstm clamp "
    "roll flip sort one_hot erf sin cos clone"
).split()

#: Names of the exceptions that torch raises when a trace needs values.
_NEEDS_VALUES: Final = ("DynamicOutputShapeException", "DataDependentOutputException", "GuardOnDataDependentSymNode")
#: Operators without a bf16 kernel, forward or backward, by their names without overload.
WITHOUT_BF16: Final = frozenset(
    "_cdist_forward _lu_with_info _upsample_bicubic2d_aa _upsample_bilinear2d_aa avg_pool3d cdist cholesky "
    "cholesky_inverse cholesky_solve complex fft_fft fft_fft2 fft_fftn fft_hfft fft_hfft2 fft_hfftn fft_ifft "
    "fft_ifft2 fft_ifftn fft_ihfft fft_ihfft2 fft_ihfftn fft_irfft fft_irfft2 fft_irfftn fft_rfft fft_rfft2 fft_rfftn "
    "fractional_max_pool3d "
    "geqrf histogram histogramdd istft linalg_cholesky linalg_cholesky_ex linalg_cond linalg_det linalg_eig "
    "linalg_eigh linalg_eigvals linalg_eigvalsh linalg_householder_product linalg_inv linalg_inv_ex linalg_ldl_factor "
    "linalg_ldl_factor_ex linalg_ldl_solve linalg_lu linalg_lu_factor linalg_lu_factor_ex linalg_lu_solve "
    "linalg_matrix_norm linalg_matrix_rank linalg_pinv linalg_qr linalg_slogdet linalg_solve linalg_solve_ex "
    "linalg_solve_triangular linalg_svd linalg_svdvals linalg_tensorinv linalg_tensorsolve linalg_vander logdet "
    "lu_solve nanquantile ormqr pdist pinverse polar qr quantile special_airy_ai special_bessel_j0 special_bessel_j1 "
    "special_bessel_y0 special_bessel_y1 special_chebyshev_polynomial_t special_chebyshev_polynomial_u "
    "special_chebyshev_polynomial_v special_chebyshev_polynomial_w special_erfcx special_hermite_polynomial_h "
    "special_hermite_polynomial_he special_i1 special_i1e special_laguerre_polynomial_l special_legendre_polynomial_p "
    "special_log_ndtr special_modified_bessel_i0 special_modified_bessel_i1 special_modified_bessel_k0 "
    "special_modified_bessel_k1 special_ndtri special_scaled_modified_bessel_k0 special_scaled_modified_bessel_k1 "
    "special_shifted_chebyshev_polynomial_t special_shifted_chebyshev_polynomial_u "
    "special_shifted_chebyshev_polynomial_v special_shifted_chebyshev_polynomial_w special_spherical_bessel_j0 "
    "special_zeta stft triangular_solve view_as_complex".split()
)
#: Operators whose floating operands must have one dtype.
SAME_DTYPE: Final = frozenset(
    "_softmax_backward_data _unsafe_masked_index_put_accumulate "
    "addbmm addmm addmv addr baddbmm bmm conv1d conv2d conv3d conv_transpose1d "
    "conv_transpose2d conv_transpose3d convolution cross dot einsum embedding_bag floor_divide grid_sampler "
    "grid_sampler_2d grid_sampler_3d group_norm heaviside igamma igammac index_add index_copy index_put index_reduce "
    "instance_norm linalg_cross linear masked_scatter matmul mm mv native_group_norm prelu put "
    "scaled_dot_product_attention scatter scatter_add "
    "gru gru_cell lstm lstm_cell rnn_relu rnn_relu_cell rnn_tanh rnn_tanh_cell".split()  # torch's samples lack this one
)
#: Operators whose parameters must not be narrower than their operand.
NORMS: Final = frozenset({"layer_norm", "native_layer_norm", "rms_norm"})


def is_supported(operator: Operator) -> bool:
    """Return whether the device supports ``operator``."""
    name = parse_operator(operator.op)
    if not name.namespace:
        return True  # Python's getitem, which selects one of several tensors
    if operator.op in GROUPED_MM_OF_OTHERS:
        return True
    if operator.op == CUSTOM_FUNCTION:
        return all(map(is_supported, backward_operators(operator)))
    if operator.op_type in _POWERS:
        return isinstance(operator.args[1], int) and operator.args[1] >= 0  # a negative power needs the inverse
    return name.namespace in _NAMESPACES and name.word.rstrip("_") not in _NEAREST


def nearest_supported(operator: Operator) -> str:
    """Return a hint with replacements for an unsupported operator."""
    if (written := _NEAREST.get(operator.op_type.rstrip("_"))) is not None:
        return written
    word = operator.op_type.lower().strip("_")
    inside = sorted((name for name in _KNOWN if len(name) > 3 and name in word), key=len)
    close = difflib.get_close_matches(word, _KNOWN, n=1, cutoff=0.0)
    return f"{inside[-1] if inside else close[0]} by its name; or write it with torch's own operators"


def runs_on_host(operator: Operator) -> bool:
    """Return whether ``operator`` was marked to run on the host."""
    return HOST_LABEL in operator.labels


def is_guard(operator: Operator) -> bool:
    """Return whether ``operator`` checks an assumption of the trace in each run: see ``capture.constant_folding``."""
    return operator.op == GUARD


@contextlib.contextmanager
def refusing(operators: Sequence[Operator], compile_alone: Callable[[Operator], object]) -> Iterator[None]:
    """Turn an exception of torch while ``operators`` are compiled as one section into an error that names the operator.

    Args:
        compile_alone: compiles one of them as a separate section.
    Raises:
        UnsupportedOperator: the operators or their gradients depend on data, or become calls that a PEF must not hold.
        CompileError: torch refuses the operators.
    """
    try:
        yield
    except (PefCorrupt, PefNotAllowed) as cause:
        where = name_operators(_find_refused(operators, compile_alone))
        raise UnsupportedOperator(
            f"{where} cannot be compiled: no PEF can contain it with these arguments; use other torch operators, or "
            "compute it outside of forward"
        ) from cause
    except (RdukitError, OSError, MemoryError):
        raise
    except Exception as cause:
        raise explain_refusal(_find_refused(operators, compile_alone), cause) from cause


def _find_refused(operators: Sequence[Operator], compile_alone: Callable[[Operator], object]) -> Sequence[Operator]:
    for operator in operators:
        is_refused = True
        with contextlib.suppress(Exception):
            compile_alone(operator)
            is_refused = False
        if is_refused:
            return [operator]
    return operators


def explain_refusal(operators: Sequence[Operator], cause: Exception) -> CompileError:
    """Return the error for ``cause``."""
    text = (str(cause).strip().splitlines() or [""])[0]
    where = name_operators(operators)
    if type(cause).__name__ in _NEEDS_VALUES:
        return UnsupportedOperator(
            f"{where}: the shape of its result or gradient depends on data ({text}), but shapes on the RDU are "
            "static; use torch.where with a mask, or compute it without a gradient (detach)"
        )
    return CompileError(f"{where} cannot be compiled: {type(cause).__name__}: {text}")


def name_operators(operators: Sequence[Operator]) -> str:
    """Return the operators' names for people: ``operator 'add' in module 'layers.1'``, or several of them."""
    shown = [f"{operator.op_type!r} in module {operator.module or 'forward'!r}" for operator in operators]
    if len(shown) == 1:
        return f"operator {shown[0]}"
    more = f" and {len(shown) - 4} more" if len(shown) > 4 else ""
    return f"one of the operators {', '.join(shown[:4])}{more}"
