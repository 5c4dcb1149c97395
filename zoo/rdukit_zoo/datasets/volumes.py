"""Volumes from geometry and physics: cells for segmentation, crystals and their diffraction.

Axes: N samples, S side of a volume in voxels.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray


def make_cells(count: int, seed: int, size: int = 32) -> dict[str, NDArray[Any]]:
    """Draw volumes with up to six cells, as a light-sheet microscope shows their membranes.

    Cells are ellipsoids with a rough surface; membranes are bright, insides dim, the light fades with depth, photons
    are noisy.

    Returns:
        ``volume`` [N, 1, S, S, S] float32 of mean 0 and deviation 1, and ``mask`` [N, 1, S, S, S] float32, 1 within a
        cell.
    """
    draw = np.random.default_rng([seed, 17])
    axes = [axis.astype(np.float32) for axis in np.meshgrid(*[np.linspace(-1, 1, size)] * 3, indexing="ij")]
    volume = np.empty((count, 1, size, size, size), np.float32)
    mask = np.zeros_like(volume)
    for sample in range(count):
        light = np.full((size,) * 3, 2.0, np.float32)
        for _ in range(draw.integers(1, 7)):
            middle, radii = draw.uniform(-0.7, 0.7, 3), draw.uniform(0.2, 0.5, 3)
            rough = 0.08 * np.sin(draw.uniform(4, 9) * axes[0] + draw.uniform(4, 9) * axes[1] + draw.uniform(0, 6))
            away = np.sqrt(sum(((x - m) / r) ** 2 for x, m, r in zip(axes, middle, radii, strict=True))) + rough
            light += draw.uniform(8, 20) * np.exp(-(((away - 1) / 0.15) ** 2)) + 3 * (away < 1)
            mask[sample, 0] = np.maximum(mask[sample, 0], away < 1)
        seen = draw.poisson(light * np.exp(-0.35 * (axes[0] + 1))).astype(np.float32)
        volume[sample, 0] = (seen - seen.mean()) / seen.std()
    return {"volume": volume, "mask": mask}


def make_crystals(count: int, seed: int, size: int = 32) -> dict[str, NDArray[Any]]:
    """Draw crystals with a strain field and compute the magnitudes of their coherent diffraction.

    A crystal is a rounded polyhedron in the middle half of the volume; its phase is a smooth field of up to 2.5
    radians, as displacement along the scattering vector makes it.

    Returns:
        ``pattern`` [N, 1, S, S, S] float32: magnitudes of the Fourier transform, the middle frequency in the middle,
        scaled to at most 1. The crystals are not returned: training sees only patterns.
    """
    draw = np.random.default_rng([seed, 18])
    inner = size // 2
    axes = np.meshgrid(*[np.linspace(-1, 1, inner)] * 3, indexing="ij")
    found = np.empty((count, 1, size, size, size), np.float32)
    for sample in range(count):
        inside = np.ones((inner,) * 3)
        for _ in range(draw.integers(6, 13)):
            normal = draw.normal(size=3)
            normal /= np.linalg.norm(normal)
            away = np.tensordot(normal, np.stack(axes), 1) - draw.uniform(0.45, 0.85)
            inside = inside / (1 + np.exp(12 * away))
        phase = np.zeros_like(inside)
        for _ in range(4):
            wave = np.tensordot(draw.uniform(-1, 1, 3), np.stack(axes), 1)
            phase += draw.normal() * np.cos(np.pi * wave + draw.uniform(0, 6))
        phase = 2.5 * phase / max(float(np.abs(phase).max()), 1e-6)
        crystal = np.zeros((size,) * 3, np.complex64)
        before = (size - inner) // 2
        middle = slice(before, before + inner)
        crystal[middle, middle, middle] = inside * np.exp(1j * phase)
        pattern = np.abs(np.fft.fftshift(np.fft.fftn(crystal)))
        found[sample, 0] = pattern / pattern.max()
    return {"pattern": found}
