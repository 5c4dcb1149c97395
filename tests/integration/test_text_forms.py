"""Chats of a box whose texts must have a form: JSON, expressions, grammars, calls of tools; and their templates."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import jsonschema
import openai
import pytest

from rdukit_platform.backends.process import ProcessBox
from support import shows
from support.text_boxes import END, connect, make_tiny_llama, start_text_box

pytestmark = shows("inference", "llama")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("forms")


@pytest.fixture(scope="module")
def box(folder: Path) -> Iterator[ProcessBox]:
    started = start_text_box(folder, make_tiny_llama(), texts=4)
    yield started
    started.stop()


@pytest.fixture(scope="module")
def client(box: ProcessBox) -> Iterator[openai.OpenAI]:
    with connect(box) as client:
        yield client


def test_a_template_gets_calls_answers_and_values_and_is_read_with_its_own_tokens_only(
    box: ProcessBox, client: openai.OpenAI, folder: Path
) -> None:
    template = (
        "{{ eos_token }}{% for m in messages %}{{ m.role[0] }}{{ m.content or m.tool_calls[0].function.arguments.w }}"
        "{% endfor %}{{ think }}{{ reasoning_effort }}"
    )
    (folder / "checkpoint" / "chat_template.jinja").write_text(template)
    try:
        call: Any = {"id": "1", "type": "function", "function": {"name": "f", "arguments": '{"w": "x"}'}}
        messages: Any = [
            {"role": "user", "content": "hi"},
            {"role": "assistant", "content": None, "tool_calls": [call]},
            {"role": "tool", "tool_call_id": "1", "content": "y"},
        ]
        answer = client.chat.completions.create(
            model="llama", messages=messages, max_tokens=2, reasoning_effort="low",
            extra_body={"chat_template_kwargs": {"think": "T"}},
        )  # fmt: skip
        # <|endoftext|> is one token, and no other is added; then "uhi", "ax", "ty", "T", "low".
        assert answer.usage is not None and answer.usage.prompt_tokens == 1 + 3 + 2 + 2 + 1 + 3
    finally:
        (folder / "checkpoint" / "chat_template.jinja").unlink()


SCHEMAS: list[dict[str, Any]] = [
    {"type": "object", "properties": {"name": {"type": "string", "maxLength": 8}, "age": {"type": "integer",
     "minimum": 0, "maximum": 150}}, "required": ["name", "age"], "additionalProperties": False},
    {"type": "array", "items": {"enum": ["red", "green", "blué"]}, "minItems": 1, "maxItems": 4},
    {"type": "object", "properties": {"at": {"type": "object", "properties": {"x": {"type": "number", "minimum": -1,
     "maximum": 1}, "on": {"type": "boolean"}}, "required": ["x", "on"], "additionalProperties": False}},
     "required": ["at"], "additionalProperties": False},
    {"$defs": {"day": {"type": "string", "pattern": "^[0-9]{4}-[01][0-9]$"}}, "type": "array",
     "prefixItems": [{"$ref": "#/$defs/day"}, {"anyOf": [{"type": "null"}, {"const": "open"}]}], "items": False,
     "minItems": 2},
]  # fmt: skip


@pytest.mark.long
@pytest.mark.parametrize("temperature", [0, 2])
def test_every_text_of_a_schema_is_valid(client: openai.OpenAI, temperature: int) -> None:
    for schema in SCHEMAS:
        answer = client.chat.completions.create(
            model="llama", messages=[{"role": "user", "content": "x"}], temperature=temperature, n=8, seed=1,
            max_tokens=200, response_format={"type": "json_schema", "json_schema": {
                "name": "it", "schema": schema, "strict": True}},
        )  # fmt: skip
        for choice in answer.choices:
            assert choice.finish_reason in {"stop", "length"} and choice.message.content is not None
            if choice.finish_reason == "stop":
                jsonschema.validate(json.loads(choice.message.content), schema)
        assert temperature == 0 or sum(choice.finish_reason == "stop" for choice in answer.choices) >= 6


def test_a_text_is_an_object_a_choice_or_what_an_expression_or_a_grammar_says(client: openai.OpenAI) -> None:
    def text(**more: Any) -> tuple[str, str]:
        choice = client.completions.create(
            model="llama", prompt="one", max_tokens=40, seed=2, temperature=2.0, extra_body=more
        ).choices[0]
        return choice.text, choice.finish_reason

    assert text(response_format={"type": "json_object"})[0].startswith("{")
    assert text(response_format={"type": "text"}) == text()
    found, reason = text(structured_outputs={"regex": "[ab]{5}-[0-9]{3}"})
    assert re.fullmatch("[ab]{5}-[0-9]{3}", found) and reason == "stop"
    assert text(structured_outputs={"choice": ["yes", 'n"ö']}) in {("yes", "stop"), ('n"ö', "stop")}
    assert text(structured_outputs={"grammar": 'start: "x" y+ "z"\ny: "1".."3"'})[0][:2] in {"x1", "x2", "x3"}
    # What max_tokens cuts off says so; ignore_eos goes on, but not past the form.
    assert text(max_tokens=3, structured_outputs={"regex": "a{9}"}) == ("aaa", "length")
    assert text(ignore_eos=True, structured_outputs={"regex": "a{9}"}) == ("a" * 9, "stop")


@pytest.mark.parametrize(
    ("fields", "param", "words"),
    [
        ({"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": {
            "type": "integer", "minimum": 3, "maximum": 2}}}}, "response_format", "Unsatisfiable"),
        ({"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": {
            "not": {"type": "null"}}}}}, "response_format", "not"),
        ({"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": {
            "enum": ["x" * 99] * 9999}}}}, "response_format", "expected up to 1000000"),
        ({"response_format": {"type": "json_schema"}}, "response_format", "required"),
        ({"response_format": {"type": "yaml"}}, "response_format", "json_object"),
        ({"structured_outputs": {"regex": "a("}}, "structured_outputs", "regex parse error: unclosed group"),
        ({"structured_outputs": {"regex": "(a{1000}){1000}"}}, None, "too complex"),
        ({"structured_outputs": {"regex": "a", "choice": ["b"]}}, "structured_outputs", "exactly one"),
    ],
)  # fmt: skip
def test_a_form_that_no_text_can_have_is_refused(
    client: openai.OpenAI, fields: dict[str, Any], param: str | None, words: str
) -> None:
    with pytest.raises(openai.BadRequestError, match=words) as caught:
        client.completions.create(model="llama", prompt="a", extra_body=fields)
    assert str(caught.value.param).startswith(str(param))


def test_options_too_long_for_a_packet_are_obeyed(client: openai.OpenAI) -> None:
    values = [f"value number {number}" for number in range(2000)]
    schema = {"type": "object", "properties": {"a": {"enum": values}}, "required": ["a"], "additionalProperties": False}
    form: Any = {"type": "json_schema", "json_schema": {"name": "it", "schema": schema}}
    answer = client.chat.completions.create(
        model="llama", messages=[{"role": "user", "content": "x" * 100}], max_tokens=60, response_format=form, n=20,
        stop=[f"<{number}>" for number in range(900)], logit_bias={str(token): 0 for token in range(257)},
    )  # fmt: skip
    found = {json.loads(choice.message.content or "")["a"] for choice in answer.choices}
    assert len(answer.choices) == 20 and found <= set(values)


def test_vllms_fields_of_tokens_are_obeyed_while_a_text_is_made(client: openai.OpenAI) -> None:
    def text(bias: dict[str, int], **more: Any) -> Any:
        return client.completions.create(
            model="llama", prompt="one", temperature=0, logit_bias=bias, extra_body=more
        ).choices[0]  # fmt: skip

    ended = text({str(END): 100})
    assert (ended.text, ended.finish_reason) == ("", "stop")
    least = text({str(END): 100}, min_tokens=3)
    assert (len(least.text), least.finish_reason) == (3, "stop")
    always_a = {str(ord("a")): 100}
    assert (text(always_a).text, text(always_a).finish_reason) == ("a" * 16, "length")
    stopped = text(always_a, stop_token_ids=[ord("a")], min_tokens=2)
    assert (len(stopped.text), stopped.finish_reason) == (2, "stop") and "a" not in stopped.text
    shown = text({str(END): 100}, ignore_eos=True, skip_special_tokens=False, max_tokens=2)
    assert shown.text == "<|endoftext|>" * 2
    with pytest.raises(openai.BadRequestError, match="token 5000 is not in the vocabulary"):
        text({}, stop_token_ids=[5000])


TOOLS: Any = [
    {"type": "function", "function": {"name": "find", "description": "Find.", "parameters": {
        "type": "object", "properties": {"word": {"type": "string", "maxLength": 5}}, "required": ["word"],
        "additionalProperties": False}}},
    {"type": "function", "function": {"name": "wait", "parameters": {
        "type": "object", "properties": {"s": {"$ref": "#/$defs/s"}}, "required": ["s"], "additionalProperties": False,
        "$defs": {"s": {"enum": [1, 2]}}}}},
]  # fmt: skip


@pytest.fixture
def short_template(box: ProcessBox, folder: Path) -> Iterator[None]:
    """A template with tools that is short enough for the small context, of a model that calls as Hermes does."""
    template = folder / "checkpoint" / "chat_template.jinja"
    template.write_text(
        "{% for tool in tools or [] %}{{ tool.function.name }} {% endfor %}{% for m in messages %}{{ m.content or '' }}"
        "{% for call in m.tool_calls or [] %}<tool_call>{{ call.function.name }}{% endfor %}{% endfor %}"
    )
    yield
    template.unlink()


def check_call(call: Any, names: set[str]) -> None:
    assert call.id.startswith("call_") and call.function.name in names
    schema = next(tool["function"] for tool in TOOLS if tool["function"]["name"] == call.function.name)["parameters"]
    jsonschema.validate(json.loads(call.function.arguments), schema)


@pytest.mark.usefixtures("short_template")
def test_a_tool_that_must_be_called_is_called_with_legal_arguments(client: openai.OpenAI) -> None:
    asked: Any = {"model": "llama", "messages": [{"role": "user", "content": "x"}], "tools": TOOLS, "max_tokens": 90}
    one = {"type": "function", "function": {"name": "wait"}}
    for choice, names in (("required", {"find", "wait"}), (one, {"wait"})):
        answer = client.chat.completions.create(**asked, tool_choice=choice, temperature=1.5, n=4, seed=1)
        for each in answer.choices:
            assert each.finish_reason == "tool_calls" and each.message.content is None and each.message.tool_calls
            check_call(each.message.tool_calls[0], names)
    with client.chat.completions.stream(**asked, tool_choice=one, temperature=0) as stream:
        streamed = stream.get_final_completion().choices[0]
    assert streamed.finish_reason == "tool_calls" and streamed.message.tool_calls
    check_call(streamed.message.tool_calls[0], {"wait"})
    # The answer goes back as the client has it, and so does the tool's.
    message = answer.choices[0].message
    assert message.tool_calls
    back = [message.model_dump(), {"role": "tool", "tool_call_id": message.tool_calls[0].id, "content": "done"}]
    asked = {**asked, "messages": [*asked["messages"], *back], "max_tokens": 4, "tool_choice": "none"}
    assert client.chat.completions.create(**asked).choices[0].message.tool_calls is None
    with pytest.raises(openai.BadRequestError, match="expected find, wait"):
        client.chat.completions.create(**asked | {"tool_choice": {"type": "function", "function": {"name": "f"}}})


@pytest.mark.usefixtures("short_template")
def test_a_call_that_the_model_may_make_is_found_in_its_text(client: openai.OpenAI) -> None:
    # The model is made to say one, as it cannot by itself.
    said = '<tool_call>{"name": "wait", "arguments": {"s": 1}}</tool_call>'
    asked: Any = {
        "model": "llama", "messages": [{"role": "user", "content": "x"}], "tools": TOOLS, "max_tokens": 90,
        "extra_body": {"structured_outputs": {"choice": ["So: " + said]}},
    }  # fmt: skip
    whole = client.chat.completions.create(**asked).choices[0]
    assert (whole.finish_reason, whole.message.content) == ("tool_calls", "So: ") and whole.message.tool_calls
    check_call(whole.message.tool_calls[0], {"wait"})
    chunks = [chunk.choices[0] for chunk in client.chat.completions.create(**asked, stream=True)]
    assert "".join(chunk.delta.content or "" for chunk in chunks) == "So: "
    assert [chunk.finish_reason for chunk in chunks][-1] == "tool_calls"
    calls = [call for chunk in chunks for call in chunk.delta.tool_calls or ()]
    assert [call.function.name for call in calls if call.function and call.function.name] == ["wait"]
    assert json.loads("".join(call.function.arguments or "" for call in calls if call.function)) == {"s": 1}


@pytest.fixture
def thinking_template(box: ProcessBox, folder: Path) -> Iterator[None]:
    """A template of a model that thinks, with tools, whose prompts end thinking or begin it."""
    template = folder / "checkpoint" / "chat_template.jinja"
    template.write_text(
        "{% for m in messages %}{{ m.content or '' }}{{ m.reasoning_content or '' }}{% endfor %}"
        "{% if tools %}<tool_call>{% endif %}<think>{% if enable_thinking is false %}</think>{% endif %}"
    )
    yield
    template.unlink()


@pytest.mark.usefixtures("thinking_template")
def test_thoughts_come_apart_from_what_is_said_with_calls_in_both(client: openai.OpenAI) -> None:
    call = '<tool_call>{"name": "wait", "arguments": {"s": 1}}</tool_call>'
    asked: Any = {
        "model": "llama", "messages": [{"role": "user", "content": "x"}], "tools": TOOLS, "max_tokens": 150,
        "extra_body": {
            "structured_outputs": {"choice": [f"<think>\nhm {call}</think>\n\nSo: {call}"]},
            "chat_template_kwargs": {"enable_thinking": False},
        },
    }  # fmt: skip
    whole = client.chat.completions.create(**asked)
    (choice,), usage = whole.choices, whole.usage
    message: Any = choice.message
    assert (choice.finish_reason, message.content, message.reasoning_content) == ("tool_calls", "So: ", "hm ")
    assert [each.function.name for each in message.tool_calls] == ["wait", "wait"]
    assert usage is not None and usage.completion_tokens_details is not None
    assert 50 < (usage.completion_tokens_details.reasoning_tokens or 0) < usage.completion_tokens
    deltas: list[Any] = [chunk.choices[0].delta for chunk in client.chat.completions.create(**asked, stream=True)]
    assert "".join(getattr(delta, "reasoning_content", None) or "" for delta in deltas) == "hm "
    assert "".join(delta.content or "" for delta in deltas) == "So: "
    assert sum(bool(each.function.name) for delta in deltas for each in delta.tool_calls or ()) == 2
    # What the template began to think is thought until it ends; a form holds for what is said behind it.
    thinking = client.chat.completions.create(
        model="llama", messages=[{"role": "user", "content": "x"}], max_tokens=20, temperature=0,
        response_format={"type": "json_object"},
    ).choices[0]  # fmt: skip
    thought: Any = thinking.message
    assert (thinking.finish_reason, thought.content) == ("length", "") and len(thought.reasoning_content) > 5


@pytest.mark.usefixtures("thinking_template")
def test_an_answer_that_first_thinks_continues_no_text(box: ProcessBox) -> None:
    said = [{"role": "user", "content": "x"}, {"role": "assistant", "content": "So"}]
    with httpx.Client(base_url=box.rest_url, trust_env=False) as http:
        asked = {"model": "llama", "max_tokens": 2, "messages": said}
        refused = http.post("/v1/messages", json=asked)
        answer = http.post("/v1/messages", json={**asked, "thinking": {"type": "disabled"}})
    assert refused.status_code == 400 and "thinks before it continues a text" in refused.json()["error"]["message"]
    assert answer.status_code == 200 and answer.json()["usage"]["output_tokens"] == 2


@pytest.mark.usefixtures("short_template")
def test_a_function_of_older_clients_is_called_and_its_result_goes_back(client: openai.OpenAI) -> None:
    functions: Any = [tool["function"] for tool in TOOLS]
    asked: Any = {"model": "llama", "messages": [{"role": "user", "content": "x"}], "functions": functions}
    forced = {**asked, "function_call": {"name": "wait"}, "max_tokens": 90}
    whole = client.chat.completions.create(**forced, temperature=0).choices[0]
    call: Any = whole.message.function_call
    assert (whole.finish_reason, call.name, whole.message.content) == ("function_call", "wait", None)
    assert json.loads(call.arguments)["s"] in {1, 2}
    chunks = [chunk.choices[0] for chunk in client.chat.completions.create(**forced, temperature=0, stream=True)]
    parts: list[Any] = [chunk.delta.function_call for chunk in chunks if chunk.delta.function_call]
    assert (parts[0].name, "".join(part.arguments or "" for part in parts)) == ("wait", call.arguments)
    assert chunks[-1].finish_reason == "function_call"
    back = [whole.message.model_dump(), {"role": "function", "name": "wait", "content": "done"}]
    after = client.chat.completions.create(**asked | {"messages": [*asked["messages"], *back]}, max_tokens=2)
    assert after.choices[0].finish_reason == "length" and after.usage is not None
    assert after.usage.prompt_tokens == len("find wait x<tool_call>waitdone")


@pytest.mark.usefixtures("thinking_template")
def test_a_tool_that_must_be_called_wins_over_a_response_format(client: openai.OpenAI) -> None:
    form: Any = {"type": "json_schema", "json_schema": {"name": "x", "schema": {"const": 5}}}
    answer = client.chat.completions.create(
        model="llama", messages=[{"role": "user", "content": "x"}], tools=TOOLS, tool_choice="required", n=3,
        max_tokens=90, response_format=form, extra_body={"chat_template_kwargs": {"enable_thinking": False}},
    )  # fmt: skip
    for choice in answer.choices:
        assert choice.finish_reason == "tool_calls" and choice.message.tool_calls
        check_call(choice.message.tool_calls[0], {"find", "wait"})
