"""Calls of tools in texts of several families of models, in pieces of any length."""

import json

import pytest

from rdukit.errors import InvalidArgument
from rdukit_serving.text.tool_calls import FORMATS, CallReader, forced_call, format_of
from support import shows

pytestmark = shows("inference", "text-models")

NAMES = ["find", "wait"]
FIND = ("find", {"word": "a } b"})
TWO = [FIND, ("wait", {"s": 1})]
DEEPSEEK = (
    "So.<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>find\n```json\n{\"word\": \"a } b\"}\n```"
    "<｜tool▁call▁end｜>\n<｜tool▁call▁begin｜>wait<｜tool▁sep｜>{\"s\": 1}<｜tool▁call▁end｜><｜tool▁calls▁end｜>"
)  # fmt: skip

CASES = [
    ("hermes", 'So.<tool_call>\n{"name": "find", "arguments": {"word": "a } b"}}\n</tool_call>\n'
     '<tool_call>{"name": "wait", "arguments": "{\\"s\\": 1}"}</tool_call>', "So.", TWO),
    ("mistral", 'So.[TOOL_CALLS] [{"name": "find", "arguments": {"word": "a } b"}}, '
     '{"name": "wait", "arguments": {"s": 1}}]', "So.", TWO),
    ("mistral", 'So.[TOOL_CALLS]find[ARGS]{"word": "a } b"}[TOOL_CALLS]wait[ARGS]{"s": 1}', "So.", TWO),
    ("llama3", '\n{"name": "find", "parameters": {"word": "a } b"}}; '
     '{"name": "wait", "parameters": {"s": 1}}', "", TWO),
    ("llama3", 'So.<|python_tag|>{"name": "find", "parameters": {"word": "a } b"}}', "So.", [FIND]),
    ("deepseek", DEEPSEEK, "So.", TWO),
    # Nothing that there is is called: it is text.
    ("hermes", 'a < b <tool_call>{"name": "other", "arguments": {}}</tool_call>', None, []),
    ("hermes", '<tool_call>{"name": "find", "argum', None, []),
    ("llama3", '{"answer": [1, {"name": 3}]}', None, []),
    ("llama3", 'as {"name": "find"} says', None, []),
    ("mistral", "[TOOL", None, []),
    ("hermes", "<tool_call>" + '{"a":' * 5000, None, []),
]  # fmt: skip


@pytest.mark.parametrize("size", [1, 7, 100_000])
@pytest.mark.parametrize("case", range(len(CASES)))
def test_calls_are_read_whatever_the_pieces_are(case: int, size: int) -> None:
    name, text, expected, calls = CASES[case]
    if len(text) > 5000 and size == 1:
        size = 500
    reader = CallReader(next(form for form in FORMATS if form.name == name), NAMES)
    said, found = "", []
    for at in range(0, len(text), size):
        more, new = reader.push(text[at : at + size])
        said += more
        found += new
    said += reader.finish()
    assert said == (text if expected is None else expected)
    assert [(call.name, json.loads(call.arguments)) for call in found] == calls == [
        (call.name, json.loads(call.arguments)) for call in reader.calls
    ]  # fmt: skip
    assert len({call.id for call in found}) == len(found)


def test_calls_beyond_the_most_are_left_out() -> None:
    reader = CallReader(format_of("… [TOOL_CALLS] …"), NAMES, most=1)
    assert [call.name for call in reader.push(CASES[1][1])[1]] == ["find"]


@pytest.mark.parametrize("form", FORMATS, ids=lambda form: str(form.name))
def test_a_forced_call_is_read_back_and_one_of_too_much_is_refused(form: object) -> None:
    assert form in FORMATS
    chosen = next(each for each in FORMATS if each is form)
    assert format_of(f"a template with {chosen.mark}") is chosen
    reader = CallReader(chosen, NAMES, is_forced=True)
    reader.push(chosen.before.replace("NAME", "wait") + '{"s": 2}' + chosen.after)
    assert [(call.name, json.loads(call.arguments)) for call in reader.calls] == [("wait", {"s": 2})]
    with pytest.raises(InvalidArgument, match="expected up to 1000000"):
        forced_call(chosen, [("find", {"enum": ["x" * 99] * 9999})])
