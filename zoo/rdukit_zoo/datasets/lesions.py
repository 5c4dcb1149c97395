"""Slices through an organ with lesions, as scanners show them: smooth tissue, a bias field, noise, and a mask.

Axes: N slices, C channels, Y and X rows and columns.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray


def make_lesions(count: int, seed: int, image_size: int = 64, channels: int = 3) -> dict[str, NDArray[Any]]:
    """Draw slices of one organ, each with up to three lesions whose borders are known exactly.

    The organ is an ellipse of tissue with folds; a lesion is a blob with a rough border, brighter by channel. The
    channels are neighbouring slices, in which a lesion's size changes; the mask is the middle one's.

    Returns:
        ``image`` [N, C, Y, X] float32, each channel of mean 0 and deviation 1, and ``mask`` [N, 1, Y, X] float32, 1
        within a lesion.
    """
    draw = np.random.default_rng([seed, 15])
    y_YX, x_YX = (np.mgrid[:image_size, :image_size] / (image_size - 1) * 2 - 1).astype(np.float32)
    image = np.empty((count, channels, image_size, image_size), np.float32)
    mask = np.zeros((count, 1, image_size, image_size), np.float32)
    for sample in range(count):
        tilt, (height, width) = draw.uniform(0, np.pi), draw.uniform(0.65, 0.9, 2)
        across, along = x_YX * np.cos(tilt) + y_YX * np.sin(tilt), y_YX * np.cos(tilt) - x_YX * np.sin(tilt)
        organ = ((across / width) ** 2 + (along / height) ** 2 < 1).astype(np.float32)
        folds = sum(
            np.sin(draw.uniform(4, 16) * x_YX + draw.uniform(4, 16) * y_YX + draw.uniform(0, 6)) for _ in range(4)
        )
        lesions = [
            (draw.uniform(-0.45, 0.45, 2), draw.uniform(0.10, 0.28), draw.uniform(0, 6, 3), draw.uniform(0.5, 1.3))
            for _ in range(draw.integers(0, 4))
        ]
        bias = 1 + 0.3 * (draw.uniform(-1, 1) * x_YX + draw.uniform(-1, 1) * y_YX)
        for channel in range(channels):
            slice_YX = organ * (0.55 + 0.05 * folds)
            away = channel - channels // 2
            for (row, column), radius, phases, contrast in lesions:
                angle = np.arctan2(y_YX - row, x_YX - column)
                rough = 1 + 0.18 * np.sin(3 * angle + phases[0]) + 0.10 * np.sin(5 * angle + phases[1])
                border = radius * (1 - 0.12 * abs(away)) * rough
                inside = (np.hypot(y_YX - row, x_YX - column) < border) * organ
                slice_YX = slice_YX + contrast * 0.35 * inside
                if away == 0:
                    mask[sample, 0] = np.maximum(mask[sample, 0], inside)
            slice_YX = slice_YX * bias + draw.normal(0, 0.06, slice_YX.shape)
            image[sample, channel] = (slice_YX - slice_YX.mean()) / slice_YX.std()
    return {"image": image, "mask": mask}
