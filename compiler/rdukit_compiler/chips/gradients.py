"""Gradients in parts on several chips: rows that stay on their chip, or partial sums that the chips add up."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from rdukit.pef.chips import JOINED, REDUCED
from rdukit_compiler.ir import ModelGraph, Value, ValueKind


@dataclass(frozen=True, slots=True)
class ChipGradient:
    """Gradient of ``value``, as gradients of ``parts``, which are blocks of its rows, on ``chips``."""

    value: Value
    #: Rows → the symbols of the gradients to add up for them, in chip order.
    parts: tuple[tuple[Value, tuple[str, ...]], ...]
    heuristic: str
    chips: tuple[int, ...]

    @property
    def why(self) -> str:
        """The section's reason, for people."""
        if self.heuristic == JOINED:
            return f"the rows of this gradient stay on the {len(self.chips)} chips that computed them"
        return f"adds the parts of this gradient on {len(self.chips)} chips in chip order"

    @property
    def linked_bytes(self) -> int:
        """Bytes that each chip reads from the others."""
        count = len(self.chips)
        return 2 * (count - 1) * self.value.bytes // count if self.heuristic == REDUCED else 0


def find_chip_gradients(
    graph: ModelGraph, gradients: Mapping[str, Sequence[str]], made_on: Mapping[str, int]
) -> list[ChipGradient]:  # fmt: skip
    """Find the parameters and inputs whose gradients are in parts on several chips.

    Args:
        gradients: symbols of the gradients that flow into each value, in chip order.
        made_on: the chip that makes each symbol.
    """
    pieces: dict[str, list[str]] = {}
    for name, piece in sorted(graph.pieces.items(), key=lambda item: item[1].start):
        pieces.setdefault(piece.parent, []).append(name)
    found: list[ChipGradient] = []
    for value in graph.of_kind(ValueKind.PARAMETER, ValueKind.INPUT):
        rows, symbols = pieces.get(value.name, []), tuple(gradients.get(value.name, ()))
        if value.name in graph.pieces or not value.requires_grad:
            continue
        if rows and all(gradients.get(name) for name in rows):
            parts = tuple((graph.values[name], tuple(gradients[name])) for name in rows)
            found.append(ChipGradient(value, parts, JOINED, tuple(range(graph.chips))))
        chips = tuple(sorted({made_on[symbol] for symbol in symbols}))
        if not rows and len(chips) > 1:
            found.append(ChipGradient(value, ((value, symbols),), REDUCED, chips))
    return found
