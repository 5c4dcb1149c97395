"""Data sets of named arrays: what preprocess makes of ``.npz`` or ``.npy`` files, or draws from a model's physics.

A split is a folder with a ``.npy`` file for each input of the model, the samples first; files are mapped, not read.
Axes: N samples, B batch.
"""

import hashlib
import json
import zipfile
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from copy import copy
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from rdukit.errors import InvalidArgument, NotFound
from rdukit.files.atomic import atomic_target, sha256_of, write_atomic, write_json_atomic
from rdukit.pef.checkpoint_files import PICTURE_FILE
from rdukit_modelbox.contract.allowed_values import ParameterValue
from rdukit_modelbox.contract.models import chosen_sizes, entry_of
from rdukit_modelbox.preprocessing.augmentation import AUGMENTATION, augmentation_from, read_augmentation
from rdukit_modelbox.preprocessing.data_rules import ValueLimit, check_values, divide_rows
from rdukit_modelbox.preprocessing.datasets import DEV, FORMAT, MANIFEST, SPLITS, read_manifest
from rdukit_modelbox.preprocessing.file_bounds import check_npy_headers
from rdukit_modelbox.preprocessing.picture_folders import chosen_splits
from rdukit_modelbox.preprocessing.picture_rows import read_pictures_of
from rdukit_modelbox.verbs.context import Progress, VerbContext, VerbResult
from rdukit_serving.raw_inputs.pictures import find_picture_preprocessing, write_picture_file
from rdukit_zoo.registry import WITHOUT_TARGET, ModelEntry, SizeValue

KIND: Final = "arrays"
#: Task of the models that take pictures.
PICTURES: Final = "image-classification"
#: Size that holds the number of classes.
CLASSES: Final = "num_classes"
Arrays = Mapping[str, NDArray[Any]]
#: Further keys of a manifest: ``classes`` by name, and a description of the ``tokenizer``.
Names = Mapping[str, object]


@dataclass(frozen=True, slots=True)
class ArrayForm:
    """The form of one array: its name, the shape of a sample and the dtype."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    #: For integer indices. The model names it, not the data.
    limit: ValueLimit | None = field(default=None, compare=False)


def array_forms(
    entry: ModelEntry, sizes: Mapping[str, SizeValue], choices: Mapping[str, int] | None = None
) -> list[ArrayForm]:
    """Return the arrays that a model of these sizes trains with, in the order of its inputs.

    ``choices``: numbers of rows or classes that arrays index, from a PEF's graphs.
    """
    dummies = entry.make_inputs(1, **sizes)
    target = None if entry.task in WITHOUT_TARGET else str(dummies[-1].sn_name)
    forms = []
    for dummy in dummies:
        name, dtype = str(dummy.sn_name), str(dummy.dtype).removeprefix("torch.")
        limit = None if dummy.dtype.is_floating_point else _limit(entry, sizes, name, name == target, choices or {})
        forms.append(ArrayForm(name, tuple(dummy.shape[1:]), dtype, limit))
    return forms


def _limit(
    entry: ModelEntry, sizes: Mapping[str, SizeValue], name: str, is_target: bool, choices: Mapping[str, int]
) -> ValueLimit | None:  # fmt: skip
    """Return the limit of an array's integers: the entry's, else the classes for a target, else the PEF's."""
    size = entry.limits.get(name, CLASSES if is_target else "")
    if isinstance(size, int):
        return ValueLimit(size, "", is_target)
    if size in sizes:
        return ValueLimit(int(sizes[size]), size, is_target)
    return ValueLimit(choices[name], "", is_target) if name in choices else None


def sizes_made_for(
    manifest: Mapping[str, Any], entry: ModelEntry, sizes: Mapping[str, SizeValue]
) -> dict[str, SizeValue]:  # fmt: skip
    """Return the data set's own sizes that differ from ``sizes`` and change its arrays; empty for an earlier version's.

    ``sizes``: those of the model to compare with.
    """
    said: dict[str, SizeValue] = manifest.get("sizes") or {}
    forms = array_forms(entry, sizes)
    differing = {name: value for name, value in said.items() if name in sizes and sizes[name] != value}
    return {
        name: value
        for name, value in differing.items()
        if name == CLASSES or array_forms(entry, {**sizes, name: value}) != forms
    }


class ArrayDataset:
    """A data set of named arrays, as ``TaskData``."""

    tokens_per_sample = 0

    def __init__(self, folder: Path, manifest: Mapping[str, Any]) -> None:
        self.names = [str(form["name"]) for form in manifest["arrays"]]
        #: Stored splits; ``DEV`` only where files said one.
        self.splits = (*SPLITS, *([DEV] if DEV in manifest else []))
        self.digest = sha256_of(" ".join(str(manifest[split]["sha256"]) for split in self.splits).encode())
        self.classes: tuple[str, ...] = tuple(str(name) for name in manifest.get("classes", ()))
        self.columns: tuple[str, ...] = ()
        self.tokenizer = str(manifest.get("tokenizer", ""))
        self._folder = folder
        #: Changes to training pictures; another choice makes another data set.
        self._augmentation = read_augmentation(manifest, find_picture_preprocessing(folder))
        if self._augmentation is not None:
            self.digest = sha256_of(f"{self.digest} {json.dumps(self._augmentation.to_json())}".encode())
        self._arrays = {
            split: {name: np.load(folder / split / f"{name}.npy", mmap_mode="r") for name in self.names}
            for split in self.splits
        }
        #: Split → the split whose arrays hold its samples, and their rows there; other splits use their own arrays.
        self._rows: dict[str, tuple[str, NDArray[np.int64]]] = {}

    def with_validation(self, share: float) -> "ArrayDataset":
        """See ``TaskData``."""
        made = copy(self)
        train_N, held_N = divide_rows(self.count("train"), share)
        made._rows = {"train": ("train", train_N), "dev": ("train", held_N)}
        return made

    def count(self, split: str) -> int:
        """Return the number of samples in a split; 0 if there is no such split."""
        if split in self._rows:
            return len(self._rows[split][1])
        return len(self._arrays[split][self.names[0]]) if split in self._arrays else 0

    def _take(self, split: str, rows_B: NDArray[np.int64]) -> dict[str, NDArray[Any]]:
        if split in self._rows:
            split, known_N = self._rows[split]
            rows_B = known_N[rows_B]
        return {name: np.ascontiguousarray(self._arrays[split][name][rows_B]) for name in self.names}

    def batches(self, batch_size: int, seed: int, epoch: int, start: int) -> Iterator[tuple[NDArray[Any], ...]]:
        """See ``TaskData``."""
        order_N = np.random.default_rng([seed, epoch]).permutation(self.count("train"))
        for index in range(start, len(order_N) // batch_size):
            chosen_B = order_N[index * batch_size : (index + 1) * batch_size]
            batch = list(self._take("train", chosen_B).values())
            if self._augmentation is not None:
                batch[0] = self._augmentation.apply(batch[0], chosen_B.tolist(), seed, epoch)
            yield tuple(batch)

    def held_out(self, split: str, batch_size: int) -> Iterator[tuple[int, dict[str, NDArray[Any]]]]:
        """Yield a split in stored order as batches by name; the last is filled up with its first samples.

        Yield each batch with the number of its real samples.
        """
        for start in range(0, self.count(split), batch_size):
            rows = np.arange(start, start + batch_size)
            count = int((rows < self.count(split)).sum())
            rows[count:] = np.resize(rows[:count], batch_size - count)
            yield count, self._take(split, rows)

    def check(self, forms: Sequence[ArrayForm]) -> None:
        """Refuse labels beyond the classes and indices beyond a table.

        Raises:
            InvalidArgument: the message has the array, the value and the expected ones.
        """
        for split, arrays in self._arrays.items():
            for form in forms:
                if form.limit is not None:
                    check_values(f"the {split} split's {form.name}", arrays[form.name], form.limit)

    def keep_with(self, checkpoint: Path) -> None:
        """Copy the preprocessing of pictures; other arrays are served unchanged."""
        path = self._folder / PICTURE_FILE
        if path.is_file():
            write_atomic(checkpoint / PICTURE_FILE, path.read_bytes())


def open_arrays(folder: Path, forms: Sequence[ArrayForm]) -> ArrayDataset:
    """Open the data set in ``folder``.

    Raises:
        NotFound: the data set is missing. InvalidArgument: it is damaged, or its arrays or their values are not the
            model's.
    """
    manifest = read_manifest(folder, KIND)
    try:
        dataset = ArrayDataset(folder, manifest)
        found = [ArrayForm(str(a["name"]), tuple(a["shape"]), str(a["dtype"])) for a in manifest["arrays"]]
        for split in dataset.splits:
            if dataset.count(split) != int(manifest[split]["samples"]):
                raise InvalidArgument(f"{folder}: {split} does not match {MANIFEST}; preprocess again")
    except (KeyError, TypeError, ValueError, OSError) as cause:
        raise InvalidArgument(
            f"{folder} is not a data set of arrays, or one of its files is missing or damaged; expected train and "
            "test with a "
            f".npy file of numbers for each of {', '.join(form.name for form in forms)}; preprocess again"
        ) from cause
    _check_forms(found, forms, str(folder))
    dataset.check(forms)
    return dataset


def preprocess_arrays(
    context: VerbContext, parameters: Mapping[str, ParameterValue], inputs: Mapping[str, Path], output: Path
) -> VerbResult:
    """Write ``<output>/dataset`` from the arrays in ``data``, or without it from the model's own physics.

    Raises:
        NotFound, InvalidArgument: an array is missing, or its shape, dtype or values are not valid.
    """
    entry = entry_of(context.box)
    sizes = chosen_sizes(context.box, entry, parameters)
    forms = array_forms(entry, sizes)
    seed, ratio = int(parameters["seed"]), float(parameters["test_ratio"])
    said: dict[str, object] = {}
    (output / "dataset" / PICTURE_FILE).unlink(missing_ok=True)
    context.progress(Progress("read", 0, 2))
    read = None
    if "data" in inputs and entry.task == PICTURES and CLASSES in sizes:
        read = read_pictures_of(context, inputs["data"], forms[0].shape, int(sizes[CLASSES]), parameters)
    augmentation = augmentation_from(parameters, read.preprocessing if read else None)
    if read is not None:
        splits: Mapping[str, Arrays] = chosen_splits(read, [form.name for form in forms], seed, ratio)
        source, said = inputs["data"].name, {"classes": list(read.preprocessing.classes)}
        if augmentation is not None:
            said |= {AUGMENTATION: augmentation.to_json()}
        write_picture_file(output / "dataset", read.preprocessing)
    elif "data" in inputs:
        arrays, about = _read_data(entry, sizes, forms, parameters, inputs)
        said = dict(about)
        source = inputs["data"].name
        order = np.random.default_rng(seed).permutation(len(next(iter(arrays.values()))))
        cut = len(order) - int(len(order) * ratio)
        splits = {"train": _chosen(arrays, order[:cut]), "test": _chosen(arrays, order[cut:])}
    else:
        splits, source = _draw_splits(entry, sizes, int(parameters["samples"]), ratio, seed), f"drawn, seed {seed}"
        drift = float(parameters.get("drift", 0.0))
        if drift:
            names = [form.name for form in forms if form.dtype.startswith("float")]
            targets = () if entry.task in WITHOUT_TARGET else (forms[-1].name,)
            splits = apply_drift(splits, [name for name in names if name not in targets], drift)
            source += f", drift {drift:g}"
    context.check_cancelled()
    context.progress(Progress("write", 1, 2))
    folder = write_arrays(output / "dataset", forms, splits, {"source": source, "sizes": sizes, **said})
    context.progress(Progress("write", 2, 2))
    counts = {f"{split}_samples": len(arrays[forms[0].name]) for split, arrays in splits.items()}
    watched = f"{counts['dev_samples']} to validate, " if "dev_samples" in counts else ""
    context.log(f"{counts['train_samples']} samples to train, {watched}{counts['test_samples']} to test, {source}")
    return VerbResult({**counts, "source": source}, {"dataset": folder})


def _read_data(
    entry: ModelEntry, sizes: Mapping[str, SizeValue], forms: Sequence[ArrayForm],
    parameters: Mapping[str, ParameterValue], inputs: Mapping[str, Path],
) -> tuple[dict[str, NDArray[Any]], Names]:  # fmt: skip
    """Return arrays by name, as stored or encoded from texts, and the texts' classes and tokenizer."""
    if "text_column" not in parameters:
        return _read_arrays(inputs["data"], forms), {}
    from rdukit_modelbox.preprocessing.passages import is_text, read_passages  # only text needs tokenizers

    if not is_text(inputs["data"]):
        return _read_arrays(inputs["data"], forms), {}
    made = read_passages(inputs["data"], inputs.get("tokenizer"), entry.task, sizes, parameters)
    return dict(made.arrays), {"classes": list(made.classes), "tokenizer": made.tokenizer}


def _draw_splits(
    entry: ModelEntry, sizes: Mapping[str, SizeValue], samples: int, ratio: float, seed: int
) -> dict[str, Arrays]:
    """Draw both splits, each with its own seed: a sample of one is never in the other, or next to it in time."""
    if entry.generate is None:
        raise InvalidArgument(f"model {entry.name!r} generates no data; name files as the input data")
    held = int(samples * ratio)
    if entry.is_drawn_from_a_set:
        drawn = entry.generate(samples, seed, **sizes)
        return {"train": _chosen(drawn, slice(held, None)), "test": _chosen(drawn, slice(0, held))}
    return {
        "train": entry.generate(samples - held, 2 * seed, **sizes),
        "test": entry.generate(held, 2 * seed + 1, **sizes),
    }


def apply_drift(splits: Mapping[str, Arrays], names: Sequence[str], drift: float) -> dict[str, Arrays]:
    """Return splits whose arrays ``names`` are read by an instrument that has drifted; the others stay.

    Each place of a sample (its last two axes) gets a gain of about 1 ± drift / 2, and an offset of about drift / 2
    deviations of the training split. Readings that are never negative stay non-negative. Pure.

    Raises:
        InvalidArgument: no array has readings; texts have none.
    Source:
        ours: calibration of pixels and sensors, and batch effects between laboratories, in their simplest form.
    """
    if not names:
        raise InvalidArgument("drift needs readings (floats) among the inputs; this model has none: leave it at 0")
    changed: dict[str, dict[str, NDArray[Any]]] = {split: dict(arrays) for split, arrays in splits.items()}
    for name in names:
        known = splits["train"][name]
        chance = np.random.default_rng([zlib.crc32(name.encode()), 97])
        places = known.shape[1:][-2:]
        gain = np.clip(1 + 0.5 * drift * chance.standard_normal(places), 0.1, None)
        offset = 0.5 * drift * float(known.std()) * chance.standard_normal(places)
        lowest = 0.0 if float(known.min()) >= 0 else -np.inf
        for arrays in changed.values():
            arrays[name] = np.maximum(arrays[name] * gain + offset, lowest).astype(known.dtype)
    return {**changed}


def _read_arrays(data: Path, forms: Sequence[ArrayForm]) -> dict[str, NDArray[Any]]:
    """Read the arrays of a ``.npz`` file, or of a folder with ``.npy`` files, by name; nothing pickled."""
    try:
        if data.is_dir():
            found = {form.name: np.load(data / f"{form.name}.npy", mmap_mode="r") for form in forms}
        else:
            with zipfile.ZipFile(data) as file, ExitStack() as stack:
                inside = [form.name for form in forms if f"{form.name}.npy" in file.namelist()]
                opened = [(name, stack.enter_context(file.open(f"{name}.npy"))) for name in inside]
                check_npy_headers(data.name, opened)
            with np.load(data) as archive:
                found = {form.name: archive[form.name] for form in forms}
    except FileNotFoundError as cause:
        raise NotFound(f"{cause.filename} is missing; expected {_legal(forms)}") from cause
    except KeyError as cause:
        missing = next((form.name for form in forms if form.name in str(cause)), str(cause))
        raise InvalidArgument(f"{data.name} lacks the array {missing!r}; expected {_legal(forms)}") from cause
    except (ValueError, OSError, EOFError, zipfile.BadZipFile) as cause:
        raise InvalidArgument(
            f"{data.name} is damaged or does not contain arrays of numbers; expected {_legal(forms)}"
        ) from cause
    _check_forms([ArrayForm(name, a.shape[1:], str(a.dtype)) for name, a in found.items()], forms, data.name)
    counts = {name: len(values) for name, values in found.items()}
    if len(set(counts.values())) != 1 or not min(counts.values()):
        raise InvalidArgument(
            f"{data.name}: the arrays have {counts} samples; expected equal numbers of samples, at least one"
        )
    for name, values in found.items():
        if np.issubdtype(values.dtype, np.floating) and not np.isfinite(values).all():
            at = np.argwhere(~np.isfinite(values))[0].tolist()
            raise InvalidArgument(
                f"{data.name}: {name} is not finite in sample {at[0]}, at {at[1:]}: {values[tuple(at)]}; expected "
                "finite numbers"
            )
    for form in forms:
        if form.limit is not None:
            check_values(f"{data.name}: {form.name}", found[form.name], form.limit)
    return found


def _check_forms(found: Sequence[ArrayForm], wanted: Sequence[ArrayForm], where: str) -> None:
    for have, form in zip(found, wanted, strict=False):
        if have != form:
            raise InvalidArgument(
                f"{where}: {have.name} has {have.dtype} {list(have.shape)} per sample; expected {_legal([form])}"
            )
    if len(found) != len(wanted):
        raise InvalidArgument(f"{where} has {len(found)} arrays; expected {_legal(wanted)}")


def _legal(forms: Sequence[ArrayForm]) -> str:
    return ", ".join(f"{form.name} {form.dtype} {['samples', *form.shape]}" for form in forms)


def _chosen(arrays: Arrays, rows: Any) -> Arrays:
    return {name: values[rows] for name, values in arrays.items()}


def write_arrays(folder: Path, forms: Sequence[ArrayForm], splits: Mapping[str, Arrays], about_all: Names) -> Path:
    """Write both splits, then the manifest; a folder without manifest is not a data set. Returns ``folder``."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / MANIFEST).unlink(missing_ok=True)
    about: dict[str, object] = {}
    for split, arrays in splits.items():
        digest = hashlib.sha256()
        for form in forms:
            values = np.ascontiguousarray(arrays[form.name])
            digest.update(values.reshape(-1).view(np.uint8).data)  # without a copy
            with atomic_target(folder / split / f"{form.name}.npy") as temporary, temporary.open("wb") as stream:
                np.save(stream, values, allow_pickle=False)
        about[split] = {"samples": len(arrays[forms[0].name]), "sha256": digest.hexdigest()}
    listed = [{"name": form.name, "shape": list(form.shape), "dtype": form.dtype} for form in forms]
    write_json_atomic(folder / MANIFEST, {"format": FORMAT, "kind": KIND, **about_all, "arrays": listed, **about})
    return folder
