"""Requests of the OpenAI-style routes, checked. Unsupported fields are refused by name, never ignored.

Source: OpenAI's API reference, "Completions", "Chat" and "Embeddings": names, types, defaults and ranges.
"""

import asyncio
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Final, Literal, Self, TypeVar

from pydantic import AfterValidator, BaseModel, Field, ValidationError, model_validator
from pydantic_core import from_json

from rdukit.errors import InvalidArgument
from rdukit.strict_json import refuse_duplicates, refuse_values
from rdukit_serving.text.boolean_numbers import find_boolean
from rdukit_serving.text.chat_messages import (
    ChatMessage,
    ChosenTool,
    DeclaredFunction,
    FunctionTool,
    RequestPart,
    check_template_values,
)
from rdukit_serving.text.chat_template import ChatTemplate
from rdukit_serving.text.constraints import TextForm
from rdukit_serving.text.form_values import ResponseFormat, StructuredOutputs, form_of
from rdukit_serving.text.forms.composed import compose
from rdukit_serving.text.older_functions import (
    FIELDS,
    FunctionChoice,
    choice_as_tool,
    functions_as_tools,
    with_tool_calls,
)
from rdukit_serving.text.queue import GenerationRequest
from rdukit_serving.text.reasoning import AnswerReader, ThinkingReader, find_thinking
from rdukit_serving.text.request_fields import (
    LEAVE_OUT,
    UNUSED_OF_VLLM,
    AcceptedFields,
    ServedFields,
    Verbosity,
    find_nearest,
)
from rdukit_serving.text.tool_calls import CallReader, forced_call, format_of

#: Most characters of all stop texts together, which are searched after each token; and most choices of a prompt
#: and of a request, whose texts are kept until the answer is sent.
MAX_STOP_CHARACTERS: Final = 8192
MAX_CHOICES: Final = 1024
MAX_TEXTS: Final = 10_000


def check_stops(stops: list[str]) -> list[str]:
    """Return stop texts if their total length is within the limit.

    Raises:
        ValueError: they are too long together.
    """
    size = sum(map(len, stops))
    if size > MAX_STOP_CHARACTERS:
        raise ValueError(f"they have {size} characters together; expected at most {MAX_STOP_CHARACTERS}")
    return stops


StopText = Annotated[str, Field(min_length=1, max_length=MAX_STOP_CHARACTERS)]
StopTexts = Annotated[list[StopText], AfterValidator(check_stops)]
Stop = StopText | StopTexts | None
Penalty = Annotated[float, Field(ge=-2, le=2)] | None
Bias = dict[Annotated[int, Field(ge=0, lt=2**31)], Annotated[float, Field(ge=-100, le=100)]]
Tokens = Annotated[list[Annotated[int, Field(ge=0, lt=2**31)]], Field(min_length=1)]

#: Values that mean "not used"; anything else in these fields is refused.
_NOT_SERVED: Final[Mapping[str, tuple[object, ...]]] = {
    **UNUSED_OF_VLLM,
    "suffix": (None, ""), "tools": (None, []), "tool_choice": (None, "none", "auto"), "functions": (None, []),
    "function_call": (None, "none"), "modalities": (None, ["text"]), "audio": (None,),
    "parallel_tool_calls": (None, True, False), "web_search_options": (None,),
}  # fmt: skip

#: Names that pydantic adds to an error's place for the tried kind of value.
_TAG: Final = re.compile(r"(list\[|literal\[|function-|constrained-|tagged-union|one-of-|Chosen).*|str|int|\[key\]")

Body = TypeVar("Body", bound=BaseModel)


class SamplingFields(RequestPart):
    """Fields of requests of all APIs that determine how a text is generated."""

    temperature: Annotated[float, Field(ge=0, le=2)] | None = None
    top_p: Annotated[float, Field(gt=0, le=1)] | None = None
    #: Not OpenAI's, but what most servers of its API take; of ``top_k`` some clients say "all" as -1.
    top_k: Annotated[int, Field(ge=-1)] | None = None
    min_p: Annotated[float, Field(ge=0, le=1)] | None = None
    repetition_penalty: Annotated[float, Field(gt=0, le=10)] | None = None
    ignore_eos: bool | None = None
    #: The vendor's: false means greedy, regardless of the temperature.
    do_sample: bool | None = None
    seed: Annotated[int, Field(ge=-(2**63), lt=2**63)] | None = None
    #: vLLM's: least number of tokens before an end token, further end tokens, and whether special ones are left out.
    min_tokens: Annotated[int, Field(ge=0)] | None = None
    stop_token_ids: list[Annotated[int, Field(ge=0, lt=2**31)]] | None = None
    skip_special_tokens: bool | None = None

    @property
    def keeps_special(self) -> bool:
        """Return whether the text keeps special tokens."""
        return self.skip_special_tokens is False

    def sampling(self, choice: int) -> dict[str, object]:
        """Return values for ``SamplingOptions``, the model's own for those left out; each choice has its own seed."""
        given = {
            "temperature": 0.0 if self.do_sample is False else self.temperature,
            "top_p": self.top_p,
            "top_k": None if self.top_k is None else max(self.top_k, 0),
            "min_p": self.min_p,
            "repetition_penalty": self.repetition_penalty,
            "ignore_eos": self.ignore_eos,
            "do_sample": self.do_sample or None,
            "seed": None if self.seed is None else (self.seed + choice) % 2**63,
            "min_tokens": self.min_tokens,
            "stop_tokens": self.stop_token_ids,
        }
        return {name: value for name, value in given.items() if value is not None}

    def sampling_fields(self) -> dict[str, Any]:
        """Return these fields, for a request of another API."""
        return {name: getattr(self, name) for name in SamplingFields.model_fields}


class StreamOptions(RequestPart):
    """Options of a stream."""

    include_usage: bool = False
    include_obfuscation: bool = False


class _Generation(AcceptedFields, SamplingFields):
    NOT_USED = _NOT_SERVED

    model: str
    stream: bool = False
    stream_options: StreamOptions | None = None
    frequency_penalty: Penalty = None
    presence_penalty: Penalty = None
    logit_bias: Bias | None = None
    stop: Stop = None
    response_format: ResponseFormat | None = None
    structured_outputs: StructuredOutputs | None = None
    n: Annotated[int, Field(ge=1, le=MAX_CHOICES)] | None = None
    #: vLLM's older names of ``structured_outputs``.
    guided_json: dict[str, Any] | str | None = None
    guided_regex: str | None = None
    guided_choice: list[str] | None = None
    guided_grammar: str | None = None
    #: Without effect.
    guided_decoding_backend: str | None = None
    store: bool | None = None
    priority: int | None = None
    request_id: str | None = None

    def form(self) -> TextForm | None:
        """Return the form that a text must have; None: any text.

        Raises:
            InvalidArgument: two forms are requested, or the form cannot be enforced.
        """
        guided = {kind: getattr(self, f"guided_{kind}") for kind in ("json", "regex", "choice", "grammar")}
        return form_of(self.response_format, self.structured_outputs, guided)

    def check_least(self, most: int | None) -> None:
        """Check that ``min_tokens`` is not above the limit of tokens.

        Raises:
            InvalidArgument: it is.
        """
        if most is not None and (self.min_tokens or 0) > most:
            raise InvalidArgument(f"min_tokens: {self.min_tokens} is above max_tokens, {most}", field="min_tokens")

    def sampling(self, choice: int) -> dict[str, object]:
        """Return values for ``SamplingOptions``; each choice has a seed of its own."""
        return super().sampling(choice) | {
            "frequency_penalty": self.frequency_penalty or 0.0,
            "presence_penalty": self.presence_penalty or 0.0,
            "bias": list((self.logit_bias or {}).items()),
        }

    @property
    def choices(self) -> int:
        """Return the number of choices of each prompt."""
        return self.n or 1

    def wants_usage(self) -> bool:
        """Return whether a stream ends with the counts of tokens; other answers ignore its options."""
        return bool(self.stream) and self.stream_options is not None and self.stream_options.include_usage

    def stops(self) -> Sequence[str]:
        """Return the texts that end a generation."""
        if self.stop is None:
            return ()
        return [self.stop] if isinstance(self.stop, str) else self.stop


class CompletionBody(_Generation):
    """Body of ``POST /v1/completions``."""

    prompt: str | Tokens | Annotated[list[str], Field(min_length=1)] | Annotated[list[Tokens], Field(min_length=1)]
    max_tokens: Annotated[int, Field(ge=0)] | None = None
    logprobs: Annotated[int, Field(ge=0, le=5)] | None = None
    echo: bool | None = None
    best_of: int | None = None

    def prompts(self) -> list[str | list[int]]:
        """Return one or more prompts, as text or tokens."""
        prompt: Any = self.prompt
        if isinstance(prompt, str) or isinstance(prompt[0], int):
            return [prompt]
        return list(prompt)

    def requests(self) -> list[GenerationRequest]:
        """Return a request for each choice of each prompt, in the order of the answer's choices.

        Raises:
            InvalidArgument: fields that are not valid together.
        """
        if self.best_of not in (None, self.choices):
            raise InvalidArgument(
                f"best_of: {self.best_of} is not valid; expected {self.choices}, the value of n, because choices are "
                "not ranked here",
                field="best_of",
            )
        if self.max_tokens == 0 and not self.echo:
            raise InvalidArgument("max_tokens: 0 is valid only with echo: true", field="max_tokens")
        texts = len(self.prompts()) * self.choices
        if texts > MAX_TEXTS:
            raise InvalidArgument(f"prompt: {texts} texts are requested; expected at most {MAX_TEXTS}", field="prompt")
        most = 16 if self.max_tokens is None else self.max_tokens
        self.check_least(most)
        form = self.form()
        return [
            GenerationRequest(
                prompt, most, self.sampling(choice), self.stops(), self.logprobs, bool(self.echo), form=form,
                keeps_special=self.keeps_special,
            )
            for prompt in self.prompts()
            for choice in range(self.choices)
        ]  # fmt: skip


class ChatBody(_Generation):
    """Body of ``POST /v1/chat/completions``."""

    messages: Annotated[list[ChatMessage], Field(min_length=1)]
    max_tokens: Annotated[int, Field(ge=1)] | None = None
    max_completion_tokens: Annotated[int, Field(ge=1)] | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Field(ge=0, le=20)] | None = None
    tools: list[FunctionTool] | None = None
    tool_choice: Literal["none", "auto", "required"] | ChosenTool | None = None
    parallel_tool_calls: bool | None = None
    #: Older names of ``tools`` and ``tool_choice``, which they set.
    functions: list[DeclaredFunction] | None = None
    function_call: FunctionChoice | None = None
    #: Both are variables of the chat template.
    reasoning_effort: Literal["none", "minimal", "low", "medium", "high", "xhigh"] | None = None
    chat_template_kwargs: Annotated[dict[str, Any], AfterValidator(check_template_values)] | None = None
    #: Without effect: verbosity, and the predicted text.
    verbosity: Verbosity | None = None
    prediction: dict[str, Any] | None = None

    @model_validator(mode="after")
    def _take_functions(self) -> Self:
        if self.uses_functions:
            if self.tools or self.tool_choice is not None:
                name = "functions" if self.functions else "function_call"
                raise InvalidArgument(
                    f"{name}: it cannot be combined with tools or tool_choice; write these instead", field=name
                )
            self.tools = functions_as_tools(self.functions or ()) or None
            self.tool_choice = choice_as_tool(self.function_call)
            self.parallel_tool_calls = False
        names = [tool.function.name for tool in self.tools or ()]
        if len(set(names)) < len(names):
            twice = Counter(names).most_common(1)[0][0]
            field = self.field_of("tools")
            raise InvalidArgument(f"{field}: two have the name {twice}; expected another name for each", field=field)
        self.messages = with_tool_calls(self.messages)
        return self

    @property
    def uses_functions(self) -> bool:
        """Return whether the caller declares functions, and reads a call as ``function_call``."""
        return bool(self.functions) or self.function_call not in (None, "none")

    def field_of(self, name: str) -> str:
        """Return the caller's name of a field of tools."""
        return FIELDS[name] if self.uses_functions else name

    @property
    def has_tools(self) -> bool:
        """Return whether the model gets descriptions of tools."""
        return bool(self.tools) and self.tool_choice != "none"

    def named_tools(self) -> list[tuple[str, dict[str, Any]]]:
        """Return names of the tools and schemas of their arguments."""
        return [(tool.function.name, tool.function.parameters or {}) for tool in self.tools or ()]

    def forced_tools(self) -> list[tuple[str, dict[str, Any]]]:
        """Return name and schema of the tools of which one must be called; empty: no call is required.

        Raises:
            InvalidArgument: there is no such tool.
        """
        choice = self.tool_choice
        if choice in (None, "none", "auto"):
            return []
        wanted = choice.function.name if isinstance(choice, ChosenTool) else None
        tools = self.named_tools()
        found = [tool for tool in tools if wanted in (None, tool[0])]
        if not found:
            names = ", ".join(name for name, _ in tools) or "none, because there are no tools"
            field = self.field_of("tool_choice")
            raise InvalidArgument(f"{field}: {wanted or choice} is not valid; expected {names}", field=field)
        return found

    def reader(self, template: ChatTemplate, prompt: str) -> AnswerReader | None:
        """Return a reader of thoughts and calls for one text after a prompt; None: there are neither."""
        thinking = find_thinking(template.text, prompt)
        if not self.has_tools and thinking is None:
            return None
        names = [tool.function.name for tool in self.tools or ()] if self.has_tools else []
        most = 1 if self.parallel_tool_calls is False else None
        of_calls = format_of(template.text)
        return AnswerReader(
            None if thinking is None else ThinkingReader(thinking),
            CallReader(of_calls, names, bool(self.forced_tools()), most) if names else None,
            CallReader(of_calls.marked(), names, most=most) if names and thinking is not None else None, most,
        )  # fmt: skip

    def for_template(self, template: ChatTemplate) -> tuple[list[dict[str, Any]], dict[str, Any]]:
        """Return messages and variables as a template reads them."""
        knows_developers = "developer" in template.text or template.is_ours
        values = dict(self.chat_template_kwargs or {})
        if self.reasoning_effort is not None:
            values["reasoning_effort"] = self.reasoning_effort
        if self.has_tools:
            if "tools" not in template.text:
                field = self.field_of("tools")
                raise InvalidArgument(f"{field}: the model's chat template has no tools; leave it out", field=field)
            values["tools"] = [tool.model_dump(exclude_none=True) for tool in self.tools or ()]
        return [message.for_template(knows_developers) for message in self.messages], values

    def requests(self, prompt: str, template: ChatTemplate) -> list[GenerationRequest]:
        """Return a request for each choice, after the prompt that the template gave."""
        if self.top_logprobs is not None and not self.logprobs:
            raise InvalidArgument("top_logprobs needs logprobs: true", field="top_logprobs")
        most = self.max_completion_tokens or self.max_tokens
        top = (self.top_logprobs or 0) if self.logprobs else None
        self.check_least(most)
        form = self.form()
        forced, of_calls = self.forced_tools(), format_of(template.text)
        schema_of = "functions.{}.parameters" if self.uses_functions else "tools.{}.function.parameters"
        thinking = find_thinking(template.text, prompt)
        thinks = thinking is not None and not thinking.has_ended
        if len(forced) == 1:
            schema_of = schema_of.format(self.named_tools().index(forced[0]))
        if forced:  # a text that must be a call has no content that could have another form
            form = forced_call(of_calls, forced, schema_of)
            if thinks:
                form = compose(thinking, None, form, of_calls.opener)
            else:
                prompt += of_calls.opener
        elif form is not None and self.has_tools and form.field == "response_format":
            form = compose(thinking, form, forced_call(of_calls, self.named_tools(), schema_of), of_calls.opener)
        elif form is not None and thinks:
            form = compose(thinking, form, None)
        keeps_special = self.keeps_special or thinking is not None or (self.has_tools and not forced)
        return [
            GenerationRequest(
                prompt, most, self.sampling(choice), self.stops(), top, is_rendered=not template.is_ours, form=form,
                keeps_special=keeps_special,
            )
            for choice in range(self.choices)
        ]  # fmt: skip


class EmbeddingBody(ServedFields):
    """Body of ``POST /v1/embeddings``."""

    NOT_USED = {"truncate_prompt_tokens": (None,), "add_special_tokens": (None, True)}

    model: str
    user: str | None = None
    input: str | Tokens | Annotated[list[str], Field(min_length=1)] | Annotated[list[Tokens], Field(min_length=1)]
    encoding_format: Literal["float", "base64"] | None = None
    dimensions: Annotated[int, Field(ge=1)] | None = None

    def inputs(self) -> list[str | list[int]]:
        """Return one or more texts, as text or tokens."""
        value: Any = self.input
        return [value] if isinstance(value, str) or isinstance(value[0], int) else list(value)


#: Longest body that the event loop reads itself, and values of a body.
SHORT_BYTES: Final = 16 << 10
MAX_VALUES: Final = 250_000


async def read_body(kind: type[Body], body: bytes) -> Body:
    """Run ``parse_body``; a long body is parsed in a thread while other texts continue. Raises as that."""
    return parse_body(kind, body) if len(body) <= SHORT_BYTES else await asyncio.to_thread(parse_body, kind, body)


def parse_body(kind: type[Body], body: bytes) -> Body:
    """Read a request.

    Raises:
        InvalidArgument: not JSON, a key twice, or not legal; the detail's ``field`` is the first field that is wrong.
    """
    try:
        refuse_values(body, MAX_VALUES)
        value = kind.model_validate_json(body)
        refuse_duplicates(body)
        found = find_boolean(kind, from_json(body)) if b"true" in body or b"false" in body else None
    except ValidationError as cause:
        raise refused_body(kind, cause) from cause
    if found is not None:
        place, given = found
        raise InvalidArgument(f"{place}: {str(given).lower()} is not a number; expected a number", field=place)
    return value


def refused_body(kind: type[BaseModel], cause: ValidationError) -> InvalidArgument:
    """Return the error of a body, which names the first field that is wrong."""
    first = _clearest_error(cause)
    place = ".".join(str(part) for part in first["loc"] if not _TAG.fullmatch(str(part)))
    words = str(first["msg"]).removeprefix("Value error, ")
    if first["type"] == "extra_forbidden":
        words = "it is not a field of this request; leave it out"
        nearest = find_nearest(place, kind.model_fields)
        words += f", or write {nearest}" if nearest else ""
    if not place and LEAVE_OUT in words:
        return InvalidArgument(words, field=words.partition(" ")[0])
    return InvalidArgument(f"{place}: {words}" if place else words, field=place or None)


def _clearest_error(cause: ValidationError) -> Any:
    """Pick the error of the first wrong field; if several kinds are allowed, the error of the given kind."""
    errors = cause.errors()
    of_field = [error for error in errors if error["loc"][:1] == errors[0]["loc"][:1]]
    return max(of_field, key=lambda error: (not error["type"].endswith("_type"), len(error["loc"])))
