"""Failures of a trace: alternative ways to record a forward, and the error if all fail.

The error names the failure, the module, and the program's line.
"""

import importlib
import linecache
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import TracebackType
from typing import Final

import torch
from torch import fx

import rdukit
import rdukit_compiler
from rdukit.errors import RdukitError, TraceError, UnsupportedOperator
from rdukit_compiler import DATA_DEPENDENT
from sambaflow.tracing.torch_private import DYNAMO

#: Parts of torch's messages when a trace needs a tensor's value.
_DATA_DEPENDENT: Final = (
    "DataDependent", "DynamicOutputShape", "_local_scalar_dense", "data-dependent", "Data-dependent",
    ".numpy() is not supported", ".tolist() is not supported", "FakeTensor.__format__",
)  # fmt: skip

#: torch's message for operators whose number of results depends on data; the group is the operator's name.
_DYNAMIC_SHAPE: Final = re.compile(r"DynamicOutputShape\w*: (?:aten\.)?(\w+)")
#: Such an operator → what to write instead.
_INSTEAD: Final = {
    "nonzero": (
        "Instead of x[mask] write torch.where(mask, f(x), x) to change what a mask chooses, "
        "torch.where(mask, x, 0).sum() / mask.sum() for its mean, ignore_index for labels that do not count; for "
        "experts that each process some rows, compute all and weight them by the mask; for a known number of rows, "
        "topk, argsort or nonzero_static(size=…)"
    ),
    "unique": (
        "Instead of unique write sort and compare neighbours, or count classes with F.one_hot(x, num_classes).sum(0)"
    ),
    "bincount": (
        "Instead of bincount write F.one_hot(x, num_classes).sum(0), or "
        "torch.zeros(num_classes).scatter_add(0, x, weights)"
    ),
}

#: torch's messages for operators that do not define their result's shape; the group is the operator.
_SHAPELESS: Final = (
    re.compile(r"no fake impl registered for <CustomOpDef\((\S+)\)>"),
    re.compile(r"^UnsupportedOperatorException: (\S+)"),
    re.compile(r"[Oo]perator (\S+) .*(?:does not have|no) (?:a )?(?:fake|meta)"),
)

#: Folders of code that is not the program's.
_LIBRARIES: Final = (
    str(Path(__file__).parents[1]), *(str(Path(str(m.__file__)).parent) for m in (torch, rdukit, rdukit_compiler)),
)  # fmt: skip


def explain_failure(cause: Exception, model: str, running: Sequence[str]) -> RdukitError:
    """Return the error to raise for an exception from forward of ``model``.

    Args:
        running: paths of the modules that ran, outermost first.
    """
    text = str(cause).splitlines()[0] if str(cause) else type(cause).__name__
    kind = type(cause).__name__
    where = f"in module {(running[-1] if running else '') or 'forward'!r}{_line_of(cause.__traceback__)}"
    for words in _SHAPELESS:
        if (found := words.search(f"{kind}: {text}")) or (found := words.search(text)):
            return UnsupportedOperator(
                f"operator {found[1]!r} {where} is not supported on the RDU; nearest supported: torch's own operators. "
                "To run it on the host instead, register the shape of its result (torch.library.register_fake) and "
                "compile with --host-fallback or RDUKIT_HOST_FALLBACK=1"
            )
    if text == DATA_DEPENDENT:
        return TraceError(
            f"forward of {model!r} cannot be traced {where}: {text}; give lengths as Python numbers or as a "
            "tensor of the program's own, or run over all steps and mask the rest with torch.where"
        )
    if (control := _control_flow_of(cause.__traceback__)) in {"scan", "map"}:
        return TraceError(
            f"forward of {model!r} uses torch's {control} {where}, which accepts no traced tensors; write a Python "
            "loop over the steps, which a trace unrolls, and torch.stack their results"
        )
    if control is not None:
        return TraceError(
            f"forward of {model!r} uses torch's {control} {where}: the choice of steps and their number depend on "
            "data; compute both and choose with torch.where, or run a fixed number of steps and mask the surplus"
        )
    if any(word in f"{kind} {text}" for word in _DATA_DEPENDENT):
        if arguments := getattr(cause, "__notes__", ()):  # see ``record``
            return TraceError(
                f"a shape that forward of {model!r} computes {where} depends on data; pass {arguments[0]} to fix it"
            )
        if (found := _DYNAMIC_SHAPE.search(f"{kind}: {text}")) is not None:
            instead = next((how for word, how in _INSTEAD.items() if word in found[1]), _INSTEAD["nonzero"])
            return TraceError(
                f"a shape that forward of {model!r} computes {where} depends on data ({found[1]}); a compile fixes "
                f"every shape, even with --host-fallback. {instead}. RDUKIT_SUPPOSE_EXAMPLE=1 compiles for the shapes "
                "of the example inputs, if they do not depend on weights"
            )
        return TraceError(
            f"forward of {model!r} needs a tensor's value while tracing {where}: {text}; control flow, shapes and "
            "Python numbers cannot depend on data: use torch.where, masks, topk or nonzero_static, or pass the "
            "value in as an argument; RDUKIT_SUPPOSE_EXAMPLE=1 compiles only for the values of the example inputs"
        )
    return TraceError(f"tracing forward of {model!r} failed {where}: {kind}: {text}")


def _control_flow_of(trace: TracebackType | None) -> str | None:
    """Return ``cond``, ``while_loop``, ``scan`` or ``map``, if one of them failed."""
    while trace is not None:
        file = Path(trace.tb_frame.f_code.co_filename)
        if file.parent.name == "_higher_order_ops" and file.stem in {"cond", "while_loop", "scan", "map"}:
            return file.stem
        trace = trace.tb_next
    return None


def _line_of(trace: TracebackType | None) -> str:
    """Return `` (model.py:12: …)`` of the program's innermost frame."""
    found = ""
    while trace is not None:
        code = trace.tb_frame.f_code
        if not code.co_filename.startswith((*_LIBRARIES, "<")):
            line = linecache.getline(code.co_filename, trace.tb_lineno).strip()
            shown = f": {line[:80]}" if line else ""
            found = f" ({Path(code.co_filename).name}:{trace.tb_lineno}{shown})"
        trace = trace.tb_next
    return found


@dataclass(frozen=True, slots=True)
class Way:
    """A way to record a forward.

    ``imports_all``: with all of torch's compilers imported. ``follows_gradients``: with autograd on, for a forward that
    computes a gradient.
    """

    imports_all: bool = False
    follows_gradients: bool = False


def record_some_way(record: Callable[[Way], fx.GraphModule]) -> fx.GraphModule:
    """Record; after a failure, try other ways while there are any.

    Raises:
        The first failure that no other way avoids.
    """
    way = Way()
    while True:
        try:
            return record(way)
        except (AttributeError, RuntimeError, TypeError, ValueError) as cause:
            other = find_other_way(way, cause)
            if other == way:
                raise
            way = other
        if way.imports_all:
            importlib.import_module(DYNAMO)


def find_other_way(way: Way, cause: Exception) -> Way:
    """Return the way to try after ``cause``; the same one if there is none."""
    text = str(cause)
    if isinstance(cause, AttributeError) and text.startswith("module 'torch."):
        return replace(way, imports_all=True)  # a rare operator assumes that it is imported
    if "does not require grad" in text:
        return replace(way, follows_gradients=True)
    return way
