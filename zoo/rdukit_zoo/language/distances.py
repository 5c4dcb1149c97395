"""Buckets of distances between tokens, which have a learned bias in T5 and MPNet.

Source: Raffel et al., T5 (2020).
"""

import math

import torch


def distance_buckets(count: int, buckets: int = 32, farthest: int = 128, *, is_causal: bool = False) -> torch.Tensor:
    """Return the bucket of each distance of a key from its query.

    With ``is_causal`` [count]: of keys that are 0, 1, 2 … tokens back. Else [2 * count - 1]: of keys that are from
    ``count - 1`` tokens back to as many ahead; the latter have the upper half of the buckets. Half of the buckets of a
    direction are distances of their own, the others grow logarithmically up to ``farthest``, from where on all share
    the last.
    """
    distances = torch.arange(count) if is_causal else torch.arange(1 - count, count)
    many = buckets if is_causal else buckets // 2
    exact, far = many // 2, distances.abs()
    grown = (far.clamp(min=1).float() / exact).log() / math.log(farthest / exact) * (many - exact)
    found = torch.where(far < exact, far, (exact + grown.long()).clamp(max=many - 1))
    return found if is_causal else found + many * (distances > 0)
