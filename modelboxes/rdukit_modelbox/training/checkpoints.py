"""Checkpoints of a training: a safetensors file per kept step and ``latest.json``, which names the newest whole one.

A file holds parameters, optimizer state, torch's random state and, in its header, the training's progress. The file is
written first and ``latest.json`` last, both atomically, so a crash at any point leaves a checkpoint that can be
resumed. The best one by evaluation, which ``best.json`` names, is kept, too. No pickle.
"""

import contextlib
import json
import math
from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Final

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save

from rdukit.errors import InvalidArgument
from rdukit.files.atomic import sha256_of, write_atomic, write_json_atomic
from rdukit.pef.checkpoint_files import BEST, LATEST, PREFIX, TRAINING_KEY, find_checkpoint_file, read_header
from rdukit.pef.identity import ModelIdentity, SizeValue, metadata_of
from rdukit_modelbox.training.options import Judged
from rdukit_serving.device.parameters import Tensors

FORMAT: Final = 1
#: Begin of the names of the newest weights in a file whose model's weights are their average.
NEWEST: Final = "newest/"


@dataclass(frozen=True, slots=True)
class Identity:
    """The values that must be equal for a position in one training to mean anything in another."""

    model: str
    sizes: Mapping[str, SizeValue]
    batch_size: int
    dataset: str
    seed: int
    optimizer: str = "sgd"
    lora_rank: int = 0
    #: Share of the training samples that is held out for validation; 0 if the data set has a dev split.
    validation_share: float = 0.0
    ema_decay: float = 0.0
    layer_decay: float = 1.0

    def find_difference(self, other: "Identity") -> str | None:
        """Return the first field that differs, in words."""
        for name, value in asdict(self).items():
            theirs = getattr(other, name)
            if theirs != value:
                return f"{name} {_short(theirs)} against {_short(value)}"
        return None


@dataclass(frozen=True, slots=True)
class TrainingTotals:
    """Sums over all attempts of one training. ``epoch_loss`` sums the losses of the epoch that is under way."""

    host_seconds: float = 0.0
    emulated_seconds: float = 0.0
    emulated_cycles: int = 0
    epoch_loss: float = 0.0
    epoch_steps: int = 0
    #: Seconds of training, evaluations and checkpoints included.
    train_seconds: float = 0.0
    judged: Judged = field(default_factory=Judged)


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A training after ``step`` whole steps."""

    step: int
    #: Trained weights, which the next step changes.
    parameters: Tensors
    #: ``optimizer.state_dict()``.
    optimizer: Mapping[str, Any]
    #: ``torch.get_rng_state()``.
    random: torch.Tensor
    identity: Identity
    totals: TrainingTotals
    #: The model, with the names of its classes and its tokenizer; None in a file of an earlier version.
    model: ModelIdentity | None = None
    #: Averaged weights, which readers of the file use as the model's; empty without an average.
    average: Tensors = field(default_factory=dict)


def save_checkpoint(folder: Path, checkpoint: Checkpoint, is_best: bool = False) -> Path:
    """Write a checkpoint, point ``latest.json`` at it, and remove all but the newest two and the best. Returns it.

    ``is_best``: point ``best.json`` at it too, before ``latest.json``: an attempt that resumes knows its best.
    """
    shown = checkpoint.average or checkpoint.parameters
    tensors = {f"{PREFIX}{name}": tensor for name, tensor in shown.items()}
    if checkpoint.average:
        tensors |= {f"{NEWEST}{name}": tensor for name, tensor in checkpoint.parameters.items()}
    tensors |= {f"optimizer/{name}": tensor for name, tensor in _flatten(checkpoint.optimizer["state"]).items()}
    tensors["random/torch"] = checkpoint.random
    header = {
        "step": checkpoint.step,
        "identity": asdict(checkpoint.identity),
        "totals": asdict(checkpoint.totals),
        "param_groups": checkpoint.optimizer["param_groups"],
    }
    copies = {name: tensor.detach().cpu().clone().contiguous() for name, tensor in tensors.items()}
    metadata = {"format": str(FORMAT), TRAINING_KEY: json.dumps(header)}
    if checkpoint.model is not None:
        metadata |= metadata_of(checkpoint.model)
    data = save(copies, metadata=metadata)
    path = folder / f"step-{checkpoint.step}.safetensors"
    write_atomic(path, data)
    named = {"format": FORMAT, "step": checkpoint.step, "sha256": sha256_of(data)}
    best = path.name if is_best else _find_best(folder)
    if best == path.name:  # also of a step that is done again, which has another digest
        write_json_atomic(folder / BEST, {**named, "file": path.name})
    before = _find_before(folder, path.name)
    write_json_atomic(folder / LATEST, {**named, "file": path.name, "previous": before})
    _remove_others(folder, {path.name, best, before["file"] if before else None})
    return path


def with_rows_a_step(found: Checkpoint, rows: int, samples: int) -> Checkpoint:
    """Return a checkpoint for a training with ``rows`` rows a step, at the same row of the same epoch (pure).

    The optimizer's state is unchanged. The best evaluation is forgotten: its checkpoint is in another folder.

    Args:
        samples: training samples of the data set.
    Raises:
        InvalidArgument: no step of that training begins at this row.
    """
    former = found.identity.batch_size
    epoch, steps = divmod(found.step, max(1, samples // former))
    row = steps * former
    if row % rows:
        raise InvalidArgument(
            f"the input checkpoint is at row {row} of epoch {epoch}, but steps of {rows} rows begin at multiples of "
            f"{rows}; use a checkpoint after a multiple of {math.lcm(former, rows) // former} steps of an epoch, or "
            "pass continue_as=weights to take only its parameters"
        )
    done, totals = row // rows, found.totals
    share = done / totals.epoch_steps if totals.epoch_steps else 0.0
    return replace(
        found, step=epoch * (samples // rows) + done, identity=replace(found.identity, batch_size=rows),
        totals=replace(
            totals, epoch_loss=totals.epoch_loss * share, epoch_steps=done if totals.epoch_steps else 0,
            judged=Judged(),
        ),
    )  # fmt: skip


def has_checkpoint(folder: Path) -> bool:
    """Return whether a training left a complete checkpoint there."""
    return (folder / LATEST).is_file()


def load_checkpoint(folder: Path, which: str = "newest") -> Checkpoint:
    """Return the checkpoint that ``latest.json`` in ``folder`` names, or with ``which`` "best" ``best.json``.

    "previous" loads the one before the newest; it is kept in case the newest file is damaged later.

    Raises:
        NotFound: there is no such file; a training without evaluations on its way keeps no best.
        InvalidArgument: it, or the file that it names, is damaged.
    """
    path = find_checkpoint_file(folder, which)
    found = read_header(path)
    try:
        header = json.loads(found.metadata[TRAINING_KEY])
        with safe_open(path, framework="pt") as stream:
            tensors = {name: stream.get_tensor(name) for name in stream.keys()}  # noqa: SIM118
        shown, newest = _under(PREFIX, tensors), _under(NEWEST, tensors)
        return Checkpoint(
            step=int(header["step"]),
            parameters=newest or shown,
            average=shown if newest else {},
            optimizer={"state": _unflatten(_under("optimizer/", tensors)), "param_groups": header["param_groups"]},
            random=tensors["random/torch"],
            identity=Identity(**header["identity"]),
            totals=_totals(header["totals"]),
            model=found.identity,
        )
    except (SafetensorError, ValueError, KeyError, TypeError) as cause:
        raise InvalidArgument(
            f"{path} is damaged, or not a checkpoint of a training that this version can read; expected a file that "
            "train wrote. For other files pass continue_as=weights to take only their parameters"
        ) from cause


def _find_before(folder: Path, name: str) -> dict[str, Any] | None:
    """Return the entry of ``latest.json`` about the newest file other than ``name``; None if there is none."""
    try:
        named = json.loads((folder / LATEST).read_text())
        if named["file"] == name:
            named = named["previous"]
        return {"file": str(named["file"]), "step": int(named["step"]), "sha256": str(named["sha256"])}
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _totals(value: Mapping[str, Any]) -> TrainingTotals:
    return TrainingTotals(**{**value, "judged": Judged(**value.get("judged", {}))})


def _find_best(folder: Path) -> str | None:
    """Return the name of the file that ``best.json`` names; None if there is none."""
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
        return str(json.loads((folder / BEST).read_text())["file"])
    return None


def _remove_others(folder: Path, named: Collection[str | None]) -> None:
    """Remove all checkpoints but those that a pointer names; a killed attempt may have left later steps.

    Trainings of earlier versions kept their best as ``best-<step>.safetensors``.
    """
    for path in (*folder.glob("step-*.safetensors"), *folder.glob("best-*.safetensors")):
        if path.name not in named:
            path.unlink(missing_ok=True)


def _flatten(state: Mapping[Any, Mapping[str, Any]]) -> dict[str, torch.Tensor]:
    return {
        f"{index}/{key}": torch.as_tensor(value)
        for index, values in state.items()
        for key, value in values.items()
        if value is not None
    }


def _unflatten(tensors: Tensors) -> dict[Any, dict[str, torch.Tensor]]:
    state: dict[Any, dict[str, torch.Tensor]] = {}
    for name, tensor in tensors.items():
        index, key = name.split("/", 1)
        state.setdefault(int(index) if index.isdigit() else index, {})[key] = tensor
    return state


def _under(prefix: str, tensors: Tensors) -> dict[str, torch.Tensor]:
    return {name.removeprefix(prefix): tensor for name, tensor in tensors.items() if name.startswith(prefix)}


def _short(value: object) -> str:
    return value[:12] if isinstance(value, str) else str(value)
