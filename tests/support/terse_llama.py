"""A tiny language model that ends texts, objects and strings soon, for clients that need whole answers."""

from collections.abc import Mapping
from typing import Any, Final

import torch

from rdukit_zoo.language.llama import Llama
from support.text_boxes import END, TINY, make_tiny_llama

SIZES: Final[Mapping[str, Any]] = {**TINY, "context_length": 4096, "prompt_length": 256}


def make_terse_llama() -> Llama:
    """Return the model: whatever it reads, each token has the same probability.

    Its layers give nothing, and the embedding, which is the head, has a row for each token's logit. All are positive,
    so that any token's row becomes the same vector of ones by the last norm.
    """
    model = make_tiny_llama(SIZES)
    logits = torch.full((257,), 4.0)
    for letters, logit in (("abcdefghijklmnopqrstuvwxyz 0123456789", 15), ("truefalsn", 15.5), ('"}]', 18), (",", 16)):
        logits[[ord(letter) for letter in letters]] = float(logit)
    logits[END] = 16.0
    with torch.no_grad():
        for name, value in model.named_parameters():
            if name.endswith(("o_proj.weight", "down_proj.weight")):
                value.zero_()
        head = model.get_parameter("lm_head.weight")
        head.copy_((logits / head.shape[1])[:, None].expand_as(head))
    return model
