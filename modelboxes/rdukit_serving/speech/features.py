"""Log-mel spectrograms of audio. Pure; computed in float64, because float32 loses faint bands next to loud ones.

Axes: L samples, N frames, F frequencies, M bands.

Source: Radford et al., Whisper (2022), section 2.2; Slaney, Auditory Toolbox (1998), for the scale of the bands and
their equal areas.
"""

from functools import lru_cache
from typing import Final

import numpy as np
from numpy.typing import NDArray

from rdukit_serving.speech.description import AudioForm

#: The scale is linear up to this frequency, at so many hertz a mel, and logarithmic above.
_BREAK_HZ: Final = 1000.0
_LINEAR_HZ: Final = 200.0 / 3
_LOG_STEP: Final = np.log(6.4) / 27.0
#: Least power that counts, in tens of decibels below the loudest, and least power at all.
_RANGE: Final = 8.0
_FAINTEST: Final = 1e-10
#: Frames that are computed at once.
_BLOCK: Final = 1024


def log_mel(samples_L: NDArray[np.float32], form: AudioForm) -> NDArray[np.float32]:
    """Return the spectrogram [M, N] of audio, with N = L // hop; audio shorter than a window is padded with silence.

    The last samples before the start and behind the end are mirrored, so that frames are centred.
    """
    if len(samples_L) < form.window_samples:
        samples_L = np.pad(samples_L, (0, form.window_samples - len(samples_L)))
    half = form.transform // 2
    padded_L = np.pad(samples_L, half, mode="reflect")
    cut_NL = np.lib.stride_tricks.sliding_window_view(padded_L, form.transform)[:: form.hop]
    count = len(samples_L) // form.hop
    turns_L = 2 * np.pi * np.arange(form.transform) / form.transform
    shape_L = 0.5 - 0.5 * np.cos(turns_L)
    bands_FM = mel_bands(form.mels, form.transform, form.rate)
    logs_NM = np.empty((count, form.mels))
    for at in range(0, count, _BLOCK):
        power_NF = np.abs(np.fft.rfft(cut_NL[at : min(at + _BLOCK, count)] * shape_L, axis=1)) ** 2
        logs_NM[at : at + _BLOCK] = np.log10(np.maximum(power_NF @ bands_FM, _FAINTEST))
    np.maximum(logs_NM, logs_NM.max() - _RANGE, out=logs_NM)
    return np.ascontiguousarray(((logs_NM + 4.0) / 4.0).T, np.float32)


@lru_cache(maxsize=4)
def mel_bands(count: int, transform: int, rate: int) -> NDArray[np.float64]:
    """Return the weights [F, M] of frequencies in ``count`` triangular bands between 0 and half the rate."""
    frequencies_F = np.linspace(0.0, rate / 2, transform // 2 + 1)
    edges = _hertz(np.linspace(0.0, _mels(rate / 2), count + 2))
    widths = np.diff(edges)
    distances = edges - frequencies_F[:, None]
    rising_FM, falling_FM = -distances[:, :-2] / widths[:-1], distances[:, 2:] / widths[1:]
    areas_M = 2.0 / (edges[2:] - edges[:-2])
    found: NDArray[np.float64] = np.maximum(0.0, np.minimum(rising_FM, falling_FM)) * areas_M
    return found


def _mels(hertz: float) -> float:
    if hertz < _BREAK_HZ:
        return hertz / _LINEAR_HZ
    return float(_BREAK_HZ / _LINEAR_HZ + np.log(hertz / _BREAK_HZ) / _LOG_STEP)


def _hertz(mels: NDArray[np.float64]) -> NDArray[np.float64]:
    above = np.maximum(mels - _BREAK_HZ / _LINEAR_HZ, 0.0)
    return np.where(above > 0, _BREAK_HZ * np.exp(_LOG_STEP * above), mels * _LINEAR_HZ)
