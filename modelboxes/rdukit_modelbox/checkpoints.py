"""Checkpoints of a training: a safetensors file per kept step and ``latest.json``, which names the newest whole one.

A file holds parameters, optimizer state, torch's random state and, in its header, how far the training was. The file
is written first and ``latest.json`` last, both atomically, so a crash at any point leaves a checkpoint that can be
resumed. The best one by evaluation is kept too, as ``best-<step>.safetensors``, named by ``best.json``. No pickle.
"""

import contextlib
import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final, NamedTuple

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save

from rdukit.errors import InvalidArgument, NotFound
from rdukit.files.atomic import sha256_of, sha256_of_file, write_atomic, write_json_atomic
from rdukit_modelbox.training.stopping import Judged

FORMAT: Final = 1
LATEST: Final = "latest.json"
BEST: Final = "best.json"
#: Newest files that stay; older ones go once ``latest.json`` names a newer one.
KEPT: Final = 2

Tensors = Mapping[str, torch.Tensor]


@dataclass(frozen=True, slots=True)
class Identity:
    """What must be equal for a position in one training to mean anything in another."""

    model: str
    sizes: Mapping[str, int]
    batch_size: int
    dataset: str
    seed: int
    optimizer: str = "sgd"

    def find_difference(self, other: "Identity") -> str | None:
        """The first field that differs, in words."""
        for name, value in asdict(self).items():
            theirs = getattr(other, name)
            if theirs != value:
                return f"{name} {_short(theirs)} against {_short(value)}"
        return None


@dataclass(frozen=True, slots=True)
class Totals:
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
    parameters: Tensors
    #: ``optimizer.state_dict()``.
    optimizer: Mapping[str, Any]
    #: ``torch.get_rng_state()``.
    random: torch.Tensor
    identity: Identity
    totals: Totals


def save_checkpoint(folder: Path, checkpoint: Checkpoint, is_best: bool = False) -> Path:
    """Write it, point ``latest.json`` at it, and remove what is older than the newest two. Returns the file.

    ``is_best``: point ``best.json`` at it too, before ``latest.json``: an attempt that resumes knows its best.
    """
    tensors = {f"parameter/{name}": tensor for name, tensor in checkpoint.parameters.items()}
    tensors |= {f"optimizer/{name}": tensor for name, tensor in _flatten(checkpoint.optimizer["state"]).items()}
    tensors["random/torch"] = checkpoint.random
    header = {
        "step": checkpoint.step,
        "identity": asdict(checkpoint.identity),
        "totals": asdict(checkpoint.totals),
        "param_groups": checkpoint.optimizer["param_groups"],
    }
    copies = {name: tensor.detach().cpu().clone().contiguous() for name, tensor in tensors.items()}
    data = save(copies, metadata={"format": str(FORMAT), "rdukit": json.dumps(header)})
    path = folder / f"step-{checkpoint.step}.safetensors"
    write_atomic(path, data)
    named = {"format": FORMAT, "step": checkpoint.step, "sha256": sha256_of(data)}
    if is_best:
        best = folder / f"best-{checkpoint.step}.safetensors"
        best.unlink(missing_ok=True)
        _link_or_write(path, best, data)
        write_json_atomic(folder / BEST, {**named, "file": best.name})
    write_json_atomic(folder / LATEST, {**named, "file": path.name, "previous": _find_before(folder, path.name)})
    if is_best:
        for old in folder.glob("best-*.safetensors"):
            if old != best:
                old.unlink(missing_ok=True)
    for old in sorted(folder.glob("step-*.safetensors"), key=_step_of)[:-KEPT]:
        if old != path:
            old.unlink(missing_ok=True)
    return path


def has_checkpoint(folder: Path) -> bool:
    """A training left at least one whole checkpoint there."""
    return (folder / LATEST).is_file()


def load_checkpoint(folder: Path, which: str = "newest") -> Checkpoint:
    """The checkpoint that ``latest.json`` in ``folder`` names, or with ``which`` "best" ``best.json``.

    With "previous" the one before the newest, which is kept in case the newest file is damaged later.

    Raises:
        NotFound: there is no such file; a training without evaluations on its way keeps no best.
        InvalidArgument: it, or the file that it names, is damaged.
    """
    path = _find_file(folder, which)
    try:
        with safe_open(path, framework="pt") as stream:
            header = json.loads(stream.metadata()["rdukit"])
            tensors = {name: stream.get_tensor(name) for name in stream.keys()}  # noqa: SIM118
        return Checkpoint(
            step=int(header["step"]),
            parameters=_under("parameter/", tensors),
            optimizer={"state": _unflatten(_under("optimizer/", tensors)), "param_groups": header["param_groups"]},
            random=tensors["random/torch"],
            identity=Identity(**header["identity"]),
            totals=_totals(header["totals"]),
        )
    except (SafetensorError, ValueError, KeyError, TypeError) as cause:
        raise InvalidArgument(f"{path} is not a checkpoint that this version can read: {cause!r}") from cause


def load_parameters(checkpoint: Path, which: str = "newest") -> tuple[int, Tensors]:
    """The step and the parameters of a checkpoint, without optimizer and position: a third of the memory.

    ``checkpoint`` is a folder that train made, or any safetensors file, whose tensors are the parameters at step 0.

    Raises:
        NotFound, InvalidArgument: as ``load_checkpoint``.
    """
    with open_parameters(checkpoint, which) as stored:
        return stored.step, {name: stored.read(name) for name in stored.names}


class StoredParameters(NamedTuple):
    """The parameters of an open checkpoint, read one at a time."""

    step: int
    names: Sequence[str]
    read: Callable[[str], torch.Tensor]


@contextmanager
def open_parameters(checkpoint: Path, which: str = "newest") -> Iterator[StoredParameters]:
    """``load_parameters`` for whoever takes one tensor after another: they need not all be in memory at once.

    Raises:
        NotFound, InvalidArgument: as ``load_checkpoint``.
    """
    path = checkpoint if checkpoint.is_file() else _find_file(checkpoint, which)
    unreadable = f"{path} is not a checkpoint that this version can read"
    try:
        with safe_open(path, framework="pt") as stream:
            try:
                ours = (stream.metadata() or {}).get("rdukit")
                step, prefix = (int(json.loads(ours)["step"]), "parameter/") if ours else (0, "")
            except (ValueError, KeyError, TypeError) as cause:
                raise InvalidArgument(f"{unreadable}: {cause!r}") from cause
            names = [name.removeprefix(prefix) for name in stream.keys() if name.startswith(prefix)]  # noqa: SIM118
            yield StoredParameters(step, names, lambda name: stream.get_tensor(prefix + name))
    except SafetensorError as cause:
        raise InvalidArgument(f"{unreadable}: {cause!r}") from cause


def _find_file(folder: Path, which: str) -> Path:
    """The whole file that a pointer names; its digest is compared."""
    if which not in {"newest", "previous", "best"}:
        raise InvalidArgument(f"there is no checkpoint {which!r}; legal: newest, previous, best")
    pointer = BEST if which == "best" else LATEST
    try:
        named = json.loads((folder / pointer).read_text())
        if which == "previous":
            named = named["previous"]
        path = folder / Path(str(named["file"])).name
        digest = str(named["sha256"])
    except FileNotFoundError as cause:
        why = "train with evaluate_every" if which == "best" else "it is not a checkpoint folder that train made"
        raise NotFound(f"{folder} has no {pointer}; {why}") from cause
    except (ValueError, KeyError, TypeError) as cause:
        raise InvalidArgument(f"{folder / pointer} is damaged: {cause!r}") from cause
    if not path.is_file() or sha256_of_file(path) != digest:
        raise InvalidArgument(f"{path} is missing or does not match {pointer}; train into another folder")
    return path


def _find_before(folder: Path, name: str) -> dict[str, Any] | None:
    """What ``latest.json`` says of the newest file that is not called ``name``; None if there is none."""
    try:
        named = json.loads((folder / LATEST).read_text())
        if named["file"] == name:
            named = named["previous"]
        return {"file": str(named["file"]), "step": int(named["step"]), "sha256": str(named["sha256"])}
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _totals(value: Mapping[str, Any]) -> Totals:
    return Totals(**{**value, "judged": Judged(**value.get("judged", {}))})


def _link_or_write(path: Path, link: Path, data: bytes) -> None:
    with contextlib.suppress(OSError):
        os.link(path, link)
        return
    write_atomic(link, data)


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


def _step_of(path: Path) -> int:
    digits = path.stem.removeprefix("step-")
    return int(digits) if digits.isdigit() else -1


def _short(value: object) -> str:
    return value[:12] if isinstance(value, str) else str(value)
