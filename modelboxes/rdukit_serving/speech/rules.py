"""Rules of a transcript's tokens: which are never written, and how timestamps follow each other. Pure.

Axes: V vocabulary.

Source: Radford et al., Whisper (2022), section 4.5; transformers' logits processors for Whisper, whose order this is.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np
from numpy.typing import NDArray

from rdukit_serving.speech.description import SpeechTokens
from rdukit_serving.text.sampling import Sampler, SamplingOptions

_NEVER: Final = -np.inf


@dataclass(frozen=True, slots=True)
class SpeechRules:
    """Rules of one transcript, with timestamps or without."""

    tokens: SpeechTokens
    has_times: bool

    def adjusted(self, logits_V: NDArray[np.float32], made: Sequence[int]) -> NDArray[np.float32]:
        """Return the logits after the tokens ``made`` so far; those of tokens that may not follow are -infinity."""
        known, found_V = self.tokens, logits_V.copy()
        if not made:
            found_V[list(known.suppressed_first)] = _NEVER
        found_V[list(known.suppressed)] = _NEVER
        if self.has_times:
            self._forbid_times(found_V, made)
            self._prefer_times(found_V)
        return found_V

    def _forbid_times(self, found_V: NDArray[np.float32], made: Sequence[int]) -> None:
        """Let timestamps come in pairs, never go back, and begin the transcript."""
        known, first = self.tokens, self.tokens.first_time
        assert first is not None
        found_V[first - 1] = _NEVER
        is_last_time = bool(made) and made[-1] >= first
        is_time_before = len(made) < 2 or made[-2] >= first
        if is_last_time and is_time_before:
            found_V[first:] = _NEVER
        elif is_last_time:
            found_V[: known.end] = _NEVER
        times = [token for token in made if token >= first]
        if times:
            # The end of a segment may be the beginning of the next; else each is later.
            least = times[-1] if is_last_time and not is_time_before else times[-1] + 1
            found_V[first:least] = _NEVER
        if not made:
            found_V[:first] = _NEVER
            if known.last_beginning is not None:
                found_V[first + known.last_beginning + 1 :] = _NEVER

    def _prefer_times(self, found_V: NDArray[np.float32]) -> None:
        """Leave timestamps only, where these together are likelier than each other token."""
        first = self.tokens.first_time
        assert first is not None
        most = float(found_V.max())
        if most == _NEVER:
            return
        together = np.exp(found_V[first:].astype(np.float64) - most).sum()
        if together > np.exp(float(found_V[:first].max()) - most):
            found_V[:first] = _NEVER


@dataclass(slots=True)
class SpeechRecord:
    """Tokens of a transcript with the logarithms of their probabilities; the token that ends it comes last."""

    tokens: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)


class SpeechSampler(Sampler):
    """Sampler that keeps the rules of a transcript, and records what it chose."""

    def __init__(
        self, options: SamplingOptions, rules: SpeechRules, prompt: Sequence[int], ends: Collection[int]
    ) -> None:
        super().__init__(options, prompt, None, ends)
        self._rules = rules
        self.record = SpeechRecord()

    def choose(self, logits_V: NDArray[np.float32], forced: int | None = None) -> int:
        """Choose the next token that the rules allow."""
        adjusted_V = self._rules.adjusted(logits_V, self.record.tokens)
        token = super().choose(adjusted_V, forced)
        shifted_V = adjusted_V.astype(np.float64) - float(adjusted_V.max())
        self.record.tokens.append(token)
        self.record.logprobs.append(float(shifted_V[token] - np.log(np.exp(shifted_V).sum())))
        return token
