"""The data set that ``preprocess`` writes and the other verbs read: two ``.npz`` files and a manifest.

Axes: N samples, F features.
"""

import json
import zipfile
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal

import numpy as np
from numpy.typing import NDArray

from rdukit.errors import InvalidArgument, NotFound
from rdukit.files import atomic_target, sha256_of, write_json_atomic

FORMAT: Final = 1
MANIFEST: Final = "manifest.json"
SPLITS: Final = ("train", "test")

Split = Literal["train", "test"]


@dataclass(frozen=True, slots=True)
class Samples:
    """Features [N, F] float32 and labels [N] int64."""

    features_NF: NDArray[np.float32]
    labels_N: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.labels_N)

    @property
    def digest(self) -> str:
        """SHA-256 of the numbers, whatever file they are in."""
        return sha256_of(self.features_NF.tobytes() + self.labels_N.tobytes())


@dataclass(frozen=True, slots=True)
class Dataset:
    """Both splits and what the manifest says."""

    train: Samples
    test: Samples
    features: int
    classes: int
    normalize: str
    source: str
    #: Stands for both splits' numbers.
    digest: str

    def split(self, name: str) -> Samples:
        """The split called ``train`` or ``test``."""
        return self.train if name == "train" else self.test


def save_dataset(folder: Path, train: Samples, test: Samples, *, classes: int, normalize: str, source: str) -> Path:
    """Write both splits, then the manifest; a folder without manifest is not a data set. Returns ``folder``."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / MANIFEST).unlink(missing_ok=True)
    for name, samples in zip(SPLITS, (train, test), strict=True):
        with atomic_target(folder / f"{name}.npz") as temporary, temporary.open("wb") as stream:
            np.savez(stream, features=samples.features_NF, labels=samples.labels_N)
    manifest = {
        "format": FORMAT,
        "source": source,
        "normalize": normalize,
        "features": int(train.features_NF.shape[1]),
        "classes": classes,
        "train": {"samples": len(train), "sha256": train.digest},
        "test": {"samples": len(test), "sha256": test.digest},
    }
    write_json_atomic(folder / MANIFEST, manifest)
    return folder


def load_dataset(folder: Path) -> Dataset:
    """Read and check a data set.

    Raises:
        NotFound: the folder has no manifest, so no finished preprocess wrote it.
        InvalidArgument: the manifest or a split is damaged or they disagree.
    """
    try:
        manifest: dict[str, Any] = json.loads((folder / MANIFEST).read_text())
    except FileNotFoundError as cause:
        raise NotFound(f"{folder} has no {MANIFEST}; it is not a data set made by preprocess") from cause
    except ValueError as cause:
        raise InvalidArgument(f"{folder / MANIFEST} is not readable: {cause}; preprocess again") from cause
    if not isinstance(manifest, dict) or manifest.get("format") != FORMAT:
        raise InvalidArgument(f"{folder / MANIFEST} is not of format {FORMAT}; preprocess again")
    try:
        train, test = (_load_split(folder, name, manifest) for name in SPLITS)
        return Dataset(
            train=train, test=test, features=int(manifest["features"]), classes=int(manifest["classes"]),
            normalize=str(manifest["normalize"]), source=str(manifest["source"]),
            digest=sha256_of(f"{manifest['train']['sha256']} {manifest['test']['sha256']}".encode()),
        )  # fmt: skip
    except (KeyError, TypeError) as cause:
        raise InvalidArgument(f"{folder / MANIFEST} lacks {cause}; preprocess again") from cause


def check_dataset_fits(dataset: Dataset, features: int, classes: int) -> None:
    """Refuse a data set that was not made for this model.

    Raises:
        InvalidArgument: features or classes differ.
    """
    if (dataset.features, dataset.classes) != (features, classes):
        raise InvalidArgument(
            f"the data set has {dataset.features} features and {dataset.classes} classes, the PEF's model takes "
            f"{features} and {classes}"
        )


def _load_split(folder: Path, name: str, manifest: dict[str, Any]) -> Samples:
    path = folder / f"{name}.npz"
    try:
        with path.open("rb") as stream, np.load(stream, allow_pickle=False) as arrays:
            samples = Samples(arrays["features"], arrays["labels"])
    except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile, zlib.error) as cause:
        raise InvalidArgument(f"{path} is missing or not readable: {cause}; preprocess again") from cause
    features, labels = samples.features_NF, samples.labels_N
    if features.dtype != np.float32 or features.ndim != 2 or labels.dtype != np.int64:
        raise InvalidArgument(f"{path}: features must be float32 [N, F] and labels int64 [N]; preprocess again")
    if samples.digest != manifest[name]["sha256"] or labels.shape != (len(features),):
        raise InvalidArgument(f"{path} does not match {MANIFEST}; preprocess again")
    return samples
