"""Augmentation of training pictures by torchvision's v2 transforms, as a data set's manifest lists them.

A picture's changes depend only on the seed, the epoch and the picture's row, so a resumed training sees the same
pictures. Only named transforms with numbers are known: a manifest runs no code.

Axes: B pictures of a batch, C channels, Y, X pixels.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray

from rdukit.errors import InvalidArgument
from rdukit_modelbox.contract.allowed_values import ParameterValue
from rdukit_serving.raw_inputs.pictures import PicturePreprocessing

#: Key of a manifest.
AUGMENTATION: Final = "augmentation"
#: Parameter of preprocess → torchvision's transform, in the order in which they are applied; 0 leaves one out.
TRANSFORMS: Final[Mapping[str, str]] = {
    "augment_rotation": "RandomRotation", "augment_crop": "RandomResizedCrop", "augment_shift": "RandomCrop",
    "augment_flip": "RandomHorizontalFlip", "augment_colour": "ColorJitter",
}  # fmt: skip
_PREFIX: Final = "augment_"
#: Transform → largest value: degrees, share of the area, pixels, probability, share of the brightness.
LIMITS: Final[Mapping[str, float]] = {
    "RandomRotation": 180.0, "RandomResizedCrop": 0.95, "RandomCrop": 256.0, "RandomHorizontalFlip": 1.0,
    "ColorJitter": 1.0,
}  # fmt: skip


@dataclass(frozen=True)
class Augmentation:
    """Changes to training pictures: each transform's name with its number, and how values were normalised."""

    steps: tuple[tuple[str, float], ...]
    mean: tuple[float, ...]
    deviation: tuple[float, ...]

    def apply(self, pictures_BCYX: NDArray[np.float32], rows_B: Sequence[int], seed: int, epoch: int) -> Any:
        """Return the normalised pictures changed; ``rows_B`` are their rows in the training split."""
        made = np.empty_like(pictures_BCYX)
        mean, deviation = (torch.tensor(values).view(-1, 1, 1) for values in (self.mean, self.deviation))
        with torch.random.fork_rng(devices=[]):
            for index, row in enumerate(rows_B):
                (state,) = np.random.SeedSequence([seed, epoch, int(row)]).generate_state(1, np.uint64)
                torch.manual_seed(int(state >> np.uint64(1)))
                values = (torch.from_numpy(pictures_BCYX[index]) * deviation + mean).clamp(0.0, 1.0)
                for transform in self._transforms(values.shape[-2:]):
                    values = transform(values)
                made[index] = ((values - mean) / deviation).numpy()
        return made

    def _transforms(self, size: Sequence[int]) -> list[Any]:
        v2 = self._library
        sides = [int(side) for side in size]
        make = {
            "RandomRotation": lambda x: v2.RandomRotation(x, interpolation=v2.InterpolationMode.BILINEAR),
            "RandomResizedCrop": lambda x: v2.RandomResizedCrop(sides, scale=(1.0 - x, 1.0), antialias=True),
            "RandomCrop": lambda x: v2.RandomCrop(sides, padding=int(x)),
            "RandomHorizontalFlip": v2.RandomHorizontalFlip,
            "ColorJitter": lambda x: v2.ColorJitter(brightness=x, contrast=x, saturation=x),
        }
        return [make[name](value) for name, value in self.steps]

    @cached_property
    def _library(self) -> Any:
        return load_transforms()

    def to_json(self) -> list[dict[str, object]]:
        """Return the manifest's list."""
        return [{"transform": name, "value": value} for name, value in self.steps]


def load_transforms() -> Any:
    """Return ``torchvision.transforms.v2``.

    Raises:
        InvalidArgument: the library is missing, or is not built for the installed torch; the message says what is
            expected.
    """
    try:
        from torchvision.transforms import v2  # type: ignore[import-not-found]
    except (ImportError, RuntimeError, OSError) as cause:
        raise InvalidArgument(
            f"augmentation needs torchvision, which cannot be imported here ({cause}); install the version for torch "
            f"{torch.__version__} from the same index as torch: pip install 'rdukit[pictures]'"
        ) from cause
    return v2


def augmentation_from(
    parameters: Mapping[str, ParameterValue], preprocessing: PicturePreprocessing | None
) -> Augmentation | None:  # fmt: skip
    """Return the augmentation that preprocess parameters describe; None: none.

    Raises:
        InvalidArgument: there are no pictures to change, or torchvision cannot be imported.
    """
    asked = {name: float(parameters.get(name, 0)) for name in TRANSFORMS if parameters.get(name, 0)}
    if not asked:
        return None
    if preprocessing is None:
        raise InvalidArgument(
            f"{', '.join(asked)} change pictures, but the data are numbers of unknown scale; expected pictures in a "
            "folder or table, or arrays of uint8"
        )
    load_transforms()
    steps = tuple((TRANSFORMS[name], value) for name, value in asked.items())
    return Augmentation(steps, preprocessing.mean, preprocessing.deviation)


def augmentation_parameters(text: str) -> dict[str, object]:
    """Return the parameters of preprocess that ``flip=0.5,rotation=10`` stands for (pure).

    Raises:
        InvalidArgument: a part is not a name with a number.
    """
    names = [name.removeprefix(_PREFIX) for name in TRANSFORMS]
    found: dict[str, object] = {}
    for part in filter(None, text.split(",")):
        name, _, value = part.strip().partition("=")
        try:
            number = float(value)
        except ValueError:
            number = math.nan
        if name not in names or not math.isfinite(number):
            raise InvalidArgument(f"augmentation {part!r}; expected NAME=NUMBER with one of {', '.join(names)}")
        found[_PREFIX + name] = int(number) if number == int(number) else number
    return found


def read_augmentation(manifest: Mapping[str, Any], preprocessing: PicturePreprocessing | None) -> Augmentation | None:
    """Return the augmentation in a manifest; None: it has none.

    Raises:
        InvalidArgument: it lists another transform or value than there is.
    """
    listed = manifest.get(AUGMENTATION)
    if not listed:
        return None
    try:
        steps = tuple((str(step["transform"]), float(step["value"])) for step in listed)
        wrong = [f"{name} {value:g}" for name, value in steps if not 0 < value <= LIMITS.get(name, 0.0)]
        if preprocessing is None or wrong:
            raise ValueError(", ".join(wrong) or "the data set has no description of its pictures")
    except (KeyError, TypeError, ValueError) as cause:
        raise InvalidArgument(
            f"the data set's augmentation is unknown: {cause}; expected some of "
            f"{', '.join(LIMITS)}, within their limits; preprocess again"
        ) from cause
    return Augmentation(steps, preprocessing.mean, preprocessing.deviation)
