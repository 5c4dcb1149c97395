"""Pictures for model cards: for each task a drawing of a run, with its caption.

Axes: N samples, T steps, V sensors, Y and X rows and columns.
"""

import re
from collections.abc import Callable, Mapping
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from pictures.runs import Run, softmax, some_wrong
from pictures.svg import Axes, Drawing, round_ticks
from pictures.text_scenes import draw_classes, draw_likeness, draw_masked, draw_text
from rdukit_modelbox.tasks.pictures import middle_slice

#: Draws a run, and returns what is to be seen, and where the data are from.
Scene = Callable[[Drawing, Run], tuple[str, str]]
DIGITS: Final = "the bundled handwritten digits"


def draw_digits(drawing: Drawing, run: Run) -> tuple[str, str]:
    """Draw ten digits with the class that the model gives, the last ones such that it gets wrong."""
    images, labels, chances = _digits(run)
    answers = chances.argmax(1)
    shown = some_wrong(answers == labels, 10)
    for place, row in enumerate(shown):
        x, y = 14 + place % 5 * 93, 12 + place // 5 * 116
        drawing.grey(x, y, 80, images[row])
        style = "fa" if answers[row] == labels[row] else "fb"
        drawing.text(x, y + 95, f"{answers[row]}", style)
        drawing.bar(x + 12, y + 88, 32 * float(chances[row].max()), 6, style, 0.8)
        drawing.text(x + 80, y + 95, f"{100 * chances[row].max():.0f} %", "q s e")
    return (
        f"Held-out digits with the likeliest class and its probability: blue is right, orange is wrong. Of all "
        f"held-out digits {100 * run.figures['accuracy']:.1f} % are right; the last two are wrong on purpose.",
        DIGITS,
    )


def draw_weights(drawing: Drawing, run: Run) -> tuple[str, str]:
    """Draw digits with their classes above the weights of each class, which are the whole model."""
    images, labels, chances = _digits(run)
    answers = chances.argmax(1)
    for place, row in enumerate(some_wrong(answers == labels, 5)):
        x, style = 14 + place * 93, "fa" if answers[row] == labels[row] else "fb"
        drawing.grey(x, 8, 80, images[row])
        drawing.text(x, 102, f"{answers[row]}", style)
        drawing.bar(x + 12, 95, 32 * float(chances[row].max()), 6, style, 0.8)
        drawing.text(x + 80, 102, f"{100 * chances[row].max():.0f} %", "q s e")
    limit = float(np.abs(run.arrays["weight"]).max()) * 0.7
    drawing.text(14, 124, "what each class looks for: its weights", "q")
    for digit, weight in enumerate(run.arrays["weight"]):
        left, y = 14 + digit % 10 * 45.6, 132
        drawing.grey(left, y, 41, weight.reshape(28, 28), (-limit, limit))
        drawing.text(left + 20, y + 54, str(digit), "q s k")
    drawing.text(14, 215, f"accuracy on held-out digits {100 * run.figures['accuracy']:.1f} %", "")
    return (
        "Held-out digits with the likeliest class and its probability (blue right, orange wrong), and the weights "
        "of the ten classes: yellow speaks for a class, blue against it. "
        f"{100 * run.figures['accuracy']:.1f} % are right.",
        DIGITS,
    )


def draw_confusion(drawing: Drawing, run: Run) -> tuple[str, str]:
    """Draw six digits beside the table of true and given classes."""
    images, labels, chances = _digits(run)
    answers = chances.argmax(1)
    for place, row in enumerate(some_wrong(answers == labels, 6)):
        x, y = 14 + place % 3 * 76, 18 + place // 3 * 106
        style = "fa" if answers[row] == labels[row] else "fb"
        drawing.grey(x, y, 66, images[row])
        drawing.text(x, y + 82, f"{answers[row]}", style)
        drawing.text(x + 66, y + 82, f"{100 * chances[row].max():.0f} %", "q s e")
    counts = np.zeros((10, 10))
    np.add.at(counts, (labels, answers), 1)
    drawing.grey(278, 30, 186, np.log1p(counts))
    for digit in range(10):
        drawing.text(272, 43 + digit * 18.6, str(digit), "q s e")
        drawing.text(287.3 + digit * 18.6, 228, str(digit), "q s k")
    drawing.text(278, 20, "true class (rows), given class (columns)", "q s")
    return (
        "Held-out digits with the likeliest class and its probability, blue where right, and how often each true class "
        f"got each answer. {100 * run.figures['accuracy']:.1f} % are right.",
        DIGITS,
    )


def draw_masks(drawing: Drawing, run: Run) -> tuple[str, str]:
    """Draw images, or the middle slices of volumes, above prediction and truth."""
    names = [name for name in run.arrays if name != "output"]
    images, truth, output = (run.arrays[name] for name in (*names, "output"))
    is_classes = np.issubdtype(truth.dtype, np.integer)
    answer = output.argmax(1) if is_classes else output
    areas = np.array([np.count_nonzero(middle_slice(values) > (1 if is_classes else 0.5)) for values in truth])
    shown = np.flatnonzero(areas >= np.quantile(areas, 0.5))[:5]
    for place, row in enumerate(shown):
        x = 92 + place * 77
        image = images[row]
        drawing.grey(x, 6, 72, middle_slice(image), tuple(np.quantile(middle_slice(image), (0.01, 0.995))))
        for y, masks in ((84, answer), (162, truth)):
            values = middle_slice(masks[row])
            if is_classes:
                drawing.classes(x, y, 72, values)
            else:
                drawing.grey(x, y, 72, np.round(values * 15) / 15, (0, 1))
    for y, words in ((46, "input"), (124, "prediction"), (202, "truth")):
        drawing.text(84, y, words, "e")
    if is_classes:
        for y, words, style in ((138, "cosmic", "fa s e"), (150, "neutrino", "fb s e")):
            drawing.text(84, y, words, style)
    figures = ", ".join(f"{_NAMES.get(key, key)} {value:.3f}" for key, value in run.figures.items() if key in _NAMES)
    what, source = {
        "unet2d": ("Slices", "slices of an organ with lesions, drawn with known borders"),
        "unet3d": ("Middle slices of volumes", "volumes with cells, drawn with known borders"),
    }.get(
        run.box, ("One wire plane of detector events", "tracks of charged particles, drawn with scattering and noise")
    )
    return f"{what} that the model has not seen, what it finds, and the truth; {figures} on all of them.", source


_NAMES: Final[Mapping[str, str]] = {
    "dice": "Dice", "iou": "IoU", "foreground_accuracy": "foreground accuracy", "iou_1": "IoU of cosmic rays",
    "iou_2": "IoU of the neutrino",
}  # fmt: skip


def draw_peaks(drawing: Drawing, run: Run) -> tuple[str, str]:
    """Draw patches with the found and the true centre, beside the share of peaks within a distance."""
    patch, centre, output = (run.arrays[name] for name in ("patch", "centre", "output"))
    side = patch.shape[-1]
    for place in range(8):
        x, y, size = 14 + place % 4 * 66, 26 + place // 4 * 104, 58
        drawing.grey(x, y, size, middle_slice(patch[place]))
        (row, column), (found_row, found_column) = ((values[place] + 0.5 / side) * size for values in (centre, output))
        drawing.dot(x + column, y + row, 5.5, "b")
        drawing.line(x + found_column - 4, y + found_row, x + found_column + 4, y + found_row, "w")
        drawing.line(x + found_column, y + found_row - 4, x + found_column, y + found_row + 4, "w")
        error = float(np.linalg.norm(centre[place] - output[place])) * side
        drawing.text(x + size, y + size + 13, f"{error:.2f} px", "q s e")
    drawing.text(14, 17, "true centre (ring), found (cross), error")
    errors = np.sort(np.linalg.norm(centre - output, axis=1)) * side
    axes = Axes(drawing, (326, 26, 138, 178), (0, 0.6), (0, 1))
    axes.ticks([0, 0.2, 0.4, 0.6], [0, 0.5, 1])
    kept = errors[: np.searchsorted(errors, 0.6)]
    axes.path([*kept, 0.6], [*(np.arange(1, len(kept) + 1) / len(errors)), len(kept) / len(errors)], "a")
    for limit, share in ((0.29, 0.75), (0.57, 0.95)):
        drawing.dot(*axes.place(limit, share), 3.5, "fb")
    drawing.text(326, 17, "share of peaks within …")
    drawing.text(464, 231, "pixels", "q s e")
    drawing.text(axes.place(0.29, 0.75)[0] - 6, axes.place(0.29, 0.75)[1] + 18, "published bounds", "q s")
    return (
        "Diffraction peaks that the model has not seen, with their true and found centres, and the share of peaks "
        f"whose error is within a distance: 75 % under {run.figures['error_p75']:.2f} pixels, 95 % under "
        f"{run.figures['error_p95']:.2f}.",
        "pseudo-Voigt peaks with photon noise, drawn with known centres",
    )


def draw_forecasts(drawing: Drawing, run: Run) -> tuple[str, str]:
    """Draw readings of four sensors, what came next, and the forecast."""
    history, future, output = (
        np.where(run.arrays[key] == 0, np.nan, run.arrays[key]) for key in ("history", "future", "output")
    )
    history, steps = history[..., 0], future.shape[1]
    spans = np.nanmax(output, 1) - np.nanmin(output, 1)
    rows = np.argsort(-spans.max(1))[: len(spans) // 4 : len(spans) // 16]
    for place, row in enumerate(rows[:4]):
        sensor = int(spans[row].argmax())
        left, top = 34 + place % 2 * 232, 32 + place // 2 * 106
        axes = Axes(drawing, (left, top, 200, 74), (-5.0 * steps, 5.0 * steps), (0, 75))
        axes.ticks([-5 * steps, 0, 5 * steps], [0, 30, 60])
        past, after, found = history[row, :, sensor], future[row, :, sensor], output[row, :, sensor]
        drawing.line(*axes.place(0, 0), *axes.place(0, 75), "l d")
        minutes = np.arange(-steps + 1, 1) * 5.0
        axes.path(minutes, past, "n")
        axes.path(np.arange(0, steps + 1) * 5.0, [past[-1], *after], "a")
        axes.path(np.arange(0, steps + 1) * 5.0, [past[-1], *found], "b")
        drawing.text(left + 4, top + 70, f"sensor {sensor + 1}", "q s")
    for x, words, style in ((34, "read before", "q"), (118, "what came", "fa"), (192, "forecast", "fb")):
        drawing.text(x, 15, words, style)
    drawing.text(464, 15, "mph over minutes", "q s e")
    return (
        "Speeds at sensors of a ring road: an hour of readings in grey, the next hour as it came in blue and as "
        f"forecast in orange. The mean error on held-out windows is {run.figures['mae']:.2f} mph; repeating the last "
        f"reading errs by {run.figures['mae_last_value']:.2f}.",
        "traffic simulated as congestion that diffuses along the roads",
    )


def draw_regression(drawing: Drawing, run: Run) -> tuple[str, str]:
    """Draw predictions over truths, beside the spread of the errors."""
    truth, found = run.arrays["growth"].ravel(), run.arrays["output"].ravel()
    _scatter(drawing, (44, 24, 190, 180), truth, found, 1.0, 0.0)
    drawing.text(44, 15, "predicted growth over true growth")
    errors = found - truth
    counts, edges = np.histogram(errors, bins=31, range=(-0.35, 0.35))
    axes = Axes(drawing, (272, 24, 192, 180), (-0.35, 0.35), (0, float(counts.max()) * 1.05))
    axes.ticks([-0.2, 0, 0.2], [])
    for count, low, high in zip(counts, edges, edges[1:], strict=False):
        (x1, y1), (x2, y2) = axes.place(float(low), float(count)), axes.place(float(high), 0)
        if count:
            drawing.bar(x1 + 0.5, y1, x2 - x1 - 1, y2 - y1, "fa", 0.75)
    drawing.text(272, 15, "errors")
    return (
        "Growth of tumour cells under two drugs: prediction over truth of held-out samples, and how far off they are; "
        f"R² {run.figures['r2']:.3f}, mean error {run.figures['mae']:.3f}.",
        "dose curves drawn by Hill's equation with hidden traits of cells and drugs",
    )


def draw_values(drawing: Drawing, run: Run) -> tuple[str, str]:
    """Draw predictions over truths; for models of one number that have no scene of their own."""
    target = [key for key in run.arrays if key != "output"][-1]
    _scatter(drawing, (44, 24, 190, 180), run.arrays[target].ravel(), run.arrays["output"].ravel(), 1.0, 0.0)
    drawing.text(44, 15, f"predicted {target} over true {target}")
    return (
        f"Prediction over truth of held-out samples; R² {run.figures['r2']:.3f}, mean error {run.figures['mae']:.3f}.",
        "drawn by the model's own generator",
    )


def draw_polymers(drawing: Drawing, run: Run) -> tuple[str, str]:
    """Draw chains of repeat units with the found and the true temperature, beside predictions over truths."""
    units, truth, found = run.arrays["units"], run.arrays["transition"].ravel(), run.arrays["output"].ravel()
    drawing.text(14, 15, "repeat units of a chain")
    drawing.text(286, 15, "found, true (K)", "e")
    for place, row in enumerate(np.linspace(0, len(truth) - 1, 8).astype(int)):
        y = 24 + place * 26
        for unit, kind in enumerate(units[row]):
            drawing.bar(
                14 + unit * 8, y, 7, 16, ("fa", "fb", "fc", "fq")[kind % 4], (1.0, 0.75, 0.5, 0.32, 0.2)[kind // 4 % 5]
            )
        drawing.text(286, y + 12, f"{found[row] * 100 + 300:.0f}, {truth[row] * 100 + 300:.0f}", "e")
    _scatter(drawing, (328, 24, 136, 180), truth, found, 100.0, 300.0)
    drawing.text(464, 15, "found over true (K)", "e")
    return (
        "Chains of repeat units, a colour for each kind, with the glass transition that the model finds and the true "
        f"one, and the same of all held-out chains; R² {run.figures['r2']:.3f}, mean error "
        f"{100 * run.figures['mae']:.1f} K.",
        "copolymers drawn by group contributions",
    )


def draw_objects(drawing: Drawing, run: Run) -> tuple[str, str]:
    """Draw diffraction patterns, and the crystal's amplitude and phase that the model finds."""
    pattern, output = run.arrays["pattern"], run.arrays["output"]
    for place in range(5):
        x = 92 + place * 77
        amplitude, phase = (middle_slice(output[place, channel : channel + 1]) for channel in (0, 1))
        drawing.grey(x, 6, 72, np.log(middle_slice(pattern[place]) + 1e-3))
        drawing.grey(x, 84, 72, amplitude, (0, 1))
        drawing.grey(x, 162, 72, np.where(amplitude > 0.3, phase, -np.pi), (-np.pi, np.pi))
    for y, words, more in ((42, "diffraction", "(input)"), (120, "amplitude", "0 to 1"), (198, "phase", "−π to π")):
        drawing.text(84, y, words, "e")
        drawing.text(84, y + 13, more, "q s e")
    return (
        "Middle slices of diffraction patterns that the model has not seen, with the amplitude and phase of the "
        f"crystal it finds. There is no target: the crystal's own pattern must be the input's.{_loss(run)}",
        "crystals with a strain field and their coherent diffraction",
    )


def draw_frames(drawing: Drawing, run: Run) -> tuple[str, str]:
    """Draw diffraction frames, the same out of a few numbers, and what was left out."""
    name = next(key for key in run.arrays if key != "output")
    frames, output = run.arrays[name], run.arrays["output"]
    for place in range(5):
        x, image, again = 92 + place * 77, middle_slice(frames[place]), middle_slice(output[place])
        limits = float(image.min()), float(image.max())
        drawing.grey(x, 6, 72, image, limits)
        drawing.grey(x, 84, 72, again, limits)
        half = (limits[1] - limits[0]) / 2
        drawing.grey(x, 162, 72, image - again, (-half, half))
    code = run.sizes.get("code", 24)
    for y, words, more in (
        (42, "frame", "(input)"),
        (120, "from code", f"{code} numbers"),
        (198, "difference", "left out"),
    ):
        drawing.text(84, y, words, "e")
        drawing.text(84, y + 13, more, "q s e")
    return (
        f"Diffraction frames that the model has not seen, the same drawn again from {code} numbers each, and the "
        f"difference.{_loss(run)}",
        "frames with peaks and photon noise",
    )


def draw_samples(drawing: Drawing, run: Run) -> tuple[str, str]:
    """Draw digits out of noise above real ones."""
    real = run.arrays[[key for key in run.arrays if key != "output"][-1]]
    for place in range(18):
        drawing.grey(14 + place % 6 * 76, 22 + place // 6 * 50, 46, middle_slice(run.arrays["output"][place]))
    for place in range(6):
        drawing.grey(14 + place * 76, 190, 46, middle_slice(real[place]))
    drawing.text(14, 15, "drawn from noise")
    drawing.text(14, 184, "real ones, to compare", "q")
    return "Digits that the generator draws from noise, and real ones to compare.", DIGITS


SCENES: Final[Mapping[str, Scene]] = {
    "logreg": draw_weights, "mlp": draw_confusion, "uno": draw_regression, "polymers": draw_polymers,
    "autophasenn": draw_objects, "autodicnn": draw_frames, "classification": draw_digits,
    "image-classification": draw_digits, "segmentation": draw_masks, "regression": draw_values, "braggnn": draw_peaks,
    "forecasting": draw_forecasts, "generative": draw_samples, "masked-language-modelling": draw_masked,
    "sequence-classification": draw_classes, "embedding": draw_likeness, "language-modelling": draw_text,
}  # fmt: skip


def draw(run: Run, title: str, task: str) -> tuple[str, str, str]:
    """Return a run's SVG, its words in short, and its caption; a model's own scene goes before its task's."""
    drawing = Drawing()
    seen, data = (SCENES.get(run.box) or SCENES[task])(drawing, run)
    sizes = ", ".join(
        f"{key}={value}" for verb in ("preprocess", "compile", "train") for key, value in run.recipe[verb].items()
    )
    seconds = f"{run.seconds:.0f} s" if run.seconds >= 10 else f"{run.seconds:.1f} s"
    trained = "The weights are those of the box bert, trained" if run.box == "bert-embedder" else "Trained"
    caption = f"{seen} {trained} for {run.steps:,} steps in {seconds} of one core ({sizes}). Data: {data}."
    short = re.split(r"[;.](?=\s|$)", seen)[0]
    return drawing.render(f"{title}: {short}"), short, caption


def _digits(run: Run) -> tuple[NDArray[Any], NDArray[Any], NDArray[Any]]:
    """Return images [N, Y, X], labels [N] and the probabilities of the classes."""
    images = run.arrays["images" if "images" in run.arrays else "image"]
    labels = run.arrays["labels" if "labels" in run.arrays else "label"]
    side = images.shape[-1] if images.ndim == 4 else 28
    return images.reshape(len(images), side, side), labels, softmax(run.arrays["output"])


def _scatter(
    drawing: Drawing, box: tuple[float, float, float, float], truth: NDArray[Any], found: NDArray[Any],
    scale: float, offset: float,
) -> None:  # fmt: skip
    truth, found = truth[:250] * scale + offset, found[:250] * scale + offset
    low, high = float(min(truth.min(), found.min())), float(max(truth.max(), found.max()))
    axes = Axes(drawing, box, (low, high), (low, high))
    ticks = round_ticks(low, high, 3)
    axes.ticks(ticks, ticks)
    drawing.line(*axes.place(low, low), *axes.place(high, high), "n d")
    drawing.dots([axes.place(float(x), float(y)) for x, y in zip(truth, found, strict=True)], "a")


def _loss(run: Run) -> str:
    return f" The loss on held-out samples is {run.figures['loss']:.4f}." if "loss" in run.figures else ""
