"""Folders of pictures, a class a folder, as the arrays that a model of images takes.

Axes: N pictures, C channels, Y, X pixels.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod
from pathlib import Path, PurePosixPath
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from rdukit.errors import InvalidArgument
from rdukit_modelbox.contract.allowed_values import ParameterValue
from rdukit_modelbox.preprocessing.file_bounds import MAX_VALUE_BYTES, require_memory
from rdukit_modelbox.preprocessing.row_run import SPLITS, picture_splits
from rdukit_modelbox.preprocessing.sources import Format, SourceFile, find_sources
from rdukit_modelbox.preprocessing.table_rows import SPLIT_NAMES
from rdukit_modelbox.verbs.context import Progress, VerbContext
from rdukit_serving.raw_inputs.pictures import LEGAL_PICTURE, BadPicture, PicturePreprocessing

#: Mean and deviation of each channel on the scale 0..1: ImageNet's usual ones; and those that give -1..1.
NORMALISATIONS: Final[Mapping[str, tuple[tuple[float, ...], tuple[float, ...]]]] = {
    "half": ((0.5,), (0.5,)),
    "imagenet": ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)),
    "none": ((0.0,), (1.0,)),
}
#: Colours of a picture by the channels of a model.
_COLOURS: Final = {1: "grey", 3: "rgb"}
#: Pictures between two looks for a cancellation.
_STEP: Final = 64


@dataclass(frozen=True, slots=True)
class PictureFolder:
    """Pictures [N, C, Y, X] and the class of each [N], how they were made, and the split of each, if names say it."""

    pictures_NCYX: NDArray[np.float32]
    classes_N: NDArray[np.int64]
    preprocessing: PicturePreprocessing
    #: Numbers of ``SPLITS``.
    splits_N: NDArray[np.int64] | None


def is_picture_folder(data: Path) -> bool:
    """Return whether a folder has pictures and no arrays."""
    if not data.is_dir() or any(data.glob("*.npy")):
        return False
    try:
        return bool(find_sources(data, "**/*", "auto", (Format.IMAGES,)))
    except InvalidArgument:
        return False


def read_picture_folder(
    context: VerbContext, data: Path, shape: Sequence[int], num_classes: int,
    parameters: Mapping[str, ParameterValue],
) -> PictureFolder:  # fmt: skip
    """Read all pictures of a folder, whose own folders are the classes.

    Args:
        shape: of an array, [C, Y, X].
        num_classes: classes of the model.
    Raises:
        InvalidArgument: a picture is outside of the classes' folders or cannot be read, the numbers of folders and
            classes differ, or the model takes other channels. The message has the file and the expectation.
        Cancelled: between two pictures.
    """
    sources = find_sources(data, "**/*", "auto", (Format.IMAGES,))
    names = [_class_of(source) for source in sources]
    classes = picture_classes(data)
    if len(classes) != num_classes:
        raise InvalidArgument(
            f"{data.name} has {len(classes)} folders of pictures ({', '.join(classes[:5])}"
            f"{', …' if len(classes) > 5 else ''}), the model has {num_classes} classes; expected as many: "
            f"preprocess and compile with num_classes={len(classes)}"
        )
    made = preprocessing_of(shape, classes, parameters)
    require_memory(data.name, len(sources), 4 * prod(shape), "pictures")
    pictures_NCYX = np.empty((len(sources), *shape), np.float32)
    for index, source in enumerate(sources):
        if index % _STEP == 0:
            context.check_cancelled()
            context.progress(Progress("read", index, len(sources)))
        try:
            if source.bytes > MAX_VALUE_BYTES:
                raise BadPicture(f"{source.bytes} bytes", f"at most {MAX_VALUE_BYTES}")
            pictures_NCYX[index] = made.array_of(source.path.read_bytes())
        except BadPicture as fault:
            raise InvalidArgument(f"{source.name}: {fault}", file=source.name) from None
    number = {name: index for index, name in enumerate(classes)}
    splits = picture_splits(sources)
    splits_N = None if splits is None else np.array([splits[source.name] for source in sources])
    if splits_N is not None:
        trained = {name for name, split in zip(names, splits_N.tolist(), strict=True) if split == 0}
        for name in sorted(set(classes) - trained):
            context.log(f"class {name!r} has no picture to train on, only to test; a model cannot learn it")
    return PictureFolder(pictures_NCYX, np.array([number[name] for name in names], np.int64), made, splits_N)


def picture_classes(data: Path) -> tuple[str, ...]:
    """Return the classes of a folder of pictures, in their order.

    Raises:
        NotFound, InvalidArgument: there are no pictures, or one is in no folder of a class.
    """
    sources = find_sources(data, "**/*", "auto", (Format.IMAGES,))
    used = {source.path.parent for source in sources}
    used |= {above for folder in used for above in folder.parents}
    for folder in sorted(path for path in data.rglob("*") if path.is_dir() and path not in used):
        if not any(part.startswith(".") for part in folder.relative_to(data).parts):
            kind = "is a link, which is not followed" if folder.is_symlink() else "has no picture that can be read"
            raise InvalidArgument(
                f"{folder.relative_to(data)} {kind}; expected a folder with {LEGAL_PICTURE} for each class, and no "
                "others",
                file=str(folder.relative_to(data)),
            )  # fmt: skip
    return tuple(sorted({_class_of(source) for source in sources}))


def preprocessing_of(
    shape: Sequence[int], classes: tuple[str, ...], parameters: Mapping[str, ParameterValue]
) -> PicturePreprocessing:
    """Return the preprocessing of pictures for arrays of a shape [C, Y, X] (pure).

    Raises:
        InvalidArgument: the model takes other channels than grey or rgb, or ``imagenet`` and grey.
    """
    channels, height, width = shape
    if channels not in _COLOURS:
        raise InvalidArgument(
            f"the model expects {channels} channels, but pictures have 1 (grey) or 3 (rgb): preprocess and compile "
            "with another number, or bring arrays"
        )
    normalize = str(parameters.get("image_normalize", "half"))
    mean, deviation = NORMALISATIONS[normalize]
    if len(mean) not in {1, channels}:
        raise InvalidArgument(f"image_normalize={normalize} is only for rgb; expected half or none for grey pictures")
    is_cropped = parameters.get("image_fit", "crop") == "crop"
    resample, shorter = str(parameters.get("image_resample", "bilinear")), int(parameters.get("image_shorter_side", 0))
    if shorter and (not is_cropped or shorter < max(height, width)):
        raise InvalidArgument(
            f"image_shorter_side is {shorter}; expected 0, or with image_fit=crop at least {max(height, width)}, the "
            "model's size"
        )
    return PicturePreprocessing(height, width, channels, is_cropped, mean, deviation, classes, resample, shorter)


def _class_of(source: SourceFile) -> str:
    parents = PurePosixPath(source.name).parts[:-1]
    if not parents or (len(parents) == 1 and parents[0].lower() in SPLIT_NAMES):
        raise InvalidArgument(
            f"{source.name}: the picture is not in a class folder; expected CLASS/{PurePosixPath(source.name).name}, "
            "or train/CLASS/… and test/CLASS/…",
            file=source.name,
        )
    try:
        parents[-1].encode()
    except UnicodeEncodeError as cause:
        raise InvalidArgument(
            f"{source.name.encode(errors='replace').decode()}: the name of its folder is not UTF-8; expected another "
            "name, which the model's answers will have"
        ) from cause
    return parents[-1]


def chosen_splits(folder: PictureFolder, names: Sequence[str], seed: int, ratio: float) -> dict[str, dict[str, Any]]:
    """Return the splits as arrays by name, the picture first: as the folders' names say, else drawn by the seed."""
    order = np.random.default_rng(seed).permutation(len(folder.classes_N))
    if folder.splits_N is None:
        cut = len(order) - int(len(order) * ratio)
        rows = {"train": order[:cut], "test": order[cut:]}
    else:
        there = set(folder.splits_N.tolist())
        rows = {name: order[folder.splits_N[order] == kind] for kind, name in enumerate(SPLITS) if kind in there}
    return {
        split: {names[0]: folder.pictures_NCYX[chosen], names[1]: folder.classes_N[chosen]}
        for split, chosen in rows.items()
    }
