"""Forms that a text must have (JSON schema, regular expression, grammar): llguidance computes the allowed next tokens.

The device process, which has the tokenizer, checks and compiles a form, and keeps it for further texts.

Axes: V vocabulary.
"""

import json
import re
import secrets
from collections import OrderedDict
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from rdukit.errors import InvalidArgument, RuntimeFault
from rdukit_serving.text.forms.exclusive import SchemaWork
from rdukit_serving.text.forms.schemas import UnkeptSchema, schema_text
from rdukit_serving.text.forms.spelling import spell

#: Longest form as JSON text: llguidance takes a second and some 100 MB for it.
MAX_FORM_CHARACTERS: Final = 1_000_000
#: Number of compiled forms that are kept.
_KEPT: Final = 32
#: A stranger's form may take about a second and 100 MB: all texts of the model wait meanwhile. An error does
#: not reveal the text so far.
_LIMITS: Final[Mapping[str, Any]] = {
    "initial_lexer_fuel": 500_000, "step_lexer_fuel": 100_000, "max_lexer_states": 50_000, "verbose_errors": False,
}  # fmt: skip
#: One spelling for each value, so that a text cannot be all blanks.
JSON_WAY: Final[Mapping[str, Any]] = {
    "whitespace_flexible": False, "item_separator": ", ", "key_separator": ": ", "lenient": False,
}  # fmt: skip


#: Literals of a grammar.
LITERAL: Final = re.compile(r'"(?:\\.|[^"\\])*"|/(?:\\.|[^/\\])*/')


class FormKind(StrEnum):
    """Kinds of forms."""

    JSON = "json"
    REGEX = "regex"
    GRAMMAR = "grammar"
    #: Put together by ``forms.composed``.
    PARTS = "parts"


@dataclass(frozen=True, slots=True)
class TextForm:
    """Form of a text: a JSON schema as JSON, a regular expression, or a grammar in llguidance's Lark.

    ``field`` is the form's place in the request, for errors.

    Raises:
        InvalidArgument: the form is too long.
    """

    kind: str
    text: str
    field: str = "response_format"

    def __post_init__(self) -> None:
        _check_size(self.text, self.field)

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
            InvalidArgument: the form became too complex to continue.
            RuntimeFault: the form allows no token of the model.
        """
        bits = np.frombuffer(self._matcher.compute_bitmask(), np.uint8)
        if self._matcher.is_error():
            raise self._refused()
        # A model may have room for tokens that the tokenizer lacks.
        count = min(self._tokens, len(logits_V))
        legal = np.flatnonzero(np.unpackbits(bits, count=count, bitorder="little"))
        if not len(legal) or logits_V[legal].max() == -np.inf:
            raise RuntimeFault("the model has no token with which the text could continue in its form")
        return legal

    def take(self, token: int) -> None:
        """Take the token that was chosen.

        Raises:
            InvalidArgument: the form became too complex to continue.
        """
        if not self._matcher.consume_token(token):
            raise self._refused()

    def _refused(self) -> InvalidArgument:
        reason = str(self._matcher.get_error()).partition("\n")[0][:500]
        return InvalidArgument(f"the form of the text is too complex: {reason}; make it simpler")


class Constraints:
    """Compiler of forms for one tokenizer.

    ``tokenizer`` is the content of ``tokenizer.json``; ``tokens`` is the number of tokens of the model.
    """

    def __init__(self, tokenizer: str, tokens: int, ends: frozenset[int]) -> None:
        self._tokenizer = tokenizer
        self._tokens = tokens
        self._ends = sorted(ends)
        self._special = special_tokens(tokenizer)
        self._added = {each["content"]: each["id"] for each in json.loads(tokenizer).get("added_tokens") or ()}
        #: By whether special tokens have their names.
        self._lookups: dict[bool, Any] = {}
        self._kept: OrderedDict[TextForm, Any] = OrderedDict()

    def find(self, form: TextForm) -> Constraint:
        """Return the constraint of a new text.

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
            from llguidance import LLMatcher, LLParserLimits
        except ImportError as cause:
            raise InvalidArgument(
                f"{form.field} needs the package llguidance, which is missing; install rdukit[grammars]",
                field=form.field,
            ) from cause
        try:
            if form.kind == FormKind.JSON:
                options: Any = dict(JSON_WAY)
                grammar = LLMatcher.grammar_from_json_schema(form.text, overrides=options)
            elif form.kind == FormKind.REGEX:
                grammar = LLMatcher.grammar_from_regex(form.text)
            else:
                text = spell(form.text, self._added) if form.kind == FormKind.PARTS else form.text
                grammar = LLMatcher.grammar_from_lark(text)
            limits = LLParserLimits(**_LIMITS)
            matcher = LLMatcher(self._lookup(names_special(form, self._special)), grammar, log_level=0, limits=limits)
            reason = matcher.get_error()
        except ValueError as cause:
            reason = str(cause) or "it is not a JSON object"
        if reason:
            words = f"{form.field}: no text can have this form: {shorten_reason(reason)}"
            if "circular references" in reason:
                words += "; write them into the schema that $ref names"
            raise InvalidArgument(words, field=form.field)
        return matcher

    def _lookup(self, names: bool) -> Any:
        """Return llguidance's tokenizer; without names of special tokens, literals that read like one are spelled."""
        if names not in self._lookups:
            from llguidance import LLTokenizer

            text = self._tokenizer if names else rename_special(self._tokenizer)
            # A form without an end token gets one that no text has: the text ends with its form.
            self._lookups[names] = LLTokenizer(text, n_vocab=self._tokens, eos_token=self._ends or None)
        return self._lookups[names]


def special_tokens(tokenizer: str) -> frozenset[str]:
    """Return the special tokens of a ``tokenizer.json`` by llguidance's rules: special ones, and added ones in <>."""
    added = json.loads(tokenizer).get("added_tokens") or ()
    return frozenset(
        each["content"] for each in added
        if each.get("special") or (each["content"].startswith("<") and each["content"].endswith(">"))
    )  # fmt: skip


def names_special(form: TextForm, special: Collection[str]) -> bool:
    """Return whether a grammar names special tokens, and not only texts that look like one."""
    if form.kind != FormKind.GRAMMAR:
        return False
    bare = LITERAL.sub("", form.text)
    return any(token in bare for token in special)


def rename_special(tokenizer: str) -> str:
    """Return a ``tokenizer.json`` whose special tokens have names that never occur in texts."""
    content = json.loads(tokenizer)
    names = {token: f"{secrets.token_hex(8)}{token}" for token in special_tokens(tokenizer)}
    for added in content.get("added_tokens") or ():
        if added["content"] in names:
            added |= {"content": names[added["content"]], "special": True}
    model = content.get("model") or {}
    if isinstance(vocabulary := model.get("vocab"), dict):
        model["vocab"] = {names.get(token, token): number for token, number in vocabulary.items()}
    elif isinstance(vocabulary, list):
        model["vocab"] = [[names.get(token, token), score] for token, score in vocabulary]
    return json.dumps(content)


def shorten_reason(reason: str) -> str:
    """Shorten llguidance's message to the place and the reason, on one line."""
    first, *others = reason.splitlines()
    why = next((line.removeprefix("error: ") for line in others if line.startswith("error: ")), "")
    return f"{first} {why}".strip()[:500]


def json_part(text: str) -> str:
    """Return a schema's JSON text as a part of a grammar, with one spelling for each value."""
    schema: Any = json.loads(text)
    schema = schema if isinstance(schema, dict) else {"allOf": [schema]}
    return f"%json {json.dumps({**schema, 'x-guidance': dict(JSON_WAY)}, ensure_ascii=False)}"


def kept_schema(schema: object, field: str, shared: SchemaWork | None = None) -> str:
    """Return an equal JSON schema that llguidance enforces exactly, as text; ``field`` is its place in the request.

    ``shared``: remaining work on schemas of the whole request.

    Raises:
        InvalidArgument: the schema is too long, or cannot be enforced; the message says what to write.
    """
    try:
        _check_size(schema, field)  # before it is looked at, which takes longer
        return schema_text(schema, shared)
    except RecursionError as cause:
        raise InvalidArgument(f"{field}: it is nested too deep; write $defs and $ref", field=field) from cause
    except UnkeptSchema as cause:
        raise InvalidArgument(f"{field}: {cause}", field=field) from cause


def _check_size(form: object, field: str) -> None:
    size = len(json.dumps(form))
    if size > MAX_FORM_CHARACTERS:
        raise InvalidArgument(
            f"{field}: it has {size} characters as JSON; expected up to {MAX_FORM_CHARACTERS}", field=field
        )
