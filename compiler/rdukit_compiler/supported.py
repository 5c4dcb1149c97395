"""Which operators the device has, and what to write instead of one that it has not.

The device runs ATen operators on static tensors. Left out are matrix decompositions, which no tiled dataflow chip
runs, and operators of other libraries, which no kernel is known for.

Source: compiler reference 6 and SDK reference 23 (unsupported operators fail at compile, naming operator and module);
the families and the nearest operators are ours, as the vendor's full list is not public.
"""

import difflib
from collections.abc import Mapping
from typing import Final

from rdukit_compiler.custom_gradients import CUSTOM_FUNCTION, backward_operators
from rdukit_compiler.ir import Operator

#: Namespaces whose operators the device has.
_NAMESPACES: Final = frozenset({"aten", "prims"})

#: What libraries call in the place of ``torch.nn.functional.grouped_mm``, with its first three arguments.
GROUPED_MM_OF_OTHERS: Final = frozenset({"transformers.grouped_mm_fallback.default"})

#: Operators that the device does not have → the nearest that it has.
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

#: Operators that only autograd's own machinery calls → why a graph cannot have them, and what it can.
REFUSED: Final[Mapping[str, str]] = {
    "aten._make_dual.default": "forward-mode differentiation by dual tensors (torch.autograd.forward_ad) cannot be "
    "compiled; use torch.func.jvp, which is",
}

_POWERS: Final = frozenset({"linalg_matrix_power", "matrix_power"})

#: Names to look for the nearest of an operator from another library. Source: compiler reference 6.2.
_KNOWN: Final = (
    "add sub mul div neg pow abs reciprocal rsqrt sqrt exp log minimum maximum cumsum linear matmul bmm addmm einsum "
    "relu gelu silu tanh sigmoid softmax log_softmax leaky_relu dropout layer_norm rms_norm batch_norm group_norm "
    "scaled_dot_product_attention logical_or logical_and bitwise_not bitwise_and eq ge le gt lt all any mean sum max "
    "min argmax topk view reshape flatten transpose permute squeeze unsqueeze expand cat stack split "
    "repeat_interleave embedding index_select gather scatter masked_fill where triu tril arange full ones zeros "
    "cross_entropy mse_loss nll_loss conv1d conv2d conv3d conv_transpose2d max_pool2d avg_pool2d upsample lstm clamp "
    "roll flip sort one_hot erf sin cos clone"
).split()


def is_supported(operator: Operator) -> bool:
    """Whether the device has ``operator``."""
    namespace, _, name = operator.op.partition(".")
    if not name:
        return True  # Python's getitem, which takes one tensor out of several
    if operator.op in GROUPED_MM_OF_OTHERS:
        return True
    if operator.op == CUSTOM_FUNCTION:
        return all(map(is_supported, backward_operators(operator)))
    if operator.op_type in _POWERS:
        return isinstance(operator.args[1], int) and operator.args[1] >= 0  # repeated products; below, of an inverse
    return namespace in _NAMESPACES and name.split(".")[0].rstrip("_") not in _NEAREST


def nearest_supported(operator: Operator) -> str:
    """What to write instead of an operator that the device does not have."""
    if (written := _NEAREST.get(operator.op_type.rstrip("_"))) is not None:
        return written
    word = operator.op_type.lower().strip("_")
    inside = sorted((name for name in _KNOWN if len(name) > 3 and name in word), key=len)
    close = difflib.get_close_matches(word, _KNOWN, n=1, cutoff=0.0)
    return f"{inside[-1] if inside else close[0]} by its name; or write it with torch's own operators"
