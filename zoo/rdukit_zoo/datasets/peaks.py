"""Bragg peaks from physics: pseudo-Voigt spots on a detector with noise, whose centres are known exactly.

Axes: N patches, S side of a patch in pixels.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray


def make_peaks(count: int, seed: int, patch_size: int = 11) -> dict[str, NDArray[Any]]:
    """Draw patches with one peak each, as a peak finder cuts them out.

    A peak is the pseudo-Voigt profile of an elliptic distance: a share of a Lorentzian and the rest a Gaussian, with
    photon noise and a background. Its centre lies within two pixels of the middle.

    Returns:
        ``patch`` [N, 1, S, S] float32 between 0 and 1, each scaled by its own least and greatest value, and
        ``centre`` [N, 2] float32: row and column of the centre from the patch's first pixel, as shares of S.
    """
    draw = np.random.default_rng([seed, 11])
    middle = (patch_size - 1) / 2
    centre_N2 = middle + draw.uniform(-2.0, 2.0, (count, 2))
    width_N2 = draw.uniform(1.0, 2.2, (count, 2))
    angle_N, share_N = draw.uniform(0, np.pi, count), draw.uniform(0, 1, count)
    height_N, background_N = draw.uniform(80, 2000, count), draw.uniform(0, 15, count)
    row_SS, column_SS = np.mgrid[:patch_size, :patch_size]
    down_NSS = row_SS - centre_N2[:, 0, None, None]
    right_NSS = column_SS - centre_N2[:, 1, None, None]
    cosine, sine = (part(angle_N)[:, None, None] for part in (np.cos, np.sin))
    along_NSS = (cosine * down_NSS + sine * right_NSS) / width_N2[:, 0, None, None]
    across_NSS = (cosine * right_NSS - sine * down_NSS) / width_N2[:, 1, None, None]
    square_NSS = along_NSS**2 + across_NSS**2
    profile_NSS = share_N[:, None, None] / (1 + square_NSS)
    profile_NSS += (1 - share_N[:, None, None]) * np.exp(-np.log(2) * square_NSS)
    photons_NSS = draw.poisson(height_N[:, None, None] * profile_NSS + background_N[:, None, None]).astype(np.float32)
    low, high = photons_NSS.min((1, 2), keepdims=True), photons_NSS.max((1, 2), keepdims=True)
    patch_NSS = (photons_NSS - low) / np.maximum(high - low, 1)
    return {
        "patch": patch_NSS[:, None].astype(np.float32),
        "centre": (centre_N2 / patch_size).astype(np.float32),
    }
