"""What a compile says of an operator that torch does not trace: never a bare Python error, always where and why."""

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Final

from rdukit.errors import CompileError, RdukitError, UnsupportedOperator
from rdukit_compiler.ir import Operator

#: Names of torch's exceptions for a trace that would need values.
_NEEDS_VALUES: Final = ("DynamicOutputShapeException", "DataDependentOutputException", "GuardOnDataDependentSymNode")


@contextlib.contextmanager
def refusing(operators: Sequence[Operator], compile_alone: Callable[[Operator], object]) -> Iterator[None]:
    """Turn whatever torch raises while ``operators`` are compiled as one section into an error that names the one.

    Args:
        compile_alone: compiles one of them as a section of its own.
    Raises:
        UnsupportedOperator: they, or their gradients, depend on data. CompileError: torch refuses them.
    """
    try:
        yield
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
    """The error for ``cause``."""
    text = (str(cause).strip().splitlines() or [""])[0]
    where = name_operators(operators)
    if type(cause).__name__ in _NEEDS_VALUES:
        return UnsupportedOperator(
            f"{where}: the shape of what is computed, or of a gradient, depends on data ({text}); shapes on the RDU "
            "are static: use torch.where with a mask, or compute it without a gradient (detach)"
        )
    return CompileError(f"{where} cannot be compiled: {type(cause).__name__}: {text}")


def name_operators(operators: Sequence[Operator]) -> str:
    """The operators for people: ``operator 'add' in module 'layers.1'``, or several of them."""
    shown = [f"{operator.op_type!r} in module {operator.module or 'forward'!r}" for operator in operators]
    if len(shown) == 1:
        return f"operator {shown[0]}"
    more = f" and {len(shown) - 4} more" if len(shown) > 4 else ""
    return f"one of the operators {', '.join(shown[:4])}{more}"
