"""Identity of a model: two sets of weights with one identity compute the same kind of function. Checkpoints and PEFs
have it.

Shapes are not enough: heads, epsilons, windows, rotary angles and tied weights change results, but no shape. This
module is pure; ``checkpoint_files`` reads identities from files.
"""

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from rdukit.errors import InvalidArgument

#: Key of an identity in the metadata of a safetensors file.
IDENTITY_KEY: Final = "rdukit.model"
#: Sizes, under their names in Hugging Face's ``config.json``.
HUB_NAMES: Final = {
    "is_tied": "tie_word_embeddings", "window": "sliding_window", "heads": "num_attention_heads",
    "key_value_heads": "num_key_value_heads", "rotary_base": "rope_theta",
}  # fmt: skip
#: Maximum names of a list in a message.
_SHOWN: Final = 8

#: Value of a model's size, as JSON holds it.
SizeValue = int | float | str | bool


@dataclass(frozen=True, slots=True)
class ModelIdentity:
    """Architecture, sizes, names of classes and columns, and tokenizer of a model; an empty field is unknown."""

    architecture: str
    #: All sizes that change results, including defaults.
    sizes: Mapping[str, SizeValue] = field(default_factory=dict)
    classes: tuple[str, ...] = ()
    #: Result of ``tokenizer_digest``.
    tokenizer: str = ""
    #: Names of a row's features, in order, for a model that was trained on a table.
    columns: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """Return the known fields of the identity."""
        found: dict[str, Any] = {"architecture": self.architecture, "sizes": dict(self.sizes)}
        found |= {"classes": list(self.classes)} if self.classes else {}
        found |= {"columns": list(self.columns)} if self.columns else {}
        return found | ({"tokenizer": self.tokenizer} if self.tokenizer else {})


@dataclass(frozen=True, slots=True)
class IdentityDifference:
    """Value that differs between two identities, in words."""

    name: str
    one: str
    other: str


def identity_from_json(value: object) -> ModelIdentity:
    """Rebuild an identity from the result of ``to_json``.

    Raises:
        InvalidArgument: the value is malformed.
    """
    try:
        if not isinstance(value, Mapping):
            raise TypeError("it is not a JSON object")
        sizes = value["sizes"]
        if any(not isinstance(size, int | float | str) for size in sizes.values()):
            raise TypeError("a size is neither a number, a word nor a boolean")
        return ModelIdentity(
            str(value["architecture"]), {str(name): size for name, size in sizes.items()},
            tuple(str(name) for name in value.get("classes", ())), str(value.get("tokenizer", "")),
            tuple(str(name) for name in value.get("columns", ())),
        )  # fmt: skip
    except (KeyError, TypeError, AttributeError) as cause:
        raise InvalidArgument(f"the identity of a model is damaged: {cause!r}; write it again") from cause


def identity_in(metadata: Mapping[str, str]) -> ModelIdentity | None:
    """Return the identity in the metadata of a safetensors file; None if there is none.

    Raises:
        InvalidArgument: the identity is damaged.
    """
    said = metadata.get(IDENTITY_KEY)
    try:
        return None if said is None else identity_from_json(json.loads(said))
    except ValueError as cause:
        raise InvalidArgument(f"the identity of a model is damaged: {cause}; write it again") from cause


def metadata_of(identity: ModelIdentity) -> dict[str, str]:
    """Return the metadata from which ``identity_in`` reads this identity."""
    return {IDENTITY_KEY: json.dumps(identity.to_json())}


def find_differences(one: ModelIdentity, other: ModelIdentity) -> tuple[IdentityDifference, ...]:
    """Return the values that both have and that differ: only the architecture if it differs, otherwise the rest by
    name.

    A size that only one of them has is not a difference: models of one family need not have all sizes.
    """
    if one.architecture != other.architecture:
        return (IdentityDifference("architecture", one.architecture, other.architecture),)
    found = [
        IdentityDifference(_named(name), _word(value), _word(other.sizes[name]))
        for name, value in one.sizes.items()
        if name in other.sizes and other.sizes[name] != value
    ]
    for name, names, others in (("classes", one.classes, other.classes), ("columns", one.columns, other.columns)):
        if names and others and names != others:
            found.append(IdentityDifference(name, *_first_differing(names, others)))
    if one.tokenizer and other.tokenizer and one.tokenizer != other.tokenizer:
        found.append(IdentityDifference("tokenizer", one.tokenizer[:12], other.tokenizer[:12]))
    return tuple(found)


def require_same(one: ModelIdentity, other: ModelIdentity, one_name: str, other_name: str, advice: str) -> None:
    """Refuse objects of different models.

    Raises:
        InvalidArgument: they differ; the message has each differing value, and the next step.
    """
    differences = find_differences(one, other)
    if differences:
        told = "; ".join(f"{d.name}: {d.one} in {one_name}, {d.other} in {other_name}" for d in differences)
        raise InvalidArgument(f"{one_name} and {other_name} are of different models: {told}; {advice}")


def tokenizer_digest(text: str) -> str:
    """Return a digest of the vocabulary and merges of a ``tokenizer.json``, independent of its formatting.

    Added tokens do not count: preprocess may add an end-of-text token.

    Raises:
        InvalidArgument: the text is not a tokenizer.
    """
    try:
        value = json.loads(text)
        model = value["model"]
        merges = [" ".join(pair) if isinstance(pair, list) else str(pair) for pair in model.get("merges") or ()]
        known = json.dumps([model["vocab"], merges], sort_keys=True)
    except (ValueError, KeyError, TypeError, AttributeError) as cause:
        raise InvalidArgument(f"the tokenizer is damaged: {cause!r}; expected a tokenizer.json") from cause
    return hashlib.sha256(known.encode()).hexdigest()


def _first_differing(names: Sequence[str], others: Sequence[str]) -> tuple[str, str]:
    """Format both lists, long ones from the first differing name on."""
    at = next(
        (at for at, (a, b) in enumerate(zip(names, others, strict=False)) if a != b), min(len(names), len(others))
    )
    start = at if max(len(names), len(others)) > _SHOWN else 0

    def told(words: Sequence[str]) -> str:
        shown = ", ".join(words[start : start + _SHOWN]) + (", …" if len(words) > start + _SHOWN else "")
        return f"… {shown} ({len(words)} of them)" if start else shown

    return told(names), told(others)


def _named(name: str) -> str:
    return f"{name} ({HUB_NAMES[name]})" if name in HUB_NAMES else name


def _word(value: SizeValue) -> str:
    return str(value).lower() if isinstance(value, bool) else f"{value:g}" if isinstance(value, float) else str(value)
