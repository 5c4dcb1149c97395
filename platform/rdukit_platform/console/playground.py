"""Requests of the playground, and the shown parts of the answers (pure).

Answers come from boxes, perhaps a tenant's own: none is trusted to have the right form.
"""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import orjson

from rdukit.errors import InvalidArgument
from rdukit.strict_json import find_number

#: Bounds of a form: characters of a message, messages of a chat, numbers of rows.
MAX_TEXT: Final = 20_000
MAX_MESSAGES: Final = 40
MAX_NUMBERS: Final = 200_000
#: Limits of the shown part of an answer.
MAX_TOKENS_SHOWN: Final = 2_000
MAX_ROWS_SHOWN: Final = 20
MAX_VALUES_SHOWN: Final = 16
#: Number of alternatives that are requested with each token.
ALTERNATIVES: Final = 4


@dataclass(frozen=True, slots=True)
class Answerer:
    """Answerer of a request: an endpoint, or of one that serves a bundle an expert; empty: its first."""

    endpoint: str
    model: str = ""

    def __str__(self) -> str:
        return f"{self.endpoint}/{self.model}" if self.model else self.endpoint


def read_answerer(text: str) -> Answerer:
    """Read what ``str`` of an answerer gives; neither name has a slash."""
    endpoint, _, model = text.partition("/")
    return Answerer(endpoint, model)


@dataclass(frozen=True, slots=True)
class ShownToken:
    """A token of an answer. ``shade``: 0 (certain) to 4 (unlikely), or none if the probability is unknown."""

    text: str
    shade: int | None
    #: Its probability and the likeliest others, in words.
    words: str


@dataclass(frozen=True, slots=True)
class ShownAnswer:
    """Answer of a chat."""

    text: str
    tokens: tuple[ShownToken, ...]
    finish: str
    prompt_tokens: int
    completion_tokens: int
    #: Cached tokens of the prompt, seconds to the first token, and tokens per second after it.
    cached_tokens: int = 0
    first_s: float | None = None
    rate: float | None = None


@dataclass(frozen=True, slots=True)
class ShownRow:
    """A row of an output: its largest value's place and share of the bar, and the first values."""

    values: tuple[str, ...]
    more: int
    largest: int | None


@dataclass(frozen=True, slots=True)
class ShownOutput:
    """An output of an inference."""

    name: str
    kind: str
    rows: tuple[ShownRow, ...]
    more: int


def read_history(text: str) -> list[dict[str, str]]:
    """Read the chat that a form carries.

    Raises:
        InvalidArgument: the playground did not write it.
    """
    try:
        found = orjson.loads(text or "[]")
    except ValueError as cause:
        raise InvalidArgument("the chat history is not JSON; begin a new chat") from cause
    if not isinstance(found, list) or len(found) > MAX_MESSAGES:
        raise InvalidArgument(f"the chat has more than {MAX_MESSAGES} messages; begin a new chat")
    for each in found:
        is_message = isinstance(each, dict) and set(each) == {"role", "content"}
        if not is_message or not all(isinstance(value, str) and len(value) <= MAX_TEXT for value in each.values()):
            raise InvalidArgument("the chat history is not one of the playground; begin a new chat")
    return found


@dataclass(frozen=True, slots=True)
class ChatOptions:
    """Choices of a form for a chat; an empty ``seed`` draws new numbers each time."""

    max_tokens: int = 64
    temperature: float = 0.0
    top_p: float = 1.0
    seed: str = ""
    system: str = ""


def chat_body(
    model: str, messages: Sequence[Mapping[str, str]], options: ChatOptions, *, logprobs: bool, stream: bool = False
) -> bytes:
    """Return the body of ``POST /v1/chat/completions``.

    Raises:
        InvalidArgument: the seed is not a number.
    """
    system = [{"role": "system", "content": options.system}] if options.system.strip() else []
    body: dict[str, object] = {
        "model": model, "messages": [*system, *messages], "max_tokens": options.max_tokens,
        "temperature": options.temperature, "top_p": options.top_p,
    }  # fmt: skip
    if options.seed.strip():
        try:
            body["seed"] = int(options.seed) & ((1 << 63) - 1)
        except ValueError as cause:
            raise InvalidArgument(
                f"seed {options.seed[:40]!r} is not a whole number; expected one, or an empty field"
            ) from cause
    body |= {"logprobs": True, "top_logprobs": ALTERNATIVES} if logprobs else {}
    return orjson.dumps(body | ({"stream": True, "stream_options": {"include_usage": True}} if stream else {}))


def read_chat(answer: bytes) -> ShownAnswer:
    """Read the answer of a chat.

    Raises:
        InvalidArgument: the answer has no chat text.
    """
    found = _parse(answer)
    try:
        choice = found["choices"][0]
        text, usage = choice["message"]["content"], found.get("usage") or {}
        content = ((choice.get("logprobs") or {}).get("content") or []) if isinstance(choice, dict) else []
        tokens = tuple(show_token(each) for each in content[:MAX_TOKENS_SHOWN])
        counts = [usage.get(f"{kind}_tokens") for kind in ("prompt", "completion")]
        finish = str(choice.get("finish_reason") or "")
        details = usage.get("prompt_tokens_details") or {}
        counts.append(details.get("cached_tokens"))
        times = [
            find_number(usage.get(key)) for key in ("time_to_first_token", "completion_tokens_after_first_per_sec")
        ]
    except (LookupError, TypeError, AttributeError) as cause:
        raise InvalidArgument(
            "the endpoint's answer is not a chat completion; check that it serves a text model"
        ) from cause
    prompt, completion, cached = (each if isinstance(each, int) else 0 for each in counts)
    first_s, rate = (each if each is not None and 0 < each < math.inf else None for each in times)
    return ShownAnswer(str(text), tokens, finish[:40], prompt, completion, cached, first_s, rate)


def show_token(value: Mapping[str, Any]) -> ShownToken:
    """Return a token of an answer as the page shows it, from its entry in ``logprobs``."""
    others = value.get("top_logprobs")
    probability = _probability(value.get("logprob"))
    words = "" if probability is None else f"{100 * probability:.1f} %"
    listed = ", ".join(
        f"{_quoted(each.get('token'))} {100 * (_probability(each.get('logprob')) or 0):.1f} %"
        for each in (others[:ALTERNATIVES] if isinstance(others, list) else ())
        if isinstance(each, dict)
    )
    shade = None if probability is None else min(4, int(-math.log2(max(probability, 1e-9))))
    return ShownToken(str(value.get("token", "")), shade, f"{words}; likeliest: {listed}" if listed else words)


def _probability(value: object) -> float | None:
    number = find_number(value)
    return None if number is None or math.isnan(number) else math.exp(min(number, 0.0))


def _quoted(token: object) -> str:
    return json.dumps(str(token)[:40], ensure_ascii=False)


def example_rows(metadata: bytes) -> str:
    """Return a row to fill in: a table's by column name, else zeros for the first input; empty if neither is known."""
    found = _parse(metadata)
    columns = _columns(found)
    if columns:
        return json.dumps([dict(columns)], ensure_ascii=False)
    inputs = found.get("inputs")
    first = inputs[0] if isinstance(inputs, list) and inputs else None
    shape = first.get("shape") if isinstance(first, dict) else None
    if not isinstance(shape, list) or not all(isinstance(each, int) and each > 0 for each in shape[1:]):
        return ""
    count = math.prod(shape[1:])
    return json.dumps([[0] * count]) if count <= MAX_NUMBERS else ""


def rows_body(metadata: bytes, rows: str) -> bytes | None:
    """Return the body of a prediction for rows by column name; None if the model or the rows lack columns.

    The model checks the rows' values.
    """
    try:
        given = json.loads(rows)
    except (ValueError, RecursionError):
        return None
    if not _columns(_parse(metadata)) or not isinstance(given, list) or not any(isinstance(row, dict) for row in given):
        return None
    return orjson.dumps({"rows": given})


def _columns(metadata: Mapping[str, Any]) -> list[tuple[str, object]]:
    """Return the columns of a model's table, each with an example: a category that is known, a date, or 0."""
    table = metadata.get("table")
    columns = table.get("columns") if isinstance(table, dict) else None
    found: list[tuple[str, object]] = []
    for column in columns if isinstance(columns, list) else ():
        if isinstance(column, dict):
            known = column.get("categories")
            example = known[0] if isinstance(known, list) and known else 0
            found.append((str(column.get("name")), "2025-01-01" if column.get("kind") == "date" else example))
    return found


def infer_body(metadata: bytes, rows: str) -> bytes:
    """Return the body of an inference on rows, a JSON list of lists of numbers, for a model's first input.

    Raises:
        InvalidArgument: the rows are not valid, or of another length than the model's.
    """
    try:
        first = _parse(metadata)["inputs"][0]
        name, datatype, row_shape = (
            str(first["name"]),
            str(first["datatype"]),
            [int(each) for each in first["shape"][1:]],
        )
    except (LookupError, TypeError, ValueError) as cause:
        raise InvalidArgument("the endpoint does not describe its inputs; call it from a program") from cause
    try:
        given = json.loads(rows)
    except (ValueError, RecursionError) as cause:
        raise InvalidArgument(f"rows are not JSON: {cause}; expected [[0.5, 1, …], …]") from cause
    if not isinstance(given, list) or not given or not all(isinstance(row, list) for row in given):
        raise InvalidArgument("rows: expected a list of rows, each a list of numbers: [[0.5, 1, …], …]")
    length = math.prod(row_shape)
    for number, row in enumerate(given, 1):
        if len(row) != length:
            raise InvalidArgument(f"row {number} has {len(row)} numbers; expected {length} ({row_shape})")
        if any(find_number(value) is None for value in row):
            raise InvalidArgument(f"row {number} has a value that is not a number")
    if len(given) * length > MAX_NUMBERS:
        raise InvalidArgument(f"rows have {len(given) * length} numbers; expected up to {MAX_NUMBERS}")
    data = [value for row in given for value in row]
    tensor = {"name": name, "datatype": datatype, "shape": [len(given), *row_shape], "data": data}
    return orjson.dumps({"inputs": [tensor]})


def read_outputs(answer: bytes) -> list[ShownOutput]:
    """Read the outputs of an inference: the first rows, and of each the first values.

    Raises:
        InvalidArgument: the answer has no outputs.
    """
    found = _parse(answer).get("outputs")
    shown = []
    if predictions := _parse(answer).get("predictions"):
        found = _as_outputs(predictions)
    try:
        for output in found or []:
            count = max(int(output["shape"][0]), 1)
            data = list(output["data"])
            width = max(len(data) // count, 1)
            rows = [data[at : at + width] for at in range(0, min(len(data), width * MAX_ROWS_SHOWN), width)]
            kind = f"{output['datatype']} {output['shape']}"
            shown.append(
                ShownOutput(str(output["name"])[:80], kind[:80], tuple(map(_row, rows)), max(count - len(rows), 0))
            )
    except (LookupError, TypeError, ValueError) as cause:
        raise InvalidArgument("the endpoint's answer has no displayable tensors") from cause
    if not shown:
        raise InvalidArgument("the endpoint's answer has no outputs")
    return shown


def _as_outputs(predictions: Any) -> list[dict[str, object]]:
    """Return predictions for rows of a table as outputs of an inference: labels and their probabilities, or numbers."""
    try:
        if predictions and "value" in predictions[0]:
            values = [each["value"] for each in predictions]
            return [{"name": "value", "datatype": "rows", "shape": [len(values), 1], "data": values}]
        rows = [(each["label"], each["probability"]) for each in predictions]
    except (LookupError, TypeError) as cause:
        raise InvalidArgument("the endpoint's answer has no displayable predictions") from cause
    shape, data = [len(rows), 2], [value for row in rows for value in row]
    return [{"name": "label and its probability", "datatype": "rows", "shape": shape, "data": data}]


def _row(values: Sequence[object]) -> ShownRow:
    numbers = [find_number(value) for value in values]
    known = [(number, at) for at, number in enumerate(numbers) if number is not None and not math.isnan(number)]
    words = tuple(
        f"{value:.4g}" if isinstance(value, float) else str(value)[:40] for value in values[:MAX_VALUES_SHOWN]
    )
    largest = max(known, key=lambda each: (each[0], -each[1]))[1] if len(known) > 1 else None
    return ShownRow(words, max(len(values) - MAX_VALUES_SHOWN, 0), largest)


def _parse(text: bytes) -> dict[str, Any]:
    try:
        found = orjson.loads(text)
    except ValueError as cause:
        raise InvalidArgument("the endpoint's answer is not JSON") from cause
    if not isinstance(found, dict):
        raise InvalidArgument("the endpoint's answer is not a JSON object")
    return found
