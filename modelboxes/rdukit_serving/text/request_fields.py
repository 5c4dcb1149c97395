"""Fields of requests for texts that all APIs treat equally: accepted without effect, not used, unknown.

Source: the APIs' references, vLLM's "Extra parameters", and the requests of official clients.
"""

from collections.abc import Iterable, Mapping
from difflib import get_close_matches
from typing import Any, ClassVar, Final, Literal

from pydantic import model_validator

from rdukit_serving.text.chat_messages import RequestPart

LEAVE_OUT: Final = "is not served here; leave it out"

#: Other programs' names of a field, and its name here; the first one in a request counts.
_OTHER_NAMES: Final[Mapping[str, tuple[str, ...]]] = {
    "max_new_tokens": ("max_tokens", "max_output_tokens"), "max_length": ("max_tokens", "max_output_tokens"),
    "num_predict": ("max_tokens",), "n_predict": ("max_tokens",), "max_tokens": ("max_output_tokens",),
    "max_completion_tokens": ("max_tokens", "max_output_tokens"),
    "max_output_tokens": ("max_completion_tokens", "max_tokens"),
    "max_tokens_to_sample": ("max_tokens",), "stop_sequences": ("stop",), "stop": ("stop_sequences",),
    "stop_strings": ("stop", "stop_sequences"), "repeat_penalty": ("repetition_penalty",),
    "functions": ("tools",), "function_call": ("tool_choice",), "num_return_sequences": ("n",), "best_of": ("n",),
    "system": ("messages", "instructions"), "input": ("messages", "prompt"), "prompt": ("messages", "input"),
    "messages": ("input", "prompt"), "json_schema": ("response_format", "text", "output_config"),
    "format": ("response_format", "text", "output_config"), "grammar": ("structured_outputs",),
    "reasoning": ("reasoning_effort", "thinking"), "thinking": ("reasoning_effort", "reasoning"),
    "enable_thinking": ("chat_template_kwargs",), "response_format": ("text", "output_config"),
}  # fmt: skip


def find_nearest(name: str, fields: Iterable[str]) -> str:
    """Return the field of a request that a misspelt name may mean; empty: none is near."""
    known = sorted(fields)
    other = next((each for each in _OTHER_NAMES.get(name, ()) if each in known), "")
    return other or next(iter(get_close_matches(name, known, 1, 0.7)), "")


class ServedFields(RequestPart):
    """Body of a request for texts.

    ``NOT_USED``: fields of the API that are accepted only with the values that mean "not used".
    """

    NOT_USED: ClassVar[Mapping[str, tuple[object, ...]]] = {}

    @model_validator(mode="before")
    @classmethod
    def _refuse_what_is_not_served(cls, value: Any) -> Any:
        if isinstance(value, dict):
            for name, unused in cls.NOT_USED.items():
                if name in value and name not in cls.model_fields:
                    if not any(value[name] == each and type(value[name]) is type(each) for each in unused):
                        nearest = find_nearest(name, cls.model_fields)
                        raise ValueError(f"{name} {LEAVE_OUT}" + (f", or write {nearest}" if nearest else ""))
                    value = {key: each for key, each in value.items() if key != name}
        return value


class AcceptedFields(ServedFields):
    """Fields that are accepted without effect: models ignore them, and requests are not stored."""

    metadata: dict[str, str] | None = None
    user: str | None = None
    safety_identifier: str | None = None
    service_tier: str | None = None
    #: Prefixes are found without it.
    prompt_cache_key: str | None = None
    prompt_cache_retention: str | None = None


#: Values of vLLM's fields that mean "not used".
UNUSED_OF_VLLM: Final[Mapping[str, tuple[object, ...]]] = {
    "include_stop_str_in_output": (None, False), "spaces_between_special_tokens": (None, True),
    "use_beam_search": (None, False), "length_penalty": (None, 1, 1.0), "early_stopping": (None, False),
    "prompt_logprobs": (None,), "truncate_prompt_tokens": (None,), "allowed_token_ids": (None,),
    "bad_words": (None, []),
    "logits_processors": (None, []), "guided_whitespace_pattern": (None,), "return_tokens_as_token_ids": (None, False),
    "mm_processor_kwargs": (None,), "kv_transfer_params": (None,), "cache_salt": (None,),
}  # fmt: skip

Verbosity = Literal["low", "medium", "high"]
