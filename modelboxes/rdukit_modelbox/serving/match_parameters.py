"""Which of a checkpoint's tensors belongs to which symbol of a PEF. Pure.

A checkpoint says ``encoder.0.weight``; the compiler calls the same tensor ``<model>__encoder__0__weight``.
"""

from collections.abc import Iterable, Mapping, Sequence

from rdukit.errors import InvalidArgument
from rdukit.pef.model import Pef, SymbolKind, flatten_paths


def match_parameters(pef: Pef, names: Iterable[str]) -> Mapping[str, str]:
    """Symbol of each checkpoint name that has one; a name of a tied tensor may have none.

    Raises:
        InvalidArgument: a parameter of the PEF is in no checkpoint name; lists them.
    """
    wanted = {name for name, s in pef.symbols.items() if s.kind in (SymbolKind.PARAMETER, SymbolKind.BUFFER)}
    scales = {symbol.scale for symbol in pef.symbols.values() if symbol.scale}
    wanted -= scales
    flat = flatten_paths(names)
    found: dict[str, str] = {}
    for name, tail in flat.items():
        symbol = tail if tail in wanted else _find(wanted, tail)
        if symbol is not None:
            found[name] = symbol
    parameters = {name for name in wanted if pef.symbols[name].kind is SymbolKind.PARAMETER}
    missing = sorted(parameters - set(found.values()))
    if missing:
        raise InvalidArgument(
            f"the checkpoint has no tensor for {_some(missing)} of {pef.name}; it has {_some(sorted(flat))}"
        )
    return found


def _find(wanted: Iterable[str], tail: str) -> str | None:
    """The symbol whose name ends with ``tail`` after the model's own name, which has no ``__``."""
    return next((name for name in wanted if name.partition("__")[2] == tail), None)


def _some(names: Sequence[str]) -> str:
    return ", ".join(names[:5]) + (" …" if len(names) > 5 else "")
