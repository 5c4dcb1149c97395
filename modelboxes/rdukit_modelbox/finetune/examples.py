"""Data of a fine-tuning as records that preprocess reads: plain texts, prompts with completions, and chats.

A chat becomes a record per turn of the assistant. The prompt is the template's text before the turn; only the
completion, its text for the turn, is learnt.
"""

import asyncio
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from rdukit.errors import InvalidArgument
from rdukit.files.atomic import write_atomic
from rdukit_modelbox.preprocessing.sources import Format, RowErrors, SourceFile, find_sources, read_line_blocks
from rdukit_modelbox.preprocessing.table_rows import header_of, rows_of
from rdukit_modelbox.preprocessing.text_records import TEXT_FORMATS
from rdukit_serving.text.chat_template import ChatRenderer, ChatTemplate, find_chat_template

TEXT, PAIRS, CHATS, PREFERENCES = "texts", "prompts with completions", "chats", "preference pairs"
#: Roles of messages, as chats that are served have them.
ROLES: Final = ("system", "developer", "user", "assistant", "tool")
#: Keys that determine a line's kind.
_KINDS: Final = {"messages": CHATS, "chosen": PREFERENCES, "completion": PAIRS, "text": TEXT}
_EXPECTED: Final = (
    'a text in quotes, {"text": …}, {"prompt": …, "completion": …}, {"messages": [{"role": …, "content": …}, …]} or '
    '{"prompt": …, "chosen": …, "rejected": …}'
)
_PREFERENCE: Final = (
    '{"prompt": …, "chosen": …, "rejected": …} with texts, or chosen and rejected as lists of messages that differ in '
    "the last one, the assistant's"
)


@dataclass(frozen=True, slots=True)
class PreparedData:
    """Data for preprocess: the file or folder, and the kind of its records."""

    path: Path
    kind: str


def prepare_examples(data: Path, model: Path, end_of_text: str, target: Path) -> PreparedData:
    """Return the data unchanged, or written to ``target`` as JSON lines if preprocess cannot read their form.

    Args:
        model: a Hugging Face folder; chats are written by its template.
        end_of_text: its end-of-text token, which preprocess adds; so the template's own is left out; empty: none.
    Raises:
        NotFound, InvalidArgument: there are no data, a line is of another kind than the first, or the template refuses
            it; names file, line and what is expected.
    """
    sources = find_sources(data, "**/*", "auto", TEXT_FORMATS)
    if sources[0].format is not Format.JSONL:
        if sources[0].format is Format.TXT:
            return PreparedData(data, TEXT)
        _check_rows(sources)
        return PreparedData(data, PAIRS)
    kind = _kind_of(next(json_lines(sources)))
    if kind == PAIRS:
        for line in json_lines(sources):
            for pair in line.value if isinstance(line.value, list) and line.value else [line.value]:
                _check_pair(line.place, pair)
        return PreparedData(data, kind)
    if kind == TEXT:
        texts = (_text_of(line) for line in json_lines(sources))
        records: Iterator[Any] = ({"prompt": "", "completion": text} for text in texts)
    elif kind == PREFERENCES:
        records = iter(asyncio.run(_preference_records(list(json_lines(sources)), model, end_of_text)))
    else:
        records = iter(asyncio.run(_chat_records(list(json_lines(sources)), _template_of(model), end_of_text)))
    write_atomic(target, "".join(json.dumps(record, ensure_ascii=False) + "\n" for record in records).encode())
    return PreparedData(target, kind)


def _check_rows(sources: Sequence[SourceFile]) -> None:
    """Refuse tables whose rows are no prompts with completions; a missing prompt is an empty one."""
    for source in sources:
        columns = header_of(source)
        lacking = [name for name in ("prompt", "completion") if name not in columns]
        if lacking:
            raise InvalidArgument(
                f"{source.name} has no column {lacking[0]!r}; its columns are {', '.join(columns) or 'none'}; expected "
                "prompt and completion; chats and preference pairs are JSON lines",
                file=source.name, column=lacking[0],
            )  # fmt: skip
        for number, row in rows_of(source, RowErrors(skips=False, may_skip=False), [0]):
            _check_pair(f"{source.name}:{number}", {**row, "prompt": row["prompt"] or ""})


def _check_pair(place: str, pair: object) -> None:
    values = pair if isinstance(pair, Mapping) else {}
    prompt, completion = values.get("prompt"), values.get("completion")
    if not isinstance(prompt, str) or not isinstance(completion, str) or not completion.strip():
        raise InvalidArgument(
            f'{place}: expected {{"prompt": …, "completion": …}}, two texts, of which the completion is not empty'
        )


def _template_of(model: Path) -> ChatTemplate:
    template = find_chat_template(model)
    if template.is_ours:
        raise InvalidArgument(
            f"{model} has no chat template, so chats cannot be formatted; expected chat_template.jinja or "
            "chat_template in tokenizer_config.json, or lines with prompt and completion"
        )
    return template


@dataclass(frozen=True, slots=True)
class _Line:
    """A line of the data, with its place."""

    place: str
    value: Any


def json_lines(sources: Sequence[SourceFile]) -> Iterator[_Line]:
    """Yield the lines of JSON files.

    Raises:
        InvalidArgument: one is not JSON, or there is none.
    """
    found = False
    for source in sources:
        for block in read_line_blocks(source):
            for number, text in enumerate(block.data.split(b"\n"), block.line):
                if not text or text.isspace():
                    continue
                place, found = f"{source.name}:{number}", True
                try:
                    value = json.loads(text)
                    if b"\\u" in text:
                        json.dumps(value, ensure_ascii=False).encode()
                except UnicodeError as cause:
                    raise InvalidArgument(f"{place}: not UTF-8, or half a character; expected {_EXPECTED}") from cause
                except (ValueError, RecursionError) as cause:
                    raise InvalidArgument(f"{place}: not JSON: {cause}; expected {_EXPECTED}") from cause
                yield _Line(place, value)
    if not found:
        raise InvalidArgument(f"{sources[0].name} has no line; expected {_EXPECTED}")


def _kind_of(line: _Line) -> str:
    value = line.value[0] if isinstance(line.value, list) and line.value else line.value
    if isinstance(value, str):
        return TEXT
    keys = [key for key in _KINDS if isinstance(value, Mapping) and key in value]
    if len(keys) > 1:
        raise InvalidArgument(f"{line.place}: it has {' and '.join(keys)}; expected keys of one kind: {_EXPECTED}")
    kind = kind_of_record(value)
    if kind is None:
        raise InvalidArgument(f"{line.place}: expected {_EXPECTED}")
    return kind


def kind_of_record(value: object) -> str | None:
    """Return a record's kind, according to its keys; None: nothing known."""
    return next((kind for key, kind in _KINDS.items() if isinstance(value, Mapping) and key in value), None)


def _text_of(line: _Line) -> str:
    text = line.value.get("text") if isinstance(line.value, dict) else line.value
    if not isinstance(text, str) or not text.strip():
        raise InvalidArgument(f'{line.place}: expected a text, as {{"text": …}} or in quotes')
    return text


async def _chat_records(lines: Sequence[_Line], template: ChatTemplate, end_of_text: str) -> list[dict[str, str]]:
    renderer = ChatRenderer()
    try:
        for line in lines:
            _refuse_tools(line)
        return [record for line in lines for record in await _turns(line, template, end_of_text, renderer)]
    finally:
        await renderer.close()


async def _preference_records(lines: Sequence[_Line], model: Path, end_of_text: str) -> list[dict[str, str]]:
    """Return each line's prompt, chosen text, rejected text and place."""
    renderer = ChatRenderer()
    try:
        return [await _preference(line, model, end_of_text, renderer) for line in lines]
    finally:
        await renderer.close()


async def _preference(line: _Line, model: Path, end_of_text: str, renderer: ChatRenderer) -> dict[str, str]:
    _refuse_tools(line)
    value = line.value if isinstance(line.value, dict) else {}
    prompt, *answers = (value.get(name) for name in ("prompt", "chosen", "rejected"))
    if all(isinstance(text, str) and text.strip() for text in (prompt, *answers)):
        made = {"prompt": str(prompt), "chosen": str(answers[0]), "rejected": str(answers[1])}
    elif all(isinstance(messages, list) for messages in answers) and isinstance(prompt, list | None):
        template = _template_of(model)
        before = prompt if isinstance(prompt, list) else []
        chats = [_Line(line.place, {"messages": [*before, *messages]}) for messages in answers if messages is not None]
        turns = [_messages(chat) for chat in chats]
        if turns[0][:-1] != turns[1][:-1] or any(turn[-1]["role"] != "assistant" for turn in turns):
            raise InvalidArgument(f"{line.place}: the messages before the last differ; expected {_PREFERENCE}")
        (first, *_), (other, *_) = [
            (await _turns(chat, template, end_of_text, renderer, is_last_only=True)) for chat in chats
        ]
        made = {"prompt": first["prompt"], "chosen": first["completion"], "rejected": other["completion"]}
    else:
        raise InvalidArgument(f"{line.place}: expected {_PREFERENCE}")
    if made["chosen"] == made["rejected"]:
        raise InvalidArgument(f"{line.place}: chosen and rejected are the same; expected two that differ")
    return {**made, "place": line.place}


def _refuse_tools(line: _Line) -> None:
    for key in ("tools", "functions"):
        if isinstance(line.value, Mapping) and line.value.get(key):
            raise InvalidArgument(
                f"{line.place}: {key} are not read, so prompts would lack them; expected lines with messages alone"
            )


async def _turns(
    line: _Line, template: ChatTemplate, end_of_text: str, renderer: ChatRenderer, *, is_last_only: bool = False
) -> list[dict[str, str]]:  # fmt: skip
    messages = _messages(line)
    found = []
    try:
        for index, message in enumerate(messages):
            if message["role"] != "assistant" or (is_last_only and index < len(messages) - 1):
                continue
            prompt = await renderer.render(template, messages[:index])
            whole = await renderer.render(template, messages[: index + 1], is_turn_next=False)
            if not whole.startswith(prompt):
                raise InvalidArgument(
                    f"{line.place}: the chat template changes earlier turns when message {index} is added, so the "
                    "text to learn has no clear start; expected a template that only appends, or lines with prompt "
                    "and completion"
                )
            completion = whole.removeprefix(prompt)
            if not completion.strip():
                raise InvalidArgument(
                    f"{line.place}: the chat template writes nothing for message {index}; expected one that writes the "
                    "assistant's messages"
                )
            if end_of_text:
                completion = completion.rstrip("\n").removesuffix(end_of_text)
            found.append({"prompt": prompt, "completion": completion})
    except InvalidArgument as error:
        words = error.message if error.message.startswith(line.place) else f"{line.place}: {error.message}"
        raise InvalidArgument(words, **error.detail) from error
    return found


def _messages(line: _Line) -> list[dict[str, Any]]:
    messages = line.value.get("messages") if isinstance(line.value, Mapping) else None
    if not isinstance(messages, list) or not messages:
        raise InvalidArgument(f'{line.place}: expected {{"messages": [{{"role": …, "content": …}}, …]}}')
    for index, message in enumerate(messages):
        is_whole = isinstance(message, dict) and all(isinstance(message.get(key), str) for key in ("role", "content"))
        if not is_whole:
            raise InvalidArgument(f"{line.place}: message {index} lacks role or content; expected both, as texts")
        if message["role"] not in ROLES:
            raise InvalidArgument(
                f"{line.place}: message {index} has the role {message['role']!r}; expected one of {', '.join(ROLES)}"
            )
        odd = next((key for key in ("weight", "train") if message.get(key, 1) not in (1, None)), "")
        if odd and message["role"] == "assistant":
            raise InvalidArgument(
                f"{line.place}: message {index} has {odd} {message[odd]!r}; expected 1 or no {odd}, because each turn "
                "of the assistant is learnt"
            )
        if message["role"] == "assistant" and not message["content"].strip():
            raise InvalidArgument(
                f"{line.place}: message {index} is empty; expected the text that the assistant learns"
            )
    if not any(message["role"] == "assistant" for message in messages):
        raise InvalidArgument(f"{line.place}: there is no message of the assistant; expected one to learn")
    return messages
