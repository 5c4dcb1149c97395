"""Fields of requests for texts by API, as data: the manual's page and the tests of bodies use it."""

from dataclasses import dataclass
from typing import Final

from rdukit_serving.text.request_fields import UNUSED_OF_VLLM

#: Columns of the table, as attributes of a row and as the manual names them.
APIS: Final = {
    "completions": "completions", "chat": "chat completions", "responses": "responses", "messages": "messages",
    "studio": "generic v2, `params`",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class FieldRow:
    """A field, its effect, and its name in each API; empty if the API lacks it."""

    meaning: str
    completions: str = ""
    chat: str = ""
    responses: str = ""
    messages: str = ""
    studio: str = ""


def _in_all(name: str, meaning: str) -> FieldRow:
    return FieldRow(meaning, name, name, name, name, name)


def _generating(name: str, meaning: str) -> FieldRow:
    return FieldRow(meaning, name, name)


_OBEYED: Final = (
    FieldRow("model, or router, that answers", "model", "model", "model", "model", "select_expert"),
    FieldRow("prompt", "prompt", "messages", "input", "messages"),
    FieldRow("instructions before the chat", "", "", "instructions", "system"),
    FieldRow("most tokens", "max_tokens", "max_completion_tokens", "max_output_tokens", "max_tokens",
             "max_tokens_to_generate"),
    FieldRow("older name of it", "", "max_tokens"),
    _in_all("min_tokens", "least tokens before one that ends the text"),
    _in_all("temperature", "0 is greedy; up to 2"),
    _in_all("top_p", "fewest tokens of so much probability"),
    _in_all("top_k", "so many of the likeliest tokens; 0 or -1: all"),
    _in_all("min_p", "tokens of at least this share of the likeliest one's probability"),
    _in_all("repetition_penalty", "divides logits of tokens that were there"),
    _in_all("seed", "of the random numbers; choices count up from it"),
    _in_all("do_sample", "false is greedy"),
    _in_all("ignore_eos", "goes on behind a token that ends a text"),
    _in_all("stop_token_ids", "more tokens that end a text"),
    _in_all("skip_special_tokens", "false leaves special tokens in the text"),
    FieldRow("texts that end a text and are not shown", "stop", "stop", "", "stop_sequences", "stop_sequences"),
    _generating("n", "choices of each prompt"),
    FieldRow("must be `n`: choices are not ranked", "best_of"),
    _generating("frequency_penalty", "taken off a token's logit for each time that it was chosen"),
    _generating("presence_penalty", "taken off once"),
    _generating("logit_bias", "added to logits of tokens"),
    FieldRow("probabilities of tokens", "logprobs", "logprobs", "include"),
    FieldRow("likeliest tokens that are shown with each", "", "top_logprobs", "top_logprobs"),
    FieldRow("the prompt comes first", "echo"),
    FieldRow("events in place of one answer", "stream", "stream", "stream", "stream"),
    FieldRow("`include_usage` ends a stream with counts", "stream_options", "stream_options", "stream_options"),
    FieldRow("form of the text", "response_format", "response_format", "text.format", "output_config.format"),
    _generating("structured_outputs", "vLLM's forms: `json`, `regex`, `choice`, `grammar`"),
    _generating("guided_json", "as `structured_outputs.json`"),
    _generating("guided_regex", "as `structured_outputs.regex`"),
    _generating("guided_choice", "as `structured_outputs.choice`"),
    _generating("guided_grammar", "as `structured_outputs.grammar`"),
    FieldRow("tools that the model may call", "", "tools", "tools", "tools"),
    FieldRow("whether and which one it must call", "", "tool_choice", "tool_choice", "tool_choice"),
    FieldRow("false: one call at most", "", "parallel_tool_calls", "parallel_tool_calls",
             "tool_choice.disable_parallel_tool_use"),
    FieldRow("variable of the chat template", "", "reasoning_effort", "reasoning.effort", "output_config.effort"),
    FieldRow("whether the model thinks: `enable_thinking` of the chat template", "", "", "", "thinking"),
    FieldRow("more variables of the chat template", "", "chat_template_kwargs", "chat_template_kwargs",
             "chat_template_kwargs"),
    FieldRow("whether the chat template is applied", "", "", "", "", "process_prompt"),
)  # fmt: skip

_IGNORED: Final = (
    FieldRow("caller's notes", "metadata", "metadata", "metadata", "metadata"),
    FieldRow("who asks", "user", "user", "user"),
    FieldRow("who asks", "safety_identifier", "safety_identifier", "safety_identifier"),
    FieldRow("priority of a hosted service", "service_tier", "service_tier", "service_tier", "service_tier"),
    FieldRow("prefixes are found without it", "prompt_cache_key", "prompt_cache_key", "prompt_cache_key",
             "cache_control"),
    FieldRow("the same", "prompt_cache_retention", "prompt_cache_retention", "prompt_cache_retention"),
    FieldRow("nothing is kept; of a response it may be false only", "store", "store", "store"),
    FieldRow("may be false only", "", "", "background"),
    FieldRow("may be `disabled` only", "", "", "truncation"),
    FieldRow("length of an answer; models here have no such switch", "", "verbosity", "text.verbosity"),
    FieldRow("what the text will be like, for speed", "", "prediction"),
    _generating("guided_decoding_backend", "forms are kept by llguidance"),
    _generating("priority", "texts are made in order"),
    _generating("request_id", "an answer has an id of its own"),
)  # fmt: skip

_INTRODUCTION: Final = """Fields of requests for texts, by API ([text models](text-models.md) describes what they do).
An empty cell is a field that the API does not have here: it is refused with status 400 and the name of the nearest
field. Fields of the vendor and of vLLM are taken by all APIs; with OpenAI's and Anthropic's clients they go into
`extra_body`.
"""
_UNUSED: Final = """Clients of vLLM may send these with the value that means that they are not used: {unused}.
So may those of OpenAI with `suffix`, `functions`, `function_call`, `modalities`, `audio`, `web_search_options`,
`previous_response_id`, `conversation`, `prompt`, `max_tool_calls` and `context_management`, and those of Anthropic with
`container`, `mcp_servers`, `context_management` and `inference_geo`. Any other value is a 400.
"""


def fields_page(head: str) -> str:
    """Return the manual's page."""
    unused = ", ".join(f"`{name}`" for name in UNUSED_OF_VLLM)
    lines = ["# Fields of requests for texts", "", head, _INTRODUCTION, "## Obeyed", "", *_table(_OBEYED), ""]
    lines += ["## Accepted without effect", "", "Ignoring these changes no text.", "", *_table(_IGNORED), ""]
    return "\n".join([*lines, "## Refused unless unused", "", _UNUSED.format(unused=unused)])


def _table(rows: tuple[FieldRow, ...]) -> list[str]:
    lines = [f"| what it does | {' | '.join(APIS.values())} |", "| --- " * (1 + len(APIS)) + "|"]
    for row in rows:
        cells = [f"`{name}`" if (name := getattr(row, api)) else "" for api in APIS]
        lines.append(f"| {row.meaning} | {' | '.join(cells)} |")
    return lines


def fields_of(api: str) -> set[str]:
    """Return the fields of an API's body that the table has."""
    return {getattr(row, api).partition(".")[0] for row in (*_OBEYED, *_IGNORED)} - {""}
