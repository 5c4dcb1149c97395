"""A text program and a sampler → tokens, one at a time."""

from collections.abc import Iterator, Sequence, Set

from rdukit_modelbox.serving.text.program import TextProgram
from rdukit_modelbox.serving.text.sampling import Sampler


def generate(
    program: TextProgram, prompt: Sequence[int], sampler: Sampler, max_tokens: int, ends: Set[int] = frozenset()
) -> Iterator[int]:
    """At most ``max_tokens`` tokens after ``prompt``, up to one of ``ends``, which is not given, or a full context.

    Close the iterator to stop early.

    Raises:
        InvalidArgument: as ``TextProgram.start``.
    """
    logits_V = program.start(prompt)
    for position in range(len(prompt), len(prompt) + max_tokens):
        token = sampler.choose(logits_V)
        if token in ends:
            return
        yield token
        if position >= program.sizes.context or position + 1 == len(prompt) + max_tokens:
            return
        logits_V = program.step(token, position)
