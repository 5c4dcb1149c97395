"""Forms that a text must have (JSON schema, regular expression, grammar): which tokens may come next, by llguidance.

A form is checked and compiled where the tokenizer is, in the device process, and kept for the next text of the form.

Axes: V vocabulary.
"""

import json
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from rdukit.errors import InvalidArgument, RuntimeFault

#: Longest form as JSON text, which goes in one packet with the other options of a text.
MAX_FORM_CHARACTERS: Final = 16_000
#: Compiled forms that are kept.
_KEPT: Final = 32
#: A stranger's form may take about a second and 100 MB, not more: all texts of the model wait meanwhile. An error does
#: not tell the text so far.
_LIMITS: Final[Mapping[str, Any]] = {
    "initial_lexer_fuel": 500_000, "step_lexer_fuel": 100_000, "max_lexer_states": 50_000, "verbose_errors": False,
}  # fmt: skip
#: One way to write each value, so that no text is made of blanks.
JSON_WAY: Final[Mapping[str, Any]] = {
    "whitespace_flexible": False, "item_separator": ", ", "key_separator": ": ", "lenient": False,
}  # fmt: skip


class FormKind(StrEnum):
    """Kinds of forms."""

    JSON = "json"
    REGEX = "regex"
    GRAMMAR = "grammar"


@dataclass(frozen=True, slots=True)
class TextForm:
    """Form of a text: a JSON schema as JSON, a regular expression, or a grammar in llguidance's Lark.

    ``field`` is where the caller wrote it, for errors.

    Raises:
        InvalidArgument: it is too long.
    """

    kind: str
    text: str
    field: str = "response_format"

    def __post_init__(self) -> None:
        size = len(json.dumps(self.text))
        if size > MAX_FORM_CHARACTERS:
            raise InvalidArgument(
                f"{self.field}: it has {size} characters as JSON; legal: up to {MAX_FORM_CHARACTERS}", field=self.field
            )

    def message(self) -> list[str]:
        """Encode for the device process."""
        return [self.kind, self.text, self.field]


class Constraint:
    """Constraint of one text, token by token."""

    def __init__(self, matcher: Any, tokens: int) -> None:
        self._matcher = matcher
        self._tokens = tokens

    @property
    def is_over(self) -> bool:
        """Return whether the form is complete and nothing may follow."""
        return bool(self._matcher.is_stopped())

    def legal_tokens(self, logits_V: NDArray[np.float32]) -> NDArray[np.intp]:
        """Return the tokens that may come next, in order.

        Raises:
            InvalidArgument: the form became too complex to go on.
            RuntimeFault: none of the model's tokens may come next.
        """
        bits = np.frombuffer(self._matcher.compute_bitmask(), np.uint8)
        if self._matcher.is_error():
            raise self._refused()
        # A model may have room for tokens that the tokenizer lacks.
        count = min(self._tokens, len(logits_V))
        legal = np.flatnonzero(np.unpackbits(bits, count=count, bitorder="little"))
        if not len(legal) or logits_V[legal].max() == -np.inf:
            raise RuntimeFault("the model has no token with which the text could go on in its form")
        return legal

    def take(self, token: int) -> None:
        """Take the token that was chosen.

        Raises:
            InvalidArgument: the form became too complex to go on.
        """
        if not self._matcher.consume_token(token):
            raise self._refused()

    def _refused(self) -> InvalidArgument:
        reason = str(self._matcher.get_error()).partition("\n")[0][:500]
        return InvalidArgument(f"the form of the text is too complex: {reason}; make it simpler")


class Constraints:
    """Compiler of forms for one tokenizer.

    ``tokenizer`` is the content of ``tokenizer.json``; ``tokens`` how many tokens the model may choose among.
    """

    def __init__(self, tokenizer: str, tokens: int, ends: frozenset[int]) -> None:
        self._tokenizer = tokenizer
        self._tokens = tokens
        self._ends = sorted(ends)
        self._lookup: Any = None
        self._kept: OrderedDict[TextForm, Any] = OrderedDict()

    def find(self, form: TextForm) -> Constraint:
        """Return the constraint of a text that begins.

        Raises:
            InvalidArgument: the form is wrong, too large, cannot be satisfied, or llguidance is missing.
        """
        matcher = self._kept.pop(form, None)
        if matcher is None:
            matcher = self._compile(form)
        self._kept[form] = matcher
        while len(self._kept) > _KEPT:
            self._kept.popitem(last=False)
        return Constraint(matcher.deep_copy(), self._tokens)

    def _compile(self, form: TextForm) -> Any:
        try:
            from llguidance import LLMatcher, LLParserLimits, LLTokenizer
        except ImportError as cause:
            raise InvalidArgument(
                f"{form.field} is not served here: the package llguidance is missing; install rdukit[grammars]",
                field=form.field,
            ) from cause
        if self._lookup is None:
            # Without an end of its own it takes one that no text has: the text ends when its form does.
            self._lookup = LLTokenizer(self._tokenizer, n_vocab=self._tokens, eos_token=self._ends or None)
        try:
            if form.kind == FormKind.JSON:
                options: Any = dict(JSON_WAY)
                grammar = LLMatcher.grammar_from_json_schema(form.text, overrides=options)
            elif form.kind == FormKind.REGEX:
                grammar = LLMatcher.grammar_from_regex(form.text)
            else:
                grammar = LLMatcher.grammar_from_lark(form.text)
            limits = LLParserLimits(**_LIMITS)
            matcher = LLMatcher(self._lookup, grammar, log_level=0, limits=limits)
            reason = matcher.get_error()
        except ValueError as cause:
            reason = str(cause) or "it is no JSON object"
        if reason:
            words = f"{form.field}: no text can be made in this form: {shorten_reason(reason)}"
            raise InvalidArgument(words, field=form.field)
        return matcher


def shorten_reason(reason: str) -> str:
    """Shorten llguidance's words on a form to where it is wrong and why, on one line."""
    first, *others = reason.splitlines()
    why = next((line.removeprefix("error: ") for line in others if line.startswith("error: ")), "")
    return f"{first} {why}".strip()[:500]
