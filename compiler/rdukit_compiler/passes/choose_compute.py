"""Decide which operators do not compute in the device's usual dtype: GraphAMP presets, operator families, scopes.

==========  ===========================================================================================================
preset      what it does
==========  ===========================================================================================================
none        everything bf16 until the program converts (``default`` is the same)
mp0         the program's own precision everywhere
mp1         as mp0, but GEMM-like operators take inputs rounded to bf16; they give f32
mp4         bf16, but softmax, norms and reductions compute in f32; their results are rounded, those of losses never
==========  ===========================================================================================================

``--enable-mixed-precision-ops`` names families that compute in f32 as in mp4. Inside ``disable_graphamp()`` operators
keep their declared precision; other operators read their results rounded. With ``--precision f32`` there is no choice.
Source: SDK reference 16, compiler reference 4.4 for mp1, the families and the scope; the contents of mp0 and mp4 are
not public, so ours.
"""

import logging
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Final

from rdukit_compiler.ir import ComputeDtypes, ModelGraph, Operator
from rdukit_compiler.operators.vocabulary import LOSSES, RUNNING_SUMS, is_gemm

logger = logging.getLogger(__name__)

PRESETS: Final = ("default", "mp0", "mp1", "mp4")

#: Family → operators that compute in f32 when it is chosen. GEMMs accumulate in f32 in any case.
FAMILIES: Final[Mapping[str, frozenset[str]]] = {
    "gemm": frozenset(),
    "softmax": frozenset({"softmax", "_softmax", "log_softmax", "_log_softmax", "logsumexp"}),
    "norm": frozenset({"layer_norm", "native_layer_norm", "rms_norm", "group_norm", "batch_norm", "instance_norm"}),
    "loss": LOSSES,
    "reduce": frozenset({"sum", "mean", "var", "std", "norm", "linalg_vector_norm", "cumsum", "prod"}),
    "sdpa": frozenset({"scaled_dot_product_attention"}),
    "gelu": frozenset({"gelu"}), "silu": frozenset({"silu"}), "exp": frozenset({"exp"}), "rsqrt": frozenset({"rsqrt"}),
    "pow": frozenset({"pow"}), "add": frozenset({"add"}), "mul": frozenset({"mul"}),
}  # fmt: skip
#: Families whose results are always f32: see ``keep_float32``.
_NEVER_ROUNDED: Final = LOSSES | RUNNING_SUMS
_SENSITIVE: Final = ("softmax", "norm", "loss", "reduce")

#: Values of ``Operator.compute``.
DECLARED: Final = ComputeDtypes(("float32",))
WIDE: Final = ComputeDtypes(("float32",), "bfloat16")
NARROW: Final = ComputeDtypes(("bfloat16", "float32"))
ROUNDED: Final = ComputeDtypes(("bfloat16",))


def keeps_declared(precision: str, preset: str | None) -> bool:
    """Return whether the preset keeps values in the program's precision unless an operator rounds them."""
    return precision == "f32" or preset in {"mp0", "mp1"}


def choose_compute(graph: ModelGraph, precision: str, preset: str | None, families: Iterable[str]) -> ModelGraph:
    """Set ``Operator.compute`` where an operator departs from the usual dtype.

    Args:
        precision: ``bf16`` or ``f32``. preset: one of ``PRESETS`` or None. families: of ``FAMILIES``; others are
            logged and change nothing.
    """
    if precision == "f32" or preset == "mp0":
        return graph
    if preset == "mp1":
        chosen = {o.name: NARROW for o in graph.operators if is_gemm(o) and not _is_disabled(o)}
        return _marked(graph, chosen)
    wide = _wide_words([*families, *(_SENSITIVE if preset == "mp4" else ())])
    chosen = {o.name: DECLARED if o.op_type in _NEVER_ROUNDED else WIDE for o in graph.operators if o.op_type in wide}
    kept: set[str] = set()
    for operator in graph.operators:
        if _is_disabled(operator):
            chosen[operator.name] = DECLARED
            kept.update(n for n in operator.outputs if graph.values[n].dtype == "float32")
        elif kept.intersection(operator.inputs):
            chosen.setdefault(operator.name, ROUNDED)
    return _marked(graph, chosen)


def _wide_words(families: Iterable[str]) -> frozenset[str]:
    words: set[str] = set()
    for family in families:
        known = FAMILIES.get(str(family).lower())
        if known is None:
            logger.warning("mixed precision family ignored: family=%s legal=%s", family, ",".join(FAMILIES))
        words.update(known or ())
    return frozenset(words)


def _is_disabled(operator: Operator) -> bool:
    return operator.labels.get("graphamp") == "disabled"


def _marked(graph: ModelGraph, chosen: Mapping[str, ComputeDtypes]) -> ModelGraph:
    if not chosen:
        return graph
    return replace(graph, operators=tuple(replace(o, compute=chosen.get(o.name)) for o in graph.operators))
