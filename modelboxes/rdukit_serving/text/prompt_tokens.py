"""Tokens of long prompts, made in a thread of the server while streams continue; too long prompts are refused early.

A tokenizer takes seconds and gigabytes for texts that exceed any context. So a prompt is bounded by its bytes first,
then by the tokens of its slices, and only then read completely.
"""

import asyncio
import functools
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tokenizers import Tokenizer

from rdukit.errors import InvalidArgument
from rdukit_serving.text.chat_template import TOKENIZER_FILE, companion
from rdukit_serving.text.token_bytes import TokenBytes

#: Characters that are tokenized at once where only their number matters.
SLICE: Final = 16 << 10
#: Tokens that a cut between two slices may add.
CUT: Final = 64
#: Factor for tokenizers that drop parts of a text, such as spaces.
LOSSY: Final = 4


@dataclass(frozen=True, slots=True)
class PromptReader:
    """A tokenizer that reads prompts. Safe for threads."""

    tokenizer: Tokenizer
    #: Most bytes of text that a token stands for.
    token_bytes: int

    def read(self, text: str, is_rendered: bool, most: int, field: str = "prompt") -> list[int]:
        """Return the tokens of a prompt; a rendered prompt gets no further special tokens.

        Raises:
            InvalidArgument: the prompt has many more than ``most`` tokens. Up to twice ``most`` tokens are returned.
        """
        bound = most * self.token_bytes
        if len(text) > bound or (len(text) * 4 > bound and len(text.encode(errors="replace")) > bound):
            raise InvalidArgument(
                f"{field}: it has {len(text)} characters; expected 1 to {most} tokens, which have up to {bound} bytes",
                field=field,
            )
        count = 0
        for number, at in enumerate(range(0, len(text) if len(text) > SLICE else 0, SLICE)):
            count += len(self._encode(text[at : at + SLICE], is_rendered=True))
            if count - number * CUT > 2 * most:
                raise InvalidArgument(f"{field}: it has more than {2 * most} tokens; expected 1 to {most}", field=field)
        return self._encode(text, is_rendered)

    def _encode(self, text: str, is_rendered: bool) -> list[int]:
        # For a batch: meanwhile other threads run Python.
        (found,) = self.tokenizer.encode_batch_fast([text], add_special_tokens=not is_rendered)
        ids: list[int] = found.ids
        return ids


async def tokens_of(
    checkpoint: Path, text: str, most: int, *, is_rendered: bool = False, field: str = "prompt"
) -> Sequence[int]:
    """Return the tokens of a prompt by the tokenizer next to a checkpoint, as ``PromptReader.read``."""
    file = companion(checkpoint, TOKENIZER_FILE)
    return await asyncio.get_running_loop().run_in_executor(_thread(), _read, file, text, is_rendered, most, field)


async def texts_of(checkpoint: Path, parts: Sequence[Sequence[int]]) -> list[str]:
    """Return the texts of several runs of tokens by the tokenizer next to a checkpoint, without special tokens."""
    file = companion(checkpoint, TOKENIZER_FILE)
    return await asyncio.get_running_loop().run_in_executor(_thread(), _write, file, parts)


def _write(file: Path, parts: Sequence[Sequence[int]]) -> list[str]:
    status = file.stat()
    tokenizer = _reader_of(file, status.st_mtime_ns, status.st_size).tokenizer
    return [str(tokenizer.decode(list(part))) for part in parts]


def _read(file: Path, text: str, is_rendered: bool, most: int, field: str) -> list[int]:
    status = file.stat()
    return _reader_of(file, status.st_mtime_ns, status.st_size).read(text, is_rendered, most, field)


@functools.cache
def _thread() -> ThreadPoolExecutor:
    """Return the one thread that tokenizes: several would take the processor from the model."""
    return ThreadPoolExecutor(1, "tokenizer")


@functools.lru_cache(maxsize=2)
def _reader_of(file: Path, changed_ns: int, size: int) -> PromptReader:
    return prompt_reader(Tokenizer.from_file(str(file)))


def prompt_reader(tokenizer: Tokenizer) -> PromptReader:
    """Return a reader of prompts by a tokenizer."""
    tokens = TokenBytes(tokenizer)
    longest = max((len(tokens.of(token)) for token in tokenizer.get_vocab().values()), default=1)
    is_lossless = tokens.has_all_bytes and tokenizer.normalizer is None
    return PromptReader(tokenizer, max(longest, 1) * (1 if is_lossless else LOSSY))
