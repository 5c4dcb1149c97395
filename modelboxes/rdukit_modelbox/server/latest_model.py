"""The model that a box trained or served last; it answers rows that name no model."""

from collections.abc import Mapping
from pathlib import Path
from typing import Final

from rdukit.errors import InvalidArgument
from rdukit_modelbox.artifacts.mounts import Mounts, resolve_inputs
from rdukit_modelbox.contract.box import Box, Verb

_SLOTS: Final = frozenset({"pef", "checkpoint"})


class LatestModel:
    """PEF and checkpoint of the newest training or inference that succeeded."""

    def __init__(self, box: Box, mounts: Mounts) -> None:
        """Start without a model."""
        self._box = box
        self._mounts = mounts
        #: Empty, or a path for each of ``_SLOTS``.
        self._paths: dict[str, Path] = {}

    def find(self) -> tuple[Path, Path] | None:
        """Return PEF and checkpoint; ``None`` before the first."""
        return (self._paths["pef"], self._paths["checkpoint"]) if self._paths else None

    def remember(self, verb: Verb, inputs: Mapping[str, Path], outputs: Mapping[str, str]) -> None:
        """Remember the model of a successful operation, unless its checkpoint was uploaded elsewhere."""
        match verb:
            case Verb.TRAIN if "pef" in inputs and "://" not in outputs["checkpoint"]:
                self._paths = {"pef": inputs["pef"], "checkpoint": Path(outputs["checkpoint"])}
            case Verb.INFER:
                self._paths = {"pef": inputs["pef"], "checkpoint": inputs["checkpoint"]}
            case _:
                pass

    def resolve(self, inputs: Mapping[str, str]) -> tuple[Path, Path]:
        """Return PEF and checkpoint that ``inputs`` name; missing ones are the remembered model's.

        Raises:
            InvalidArgument: another slot than these two, or nothing is remembered.
            NotFound: nothing at a path.
        """
        if not set(inputs) <= _SLOTS:
            raise InvalidArgument(
                f"rows take the inputs {', '.join(sorted(_SLOTS))}, not {', '.join(sorted(set(inputs) - _SLOTS))}"
            )
        given = {**{name: str(path) for name, path in self._paths.items()}, **inputs}
        if set(given) != _SLOTS:
            raise InvalidArgument(
                "this box has no model, because it has not trained or served one since its start; pass inputs pef and "
                "checkpoint, or train",
                missing=sorted(_SLOTS - set(given)),
            )
        # Rows replace the data set; any folder satisfies the check of that slot.
        slots = {**given, "dataset": str(self._mounts.folders[0])}
        required = {slot.name for slot in self._box.slots_of(Verb.INFER).inputs}
        paths = resolve_inputs(self._mounts, self._box, Verb.INFER, {k: v for k, v in slots.items() if k in required})
        return paths["pef"], paths["checkpoint"]
