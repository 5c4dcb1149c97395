"""The data set of rows that ``preprocess`` writes and the other verbs read: two or three splits and a manifest.

A small split is a ``.npz`` file; a large one is two ``.npy`` files, which are mapped rather than read into memory.
Axes: N samples, F features.
"""

import hashlib
import json
import zipfile
import zlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal

import numpy as np
from numpy.typing import NDArray

from rdukit.errors import InvalidArgument, NotFound
from rdukit.files.atomic import atomic_target, sha256_of, write_json_atomic
from rdukit_serving.raw_inputs.answers import NumberTarget

FORMAT: Final = 1
MANIFEST: Final = "manifest.json"
SPLITS: Final = ("train", "test")
#: A split of its own to validate with, of a data set that has one.
DEV: Final = "dev"
#: A data set with more bytes of features than this is mapped.
HELD_BYTES: Final = 64 << 20
DIGEST_BYTES: Final = 4 << 20

Split = Literal["train", "test"]
#: Features [N, F] and labels [N], part after part.
Pieces = Iterable[tuple[NDArray[np.float32], NDArray[Any]]]


@dataclass(frozen=True, slots=True)
class Samples:
    """Features [N, F] float32 and scaled labels [N]: int64 for classes, float32 for numbers."""

    features_NF: NDArray[np.float32]
    labels_N: NDArray[Any]

    def __len__(self) -> int:
        return len(self.labels_N)

    def take(self, rows_N: NDArray[np.int64]) -> "Samples":
        """Return the samples with these numbers, copied."""
        return Samples(self.features_NF[rows_N], self.labels_N[rows_N])

    @property
    def digest(self) -> str:
        """SHA-256 of the numbers, independent of the files' format."""
        found = hashlib.sha256()
        for values in (self.features_NF, self.labels_N):
            step = max(1, DIGEST_BYTES // max(1, values[:1].nbytes))
            for start in range(0, len(values), step):
                found.update(values[start : start + step].tobytes())
        return found.hexdigest()


@dataclass(frozen=True, slots=True)
class Dataset:
    """Both splits and their manifest."""

    train: Samples
    test: Samples
    features: int
    classes: int
    normalize: str
    source: str
    #: Represents the numbers of both splits.
    digest: str
    #: Names of the classes in their order; empty if they are numbers.
    names: tuple[str, ...] = ()
    #: Features in their order, of a table: names of numbers, then each value of each categorical column.
    columns: tuple[str, ...] = ()
    #: For numeric labels.
    target: NumberTarget | None = None
    #: Split for validation during training; None if the data set lacks it.
    dev: Samples | None = None

    def split(self, name: str) -> Samples:
        """Return the split called ``train`` or ``test``."""
        return self.train if name == "train" else self.test

    def find_split(self, name: str) -> Samples | None:
        """Return the split called ``train``, ``dev`` or ``test``; None if there is none of that name."""
        return {"train": self.train, DEV: self.dev, "test": self.test}.get(name)


def save_dataset(folder: Path, train: Samples, test: Samples, *, classes: int, normalize: str, source: str) -> Path:
    """Write both splits, then the manifest; a folder without manifest is not a data set. Returns ``folder``."""
    pieces = {name: [(part.features_NF, part.labels_N)] for name, part in zip(SPLITS, (train, test), strict=True)}
    counts = {"train": len(train), "test": len(test)}
    features = int(train.features_NF.shape[1])
    return write_dataset(folder, pieces, counts, features, classes=classes, normalize=normalize, source=source)


def write_dataset(
    folder: Path,
    pieces: Mapping[str, Pieces],
    counts: Mapping[str, int],
    features: int,
    *,
    classes: int,
    normalize: str,
    source: str,
    more: Mapping[str, object] | None = None,
    held_bytes: int = HELD_BYTES,
) -> Path:
    """Write each split from pieces of features [N, F] and labels [N], then the manifest. Returns ``folder``.

    Args:
        counts: samples of each split: train, test and perhaps dev.
        more: further keys of the manifest.
        held_bytes: with more bytes of features the files are written so that they can be mapped.
    """
    folder.mkdir(parents=True, exist_ok=True)
    (folder / MANIFEST).unlink(missing_ok=True)
    is_mapped = sum(counts.values()) * features * 4 > held_bytes
    kind = np.float32 if (more or {}).get("target") else np.int64
    digests = {
        name: (_write_mapped if is_mapped else _write_held)(folder, name, pieces[name], counts[name], features, kind)
        for name in counts
    }
    manifest = {
        "format": FORMAT,
        "source": source,
        "normalize": normalize,
        "features": features,
        "classes": classes,
        **{name: {"samples": counts[name], "sha256": digests[name]} for name in counts},
        **({"storage": "npy"} if is_mapped else {}),
        **(more or {}),
    }
    write_json_atomic(folder / MANIFEST, manifest)
    return folder


def _write_held(folder: Path, name: str, pieces: Pieces, count: int, features: int, kind: type[np.generic]) -> str:
    parts = list(pieces)
    samples = Samples(
        np.concatenate([np.zeros((0, features), np.float32), *(part[0] for part in parts)]),
        np.concatenate([np.zeros(0, kind), *(part[1] for part in parts)]),
    )
    with atomic_target(folder / f"{name}.npz") as temporary, temporary.open("wb") as stream:
        np.savez(stream, features=samples.features_NF, labels=samples.labels_N)
    return samples.digest


def _write_mapped(folder: Path, name: str, pieces: Pieces, count: int, features: int, kind: type[np.generic]) -> str:
    found = hashlib.sha256()
    labels: list[NDArray[Any]] = [np.zeros(0, kind)]
    with atomic_target(folder / f"{name}.features.npy") as temporary, temporary.open("wb") as stream:
        header = {"descr": "<f4", "fortran_order": False, "shape": (count, features)}
        np.lib.format.write_array_header_1_0(stream, header)
        for features_NF, labels_N in pieces:
            data = features_NF.tobytes()
            stream.write(data)
            found.update(data)
            labels.append(labels_N)
    together = np.concatenate(labels)
    found.update(together.tobytes())
    with atomic_target(folder / f"{name}.labels.npy") as temporary, temporary.open("wb") as stream:
        np.save(stream, together)
    return found.hexdigest()


def load_dataset(folder: Path) -> Dataset:
    """Read and check a data set.

    Raises:
        NotFound: the folder has no manifest, so no finished preprocess wrote it.
        InvalidArgument: the manifest or a split is damaged or they disagree.
    """
    manifest = read_manifest(folder)
    try:
        train, test = (_load_split(folder, name, manifest) for name in SPLITS)
        dev = _load_split(folder, DEV, manifest) if DEV in manifest else None
        digests = [str(manifest[name]["sha256"]) for name in (*SPLITS, DEV) if name in manifest]
        return Dataset(
            train=train, test=test, features=int(manifest["features"]), classes=int(manifest["classes"]),
            normalize=str(manifest["normalize"]), source=str(manifest["source"]),
            digest=sha256_of(" ".join(digests).encode()), dev=dev,
            names=class_names(manifest.get("labels") or {}), columns=_column_names(manifest),
            target=NumberTarget(**manifest["target"]) if manifest.get("target") else None,
        )  # fmt: skip
    except (KeyError, TypeError) as cause:
        raise InvalidArgument(f"{folder / MANIFEST} lacks {cause}; preprocess again") from cause


def class_names(labels: Mapping[str, int]) -> tuple[str, ...]:
    """Return the ordered names of classes; empty if each name is the class's number."""
    ordered = tuple(sorted(labels, key=lambda name: labels[name]))
    return () if all(name == str(labels[name]) for name in ordered) else ordered


def _column_names(manifest: Mapping[str, Any]) -> tuple[str, ...]:
    numeric = (manifest.get("columns") or {}).get("numeric") or ()
    categories = manifest.get("categories") or {}
    categorical = manifest.get("categorical") or tuple(categories)
    if manifest.get("encoding", "one_hot") == "ordinal":
        return (*numeric, *categorical)
    return (*numeric, *(f"{column}={value}" for column in categorical for value in categories[column]))


def read_manifest(folder: Path, kind: str = "rows") -> dict[str, Any]:
    """Read the manifest of a data set, by default one of rows.

    Raises:
        NotFound: the folder has no manifest, so no finished preprocess wrote it.
        InvalidArgument: the manifest is damaged or of another format.
    """
    try:
        manifest: dict[str, Any] = json.loads((folder / MANIFEST).read_text())
    except FileNotFoundError as cause:
        raise NotFound(f"{folder} has no {MANIFEST}; it is not a data set of preprocess") from cause
    except ValueError as cause:
        raise InvalidArgument(f"{folder / MANIFEST} is not readable: {cause}; preprocess again") from cause
    if not isinstance(manifest, dict) or manifest.get("format") != FORMAT or manifest.get("kind", "rows") != kind:
        raise InvalidArgument(f"{folder / MANIFEST} is not of format {FORMAT}, {kind}; preprocess again")
    return manifest


def _load_split(folder: Path, name: str, manifest: dict[str, Any]) -> Samples:
    is_mapped = manifest.get("storage") == "npy"
    path = folder / (f"{name}.features.npy" if is_mapped else f"{name}.npz")
    try:
        if is_mapped:
            labels_path = folder / f"{name}.labels.npy"
            samples = Samples(
                np.load(path, mmap_mode="r", allow_pickle=False), np.load(labels_path, allow_pickle=False)
            )
        else:
            with path.open("rb") as stream, np.load(stream, allow_pickle=False) as arrays:
                samples = Samples(arrays["features"], arrays["labels"])
    except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile, zlib.error) as cause:
        state = "damaged, or contains arrays other than features and labels" if path.exists() else "missing"
        raise InvalidArgument(f"{path} is {state}; preprocess again") from cause
    features, labels = samples.features_NF, samples.labels_N
    kind = np.dtype(np.float32 if manifest.get("target") else np.int64)
    if features.dtype != np.float32 or features.ndim != 2 or labels.dtype != kind:
        raise InvalidArgument(f"{path}: expected features float32 [N, F] and labels {kind} [N]; preprocess again")
    if samples.digest != manifest[name]["sha256"] or labels.shape != (len(features),):
        raise InvalidArgument(f"{path} does not match {MANIFEST}; preprocess again")
    return samples
