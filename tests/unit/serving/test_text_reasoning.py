"""Thinking in a model's text: read apart from what is said, with calls in either, and before a form."""

import json
import re
from typing import Any

import pytest

from rdukit_serving.text.anthropic_messages import MessagesBody
from rdukit_serving.text.chat_template import ChatTemplate
from rdukit_serving.text.constraints import FormKind, TextForm
from rdukit_serving.text.forms.composed import compose
from rdukit_serving.text.forms.spelling import spell
from rdukit_serving.text.openai_responses import ResponseBody
from rdukit_serving.text.openai_values import ChatBody, parse_body
from rdukit_serving.text.reasoning import MARKS, Thinking, ThinkingReader, find_thinking
from support import shows
from support.formed_texts import make_text

pytestmark = shows("text-models")

QWEN = ChatTemplate("{{ messages }}<tool_call>{{ tools }}</tool_call><think></think>")
SAID: Any = [{"role": "user", "content": "x"}]
CALL = '<tool_call>\n{"name": "wait", "arguments": {"s": 1}}\n</tool_call>'
SCHEMA = {"type": "object", "properties": {"s": {"enum": [1, 2]}}, "required": ["s"], "additionalProperties": False}
TOOLS = [{"type": "function", "function": {"name": "wait", "parameters": SCHEMA}}]
FORM = {"type": "json_schema", "json_schema": {"name": "n", "schema": {"enum": [3, 4]}}}


@pytest.mark.parametrize(
    ("template", "prompt", "expected"),
    [
        ("no thoughts", "user: x", None), ("</think>", "user: x", (False, False)),
        ("</think>", "assistant\n<think>\n", (True, False)), ("</think>", "<think>\n\n</think>\n\n", (False, True)),
        ("[/THINK]", "[THINK]", (True, False)),
    ],
)  # fmt: skip
def test_the_template_says_how_a_model_thinks_and_the_prompt_whether_it_has_begun(
    template: str, prompt: str, expected: tuple[bool, bool] | None
) -> None:
    thinking = find_thinking(template, prompt)
    assert (None if thinking is None else (thinking.has_begun, thinking.has_ended)) == expected


CASES = [
    ("", "<think>\na < b\n\nc\n</think>\n\nYes.\n", "a < b\n\nc", "Yes.\n"),
    ("<think>\n", "a\n</think>\n\nYes", "a", "Yes"),
    ("", "Yes </think", "", "Yes </think"),
    ("", "<think>never ends\n", "never ends\n", ""),
    ("", "A<think>b</think>c<think>d</think>e", "bd", "Ace"),
    ("<think></think>", "Yes", "", "Yes"),
    ("", "<think></think>\n\n", "", ""),
]


@pytest.mark.parametrize("size", [1, 3, 1000])
@pytest.mark.parametrize(("prompt", "text", "thought", "said"), CASES)
def test_thoughts_are_read_whatever_the_pieces_are(prompt: str, text: str, thought: str, said: str, size: int) -> None:
    thinking = find_thinking("</think>", prompt)
    assert thinking is not None
    reader, found = ThinkingReader(thinking), ["", ""]
    for at in range(0, len(text), size):
        found = [a + b for a, b in zip(found, reader.push(text[at : at + size]), strict=True)]
    found = [a + b for a, b in zip(found, reader.push("", is_last=True), strict=True)]
    assert found == [thought, said]


def chat(**fields: Any) -> ChatBody:
    return parse_body(ChatBody, json.dumps({"model": "m", "messages": SAID, **fields}).encode())


@pytest.mark.parametrize("size", [1, 1000])
@pytest.mark.parametrize(
    ("text", "thought", "said"),
    [
        (f"<think>a</think>\nSo: {CALL}", "a", "So: "), (f"<think>a {CALL}</think>\nSo", "a ", "So"),
        (f"<think>a {CALL}", "a ", ""),
    ],
)  # fmt: skip
def test_calls_are_found_behind_thoughts_and_in_them(text: str, thought: str, said: str, size: int) -> None:
    reader = chat(tools=TOOLS).reader(QWEN, "x")
    assert reader is not None
    found = ["", ""]
    for at in range(0, len(text) + size, size):
        more_thought, more_said, _ = reader.push(text[at : at + size], is_last=at >= len(text))
        found = [found[0] + more_thought, found[1] + more_said]
    assert found == [thought, said]
    assert [(call.name, json.loads(call.arguments)) for call in reader.calls] == [("wait", {"s": 1})]


def made(prompt: str, seed: int, **fields: Any) -> tuple[str, str, list[dict[str, Any]]] | None:
    """Thought, text and arguments of the calls of a text that a request asks for; None: it was cut off."""
    body = chat(**fields)
    (request,), reader = body.requests(prompt, QWEN), body.reader(QWEN, prompt)
    assert request.form is not None and reader is not None and request.keeps_special
    text = make_text(request.form, seed)
    if text is None:
        return None
    thought, said, calls = reader.push(text)
    last_thought, last_said, _ = reader.push("", is_last=True)
    return thought + last_thought, said + last_said, [json.loads(call.arguments) for call in calls]


@pytest.mark.parametrize("prompt", ["x", "<think>\n", "<think></think>"])
@pytest.mark.parametrize(
    "fields",
    [{"response_format": FORM}, {"tools": TOOLS, "tool_choice": "required"}, {"tools": TOOLS, "response_format": FORM},
     {"tools": TOOLS, "tool_choice": "required", "response_format": FORM}, {"guided_regex": "[34]/?"},
     {"guided_choice": ["3", "4"]}, {"guided_grammar": 'start: three | "4"\nthree: "3"'}],
)  # fmt: skip
def test_a_text_thinks_first_and_then_keeps_its_form_or_calls(prompt: str, fields: dict[str, Any]) -> None:
    found = [each for seed in range(12) if (each := made(prompt, seed, **fields)) is not None]
    assert len(found) > 3
    for thought, said, calls in found:
        assert prompt != "<think></think>" or not thought
        if calls:
            assert "tools" in fields and calls in ([{"s": 1}], [{"s": 2}])
        else:
            assert said in {"3", "4", "3/", "4/"} and fields.get("tool_choice") != "required"
    if "tools" in fields and "tool_choice" not in fields:
        assert {bool(calls) for _, _, calls in found} == {True, False}


def test_without_thoughts_a_forced_call_begins_behind_the_prompt() -> None:
    template = ChatTemplate("{{ tools }}<tool_call>")
    (request,) = chat(tools=TOOLS, tool_choice="required").requests("x", template)
    assert request.prompt == "x<tool_call>\n" and request.form is not None and request.form.kind == FormKind.GRAMMAR


def test_marks_are_tokens_where_the_tokenizer_has_them_and_else_letters() -> None:
    parts = 'start: @"<a>\\n" thinking body\nthinking: @until "</a>"\nbody: "@\\"<a>\\""'
    assert spell(parts, {"<a>": 7, "</a>": 8}) == (
        'start: <[7]> "\\n" thinking body\nthinking: /(?s:.*)/ <[8]>\nbody: "@\\"<a>\\""'
    )
    assert spell(parts, {}) == (
        'start: "<a>\\n" thinking body\nthinking[suffix="</a>"]: /(?s:.*)/\nbody: "@\\"<a>\\""'
    )  # fmt: skip


def test_thoughts_that_clients_send_back_come_to_the_template() -> None:
    thought: Any = {"type": "thinking", "thinking": "hm", "signature": ""}
    messages = [*SAID, {"role": "assistant", "content": [thought, {"type": "text", "text": "a"}]}, *SAID]
    body = json.dumps({"model": "m", "messages": messages, "max_tokens": 9, "thinking": {"type": "disabled"}}).encode()
    asked = parse_body(MessagesBody, body).chat()
    sent, values = asked.for_template(QWEN)
    assert sent[1] == {"role": "assistant", "content": "a", "reasoning_content": "hm"}
    assert values == {"enable_thinking": False}
    items = [
        *SAID, {"type": "reasoning", "summary": [], "content": [{"type": "reasoning_text", "text": "hm"}]},
        {"type": "message", "role": "assistant", "content": "a"},
        {"type": "function_call", "call_id": "c", "name": "wait", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "c", "output": "y"},
    ]  # fmt: skip
    chat_of = parse_body(ResponseBody, json.dumps({"model": "m", "input": items}).encode()).chat()
    assistant = chat_of.for_template(QWEN)[0][1]
    assert (assistant["content"], assistant["reasoning_content"], len(assistant["tool_calls"])) == ("a", "hm", 1)


@pytest.mark.parametrize("grammar", ['start: "(" start ")" | "x"', '?start: answer\nanswer: "(" start ")" | "x"'])
def test_a_grammar_may_name_its_first_rule_within_and_others_as_parts_are_named(grammar: str) -> None:
    form = compose(Thinking(MARKS[0]), TextForm(FormKind.GRAMMAR, grammar), None)
    for seed in range(8):
        text = make_text(form, seed)
        assert text is None or re.fullmatch(r"(?s:<think>.*</think>\n*)?\(*x\)*", text), text


def test_an_item_of_thoughts_that_nobody_can_read_is_no_turn_of_the_assistant() -> None:
    hidden = {"type": "reasoning", "id": "r", "summary": [], "encrypted_content": "x"}
    body = {"model": "m", "input": [*SAID, hidden, {"role": "assistant", "content": "b"}, *SAID]}
    messages = parse_body(ResponseBody, json.dumps(body).encode()).chat().messages
    said = [(message.role, message.content) for message in messages]
    assert said == [("user", "x"), ("assistant", "b"), ("user", "x")]
