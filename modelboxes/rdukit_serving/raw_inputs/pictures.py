"""The preprocessing of pictures as its own file next to the checkpoint: size, colours, normalisation and classes.

One function turns a picture into an array, for training and for requests. Axes: C channels, Y, X pixels, K classes.
"""

import base64
import binascii
import io
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageOps, UnidentifiedImageError

from rdukit.errors import InvalidArgument, PefMismatch
from rdukit.files.atomic import write_json_atomic
from rdukit.pef.checkpoint_files import PICTURE_FILE, picture_file, read_identity
from rdukit_serving.raw_inputs.answers import ClassPrediction, predictions_of

#: Versions of the file's form; others are refused. The second has ``resample`` and ``shorter_side``, where they are not
#: the first's.
VERSIONS: Final = (1, 2)
#: Formats that can be read; others need further programs.
FORMATS: Final = ("PNG", "JPEG", "BMP", "GIF", "WEBP", "TIFF")
LEGAL_PICTURE: Final = "PNG, JPEG, BMP, GIF, WebP or TIFF"
#: Resampling filters by name, as in Pillow.
RESAMPLES: Final[Mapping[str, Image.Resampling]] = {
    name: Image.Resampling[name.upper()] for name in ("bilinear", "bicubic", "nearest", "lanczos", "box", "hamming")
}
#: Largest number of pixels of a picture.
MAX_PIXELS: Final = 1 << 26
#: Largest number of pictures of a request.
MAX_PICTURES: Final = 256


class BadPicture(ValueError):
    """A file that cannot be used as a picture, and the expected form."""

    def __init__(self, reason: str, legal: str) -> None:
        super().__init__(f"{reason}; expected {legal}")
        self.reason, self.legal = reason, legal


@dataclass(frozen=True, slots=True)
class PicturePreprocessing:
    """Everything between the bytes of a picture and a model, and between the model and the name of a class."""

    height: int
    width: int
    #: 1: grey; 3: red, green, blue.
    channels: int
    #: True: the shorter side is resized and the middle is cut out; False: both sides are resized.
    is_cropped: bool
    #: On the scale 0..1, one for each channel, or one for all.
    mean: tuple[float, ...]
    deviation: tuple[float, ...]
    #: Names of the classes, in the order of the model's outputs.
    classes: tuple[str, ...]
    #: Name of one of ``RESAMPLES``.
    resample: str = "bilinear"
    #: For cropped pictures: length of the resized shorter side before the middle is cut out; 0: it just fits.
    shorter_side: int = 0

    def array_of(self, content: bytes) -> NDArray[np.float32]:
        """Return a picture's array [C, Y, X]: upright, in the model's colours and size, and normalised.

        Transparent places are black. The first frame counts.

        Raises:
            BadPicture: the file is not a readable picture, or is too large.
        """
        try:
            with Image.open(io.BytesIO(content), formats=FORMATS) as opened:
                if opened.width * opened.height > MAX_PIXELS:
                    raise BadPicture(f"{opened.width} x {opened.height} pixels", f"at most {MAX_PIXELS} pixels")
                image = ImageOps.exif_transpose(opened)
                return self.array_of_image(image)
        except (UnidentifiedImageError, OSError, SyntaxError, ValueError, Image.DecompressionBombError) as cause:
            if isinstance(cause, BadPicture):
                raise
            raise BadPicture("not readable as an image", LEGAL_PICTURE) from cause

    def array_of_image(self, image: Image.Image) -> NDArray[np.float32]:
        """Return the array [C, Y, X] of an upright picture: in the model's colours and size, and normalised.

        Raises:
            BadPicture: the picture is too large after its shorter side is resized, or its values have no known range.
        """
        image = _in_bytes(image).convert("L" if self.channels == 1 else "RGB")
        pixels = np.asarray(self._fitted(image), np.float32).reshape(self.height, self.width, self.channels) / 255
        scaled = (pixels - np.array(self.mean, np.float32)) / np.array(self.deviation, np.float32)
        return np.ascontiguousarray(scaled.transpose(2, 0, 1), np.float32)

    def _fitted(self, image: Image.Image) -> Image.Image:
        size, how = (self.width, self.height), RESAMPLES[self.resample]
        if self.is_cropped and self.shorter_side:
            short = min(image.size)
            width, height = (int(self.shorter_side * side / short) for side in image.size)
            if width * height > MAX_PIXELS:  # a long strip grows by its short side
                raise BadPicture(
                    f"{image.width} x {image.height} pixels, {width} x {height} once its shorter side is "
                    f"{self.shorter_side}", f"at most {MAX_PIXELS} pixels then",
                )  # fmt: skip
            left, top = (width - self.width) // 2, (height - self.height) // 2
            return image.resize((width, height), how).crop((left, top, left + self.width, top + self.height))
        if image.size == size:
            return image
        return (ImageOps.fit if self.is_cropped else Image.Image.resize)(image, size, how)

    def predictions(self, logits_NK: NDArray[Any]) -> list[ClassPrediction]:
        """Return the answer for each picture of a classifier's outputs [N, K], before their softmax."""
        return predictions_of(self.classes, logits_NK)

    def check_model(self, values: int, classes: int, checkpoint: Path, where: str) -> None:
        """Compare with a model's widths, and with the class names that a checkpoint says.

        Raises:
            PefMismatch: they differ; names both values.
        """
        identity = read_identity(checkpoint)
        pairs: list[tuple[str, object, object]] = [
            ("values", self.height * self.width * self.channels, values), ("classes", len(self.classes), classes),
        ]  # fmt: skip
        if identity is not None and identity.classes:
            pairs.append(("class names", list(self.classes), list(identity.classes)))
        for name, own, other in pairs:
            if own != other:
                raise PefMismatch(
                    f"{where} belongs to another model: {name} is {own}, but {other} in the PEF or checkpoint; use the "
                    f"{PICTURE_FILE} of the data set that the checkpoint was trained on"
                )

    def to_json(self) -> dict[str, Any]:
        """Return the file's document."""
        value = {
            "version": VERSIONS[0], "height": self.height, "width": self.width, "channels": self.channels,
            "is_cropped": self.is_cropped, "mean": self.mean, "std": self.deviation, "classes": self.classes,
        }  # fmt: skip
        if (self.resample, self.shorter_side) == ("bilinear", 0):
            return value
        return {**value, "version": VERSIONS[1], "resample": self.resample, "shorter_side": self.shorter_side}

    def describe(self) -> dict[str, Any]:
        """Return the form of preprocessed pictures, and the classes."""
        return {key: value for key, value in self.to_json().items() if key != "version"}


def _in_bytes(image: Image.Image) -> Image.Image:
    """Return a picture with 8 bits a channel, on black where it is transparent.

    Raises:
        BadPicture: its values are floats or have 32 bits, whose range no file says.
    """
    if image.mode in {"I", "F"}:
        raise BadPicture(
            f"its values are {'floats' if image.mode == 'F' else 'numbers of 32 bits'}", "8 or 16 bits a channel"
        )
    if image.mode.startswith("I;16"):  # Pillow would cut them off at 255
        return Image.fromarray((np.asarray(image, np.uint16) >> 8).astype(np.uint8))
    if image.has_transparency_data:
        return Image.alpha_composite(Image.new("RGBA", image.size, (0, 0, 0, 255)), image.convert("RGBA"))
    return image


def write_picture_file(folder: Path, preprocessing: PicturePreprocessing) -> None:
    """Write the file into a folder, atomically."""
    write_json_atomic(folder / PICTURE_FILE, preprocessing.to_json())


def find_picture_preprocessing(checkpoint: Path) -> PicturePreprocessing | None:
    """Read the preprocessing of a checkpoint; None if it has none.

    Raises:
        InvalidArgument: the file is damaged, or of another version.
    """
    path = picture_file(checkpoint)
    try:
        value = json.loads(path.read_text())
        if value["version"] not in VERSIONS:
            legal = " or ".join(map(str, VERSIONS))
            raise InvalidArgument(
                f"{path} has version {value['version']}; expected {legal}; preprocess and train again"
            )
        resample, shorter = str(value.get("resample", "bilinear")), int(value.get("shorter_side", 0))
        if resample not in RESAMPLES or (shorter and shorter < max(int(value["height"]), int(value["width"]))):
            raise ValueError(f"resample {resample!r}, shorter_side {shorter}")
        return PicturePreprocessing(
            int(value["height"]), int(value["width"]), int(value["channels"]), bool(value["is_cropped"]),
            tuple(map(float, value["mean"])), tuple(map(float, value["std"])), tuple(map(str, value["classes"])),
            resample, shorter,
        )  # fmt: skip
    except FileNotFoundError:
        return None
    except InvalidArgument:
        raise
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as cause:
        raise InvalidArgument(f"{path} is damaged: {cause!r}; preprocess and train again") from cause


def open_picture_preprocessing(checkpoint: Path, values: int, classes: int) -> PicturePreprocessing:
    """Read the preprocessing of a checkpoint for a model with this many input values and output classes.

    Raises:
        InvalidArgument: the file is missing, damaged, or of another version. PefMismatch: the file belongs to another
            model.
    """
    found = find_picture_preprocessing(checkpoint)
    if found is None:
        raise InvalidArgument(f"{checkpoint} has no {PICTURE_FILE}; train on a folder of pictures")
    found.check_model(values, classes, checkpoint, str(picture_file(checkpoint)))
    return found


def read_pictures(
    preprocessing: PicturePreprocessing, contents: Sequence[bytes], shape: tuple[int, ...]
) -> NDArray[np.float32]:
    """Return the arrays of a request's pictures, each of the ``shape`` that the model takes.

    Raises:
        InvalidArgument: one cannot be used; names its number.
    """
    if not 0 < len(contents) <= MAX_PICTURES:
        raise InvalidArgument(f"the request has {len(contents)} pictures; expected 1 to {MAX_PICTURES}")
    found = []
    for index, content in enumerate(contents):
        try:
            found.append(preprocessing.array_of(content))
        except BadPicture as fault:
            raise InvalidArgument(f"picture {index}: {fault}", picture=index) from None
    assert prod(shape) == found[0].size
    return np.stack(found).reshape(len(found), *shape)


def decode_pictures(value: Mapping[str, Any] | object) -> list[bytes]:
    """Return the pictures in a request's JSON, which are base64 texts.

    Raises:
        InvalidArgument: the request has another form, or a text is not base64.
    """
    texts = value.get("images") if isinstance(value, Mapping) else None
    if not isinstance(value, Mapping) or len(value) != 1 or not isinstance(texts, list):
        raise InvalidArgument(
            'the request must be {"images": ["BASE64", …]}, or one picture\'s bytes with a Content-Type of image/…'
        )
    found = []
    for index, text in enumerate(texts):
        try:
            found.append(base64.b64decode(text, validate=True))
        except (binascii.Error, TypeError, ValueError) as cause:
            raise InvalidArgument(f"picture {index} is not base64: {cause}", picture=index) from cause
    return found
