"""Tasks of models that read a text in both directions: masked words, classes of texts, vectors of texts.

Their data are named arrays of tokens. Axes: N texts, T tokens, V vocabulary, K classes, C width.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFont

from rdukit.errors import InvalidArgument
from rdukit_modelbox.tasks.arrays import Arrays, ArrayTask
from rdukit_modelbox.tasks.base import Scores, TaskData
from rdukit_modelbox.tasks.class_report import ClassMeter
from rdukit_modelbox.tasks.pictures import COLOURS, draw_rows, grey_tile, spread
from rdukit_modelbox.tasks.program import ModelProgram
from rdukit_modelbox.verbs.context import VerbContext
from rdukit_serving.device.parameters import Tensors
from rdukit_zoo.metrics import MaskedWordsMeter, Meter, ReconstructionMeter
from rdukit_zoo.registry import IGNORED

#: Largest number of characters of a text in a picture, and their size in pixels.
_SHOWN, _WIDTH, _HEIGHT = 100, 6, 14


class MaskedLanguageModelling(ArrayTask):
    """(tokens, types, mask, labels, each [N, T]) → (loss, logits [N, T, V]); see ``Task``."""

    def meter(self, program: ModelProgram) -> Meter:
        """Return the accuracy of the predicted tokens."""
        return MaskedWordsMeter(program.array_names[-1])

    def weight(self, given: Arrays) -> int:
        """Return the number of tokens that are predicted."""
        return int((given["labels"] != IGNORED).sum())

    def answers(self, output: NDArray[Any]) -> NDArray[Any]:
        """Return the likeliest token at each place [N, T]."""
        likeliest: NDArray[Any] = output.argmax(-1)
        return likeliest

    def draw(self, given: Arrays, output: NDArray[Any], channels: Sequence[str] = ()) -> Image.Image:
        """Return texts with their predicted tokens: blue if right, else red."""
        labels, likeliest = given["labels"], output.argmax(-1)
        lines = []
        for row in spread(len(labels)):
            predicted = labels[row] != IGNORED
            colours = np.where(~predicted, 0, np.where(likeliest[row] == labels[row], 1, 2))
            lines.append((np.where(predicted, likeliest[row], given["tokens"][row]), colours))
        return _draw_texts(lines)


class SequenceClassification(ArrayTask):
    """(tokens, types, mask, each [N, T], label [N]) → (loss, logits [N, K]); see ``Task``."""

    def meter(self, program: ModelProgram) -> Meter:
        """Return the accuracy."""
        return ClassMeter(program.array_names[-1])

    def draw(self, given: Arrays, output: NDArray[Any], channels: Sequence[str] = ()) -> Image.Image:
        """Return texts after their answers: blue if right, else red."""
        lines = []
        for row in spread(len(output)):
            answer, is_right = int(output[row].argmax()), output[row].argmax() == given["label"][row]
            head = np.frombuffer(f"{answer}: ".encode(), np.uint8).astype(np.int64)
            colours = np.concatenate(
                [np.full(len(head), 1 if is_right else 2), np.zeros(given["tokens"].shape[1], int)]
            )
            lines.append((np.concatenate([head, given["tokens"][row]]), colours))
        return _draw_texts(lines)


class TextEmbedding(ArrayTask):
    """(tokens, types, mask, each [N, T]) → vectors [N, C]; the model does not train. See ``Task``."""

    def meter(self, program: ModelProgram) -> Meter:
        """Return no figure."""
        return ReconstructionMeter()

    def parameters(self, program: ModelProgram, kept: Tensors) -> Tensors:
        """Return the body's tensors: a trained checkpoint also has a head."""
        wanted = program.model.state_dict()
        return {name: value for name, value in kept.items() if name in wanted}

    def evaluate(self, program: ModelProgram, data: TaskData, split: str, context: VerbContext, stage: str) -> Scores:
        """Refuse: the task has no loss.

        Raises:
            InvalidArgument: always.
        """
        raise InvalidArgument(
            "embedding models cannot be trained; train a model for masked words and serve its checkpoint"
        )

    def draw(self, given: Arrays, output: NDArray[Any], channels: Sequence[str] = ()) -> Image.Image:
        """Return the cosine of each pair of texts, white for 1."""
        vectors = output / np.maximum(np.linalg.norm(output, axis=1, keepdims=True), 1e-9)
        return draw_rows({"cosine of each pair": [grey_tile(vectors @ vectors.T, (-1.0, 1.0))]})


def _draw_texts(lines: list[tuple[NDArray[Any], NDArray[Any]]]) -> Image.Image:
    """Return lines of tokens with their colours: 0 black, and underlined 1 right, 2 wrong."""
    sheet = Image.new("RGB", (_SHOWN * _WIDTH + 8, len(lines) * _HEIGHT + 8), "white")
    pen, font = ImageDraw.Draw(sheet), ImageFont.load_default_imagefont()
    palette = ("#000000", *COLOURS)
    for number, (tokens, colours) in enumerate(lines):
        for place, (token, colour) in enumerate(zip(tokens[:_SHOWN], colours, strict=False)):
            x, y = 4 + place * _WIDTH, 4 + number * _HEIGHT
            pen.text((x, y), chr(token) if 32 <= token < 127 else " ", fill=palette[int(colour)], font=font)
            if colour:
                pen.line((x, y + _HEIGHT - 3, x + _WIDTH - 2, y + _HEIGHT - 3), fill=palette[int(colour)])
    return sheet
