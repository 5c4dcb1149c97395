"""The SambaFlow program of a box: the same model, inputs and optimizer at compile, train and infer.

A PEF says in its metadata with which sizes, batch size and precision a box compiled it, so users never repeat them.
Axes: B batch, F features, C classes.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray

from rdukit.errors import InvalidArgument, PefMismatch
from rdukit.pef import read_pef
from rdukit_modelbox.box import Box
from rdukit_zoo.registry import get_model
from sambaflow import samba
from sambaflow.samba import utils

#: Key of the PEF's metadata that holds what a box needs to know.
METADATA_KEY: Final = "modelbox"
#: Values compiled in; every run passes its own. They only must not be zero, so that momentum has its state.
COMPILED_LR: Final = 0.01
COMPILED_MOMENTUM: Final = 0.9
COMPILED_WEIGHT_DECAY: Final = 1e-4


@dataclass(frozen=True, slots=True)
class Shape:
    """What fixes a program's graph."""

    model: str
    sizes: Mapping[str, int]
    batch_size: int
    precision: str

    @property
    def features(self) -> int:
        """Values in a row."""
        return self.sizes["num_features"]

    @property
    def classes(self) -> int:
        """Values in an answer."""
        return self.sizes["num_classes"]


def read_shape(box: Box, pef: Path) -> Shape:
    """The shape that the PEF at ``pef`` was compiled with.

    Raises:
        PefError: the file cannot be read.
        PefMismatch: no ModelBox compiled it, or one with another model did.
    """
    metadata = read_pef(pef).pef.metadata
    try:
        value = json.loads(metadata[METADATA_KEY])
        shape = Shape(
            str(value["model"]), {k: int(v) for k, v in value["sizes"].items()}, int(value["batch_size"]),
            str(value["precision"]),
        )  # fmt: skip
    except (KeyError, TypeError, ValueError, AttributeError) as cause:
        raise PefMismatch(f"{pef} was not compiled by a ModelBox; compile it with this box's compile verb") from cause
    if shape.model != box.model:
        raise PefMismatch(f"{pef} was compiled from model {shape.model!r}, box {box.name} serves {box.model!r}")
    return shape


class Program:
    """Model, inputs and optimizer, and after ``load`` the traced outputs on leased tiles."""

    def __init__(self, shape: Shape, seed: int = 0) -> None:
        """Build everything from scratch; earlier graphs of this process are forgotten."""
        samba.session.reset()
        utils.set_seed(seed)
        entry = get_model(shape.model)
        self.shape = shape
        self.model = entry.build(**shape.sizes)
        samba.from_torch_model_(self.model)
        self.inputs = entry.make_inputs(shape.batch_size, **shape.sizes)
        self.optimizer = samba.optim.SGD(
            self.model.parameters(), lr=COMPILED_LR, momentum=COMPILED_MOMENTUM, weight_decay=COMPILED_WEIGHT_DECAY
        )
        self._traced: Any = None

    def compile(self, name: str, folder: Path, mode: str, target: str, num_tiles: int) -> Path:
        """Compile to ``<folder>/<name>/<name>.pef`` and return that path."""
        shape = self.shape
        metadata = {
            "model": shape.model, "sizes": dict(shape.sizes), "batch_size": shape.batch_size,
            "precision": shape.precision,
        }  # fmt: skip
        path = samba.session.compile(
            self.model, self.inputs, self.optimizer, name=name,
            config_dict={
                "output_folder": str(folder), "pef_name": name, "optim_level": mode, "arch": target,
                "num_tiles": num_tiles, "inference": False, "precision": shape.precision,
            },
            pef_metadata={METADATA_KEY: json.dumps(metadata, sort_keys=True)},
        )  # fmt: skip
        return Path(path)

    def load(self, pef: Path) -> None:
        """Load the PEF, lease tiles and upload the parameters.

        Raises:
            PefError: the PEF cannot be used for this program.
            NoResources: no tiles or memory are free.
        """
        self._traced = utils.trace_graph(self.model, self.inputs, self.optimizer, pef=str(pef))

    def train_step(
        self, features_BF: NDArray[np.float32], labels_B: NDArray[np.int64], rates: dict[str, float]
    ) -> float:
        """One whole step on one batch; returns its loss before the update."""
        loss, _ = samba.session.run(
            input_tensors=self._named(features_BF, labels_B), output_tensors=self._traced, hyperparam_dict=rates
        )
        return float(samba.to_torch(loss).float().mean())

    def logits_of(self, features_NF: NDArray[np.float32]) -> NDArray[np.float32]:
        """Forward only, for at most one batch of rows; missing rows are padded with zeros and cut off again.

        Returns:
            [N, C] float32.
        """
        count, batch = len(features_NF), self.shape.batch_size
        padded = np.zeros((batch, self.shape.features), np.float32)
        padded[:count] = features_NF
        _, out = samba.session.run(
            input_tensors=self._named(padded, np.zeros(batch, np.int64)), output_tensors=self._traced,
            section_types=["fwd"],
        )  # fmt: skip
        logits: NDArray[np.float32] = samba.to_torch(out).float().reshape(batch, -1)[:count].numpy()
        return logits

    def parameters_to_host(self) -> dict[str, torch.Tensor]:
        """Device parameters and buffers by name."""
        samba.session.to_cpu(self.model)
        return {name: plain_tensor(value) for name, value in self.model.state_dict().items()}

    def optimizer_to_host(self) -> dict[str, Any]:
        """Device optimizer state, as a ``state_dict``."""
        samba.session.to_cpu(self.optimizer)
        value: dict[str, Any] = self.optimizer.state_dict()
        return value

    def parameters_to_device(self, parameters: Mapping[str, torch.Tensor]) -> None:
        """Put parameters by name on the device.

        Raises:
            InvalidArgument: a name or shape differs from the model's.
        """
        try:
            self.model.load_state_dict(dict(parameters))
        except RuntimeError as cause:
            raise InvalidArgument(f"the checkpoint is of another model: {cause}") from cause
        samba.session.to_rdu(self.model)

    def optimizer_to_device(self, state: Mapping[str, Any]) -> None:
        """Put optimizer state on the device."""
        self.optimizer.load_state_dict(dict(state))
        samba.session.to_rdu(self.optimizer)

    def report(self) -> dict[str, Any]:
        """Emulated and host figures since ``load``."""
        figures: dict[str, Any] = samba.session.report()
        return figures

    def close(self) -> None:
        """Tear down and release the lease."""
        samba.session.close()

    def _named(self, features_BF: NDArray[np.float32], labels_B: NDArray[np.int64]) -> list[Any]:
        return [
            samba.from_torch_tensor(torch.from_numpy(features_BF), name="image"),
            samba.from_torch_tensor(torch.from_numpy(labels_B), name="label"),
        ]


def plain_tensor(value: Any) -> torch.Tensor:
    """A torch tensor from what a converted model's ``state_dict`` holds."""
    tensor: torch.Tensor = samba.to_torch(value)
    return tensor.detach().clone()
