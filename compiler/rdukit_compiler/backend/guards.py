"""Values that forward looks at and that depend on data: it is recorded as if they were known, and each run checks it.

Models guard against overflow with ``if not torch.isfinite(x).all(): x = clamp(x)``, and check what they are given with
``torch._check_tensor_all``. A record takes one way: that of finite numbers, and of checks that hold. It has a call that
checks the condition, so that a run in which it is otherwise ends in an error before any weight is updated. Values that
depend on data in another way are refused, unless the user lets those of the example inputs stand for all
(``SUPPOSE_EXAMPLE``): one graph for labels without gaps, or for batches of one length.
"""

import linecache
import sys
from collections.abc import Mapping
from pathlib import Path
from types import FrameType
from typing import Final

import torch

aten = torch.ops.aten

#: What programs check a condition with; in a record it is a guard.
ASSERTIONS: Final = frozenset({aten._assert_async.default, aten._assert_async.msg})
#: Operators that look for numbers that are not finite, and what ``torch._check_tensor_all`` asks → what they give if
#: all is well.
IF_WELL: Final[Mapping[object, bool]] = {
    aten.isfinite.default: True, aten.isnan.default: False, aten.isinf.default: False,
    aten.isposinf.default: False, aten.isneginf.default: False, aten._is_all_true.default: True,
}  # fmt: skip
#: Packages whose frames are not the program's.
_LIBRARIES: Final = frozenset({"torch", "sambaflow", "rdukit", "rdukit_compiler"})


def record_guard(condition: torch.Tensor, expected: bool | int) -> None:
    """Record the check that ``condition``, of one element, is ``expected``, and where forward asks for it."""
    value = condition.reshape(())
    holds = value == expected if not isinstance(expected, bool) else value if expected else value.logical_not()
    aten._functional_assert_async.msg(holds, _place(sys._getframe()), holds)


def record_equality(values: torch.Tensor, expected: torch.Tensor) -> None:
    """Record the check that whole numbers, or a mask, are ``expected``, and where forward asks for them."""
    holds = (values == expected).all()
    aten._functional_assert_async.msg(holds, _place(sys._getframe()), holds)


def _place(frame: FrameType | None) -> str:
    """``model.py:12: if …`` of the innermost frame that is the program's."""
    while frame is not None:
        if str(frame.f_globals.get("__name__", "torch")).partition(".")[0] not in _LIBRARIES:
            name = frame.f_code.co_filename
            line = linecache.getline(name, frame.f_lineno).strip()
            return f"{Path(name).name}:{frame.f_lineno}" + (f": {line[:80]}" if line else "")
        frame = frame.f_back
    return "forward"
