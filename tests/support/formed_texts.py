"""Texts of a form, made by chance over a tokenizer of bytes, without a model."""

import functools
import random
from typing import Final

import numpy as np
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from rdukit_serving.text.constraints import Constraints, TextForm
from rdukit_serving.text.token_bytes import TokenBytes, byte_letters

#: The token that ends a text; those before it are bytes.
END: Final = 256
#: Likelier than others, so that texts end.
_CLOSING: Final = frozenset({b'"', b"}", b"]", b"</think>"})


@functools.cache
def constraints() -> tuple[Constraints, list[bytes]]:
    """Forms over a tokenizer of bytes, a special token that ends texts, and tokens that were added."""
    letters = byte_letters()
    tokenizer = Tokenizer(models.BPE({letter: number for number, letter in enumerate(letters)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken("<|end|>", special=True)])
    tokenizer.add_tokens([AddedToken(text, special=False) for text in ("<think>", "</think>", '": ')])
    count = tokenizer.get_vocab_size()
    known = TokenBytes(tokenizer)
    return Constraints(tokenizer.to_str(), count, frozenset({END})), [known.of(token) for token in range(count)]


def make_text(form: TextForm, seed: int, most: int = 1500) -> str | None:
    """Make a text by chance, likelier short; None: it was cut off."""
    forms, tokens = constraints()
    constraint, draw, made = forms.find(form), random.Random(seed), bytearray()
    logits_V = np.zeros(len(tokens), np.float32)
    while not constraint.is_over:
        legal = constraint.legal_tokens(logits_V).tolist()
        if END in legal and (len(legal) == 1 or draw.random() < 0.3):
            break
        legal = [token for token in legal if token != END]
        weights = [30 if tokens[token] in _CLOSING else 1 for token in legal]
        token = draw.choices(legal, weights)[0]
        made += tokens[token]
        constraint.take(token)
        if len(made) > most:
            return None
    return made.decode()
