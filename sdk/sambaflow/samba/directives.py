"""Compile hints inside a program: recorded on the operators that they surround, without effect on results.

Source: SDK reference 11, compiler reference 5.6.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import TracebackType
from typing import Any

from torch import nn

_active: list[dict[str, str]] = []


class op_fusion:
    """Mark operators as one fusion group: ``with op_fusion(func_name=…):`` around calls in forward.

    Given a module (``op_fusion(module, 'Encoder')``) it marks everything that the module does. Re-entrant.
    """

    def __init__(
        self, func_name: "str | nn.Module | None" = None, heuristic: "str | Mapping[str, Any] | None" = None,
        heuristic_params: Mapping[str, Any] | None = None, plugins: str | Sequence[str] | None = None,
        reuse_last_id: bool = False, user_annotated: bool = False,
    ) -> None:  # fmt: skip
        module = func_name if isinstance(func_name, nn.Module) else None
        name = heuristic if module is not None else func_name
        self._labels = {"op_fusion": str(name or "")}
        if module is None and heuristic is not None:
            self._labels["heuristic"] = heuristic if isinstance(heuristic, str) else str(dict(heuristic))
        if user_annotated or module is not None:
            self._labels["user_annotated"] = "true"
        if module is not None:
            module.sn_labels = dict(self._labels)  # type: ignore[assignment]

    def __enter__(self) -> "op_fusion":
        _active.append(self._labels)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        _active.pop()


@contextmanager
def sdpa_directives(directives: Mapping[str, Any]) -> Iterator[None]:
    """Options of attention inside the block (keys seen: ``sdp_mixed_p``, ``sdp_block_size``); recorded."""
    _active.append({f"sdpa.{key}": str(value) for key, value in directives.items()})
    try:
        yield
    finally:
        _active.pop()


def active_labels(module: nn.Module) -> dict[str, str]:
    """Labels for operators that are recorded now, inside ``module``; inner ones win."""
    labels = dict(getattr(module, "sn_labels", {}))
    for item in _active:
        labels.update(item)
    return labels
