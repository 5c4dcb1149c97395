"""A smaller language model for speculative decoding; its caches have the same texts in the same rows."""

import itertools
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

from rdukit.errors import InvalidArgument
from rdukit_serving.shape import TextSizes
from rdukit_serving.text.generation import Generation
from rdukit_serving.text.program import TextProgram
from rdukit_serving.text.rows import common_length
from rdukit_serving.text.speculation import Outlook

#: Tokens of a text that are read together with a proposal; further ones are read before, part by part.
_READ_WITH_GUESS = 4


class DraftModel:
    """Draft model for the texts of another model.

    A row is brought up to date only when a guess is requested, so texts without guesses cost nothing.
    """

    def __init__(self, program: TextProgram, checkpoint: Path) -> None:
        self._program = program
        self.checkpoint = checkpoint
        #: Tokens that the caches hold, by row.
        self._held: list[list[int]] = [[] for _ in range(program.sizes.texts)]
        #: Recent time per proposed token, all costs included, by the number of texts.
        self._seconds: dict[int, float] = {}

    @property
    def name(self) -> str:
        """Return the name of its PEF."""
        return self._program.pef.name

    @property
    def kernels(self) -> str:
        """Return its kernels in words."""
        return self._program.properties()["kernels"]

    def seconds(self, outlooks: Sequence[Outlook]) -> float:
        """Return the seconds of a run that proposes a token for each text that needs the draft."""
        texts = sum(outlook.is_drafted for outlook in outlooks)
        least = next(self._program.seconds[width] for width in self._program.sizes.widths if width >= texts)
        return self._seconds.get(texts, least)

    def copy(self, source: int, target: int) -> None:
        """Copy the content of one row to another."""
        self._program.copy(source, target)
        self._held[target] = list(self._held[source])

    def propose(self, texts: Sequence[tuple[Generation, int]]) -> None:
        """Propose up to the given number of tokens to each text. Of texts still to be read, one part is read per call,
        so the others wait for one part only.

        Raises:
            RuntimeFault: the draft's logits are not finite.
        """
        asked = [(text, text.row.number, text.tokens, count) for text, count in texts if text.row is not None]
        ready, has_read = [], False
        for each in asked:
            is_behind = self._behind(each[1], each[2]) > _READ_WITH_GUESS
            if is_behind and not has_read:
                has_read = True
                is_behind = not self.follow(each[1], each[2])
            if not is_behind:
                ready.append(each)
        began = time.thread_time()
        guesses = self.guess([(row, tokens, count) for _, row, tokens, count in ready])
        if ready:
            took = (time.thread_time() - began) / max(count for *_, count in ready)
            self._seconds[len(ready)] = self._seconds.get(len(ready), took) * 7 / 8 + took / 8
        for (text, *_), guess in zip(ready, guesses, strict=True):
            text.propose(guess)

    def follow(self, row: int, tokens: Sequence[int]) -> bool:
        """Read a part of a row's text if much of it is new; return whether the row can be drafted next.

        Raises:
            RuntimeFault: the draft's logits are not finite.
        """
        held = self._held[row]
        behind = self._behind(row, tokens)
        if behind > _READ_WITH_GUESS:
            part = tokens[len(held) : len(held) + min(behind - 1, self._program.sizes.prompt)]
            self._program.read(row, part, len(held))
            held.extend(part)
        return len(tokens) - len(held) <= _READ_WITH_GUESS

    def _behind(self, row: int, tokens: Sequence[int]) -> int:
        """Return the number of tokens that a row lacks; surplus tokens of the row are dropped."""
        held = self._held[row]
        del held[common_length(held, tokens[:-1]) :]
        return len(tokens) - len(held)

    def guess(self, texts: Sequence[tuple[int, Sequence[int], int]]) -> list[list[int]]:
        """Return the tokens after each text. A text is a row read by ``follow``, its tokens, and the number of tokens
        to propose.

        Tokens for all rows are drafted together, one per run.
        """
        if not texts:
            return []
        begins = [(row, tokens[len(self._held[row]) :], len(self._held[row])) for row, tokens, _ in texts]
        guesses = [[token] for token in self._likeliest(begins)]
        for depth in range(1, max(count for _, _, count in texts)):
            going = [i for i, (_, _, count) in enumerate(texts) if count > depth]
            ends = [(texts[i][0], guesses[i][-1:], len(self._held[texts[i][0]])) for i in going]
            for i, token in zip(going, self._likeliest(ends), strict=True):
                guesses[i].append(token)
        return guesses

    def _likeliest(self, parts: Sequence[tuple[int, Sequence[int], int]]) -> list[int]:
        """Write tokens to rows from a position on; return the likeliest token after each part."""
        places = [(row, token, at + i) for row, tokens, at in parts for i, token in enumerate(tokens)]
        found: list[int] = []
        most = self._program.sizes.widths[-1]
        for at in range(0, len(places), most):
            found.extend(self._program.advance(*zip(*places[at : at + most], strict=True)).argmax(-1).tolist())
        for row, tokens, _ in parts:
            self._held[row].extend(tokens)
        return [found[end - 1] for end in itertools.accumulate(len(tokens) for _, tokens, _ in parts)]


def load_draft(loaded: ExitStack, pef: Path, checkpoint: Path, sizes: TextSizes, name: str) -> DraftModel:
    """Load a draft for texts of these sizes; ``check_draft_tokens`` compares the tokens, and ``loaded`` ends it.

    Raises:
        InvalidArgument: the draft is compiled for other texts, or for smaller sizes. RdukitError: as ``TextProgram``.
    """
    program = loaded.enter_context(TextProgram(pef, checkpoint, name=f"{name}-draft"))
    sizes.check_draft(program.sizes)
    if not program.generates:
        raise InvalidArgument(f"{pef} generates no text and cannot be a draft; expected a language model")
    program.warm_up()
    return DraftModel(program, checkpoint)
