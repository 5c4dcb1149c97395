"""Lines of the user's program among the frames of a call, without our own."""

import sys
from pathlib import Path
from types import FrameType
from typing import Final

#: Top-level packages whose frames are not the program's.
_OURS: Final = frozenset({"rdukit", "sambaflow", "rdukit_runtime", "rdukit_node", "rdukit_compiler"})


def is_of_program(frame: FrameType) -> bool:
    """Return whether a frame runs code of the program; a module run by ``python -m`` counts by its own name."""
    name = str(frame.f_globals.get("__name__", ""))
    if name == "__main__" and frame.f_globals.get("__spec__") is not None:
        name = str(frame.f_globals["__spec__"].name)
    return name.partition(".")[0] not in _OURS and not frame.f_code.co_filename.startswith("<frozen")


def calling_line() -> str:
    """Return file and line of the program that called, such as ``train.py:12``; ``?`` if no frame is the program's."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and not is_of_program(frame):
        frame = frame.f_back
    return "?" if frame is None else f"{Path(frame.f_code.co_filename).name}:{frame.f_lineno}"
