"""Heuristics from outside: installed packages and single Python files.

A package declares an entry point in the group ``rdukit.heuristics``; its name is the heuristic's, its object a class
or an instance that meets ``Heuristic``. A file is executed and registers classes with ``@heuristic("NAME")``. Both are
the user's code, and as trusted as the program itself. A plug-in's decisions cannot exceed the tiles: see
``find_misplacement``. Source: ours; the vendor's plug-ins are shared libraries.
"""

import sys
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from importlib.metadata import EntryPoint, EntryPoints, entry_points
from pathlib import Path
from runpy import run_path
from typing import Final

from rdukit.errors import InvalidArgument
from rdukit_compiler.heuristics.capacity import footprint
from rdukit_compiler.heuristics.default import default_limits
from rdukit_compiler.heuristics.registry import Decisions, Heuristic, HeuristicRequest, heuristic_names, registering
from rdukit_compiler.ir import Operator

#: Entry point group in which packages declare heuristics.
GROUP: Final = "rdukit.heuristics"
#: Decisions that are numbers of units → the limit of each.
_LIMITED: Final = {"pcu_limit": "pcus", "pmus": "pmus", "sram_bytes": "sram_bytes"}


def load_heuristics(files: Iterable[Path] = (), installed: Iterable[EntryPoint] | None = None) -> dict[str, Heuristic]:
    """Load the heuristics of installed packages and of ``files``, by name.

    Args:
        installed: entry points; default: those of the running Python.
    Raises:
        InvalidArgument: a heuristic cannot be loaded, lacks a method, or has a name that is taken.
    """
    found: dict[str, Heuristic] = {}
    for point in _installed(tuple(sys.path)) if installed is None else installed:
        where = f"entry point {point.name} = {point.value} of group {GROUP}"
        try:
            made = point.load()
        except (ImportError, AttributeError) as cause:
            raise InvalidArgument(f"{where} cannot be loaded: {cause}") from cause
        _add(found, point.name, made, where)
    for path in files:
        for name, made in _run_file(path).items():
            _add(found, name, made, str(path))
    return found


@cache
def _installed(path: tuple[str, ...]) -> EntryPoints:
    """Return the entry points of the packages on ``path``: reading their metadata takes as long as compiling a small
    model.
    """
    return entry_points(group=GROUP)


def find_misplacement(
    request: HeuristicRequest, parts: Sequence[Sequence[Operator]], decisions: Sequence[Decisions]
) -> str:
    """Describe an error in a heuristic's sections: operators lost or out of order, or more units than the tiles have.

    Returns:
        One sentence with the numbers; empty if there is no error.
    """
    if [o.name for part in parts for o in part] != [o.name for o in request.operators] or not all(parts):
        return "its sections do not contain each operator of the group once and in order"
    limits = default_limits(request)
    for number, (part, decided) in enumerate(zip(parts, decisions, strict=True)):
        taken = footprint(request.graph, part, limits, streamed=decided.get("weights") == "streamed")
        needs = {"PCUs": (taken.pcus, limits.pcus), "PMUs": (taken.pmus, limits.pmus),
                 "SRAM bytes": (taken.sram_bytes, limits.sram_bytes)}  # fmt: skip
        for key, limit in _LIMITED.items():
            value = decided.get(key)
            if isinstance(value, int):
                needs[f"{key} decided"] = (value, getattr(limits, limit))
        over = ", ".join(f"{need} {what} of {have}" for what, (need, have) in needs.items() if need > have)
        if over:
            return f"section {number} needs {over}"
    return ""


def _run_file(path: Path) -> Mapping[str, Heuristic]:
    if not path.is_file():
        raise InvalidArgument(f"no heuristic file at {str(path)!r}; expected a Python file")
    with registering() as made:
        try:
            run_path(str(path))
        except (Exception, SystemExit) as cause:
            raise InvalidArgument(f"heuristic file {path} fails: {type(cause).__name__}: {cause}") from cause
    if not made:
        raise InvalidArgument(f'heuristic file {path} registers nothing; decorate a class with @heuristic("NAME")')
    return made


def _add(found: dict[str, Heuristic], name: str, made: object, where: str) -> None:
    made = made() if isinstance(made, type) else made
    lacking = [part for part in ("parameters", "refuse", "split", "decide") if not hasattr(made, part)]
    if lacking:
        raise InvalidArgument(f"heuristic {name!r} of {where} lacks {', '.join(lacking)}")
    if name in found or name in heuristic_names():
        raise InvalidArgument(f"the name of heuristic {name!r} of {where} is taken; choose another")
    found[name] = made  # type: ignore[assignment]
