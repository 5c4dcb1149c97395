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
    FieldRow("model or router that answers", "model", "model", "model", "model", "select_expert"),
    FieldRow("prompt", "prompt", "messages", "input", "messages"),
    FieldRow("instructions before the chat", "", "", "instructions", "system"),
    FieldRow("most tokens", "max_tokens", "max_completion_tokens", "max_output_tokens", "max_tokens",
             "max_tokens_to_generate"),
    FieldRow("older name of max_completion_tokens", "", "max_tokens"),
    _in_all("min_tokens", "smallest number of tokens before the end"),
    _in_all("temperature", "0 is greedy; up to 2"),
    _in_all("top_p", "smallest set of tokens with this total probability"),
    _in_all("top_k", "number of likeliest tokens; 0 or -1: all"),
    _in_all("min_p", "tokens with at least this share of the likeliest one's probability"),
    _in_all("repetition_penalty", "divisor for logits of tokens that occurred before"),
    _in_all("seed", "seed of random numbers; each choice adds one"),
    _in_all("do_sample", "false is greedy"),
    _in_all("ignore_eos", "continue after a token that ends the text"),
    _in_all("stop_token_ids", "more tokens that end a text"),
    _in_all("skip_special_tokens", "false keeps special tokens in the text"),
    FieldRow("texts that end the output, which omits them", "stop", "stop", "", "stop_sequences", "stop_sequences"),
    _generating("n", "choices of each prompt"),
    FieldRow("must be `n`: choices are not ranked", "best_of"),
    _generating("frequency_penalty", "subtracted from a token's logit for each earlier choice of it"),
    _generating("presence_penalty", "taken off once"),
    _generating("logit_bias", "added to logits of tokens"),
    FieldRow("probabilities of tokens", "logprobs", "logprobs", "include"),
    FieldRow("number of likeliest tokens shown with each token", "", "top_logprobs", "top_logprobs"),
    FieldRow("the prompt comes first", "echo"),
    FieldRow("send events instead of one answer", "stream", "stream", "stream", "stream"),
    FieldRow("`include_usage` ends a stream with counts", "stream_options", "stream_options", "stream_options"),
    FieldRow("form of the text", "response_format", "response_format", "text.format", "output_config.format"),
    _generating("structured_outputs", "vLLM's forms: `json`, `regex`, `choice`, `grammar`"),
    _generating("guided_json", "as `structured_outputs.json`"),
    _generating("guided_regex", "as `structured_outputs.regex`"),
    _generating("guided_choice", "as `structured_outputs.choice`"),
    _generating("guided_grammar", "as `structured_outputs.grammar`"),
    FieldRow("tools that the model may call", "", "tools", "tools", "tools"),
    FieldRow("whether the model must call a tool, and which", "", "tool_choice", "tool_choice", "tool_choice"),
    FieldRow("false: at most one call", "", "parallel_tool_calls", "parallel_tool_calls",
             "tool_choice.disable_parallel_tool_use"),
    FieldRow("older name of tools; the answer has a `function_call`", "", "functions"),
    FieldRow("older name of tool_choice: `none`, `auto` or a name", "", "function_call"),
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
    FieldRow("unused: prefixes are found without it", "prompt_cache_key", "prompt_cache_key", "prompt_cache_key",
             "cache_control"),
    FieldRow("the same", "prompt_cache_retention", "prompt_cache_retention", "prompt_cache_retention"),
    FieldRow("nothing is stored; must be false for responses", "store", "store", "store"),
    FieldRow("must be false", "", "", "background"),
    FieldRow("must be `disabled`", "", "", "truncation"),
    FieldRow("length of an answer; models here do not support it", "", "verbosity", "text.verbosity"),
    FieldRow("predicted text, for speed", "", "prediction"),
    _generating("guided_decoding_backend", "llguidance enforces forms"),
    _generating("priority", "unused: texts are generated in order"),
    _generating("request_id", "an answer has an id of its own"),
)  # fmt: skip

_INTRODUCTION: Final = """Fields of requests for texts, by API ([text models](text-models.md) describes what they do).
An empty cell is a field that the API lacks here: it is refused with status 400 and the name of the nearest
field. All APIs accept fields of the vendor and of vLLM; OpenAI's and Anthropic's clients send them in
`extra_body`.
"""
_UNUSED: Final = """vLLM clients may send these with the value that means unused: {unused}.
So may those of OpenAI with `suffix`, `modalities`, `audio`, `web_search_options`,
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
