"""Pictures for the cards of text models: passages, the model's answers, and its losses.

Axes: N samples, T tokens, V entries of the vocabulary.
"""

import re
from collections.abc import Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from pictures.runs import Run, softmax, some_wrong
from pictures.svg import LETTER, Axes, Drawing, round_ticks
from rdukit_zoo.datasets.passages import MASK, PADDING, _topics
from rdukit_zoo.registry import IGNORED

DOCUMENTATION: Final = "texts of Python's documentation"


def draw_masked(drawing: Drawing, run: Run) -> tuple[str, str]:
    """Draw passages with hidden bytes, and the likeliest bytes for some of them."""
    tokens, labels, output = (run.arrays[key] for key in ("tokens", "labels", "output"))
    chances = softmax(output)
    likeliest = output.argmax(-1)
    for place, row in enumerate(range(3)):
        y = 24 + place * 30
        hidden = labels[row] != IGNORED
        for spot in np.flatnonzero(hidden):
            left, style = 14 + (spot - 1) * LETTER, "fa" if likeliest[row, spot] == labels[row, spot] else "fb"
            drawing.bar(left, y - 10, LETTER, 13, style, 0.3)
            drawing.code(left, y + 14, _letter(likeliest[row, spot], "␣"), style)
        whole = np.where(hidden, labels[row], tokens[row])[1:-1]
        drawing.code(14, y, "".join(map(_letter, whole)))
    spots = [(row, spot) for row in range(3) for spot in np.flatnonzero(tokens[row] == MASK)]
    spots = spots[:: max(1, len(spots) // 6)]
    drawing.text(16, 128, "likeliest bytes in some hidden places", "q")
    for place, (row, spot) in enumerate(spots[:6]):
        x = 16 + place * 76
        drawing.code(
            x, 145, "".join(_letter(t) if t != MASK else "▁" for t in _around(tokens[row], labels[row], int(spot))), "q"
        )
        for rank, token in enumerate(np.argsort(-chances[row, spot])[:4]):
            y, chance = 163 + rank * 18, float(chances[row, spot, token])
            style = "fa" if token == labels[row, spot] else "fl"
            drawing.code(x, y, _letter(token, "␣"))
            drawing.bar(x + 11, y - 8, max(1.0, min(34.0, 80 * chance)), 9, style)
            drawing.text(x + 66, y, f"{100 * chance:.0f} %", "q s e")
    return (
        "Passages that the model has not seen: shaded bytes were hidden, below them is the likeliest one, blue where "
        f"it is right; and the four likeliest bytes of some places. {100 * run.figures['accuracy']:.1f} % of all "
        "hidden bytes are right.",
        DOCUMENTATION,
    )


def draw_classes(drawing: Drawing, run: Run) -> tuple[str, str]:
    """Draw passages with the probability of each topic."""
    tokens, labels, chances = run.arrays["tokens"], run.arrays["label"], softmax(run.arrays["output"])
    names = [name for name, _ in _topics()[: chances.shape[1]]]
    answers = chances.argmax(1)
    styles = ("fa", "fb", "fc")
    for number, name in enumerate(names):
        drawing.dot(322 + number * 84, 13, 4, styles[number % 3])
        drawing.text(330 + number * 84, 17, _short(name), "s")
    drawing.text(14, 17, "passage", "q")
    for place, row in enumerate(some_wrong(answers == labels, 8)):
        y = 40 + place * 25
        words = "".join(_letter(token) for token in tokens[row] if token < PADDING)
        drawing.code(14, y, " ".join(words.split())[:48])
        left = 346.0
        for number, chance in enumerate(chances[row]):
            drawing.bar(left, y - 10, 96 * float(chance), 12, styles[number % 3], 0.85)
            left += 96 * float(chance)
        drawing.text(
            466, y, "✓" if answers[row] == labels[row] else "✗", "fa e" if answers[row] == labels[row] else "fb e"
        )
    return (
        f"Passages that the model has not seen and how likely it holds each topic of the documentation "
        f"({', '.join(names)}); the last two are wrong on purpose. {100 * run.figures['accuracy']:.1f} % are right.",
        DOCUMENTATION,
    )


def draw_likeness(drawing: Drawing, run: Run) -> tuple[str, str]:
    """Draw the cosine of each pair of texts, those nearest to each other side by side."""
    tokens, vectors = run.arrays["tokens"], run.arrays["output"]
    centred = vectors - vectors.mean(0)
    centred /= np.linalg.norm(centred, axis=1, keepdims=True)
    cosines = centred @ centred.T
    chosen: list[int] = []
    words = sum(np.char.isalpha(np.vectorize(_letter)(tokens)).T) > 0.72 * tokens.shape[1]
    starts = np.flatnonzero(words & (np.sort(cosines[:, words], 1)[:, -3] > 0.6))
    while len(chosen) < 12:
        # The text that is least like those that are there already, then the two nearest to it.
        start = starts[cosines[np.ix_(starts, np.array(chosen or [starts[0]]))].max(1).argmin()]
        near = np.argsort(-np.where(words, cosines[start], -2))
        chosen += [int(row) for row in near if row not in chosen][:3]
    side = 17.2
    shown = cosines[np.ix_(chosen, chosen)]
    drawing.grey(266, 18, side * len(chosen), shown, (-1, 1))
    for place, row in enumerate(chosen):
        words = "".join(_letter(token) for token in tokens[row] if token < PADDING)
        drawing.code(8, 31 + place * side, " ".join(words.split())[:38])
    drawing.text(472, 13, "cosine: yellow 1, blue −1", "q s e")
    return (
        "Passages and the cosine of each pair of their vectors, less the mean vector: four passages with the two that "
        "are nearest to each.",
        DOCUMENTATION,
    )


def draw_text(drawing: Drawing, run: Run) -> tuple[str, str]:
    """Draw a prompt and its continuation, coloured by the probability of each token, above the curves of the losses."""
    is_genes = run.box == "genslm"
    x = y = 0.0
    left, top, columns = 14, 30, 68
    drawing.text(left, 15, "prompt, and what the model wrote: the bluer, the surer", "q s")
    for pieces, chances in ((run.texts["prompt"], None), (run.texts["tokens"], run.arrays["chances"])):
        for number, piece in enumerate(pieces):
            piece = re.sub(" {2,}", " ", piece.replace("\n", "⏎")) + (" " if is_genes and piece[-1:] != " " else "")
            if x + len(piece) > columns:
                x, y = 0.0, y + 1
            if y > 3:
                break
            place = left + x * LETTER, top + y * 18
            if chances is not None:
                drawing.bar(place[0], place[1] - 10, LETTER * len(piece), 14, "fa", 0.06 + 0.5 * float(chances[number]))
            drawing.code(*place, piece, "" if chances is not None else "q")
            x += len(piece)
    loss, held_out, unigram = run.arrays["loss"], run.arrays["held_out"], float(run.texts["unigram"])
    high = float(np.ceil(loss[0, 1]))
    low = 3.0 if is_genes else 0.0
    axes = Axes(drawing, (44, 118, 300, 98), (0, float(loss[-1, 0])), (low, high))
    axes.ticks(round_ticks(0, float(loss[-1, 0])), round_ticks(low, high, 3))
    span = max(1, len(loss) // 100)
    count = len(loss) // span * span
    means = loss[:count].reshape(-1, span, 2).mean(1)
    axes.path(means[:, 0], means[:, 1], "a")
    (x1, y1), (x2, _) = axes.place(0, unigram), axes.place(float(loss[-1, 0]), unigram)
    drawing.line(x1, y1, x2, y1, "n d")
    for step, value in held_out:
        drawing.dot(*axes.place(float(step), float(value)), 3.2, "fb")
    held = float(held_out[-1, 1])
    for number, (style, words) in enumerate(
        (("fa", f"training {means[-1, 1]:.2f}"), ("fb", f"held out {held:.2f}"), ("q", f"unigrams {unigram:.2f}"))
    ):
        drawing.text(356, 140 + number * 18, words, style)
    drawing.text(356, 198, "nats a token,", "q s")
    drawing.text(356, 211, "over steps", "q s")
    return (
        f"A prompt in grey and how the model goes on, shaded by the probability of each "
        f"{'codon' if is_genes else 'token'}; below, the loss in training, on held-out texts ({held:.2f}), and "
        f"that of who knows only how often each token occurs ({unigram:.2f}).",
        "genes drawn by codon usage, each codon by itself" if is_genes else DOCUMENTATION,
    )


def _letter(token: int, space: str = " ") -> str:
    return chr(token) if 32 < token < 127 else space


def _around(tokens: NDArray[Any], labels: NDArray[Any], spot: int) -> Sequence[int]:
    """Return the tokens around a place; others that are hidden show what they are."""
    places = [at for at in range(spot - 4, spot + 5) if 0 < at < len(tokens) - 1]
    return [int(tokens[at]) if at == spot or labels[at] == IGNORED else int(labels[at]) for at in places]


def _short(name: str) -> str:
    return name if len(name) < 13 else name[:11] + "…"
