"""MNIST's transform. Source: SDK reference 7.5."""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch

MEAN, STD = 0.1307, 0.3081


def dataset_transform(args: Any) -> Callable[[Any], torch.Tensor]:
    """Return a transform from an image (PIL or array, 0..255) to a normalized, flat tensor of ``num_features``."""
    features = args["num_features"] if isinstance(args, Mapping) else args.num_features

    def transform(image: Any) -> torch.Tensor:
        pixels = torch.from_numpy(np.asarray(image, dtype=np.float32).copy()) / 255.0
        return ((pixels - MEAN) / STD).reshape(int(features))

    return transform
