"""One text during its generation: its unread prompt, its next token, and its events."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer

from rdukit.errors import InvalidArgument
from rdukit_serving.device.messages import Prompt, cut
from rdukit_serving.shape import TextSizes
from rdukit_serving.text.constraints import Constraints, TextForm
from rdukit_serving.text.generation_config import options_of
from rdukit_serving.text.rows import Row
from rdukit_serving.text.sampling import Sampler, check_numbers, likeliest, log_probabilities
from rdukit_serving.text.speculation import Lookup, Outlook, Trust
from rdukit_serving.text.token_bytes import TextStream, TokenBytes

#: Assumed share of right proposals of a draft before the first try; and the share of right look-ups below which
#: a draft is used instead.
_DRAFT_RATE: Final = 0.8
_POOR_RATE: Final = 0.5


class Tell(Protocol):
    """Sends an event of a text to the server."""

    def __call__(self, number: int, **event: object) -> None: ...


@dataclass(frozen=True, slots=True)
class ModelTokens:
    """Tokens of a model: its tokenizer, their bytes, forms over them, end tokens, and defaults of sampling.

    ``defaults`` are options of sampling that a request may leave out. ``forced`` are the token after a prompt of one
    token, as each encoder-decoder's is, and the last one of a text that the limit ends; None: any token.
    """

    tokenizer: Tokenizer
    bytes: TokenBytes
    constraints: Constraints
    ends: frozenset[int]
    defaults: Mapping[str, Any] = field(default_factory=dict)
    forced: tuple[int | None, int | None] = (None, None)

    def tokens_of(self, prompt: Prompt, is_rendered: bool = False) -> list[int]:
        """Return the tokens of a prompt; a rendered prompt gets no further special tokens."""
        if not isinstance(prompt, str):
            return list(prompt)
        tokens: list[int] = self.tokenizer.encode(prompt, add_special_tokens=not is_rendered).ids
        return tokens


class Generation:
    """A text in progress, in a row of the caches.

    First its prompt is read. Then each run gives the logits of its next token and of its speculative tokens, until
    ``is_over``.

    Raises:
        InvalidArgument: the prompt is empty or too long, or a value is not valid.
    """

    def __init__(
        self, prompt: Prompt, message: Mapping[str, Any], vocabulary: ModelTokens, sizes: TextSizes, tell: Tell,
        adapter: int | None = None,
    ) -> None:  # fmt: skip
        self.number: int = message["number"]
        self.adapter = adapter
        #: The prompt's tokens for the model; and the tokens before the generated ones.
        self.source = vocabulary.tokens_of(prompt, message["is_rendered"])
        self.prompt = sizes.begin_of(self.source)
        options = options_of(message["sampling"], vocabulary.defaults)
        sizes.check_tokens([token for token, _ in options.bias], "logit_bias")
        sizes.check_tokens(self.source, "prompt")
        if not 1 <= len(self.source) <= sizes.most_prompt:
            raise InvalidArgument(
                f"prompt: it has {len(self.source)} tokens; expected 1 to {sizes.most_prompt}", field="prompt"
            )
        if sizes.source and message["echo"]:
            raise InvalidArgument("echo: an encoder reads the prompt, which is not part of the text", field="echo")
        room = sizes.context - len(self.prompt)
        form = message["form"]
        constraint = None if form is None else vocabulary.constraints.find(TextForm(*form))
        sizes.check_tokens(options.stop_tokens, "stop_token_ids")
        self._ends = (frozenset() if options.ignore_eos else vocabulary.ends) | frozenset(options.stop_tokens)
        self._sampler = Sampler(options, self.prompt, constraint, self._ends)
        skips = not message["keeps_special"]
        self._stream = TextStream(
            lambda tokens: str(vocabulary.tokenizer.decode(list(tokens), skip_special_tokens=skips)), message["stop"]
        )
        self._vocabulary, self._tell, self._has_encoder = vocabulary, tell, sizes.source > 0
        self._most: int = room if message["max_tokens"] is None else min(message["max_tokens"], room)
        #: Number of likeliest tokens that are reported with each; None: no probabilities.
        self._top: int | None = message["top_logprobs"]
        #: Whether the prompt's own tokens are reported with their probabilities; they are then read one by one.
        self.is_scored: bool = message["echo"] and self._top is not None
        self._made = 0
        #: The token that the next run writes.
        self._next = self.prompt[0]
        #: Follows the text only when a proposal is requested, so it costs nothing otherwise.
        self._lookup = Lookup()
        self._trust, self._draft_trust = Trust(), Trust(_DRAFT_RATE)
        #: Possible continuations found in the text, and the tried part of them or of a draft's proposal.
        self._found: Sequence[int] = ()
        self._guess: Sequence[int] = ()
        self._is_drafted = False
        #: Number of tried speculative tokens, and of accepted ones.
        self._guessed = self._accepted = 0
        self.row: Row | None = None
        #: Tokens of the prompt that were in the caches before.
        self.kept = 0
        self.is_over = False
        if message["echo"] and not message.get("is_told"):
            text = prompt if isinstance(prompt, str) else str(vocabulary.tokenizer.decode(self.prompt))
            for _, part in cut(text):
                tell(self.number, kind="piece", text=part)
        if self.is_scored:
            tell(self.number, kind="piece", text="", token=self._told(self.prompt[0]), logprob=None, top=[])

    def begin(self, row: Row, kept: int) -> None:
        """Occupy a row that already holds ``kept`` tokens of the prompt."""
        self.row, self.kept = row, kept

    @property
    def is_reading(self) -> bool:
        """Return whether a part of the prompt must still be read."""
        return self.row is not None and not self.is_scored and len(self.row.tokens) < len(self.prompt)

    def part(self, most: int) -> Sequence[int]:
        """Return the next part of the prompt, of at most ``most`` tokens; an encoder reads all at once."""
        assert self.row is not None
        if self._has_encoder:
            return self.source
        return self.prompt[len(self.row.tokens) : len(self.row.tokens) + most]

    def take_part(self, part: Sequence[int], logits_V: NDArray[np.float32]) -> None:
        """Take the tokens from the prompt's end up to the end of ``part``."""
        assert self.row is not None
        self.row.tokens.extend(self.prompt if self._has_encoder else part)
        if not self.is_reading:
            self._choose(logits_V)
        else:
            self._tell(self.number, kind="reading")

    @property
    def tokens(self) -> list[int]:
        """Return the tokens so far, including the one that the next run writes."""
        assert self.row is not None
        return [*self.row.tokens, self._next]

    def guess(self, most: int, has_draft: bool = False) -> Outlook:
        """Propose at most ``most`` speculative tokens, or return that a draft should ``propose`` some."""
        assert self.row is not None
        after = len(self.row.tokens) + 1
        if after < len(self.prompt):  # what is read to be scored is known
            self._guess = self.prompt[after : after + most]
            return Outlook(1.0, len(self._guess))
        most = max(0, min(most, self._most - self._made - 1))
        self._lookup.add([*self.row.tokens[len(self._lookup) :], self._next])
        self._guess = self._found = self._lookup.guess(most)
        self._is_drafted = has_draft and (not self._found or self._trust.rate < _POOR_RATE)
        if self._is_drafted:
            self._guess = ()
            return Outlook(self._draft_trust.rate, most, is_drafted=True)
        return Outlook(self._trust.rate, len(self._found))

    def propose(self, guess: Sequence[int]) -> None:
        """Set the tokens that the draft model proposes."""
        self._guess = guess

    def written(self, tried: int = 0) -> list[tuple[int, int, int, int | None]]:
        """Return row, token, position and adapter for the next run: the certain token and speculative ones."""
        assert self.row is not None
        self._guess = self._guess[:tried]
        tokens = [self._next, *self._guess]
        return [(self.row.number, token, len(self.row.tokens) + i, self.adapter) for i, token in enumerate(tokens)]

    def take(self, logits_KV: NDArray[np.float32]) -> None:
        """Process the logits [K, V] after each of the K written tokens, up to the first wrong one.

        Raises:
            RuntimeFault: the logits are not numbers. InvalidArgument: the text's form became too complex.
        """
        assert self.row is not None
        is_known, made = len(self.row.tokens) + 1 < len(self.prompt), list[int]()
        for i, logits_V in enumerate(logits_KV):
            self._take(logits_V)
            if self.is_over:
                break
            made.append(self._next)
            if i < len(self._guess) and self._next != self._guess[i]:
                break
        if is_known:
            return
        right = self._trust.note(self._found, made)
        if self._is_drafted:
            right = self._draft_trust.note(self._guess, made)
            if not self._guess:
                self._draft_trust.rest()
        self._guessed += len(self._guess)
        self._accepted += min(right, len(self._guess))

    def _take(self, logits_V: NDArray[np.float32]) -> None:
        assert self.row is not None
        self.row.tokens.append(self._next)
        check_numbers("decode", logits_V)
        if len(self.row.tokens) < len(self.prompt):
            self._next = self.prompt[len(self.row.tokens)]
            self._tell(self.number, kind="piece", text="", **self._chances(self._next, logits_V))
        else:
            self._choose(logits_V)

    def end(self, reason: str) -> None:
        """Report the end of the text: ``stop``, ``length`` or ``cancelled``."""
        self.is_over = True
        self._tell(
            self.number, kind="done", text=self._stream.finish(), reason=reason, prompt_tokens=len(self.source),
            completion_tokens=self._made, stop_sequence=self._stream.stopped_by, cached_tokens=self.kept,
            guessed_tokens=self._guessed, accepted_tokens=self._accepted, **self._told_at_end(),
        )  # fmt: skip

    def _told_at_end(self) -> dict[str, Any]:
        """Return further facts of a text that has ended."""
        return {}

    def _choose(self, logits_V: NDArray[np.float32]) -> None:
        if self._made == self._most:
            return self.end("length")
        forced = self._forced()
        token = self._sampler.choose(logits_V, forced)
        if token in self._ends:
            return self.end("stop" if forced is None else "length")
        self._made += 1
        self._next = token
        self._tell(self.number, kind="piece", text=self._stream.push(token), **self._chances(token, logits_V))
        if self._stream.stopped_by is not None or self._sampler.is_over:
            return self.end("stop")
        if self._made == self._most:
            self.end("length")
        return None

    def _forced(self) -> int | None:
        """Return the token that comes next regardless of the logits; None: there is none."""
        first, last = self._vocabulary.forced
        if last is not None and last in self._ends and self._made == self._most - 1:
            return last
        return first if self._made == 0 and len(self.prompt) == 1 else None

    def _chances(self, token: int, logits_V: NDArray[np.float32]) -> dict[str, Any]:
        if self._top is None:
            return {}
        logs_V = log_probabilities(logits_V)
        return {
            "token": self._told(token),
            "logprob": float(logs_V[token]),
            "top": [[self._told(int(each)), float(logs_V[each])] for each in likeliest(logs_V, self._top)],
        }

    def _told(self, token: int) -> str:
        """Return the bytes of a token in the form for the server."""
        return self._vocabulary.bytes.of(token).hex()
