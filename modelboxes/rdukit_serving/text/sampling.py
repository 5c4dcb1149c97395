"""Sampling of the next token from logits: penalties, bias, greedy, temperature, top-k, top-p.

Pure, except for the sampler's state.

Axes: V vocabulary.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from rdukit.errors import InvalidArgument, RuntimeFault
from rdukit_serving.text.constraints import Constraint

#: The least log-probability that is reported.
UNLIKELY: Final = -9999.0
#: Number of tokens with nearly all probability of a sure model; and largest error of sums of probabilities.
_FEW: Final = 512
_ROUNDING: Final = 1e-9


@dataclass(frozen=True, slots=True)
class SamplingOptions:
    """Options of choosing. ``temperature`` 0 is greedy; ``top_k`` 0, ``top_p`` 1, ``min_p`` 0 keep all; no seed: by
    chance.

    A token that was chosen c times loses ``frequency_penalty`` * c of its logit, and ``presence_penalty`` once; each
    token of ``bias`` gains its value. Source: OpenAI's API reference; the prompt does not count. Positive logits of
    tokens in the prompt or the text are divided by ``repetition_penalty``, others are multiplied by it. Tokens less
    likely than ``min_p`` times the likeliest are excluded. Source: transformers' logits processors. No sequence of
    ``no_repeat_ngram_size`` tokens occurs twice in a text; 0: no such limit. Source: as before. Nor do the sequences
    ``bad_words`` occur, and ``suppressed`` tokens; ``suppressed_first`` are not the first that is chosen. A form that
    allows nothing else overrides these rules, as do logits that leave no token. Source: as before.
    ``ignore_eos``: a token that ends a text does not end this one. ``stop_tokens`` end it, too. End tokens are not
    chosen before ``min_tokens``, unless the form allows nothing else. Source: vLLM's sampling parameters.
    ``min_length`` is the same with the prompt's tokens.

    Raises:
        InvalidArgument: a value outside its range.
    """

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    seed: int | None = None
    frequency_penalty: float = 0.0
    presence_penalty: float = 0.0
    bias: Sequence[tuple[int, float]] = ()
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    ignore_eos: bool = False
    min_tokens: int = 0
    stop_tokens: Sequence[int] = ()
    no_repeat_ngram_size: int = 0
    min_length: int = 0
    bad_words: Sequence[Sequence[int]] = ()
    suppressed: Sequence[int] = ()
    suppressed_first: Sequence[int] = ()

    def __post_init__(self) -> None:
        if not 0.0 <= self.temperature <= 2.0:
            raise InvalidArgument(f"temperature is {self.temperature}; expected 0 <= x <= 2")
        if not 0.0 < self.top_p <= 1.0:
            raise InvalidArgument(f"top_p is {self.top_p}; expected 0 < x <= 1")
        if self.top_k < 0:
            raise InvalidArgument(f"top_k is {self.top_k}; expected 0 <= x, 0 for all tokens")
        if self.seed is not None and self.seed < 0:
            raise InvalidArgument(f"seed is {self.seed}; expected 0 <= x")
        if not 0.0 <= self.min_p <= 1.0:
            raise InvalidArgument(f"min_p is {self.min_p}; expected 0 <= x <= 1", field="min_p")
        if not 0.0 < self.repetition_penalty <= 10.0:
            raise InvalidArgument(
                f"repetition_penalty is {self.repetition_penalty}; expected 0 < x <= 10", field="repetition_penalty"
            )
        if self.no_repeat_ngram_size < 0:
            raise InvalidArgument(f"no_repeat_ngram_size is {self.no_repeat_ngram_size}; expected 0 <= x, 0 for none")
        for name in ("frequency_penalty", "presence_penalty"):
            if not -2.0 <= getattr(self, name) <= 2.0:
                raise InvalidArgument(f"{name} is {getattr(self, name)}; expected -2 <= x <= 2", field=name)


class Sampler:
    """Sampler of one text's tokens after ``prompt``, in a form if there is one.

    The same seed and logits give the same tokens.
    """

    def __init__(
        self, options: SamplingOptions, prompt: Sequence[int] = (), constraint: Constraint | None = None,
        ends: Collection[int] = (),
    ) -> None:  # fmt: skip
        self._options = options
        self._constraint = constraint
        self._random = np.random.default_rng(options.seed)
        self._left = max(options.min_tokens, options.min_length - len(prompt))
        self._ends = np.array(sorted(ends), np.intp)
        self._biased = np.array([token for token, _ in options.bias], np.intp)
        self._biases = np.array([bias for _, bias in options.bias], np.float32)
        #: Number of times that each token was chosen; empty without penalties.
        self._chosen: dict[int, int] = {}
        self._has_penalties = bool(options.frequency_penalty or options.presence_penalty)
        #: Tokens of prompt and text; None: not needed.
        self._seen = set(prompt) if options.repetition_penalty != 1.0 else None
        #: Tokens that are never chosen; the only word of an end token is no such word.
        words = [word for word in options.bad_words if len(word) > 1 or word[0] not in ends]
        self._never = np.array(sorted({*options.suppressed, *(word[0] for word in words if len(word) == 1)}), np.intp)
        #: Beginnings of bad words → the tokens that would end them; and the lengths of such beginnings.
        self._beginnings: dict[tuple[int, ...], set[int]] = {}
        for word in words:
            if len(word) > 1:
                self._beginnings.setdefault(tuple(word[:-1]), set()).add(word[-1])
        self._spans = sorted({len(beginning) for beginning in self._beginnings})
        #: Whether the next token is the first that is chosen.
        self._is_first = True
        #: Tokens of prompt and text in their order; None: not needed.
        self._order = list(prompt) if options.no_repeat_ngram_size or self._beginnings else None

    @property
    def is_over(self) -> bool:
        """Return whether the text has its form and must end."""
        return self._constraint is not None and self._constraint.is_over

    def choose(self, logits_V: NDArray[np.float32], forced: int | None = None) -> int:
        """Choose the next token; a ``forced`` one is taken regardless of the logits, and is not a part of the form."""
        allowed_V = logits_V
        if self._options.bias or self._chosen or self._seen:
            logits_V = allowed_V = self._adjusted(logits_V)
        if len(forbidden := self._forbidden()):
            allowed_V = _without(logits_V, forbidden)
        if forced is not None:
            token = forced
        elif self._constraint is None:
            token = self._draw(_without(allowed_V, self._ends) if self._left > 0 else allowed_V)
        else:
            legal = self._constraint.legal_tokens(logits_V)
            if self._left > 0 and len(others := np.setdiff1d(legal, self._ends)):
                legal = others
            left_L = allowed_V[legal]
            token = int(legal[self._draw(left_L if left_L.max() > -np.inf else logits_V[legal])])
            self._constraint.take(token)
        self._is_first = self._is_first and forced is not None
        self._left -= 1
        if self._has_penalties:
            self._chosen[token] = self._chosen.get(token, 0) + 1
        if self._seen is not None:
            self._seen.add(token)
        if self._order is not None:
            self._order.append(token)
        return token

    def _adjusted(self, logits_V: NDArray[np.float32]) -> NDArray[np.float32]:
        options = self._options
        adjusted_V = logits_V.copy()
        if self._seen:
            seen = list(self._seen)
            of_seen = adjusted_V[seen]
            by = np.float32(options.repetition_penalty)
            adjusted_V[seen] = np.where(of_seen > 0, of_seen / by, of_seen * by)
        if len(self._biased):
            adjusted_V[self._biased] += self._biases
        for token, count in self._chosen.items():
            adjusted_V[token] -= options.frequency_penalty * count + options.presence_penalty
        return adjusted_V

    def _forbidden(self) -> NDArray[np.intp]:
        """Return the tokens that may not come next, whatever the logits."""
        found: set[int] = set(self._options.suppressed_first) if self._is_first else set()
        if self._order:
            found |= self._repeated(self._order)
            for span in self._spans:
                found |= self._beginnings.get(tuple(self._order[-span:]), set())
        return np.union1d(self._never, sorted(found)).astype(np.intp) if found else self._never

    def _repeated(self, text: list[int]) -> set[int]:
        """Return the tokens that would repeat a sequence of the text."""
        size = self._options.no_repeat_ngram_size
        if not size:
            return set()
        last = text[len(text) - size + 1 :]
        return {text[at + size - 1] for at in range(len(text) - size + 1) if text[at : at + size - 1] == last}

    def _draw(self, logits_V: NDArray[np.float32]) -> int:
        options = self._options
        if options.temperature == 0.0:
            return int(logits_V.argmax())
        shares_V = probabilities(logits_V, options.temperature, options.top_k, options.top_p, options.min_p)
        place = np.searchsorted(shares_V.cumsum(), self._random.random(), side="right")
        # Rounding may leave the sum below 1; then the last token with a share is chosen.
        return int(min(place, np.flatnonzero(shares_V)[-1]))


def probabilities(
    logits_V: NDArray[np.float32], temperature: float, top_k: int = 0, top_p: float = 1.0, min_p: float = 0.0
) -> NDArray[np.float64]:
    """Return probabilities [V] after three filters: the ``top_k`` likeliest, the fewest that reach ``top_p``, and those
    of at least ``min_p`` times the likeliest.

    The likeliest token always stays. Among equal logits the smaller token comes first.
    """
    scaled_V = logits_V.astype(np.float64) / temperature
    shares_V = np.exp(scaled_V - scaled_V.max())
    if min_p > 0.0:
        is_unlikely_V = shares_V < min_p
    if 0 < top_k < len(shares_V):
        shares_V = _only(shares_V, likeliest(shares_V, top_k))
    shares_V /= shares_V.sum()
    if top_p < 1.0:
        # Few tokens usually suffice, and sorting all of them would cost more than the rest.
        for count in (_FEW, len(shares_V)):
            order = likeliest(shares_V, count)
            sums = shares_V[order].cumsum()
            if sums[-1] >= top_p + _ROUNDING:
                break
        shares_V = _only(shares_V, order[sums - shares_V[order] < top_p])
        shares_V /= shares_V.sum()
    if min_p > 0.0:
        shares_V[is_unlikely_V] = 0.0
        shares_V /= shares_V.sum()
    found: NDArray[np.float64] = shares_V
    return found


def likeliest(values_V: NDArray[np.float64], count: int) -> NDArray[np.int64]:
    """Return the tokens of the ``count`` highest values, the highest first; of equal ones the smaller token."""
    if count == 0:
        return np.empty(0, np.int64)
    if count >= len(values_V):
        return np.argsort(-values_V, kind="stable")
    least = np.partition(values_V, -count)[-count]
    able = np.flatnonzero(values_V >= least)  # more than that many where several have the least
    return able[np.argsort(-values_V[able], kind="stable")][:count]


def _without(logits_V: NDArray[np.float32], tokens: NDArray[np.intp]) -> NDArray[np.float32]:
    """Return logits without some tokens; unchanged if none would be left."""
    if not len(tokens):
        return logits_V
    kept_V = logits_V.copy()
    kept_V[tokens[tokens < len(kept_V)]] = -np.inf
    return kept_V if kept_V.max() > -np.inf else logits_V


def _only(shares_V: NDArray[np.float64], tokens: NDArray[np.int64]) -> NDArray[np.float64]:
    """Return the shares of some tokens, and 0 for all others."""
    found_V = np.zeros_like(shares_V)
    found_V[tokens] = shares_V[tokens]
    return found_V


def log_probabilities(logits_V: NDArray[np.float32]) -> NDArray[np.float64]:
    """Return logarithms [V] of the model's own probabilities: temperature 1, all tokens.

    Source: OpenAI's API reference: of a token that is very unlikely it is -9999.0; JSON has no infinity.
    """
    shifted_V = logits_V.astype(np.float64) - float(logits_V.max())
    found: NDArray[np.float64] = np.maximum(shifted_V - np.log(np.exp(shifted_V).sum()), UNLIKELY)
    return found


def check_numbers(graph: str, values: NDArray[np.float32]) -> None:
    """Raise ``RuntimeFault`` if a graph's output holds unusable numbers.

    Single logits may be -infinity: such tokens are never chosen.
    """
    is_wrong = not np.isfinite(values.max()) or (graph == "embed" and not np.isfinite(values.min()))
    if is_wrong:
        raise RuntimeFault(
            f"graph {graph!r} computed NaN or infinite values, so no text was generated; check the training loss of "
            "the checkpoint, and load one from before it diverged"
        )
