"""Calls of tools in a model's text: the formats of model families, reading, and forcing a call. Pure.

Source: the models' published chat templates; vLLM's tool parsers for which family writes what.
"""

import json
import re
import secrets
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from rdukit_serving.text.constraints import FormKind, TextForm, json_part, kept_schema
from rdukit_serving.text.forms.exclusive import SchemaWork
from rdukit_serving.text.token_bytes import length_of_beginning


@dataclass(frozen=True, slots=True)
class CallFormat:
    """Way in which a family of models writes calls.

    ``mark`` is in its chat templates. A call follows one of ``begins``; if that is empty, a text may also begin with an
    object. ``opener`` goes behind the prompt to force a call, which is ``before`` with NAME, arguments, ``after``.
    """

    name: str
    mark: str
    begins: tuple[str, ...]
    opener: str
    before: str
    after: str

    @property
    def is_bare(self) -> bool:
        """Return whether an object at the text's beginning may be a call."""
        return "" in self.begins

    def marked(self) -> "CallFormat":
        """Return the same format whose calls all begin with a mark."""
        return replace(self, begins=tuple(mark for mark in self.begins if mark))


_OBJECT: Final = '{"name": "NAME", "arguments": '

#: The first whose mark is in the template counts; the last takes all others.
FORMATS: Final = (
    CallFormat(
        "deepseek", "<｜tool▁calls▁begin｜>", ("<｜tool▁calls▁begin｜>",),
        "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>", "NAME\n```json\n", "\n```",
    ),
    CallFormat("mistral", "[TOOL_CALLS]", ("[TOOL_CALLS]",), "[TOOL_CALLS]", "[" + _OBJECT, "}]"),
    CallFormat("hermes", "<tool_call>", ("<tool_call>",), "<tool_call>\n", _OBJECT, "}"),
    CallFormat("llama3", "", ("<|python_tag|>", ""), "", '{"name": "NAME", "parameters": ', "}"),
)  # fmt: skip


def format_of(template: str) -> CallFormat:
    """Return the format of the calls of a model with this chat template."""
    return next(each for each in FORMATS if each.mark in template)


def forced_call(
    form: CallFormat, tools: Sequence[tuple[str, Mapping[str, Any]]], place: str = "tools.{}.function.parameters"
) -> TextForm:  # fmt: skip
    """Return the form of a text that calls one of the tools (name, schema of arguments) after the opener.

    ``place``: of a tool's schema in the request, by the tool's number.

    Raises:
        InvalidArgument: the schemas are too long.
    """
    lines = ["start: " + " | ".join(f"call_{number}" for number in range(len(tools)))]
    shared = SchemaWork()
    for number, (name, schema) in enumerate(tools):
        before = json.dumps(form.before.replace("NAME", name), ensure_ascii=False)
        after = json.dumps(form.after, ensure_ascii=False)
        arguments = json_part(kept_schema({"type": "object", **schema}, place.format(number), shared))
        lines += [f"call_{number}: {before} arguments_{number} {after}", f"arguments_{number}: {arguments}"]
    return TextForm(FormKind.GRAMMAR, "\n".join(lines), place.partition(".")[0])


@dataclass(frozen=True, slots=True)
class ToolCall:
    """Call in a text; ``arguments`` is JSON text."""

    name: str
    arguments: str
    id: str

    def body(self) -> dict[str, Any]:
        """Return the call as OpenAI's clients read it."""
        return {"id": self.id, "type": "function", "function": {"name": self.name, "arguments": self.arguments}}


#: A name before its arguments: DeepSeek's and newer Mistral's way.
_NAME_BEFORE: Final = re.compile(r"([a-zA-Z0-9_.-]+)(?:\[ARGS\]|<｜tool▁sep｜>|\s|```json)*$")
_DECODER: Final = json.JSONDecoder()


class CallReader:
    """Reader of one text, piece by piece: plain text, and complete calls of the tools ``names``.

    A text that looks like a call of an unknown tool remains text. ``is_forced``: it is a call from its beginning.
    ``most``: calls beyond it are left out.
    """

    def __init__(
        self, form: CallFormat, names: Collection[str], is_forced: bool = False, most: int | None = None
    ) -> None:  # fmt: skip
        self._form = form
        self._names = names
        self._most = most
        #: Text that may be or begin a call.
        self._held = ""
        #: Whether it follows a call's beginning; and whether there was text before.
        self._is_call = is_forced
        self._has_said = False
        #: Place in it up to which calls were read.
        self._read = 0
        self.calls: list[ToolCall] = []

    def push(self, text: str) -> tuple[str, list[ToolCall]]:
        """Read the next piece; return text that may be shown now, and complete calls."""
        self._held += text
        said = "" if self._is_call else self._find_beginning()
        return said, self._read_calls()

    def finish(self) -> str:
        """Return the remaining text: everything held back that was not a call."""
        left, self._held = self._held, ""
        return "" if self.calls else left

    def _find_beginning(self) -> str:
        marks = [mark for mark in self._form.begins if mark]
        places = [place for mark in marks if (place := self._held.find(mark)) >= 0]
        if places:
            return self._begin(min(places))
        if self._form.is_bare and not self._has_said and self._held.lstrip()[:1] in {"", "{"}:
            if self._held.strip():
                return self._begin(0)
            return ""
        said = self._held[: len(self._held) - length_of_beginning(self._held, marks)]
        self._held = self._held[len(said) :]
        self._has_said = self._has_said or bool(said.strip())
        return said

    def _begin(self, place: int) -> str:
        said, self._held, self._is_call = self._held[:place], self._held[place:], True
        return said

    def _read_calls(self) -> list[ToolCall]:
        found: list[ToolCall] = []
        while self._is_call and (place := self._held.find("{", self._read)) >= 0:
            try:
                value, end = _DECODER.raw_decode(self._held, place)
            except ValueError:
                break  # not whole yet
            except RecursionError:
                self._read = len(self._held)
                break
            call = self._call_in(value, self._held[self._read : place], self._held[place:end])
            self._read = end
            if call is not None and (self._most is None or len(self.calls) < self._most):
                self.calls.append(call)
                found.append(call)
        return found

    def _call_in(self, value: Any, before: str, text: str) -> ToolCall | None:
        """Return the call of an object, which is the call or its arguments; None: it is not a call."""
        new_id = f"call_{secrets.token_hex(12)}"
        if value.get("name") in self._names:
            arguments = value.get("arguments", value.get("parameters", {}))
            if isinstance(arguments, str):  # some models write the JSON text of them
                return ToolCall(value["name"], arguments, new_id)
            return ToolCall(value["name"], json.dumps(arguments, ensure_ascii=False), new_id)
        name = _NAME_BEFORE.search(before)
        return ToolCall(name[1], text, new_id) if name is not None and name[1] in self._names else None
