"""Times of a transcript's tokens, from what the decoder attended to: dynamic time warping of tokens and audio. Pure.

Axes: A heads, T tokens, S states of the encoder.

Source: transformers' times of Whisper's tokens (``return_token_timestamps``), after OpenAI's; Sakoe and Chiba, Dynamic
programming algorithm optimization for spoken word recognition (1978).
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray


def token_times(shares_ATS: NDArray[np.float32], states: int, state_s: float, median: int) -> list[float]:
    """Return the seconds from the beginning of the window at which the decoder turns to each token's audio.

    Args:
        shares_ATS: share of each state in what a head attends to after a token. states: those of audio; the others are
            of what fills the window. state_s: seconds of a state. median: odd width of the filter.
    """
    if not shares_ATS.shape[1]:
        return []
    heard_ATS = shares_ATS[..., : max(states, 1)]
    deviation_A1S = heard_ATS.std(axis=1, keepdims=True)
    # One token, or equal ones, say nothing; transformers divides by 0 there.
    deviation_A1S[deviation_A1S == 0] = 1
    normal_ATS = (heard_ATS - heard_ATS.mean(axis=1, keepdims=True)) / deviation_A1S
    return [place * state_s for place in warp(-medians(normal_ATS, median).mean(axis=0))]


def medians(values: NDArray[np.float32], width: int) -> NDArray[np.float32]:
    """Return the median of each value and its neighbours along the last axis, ``width`` together, mirrored at the ends.

    An axis that is not longer than half the width is returned unchanged.
    """
    half, count = width // 2, values.shape[-1]
    if count <= half:
        return values
    padded = np.pad(values, [(0, 0)] * (values.ndim - 1) + [(half, half)], mode="reflect")
    parts = [padded[..., at : at + count] for at in range(width)]
    for last in range(width - 1, half - 1, -1):  # the largest of those left goes to the end, until the middle is there
        for at in range(last):
            parts[at], parts[at + 1] = np.minimum(parts[at], parts[at + 1]), np.maximum(parts[at], parts[at + 1])
    return parts[half]


def warp(cost_TS: NDArray[Any]) -> list[int]:
    """Return the first state of each token on the cheapest path from the first pair to the last.

    A step goes to the next token, to the next state, or to both. Of equal steps the one to the next state is taken.
    Sums are float32, as in transformers.
    """
    tokens, states = cost_TS.shape
    # Each pair's way: 0 from the token and the state before, 1 from the token before, 2 from the state before.
    came = np.empty((tokens, states), np.int8)
    infinite = np.full(tokens + 1, np.inf, np.float32)
    earlier, last = infinite.copy(), infinite  # sums of the last two diagonals, by token; 0 is before the first
    earlier[0] = 0
    for diagonal in range(tokens + states - 1):
        at = np.arange(max(0, diagonal - states + 1), min(tokens, diagonal + 1))
        both, token, state = earlier[at], last[at], last[at + 1]
        step = np.where((both < token) & (both < state), 0, np.where((token < both) & (token < state), 1, 2))
        came[at, diagonal - at] = step
        summed = infinite.copy()
        summed[at + 1] = cost_TS[at, diagonal - at].astype(np.float64) + np.choose(step, (both, token, state))
        earlier, last = last, summed
    first = [0] * tokens
    at_token, at_state = tokens - 1, states - 1
    while at_token >= 0 and at_state >= 0:
        first[at_token] = at_state
        step_here = int(came[at_token, at_state])
        at_token -= int(step_here != 2)
        at_state -= int(step_here != 1)
    return first
