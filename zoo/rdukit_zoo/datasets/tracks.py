"""Events of a liquid-argon detector: three wire planes that see the same tracks, cosmic ones and a neutrino's.

Axes: N events, P planes, Y and X ticks and wires.
"""

from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

PLANES: Final = 3
#: Classes of a pixel.
BACKGROUND, COSMIC, NEUTRINO = 0, 1, 2


def make_events(count: int, seed: int, height: int = 64, width: int = 64) -> dict[str, NDArray[Any]]:
    """Draw events: some cosmic tracks that cross the detector, in most a neutrino's short tracks from one vertex.

    A track is a line in space with scattering; each plane sees it from another angle. Charge per step follows a Landau
    shape, electronics add noise below the threshold.

    Returns:
        ``charge`` [N, P, Y, X] float32, zero where nothing was seen, and ``label`` [N, P, Y, X] int64: 0 background, 1
        cosmic, 2 neutrino.
    """
    draw = np.random.default_rng([seed, 19])
    charge = np.zeros((count, PLANES, height, width), np.float32)
    label = np.zeros((count, PLANES, height, width), np.int64)
    for event in range(count):
        tracks = [(draw.uniform(-0.2, 1.2, 3), draw.uniform(1.0, 2.0), COSMIC) for _ in range(draw.integers(2, 6))]
        if draw.random() < 0.8:
            vertex = draw.uniform(0.25, 0.75, 3)
            tracks += [(vertex, draw.uniform(0.1, 0.4), NEUTRINO) for _ in range(draw.integers(2, 5))]
        for start, length, kind in tracks:
            _add_track(draw, charge[event], label[event], start, length, kind)
    seen = charge > 0.15
    return {"charge": np.where(seen, charge, 0), "label": np.where(seen, label, BACKGROUND)}


def _add_track(
    draw: np.random.Generator, charge_PYX: NDArray[np.float32], label_PYX: NDArray[np.int64],
    start: NDArray[np.float64], length: float, kind: int,
) -> None:  # fmt: skip
    """Add a track's charge to each plane; a neutrino's pixels keep their label where tracks cross."""
    _, height, width = charge_PYX.shape
    steps = int(2 * length * max(height, width))
    heading = draw.normal(size=3)
    if kind == COSMIC:
        heading[0] = 2 * abs(heading[0]) + 1
        start = start.copy()
        start[0] = 0.0
    heading /= np.linalg.norm(heading)
    bends = np.cumsum(draw.normal(0, 0.01, (steps, 3)), 0)
    ahead = heading + bends
    points = start + np.cumsum(ahead / np.linalg.norm(ahead, axis=1, keepdims=True), 0) * (length / steps)
    deposit = (0.6 + 0.25 * draw.gumbel(size=steps)).clip(0.05)
    for plane, angle in enumerate((0.0, np.pi / 3, -np.pi / 3)):
        across = 0.5 + np.cos(angle) * (points[:, 1] - 0.5) + np.sin(angle) * (points[:, 2] - 0.5)
        row, column = (points[:, 0] * height).astype(int), (across * width).astype(int)
        inside = (row >= 0) & (row < height) & (column >= 0) & (column < width)
        np.add.at(charge_PYX[plane], (row[inside], column[inside]), deposit[inside].astype(np.float32))
        kept = label_PYX[plane, row[inside], column[inside]]
        label_PYX[plane, row[inside], column[inside]] = np.maximum(kept, kind)
