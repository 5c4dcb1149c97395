"""Learning rates by depth: a parameter group for each level of a model, with a share of the rate.

Source: Clark et al., ELECTRA (2020), arXiv 2003.10555, appendix B; the levels of other models are ours.
"""

import re
from collections.abc import Iterable, Sequence

#: A module of a numbered sequence: what stands before its number, and the number.
_NUMBERED = re.compile(r"^(?:(.*?)\.)?(\d+)\.")


def levels_of(names: Sequence[str]) -> list[int]:
    """Return the level of each parameter, from 0 at the input. Pure.

    Each numbered module, such as a layer of a transformer, is a level. Parameters before the first one, such as
    embeddings, are one level; parameters after the last one, such as a final norm with the head, are another. In a
    model without numbered modules each module is a level.

    Args:
        names: of the parameters, in the order in which the model computes.
    """
    keys: list[tuple[str, str]] = []
    has_numbers = any(_NUMBERED.match(name) for name in names)
    seen: dict[tuple[str, str], int] = {}
    blocks: set[tuple[str, str]] = set()
    for name in names:
        found = _NUMBERED.match(name)
        if found is not None:
            key = found[1] or "", found[2]
            blocks.add(key)
        else:
            key = "", f"after {len(blocks)}" if has_numbers else name.rpartition(".")[0]
        seen.setdefault(key, len(seen))
        keys.append(key)
    return [seen[key] for key in keys]


def rate_shares(levels: Iterable[int], decay: float) -> dict[int, float]:
    """Return the share of the learning rate of each level: 1 for the last one, ``decay`` times less for each before.

    Pure.
    """
    known = sorted(set(levels))
    return {level: decay ** (known[-1] - level) for level in known}
