"""One box under the clients of three APIs: OpenAI's responses, Anthropic's messages, the vendor's own and Studio's."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import anthropic
import httpx
import openai
import pytest
from pydantic import BaseModel
from sambanova import SambaNova

from rdukit_platform.backends.process import ProcessBox
from support import shows
from support.pages import code_blocks, read_page
from support.text_boxes import CONTEXT, END, make_tiny_llama, start_text_box

pytestmark = shows("inference", "llama")

TOKEN = "a token of this box"
#: Short enough for the small context, of a model that calls as Hermes does.
TEMPLATE = (
    "{% for tool in tools or [] %}{{ tool.function.name }} {% endfor %}{% for m in messages %}{{ m.role[0] }}"
    "{{ m.content or '' }}{% for call in m.tool_calls or [] %}<tool_call>{{ call.function.arguments.s }}{% endfor %}|"
    "{% endfor %}{{ reasoning_effort }}a"
)
SCHEMA: dict[str, Any] = {
    "type": "object", "properties": {"s": {"enum": [1, 2]}}, "required": ["s"], "additionalProperties": False,
}  # fmt: skip
SAID = 'So: <tool_call>{"name": "wait", "arguments": {"s": 1}}</tool_call>'


@pytest.fixture(scope="module")
def box(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ProcessBox]:
    folder = tmp_path_factory.mktemp("texts")
    tokens: Path = folder / "tokens"
    tokens.write_text(TOKEN)
    started = start_text_box(folder, make_tiny_llama(), RDUKIT_BOX_TOKENS=str(tokens))
    (folder / "checkpoint" / "chat_template.jinja").write_text(TEMPLATE)
    yield started
    started.stop()


@pytest.fixture(scope="module")
def http(box: ProcessBox) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=box.rest_url, trust_env=False, timeout=60) as client:
        yield client


@pytest.fixture(scope="module")
def client(box: ProcessBox) -> Iterator[openai.OpenAI]:
    http = httpx.Client(trust_env=False)
    with openai.OpenAI(base_url=f"{box.rest_url}/v1", api_key=TOKEN, max_retries=0, http_client=http) as client:
        yield client


@pytest.fixture(scope="module")
def claude(box: ProcessBox) -> Iterator[anthropic.Anthropic]:
    with anthropic.Anthropic(base_url=box.rest_url, api_key=TOKEN, max_retries=0) as client:
        yield client


@pytest.fixture(scope="module")
def vendor(box: ProcessBox) -> Iterator[SambaNova]:
    http = httpx.Client(trust_env=False)
    with SambaNova(base_url=f"{box.rest_url}/v1", api_key=TOKEN, max_retries=0, http_client=http) as client:
        yield client


def chat_text(client: openai.OpenAI, *messages: tuple[str, str], most: int = 8) -> str:
    """What the chat route says to the same."""
    asked: Any = [{"role": role, "content": content} for role, content in messages]
    answer = client.chat.completions.create(model="llama", messages=asked, max_tokens=most, temperature=0)
    return str(answer.choices[0].message.content)


def test_the_manuals_program_of_openai_runs_as_printed(
    box: ProcessBox, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    code = code_blocks(read_page("text-models.md"))[0]
    assert code.count("http://127.0.0.1:9000/v1") == 1 and code.count('api_key="none"') == 1
    code = code.replace("http://127.0.0.1:9000", box.rest_url).replace('"none"', repr(TOKEN))
    exec(compile(code, "text-models.md", "exec"), {})
    whole, _, streamed = capsys.readouterr().out.partition("\n")
    assert whole and streamed


# -- OpenAI's responses ----------------------------------------------------------------------------------------------


def test_a_response_says_what_a_chat_says_and_a_stream_tells_it_in_order(client: openai.OpenAI) -> None:
    asked: Any = {
        "model": "llama", "instructions": "be brief", "input": "hi", "max_output_tokens": 8, "temperature": 0,
        "metadata": {"a": "b"}, "store": False, "include": ["message.output_text.logprobs"], "top_logprobs": 2,
    }  # fmt: skip
    whole = client.responses.create(**asked)
    assert whole.output_text == chat_text(client, ("system", "be brief"), ("user", "hi"))
    assert (whole.status, whole.incomplete_details and whole.incomplete_details.reason) == (
        "incomplete", "max_output_tokens",
    )  # fmt: skip
    assert (whole.instructions, whole.metadata, whole.model_extra) == ("be brief", {"a": "b"}, {"store": False})
    usage = whole.usage
    assert usage is not None and (usage.input_tokens, usage.output_tokens) == (len("sbe brief|uhi|a"), 8)
    assert usage.total_tokens == usage.input_tokens + 8
    events = list(client.responses.create(**asked, stream=True))
    kinds = [event.type.removeprefix("response.") for event in events]
    assert list(dict.fromkeys(kinds)) == [
        "created", "in_progress", "output_item.added", "content_part.added", "output_text.delta", "output_text.done",
        "content_part.done", "output_item.done", "incomplete",
    ]  # fmt: skip
    assert [event.sequence_number for event in events] == list(range(len(events)))
    last: Any = events[-1]
    assert last.response.usage.input_tokens_details.cached_tokens == usage.input_tokens - 1
    assert "".join(event.delta for event in events if event.type == "response.output_text.delta") == whole.output_text
    for streamed, item in zip(last.response.output, whole.output, strict=True):
        assert streamed.model_dump(exclude={"id"}) == item.model_dump(exclude={"id"})
    content: Any = last.response.output[0]
    assert len(content.content[0].logprobs) == 8 and len(content.content[0].logprobs[0].top_logprobs) == 2


def test_items_of_an_answer_go_back_with_what_the_function_gave(client: openai.OpenAI) -> None:
    tools: Any = [{"type": "function", "name": "wait", "parameters": SCHEMA, "strict": True}]
    asked: Any = {"model": "llama", "tools": tools, "temperature": 0, "max_output_tokens": 90}
    answer = client.responses.create(**asked, input="x", tool_choice={"type": "function", "name": "wait"})
    (call,) = answer.output
    assert answer.status == "completed" and call.type == "function_call" and call.name == "wait"
    assert json.loads(call.arguments)["s"] in {1, 2}
    with client.responses.stream(**asked, input="x", tool_choice="required") as stream:
        kinds = [event.type for event in stream]
        (streamed,) = stream.get_final_response().output
    assert streamed.type == "function_call" and streamed.arguments == call.arguments
    assert "response.function_call_arguments.delta" in kinds and kinds[-1] == "response.completed"
    items: Any = [
        {"role": "user", "content": [{"type": "input_text", "text": "x"}]},
        {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "so", "annotations": []}],
         "id": "msg_1", "status": "completed"},
        call.model_dump(exclude_none=True), {"type": "function_call_output", "call_id": call.call_id, "output": "y"},
    ]  # fmt: skip
    back = client.responses.create(**asked | {"input": items, "tool_choice": "none", "max_output_tokens": 3})
    assert back.usage is not None
    # What it said and called is one message to the template.
    assert back.usage.input_tokens == len("ux|" + f"aso<tool_call>{json.loads(call.arguments)['s']}|" + "ty|" + "a")


def test_a_response_has_the_form_that_is_asked_for(client: openai.OpenAI) -> None:
    class Mood(BaseModel):
        good: bool

    parsed = client.responses.parse(model="llama", input="x", text_format=Mood, max_output_tokens=60)
    assert parsed.output_parsed is not None and parsed.output_parsed.good in {True, False}
    told = client.responses.create(model="llama", input="x", reasoning={"effort": "low"}, max_output_tokens=1)
    assert told.usage is not None and told.usage.input_tokens == len("ux|lowa")


@pytest.mark.parametrize(
    ("fields", "param", "words"),
    [
        ({"store": True}, "store", "False"),
        ({"previous_response_id": "resp_1"}, "previous_response_id", "is not served here"),
        ({"input": [{"role": "user", "content": [{"type": "input_image", "image_url": "x"}]}]}, "input.0.content.0",
         "parts of type input_image are not supported"),
        ({"input": [{"type": "computer_call"}]}, "input.0", "expected message, reasoning, function_call, "),
        ({"tools": [{"type": "web_search"}]}, "tools.0.type", "function"),
        ({"text": {"format": {"type": "json_schema", "name": "x", "schema": {"not": {"type": "null"}}}}}, "text.format",
         "not cannot be enforced"),
        ({"model": "other"}, "model", "other"),
    ],
)  # fmt: skip
def test_what_a_response_cannot_be_is_refused_by_its_field(
    client: openai.OpenAI, fields: dict[str, Any], param: str, words: str
) -> None:
    with pytest.raises(openai.APIStatusError, match=words) as caught:
        client.responses.create(**{"model": "llama", "input": "x", **fields})
    assert caught.value.param == param


def tokens_read(message: anthropic.types.Message) -> int:
    """Tokens of a prompt, with those that were not read anew."""
    return message.usage.input_tokens + (message.usage.cache_read_input_tokens or 0)


# -- Anthropic's messages --------------------------------------------------------------------------------------------


def test_a_message_says_what_a_chat_says_and_a_stream_tells_it_in_order(
    client: openai.OpenAI, claude: anthropic.Anthropic
) -> None:
    asked: Any = {
        "model": "llama", "system": [{"type": "text", "text": "be brief", "cache_control": {"type": "ephemeral"}}],
        "messages": [{"role": "user", "content": [{"type": "text", "text": "hi"}]}], "max_tokens": 8,
        "extra_body": {"temperature": 0},
    }  # fmt: skip
    whole = claude.messages.create(**asked)
    said = chat_text(client, ("system", "be brief"), ("user", "hi"))
    assert [block.type == "text" and block.text for block in whole.content] == [said]
    assert (whole.stop_reason, whole.stop_sequence, whole.role) == ("max_tokens", None, "assistant")
    assert (tokens_read(whole), whole.usage.output_tokens) == (len("sbe brief|uhi|a"), 8)
    assert claude.messages.count_tokens(model="llama", messages=asked["messages"], system="be brief").input_tokens == (
        tokens_read(whole)
    )
    events = list(claude.messages.create(**asked, stream=True))
    assert list(dict.fromkeys(event.type for event in events)) == [
        "message_start", "content_block_start", "content_block_delta", "content_block_stop", "message_delta",
        "message_stop",
    ]  # fmt: skip
    with claude.messages.stream(**asked) as stream:
        assert "".join(stream.text_stream) == said
        last = stream.get_final_message()
    assert last.model_dump(exclude={"id", "usage"}) == whole.model_dump(exclude={"id", "usage"})
    # The prompt was read before: all but its last token is there.
    assert (tokens_read(last), last.usage.output_tokens) == (tokens_read(whole), 8)
    assert last.usage.cache_read_input_tokens == tokens_read(whole) - 1


def test_a_message_ends_for_a_reason_that_it_tells(client: openai.OpenAI, claude: anthropic.Anthropic) -> None:
    def ask(said: str = "hi", **more: Any) -> anthropic.types.Message:
        body = {"temperature": 0, **more.pop("body", {})}
        messages: Any = [{"role": "user", "content": said}]
        return claude.messages.create(
            **{"model": "llama", "messages": messages, "max_tokens": 12, **more}, extra_body=body
        )

    text = chat_text(client, ("user", "hi"), most=12)
    stopped = ask(stop_sequences=["never", text[4:6]])
    assert (stopped.stop_reason, stopped.stop_sequence) == ("stop_sequence", text[4:6])
    assert "".join(block.text for block in stopped.content if block.type == "text") == text[: text.index(text[4:6])]
    # A model that ends at once; and a context that ends before max_tokens.
    ended = ask(output_config={"format": {"type": "json_schema", "schema": {"const": 7}}})
    assert (ended.stop_reason, [block.type == "text" and block.text for block in ended.content]) == ("end_turn", ["7"])
    full = ask("x" * (CONTEXT - 10), max_tokens=100, body={"ignore_eos": True})
    assert full.stop_reason == "model_context_window_exceeded"
    # The answer goes on from what it has said already.
    goes_on: Any = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": text[:5]}]
    rest = claude.messages.create(model="llama", messages=goes_on, max_tokens=7, extra_body={"temperature": 0})
    assert "".join(block.text for block in rest.content if block.type == "text") == text[5:]
    assert END == 256 and tokens_read(rest) == len("uhi|a") + 5


def test_tools_are_used_and_their_results_go_back(claude: anthropic.Anthropic) -> None:
    tools: Any = [{"name": "wait", "description": "Wait.", "input_schema": SCHEMA}]
    asked: Any = {
        "model": "llama", "max_tokens": 90, "tools": tools, "messages": [{"role": "user", "content": "x"}],
        "extra_body": {"temperature": 0},
    }  # fmt: skip
    for choice in ({"type": "any"}, {"type": "tool", "name": "wait", "disable_parallel_tool_use": True}):
        forced = claude.messages.create(**asked, tool_choice=choice)
        (used,) = forced.content
        assert forced.stop_reason == "tool_use" and used.type == "tool_use" and used.name == "wait"
        assert used.input["s"] in {1, 2}
    with claude.messages.stream(**asked, tool_choice={"type": "any"}) as stream:
        (streamed,) = stream.get_final_message().content
    assert streamed.type == "tool_use" and streamed.input == used.input
    results: Any = [
        *asked["messages"], {"role": "assistant", "content": [block.model_dump() for block in forced.content]},
        {"role": "user", "content": [
            {"type": "tool_result", "tool_use_id": used.id, "content": [{"type": "text", "text": "y"}]},
            {"type": "text", "text": "z"}]},
    ]  # fmt: skip
    back = claude.messages.create(**asked | {"messages": results, "max_tokens": 2}, tool_choice={"type": "none"})
    assert tokens_read(back) == len("ux|" + f"a<tool_call>{used.input['s']}|" + "ty|" + "uz|" + "a")


def test_an_error_has_the_form_of_the_api_that_was_called(
    http: httpx.Client, claude: anthropic.Anthropic, client: openai.OpenAI
) -> None:
    def ask(**more: Any) -> None:
        messages: Any = [{"role": "user", "content": "x"}]
        claude.messages.create(**{"model": "llama", "messages": messages, "max_tokens": 1, **more})

    for fields, words in (
        ({"messages": [{"role": "user", "content": [{"type": "image", "source": {}}]}]}, "image are not supported"),
        ({"messages": [{"role": "assistant", "content": [{"type": "tool_result", "tool_use_id": "1"}]},
                       {"role": "user", "content": "x"}]}, "not valid with the role assistant"),
        ({"messages": [{"role": "assistant", "content": "x"}]}, "put a user message before it"),
        ({"messages": [{"role": "user", "content": "x"}, {"role": "assistant", "content": [
            {"type": "tool_use", "id": "1", "name": "f", "input": {}}]}]}, "with its tool_result after it"),
        ({"messages": [{"role": "user", "content": "x"}, {"role": "assistant", "content": [
            {"type": "thinking", "thinking": "h", "signature": ""}, {"type": "text", "text": "A"}]}]},
         "has a block thinking; expected only text there"),
        ({"tool_choice": {"type": "tool", "name": "f"}}, "expected none, because there are no tools"),
        ({"thinking": {"type": "enabled", "budget_tokens": 1024}}, "thinking"),
        ({"extra_body": {"nonsense": 1}}, "nonsense: it is not a field"),
    ):  # fmt: skip
        with pytest.raises(anthropic.BadRequestError, match=words) as caught:
            ask(**fields)
        body: Any = caught.value.body
        assert (body["type"], body["error"]["type"]) == ("error", "invalid_request_error")
    with pytest.raises(anthropic.NotFoundError, match="other"):
        ask(model="other")
    for headers, path, kind in (
        ({"x-api-key": "wrong"}, "/v1/messages", "authentication_error"),
        ({"key": TOKEN}, "/v1/messages", "authentication_error"),
        ({"key": "wrong"}, "/api/v2/predict/generic/p/llama", "unauthenticated"),
    ):
        found = http.post(path, json={}, headers=headers)
        assert found.status_code == 401 and kind in found.text
    unknown = client.with_options(api_key="wrong")
    with pytest.raises(openai.AuthenticationError):
        unknown.responses.create(model="llama", input="x")


# -- SambaStudio's generic API ---------------------------------------------------------------------------------------


def test_items_are_completed_as_prompts_or_as_chats(http: httpx.Client, client: openai.OpenAI) -> None:
    path, headers = "/api/v2/predict/generic/project/llama", {"key": TOKEN}
    chat = json.dumps({"conversation_id": "c", "messages": [{"message_id": 0, "role": "user", "content": "hi"}]})
    params = {"max_tokens_to_generate": 8, "do_sample": False, "temperature": 0.7, "process_prompt": True, "top_k": 50}
    body = {"items": [{"id": "one", "value": chat}, {"value": "hi"}], "params": params}
    found = http.post(path, json=body, headers=headers).json()["items"]
    said = chat_text(client, ("user", "hi"))
    assert [(item["id"], item["value"]["completion"]) for item in found] == [("one", said), ("1", said)]
    value = found[0]["value"]
    assert (value["stop_reason"], value["is_last_response"]) == ("max_len_reached", True)
    assert (value["prompt_tokens_count"], value["completion_tokens_count"]) == (len("uhi|a"), 8)
    plain = client.completions.create(model="llama", prompt="hi", max_tokens=8, temperature=0).choices[0].text
    more = {"max_tokens_to_generate": 8, "stop_sequences": [plain[4:6]], "select_expert": "llama:1"}
    stream = "/api/v2/predict/generic/stream/project/any"
    with http.stream("POST", stream, json={"items": [{"value": "hi"}], "params": more}, headers=headers) as answer:
        lines = [json.loads(line)["result"]["items"][0]["value"] for line in answer.iter_lines()]
    assert "".join(line["stream_token"] for line in lines) == plain[: plain.index(plain[4:6])]
    assert [line["is_last_response"] for line in lines] == [False] * (len(lines) - 1) + [True]
    assert lines[-1]["stop_reason"] == "stop_sequence_hit"


def test_the_first_version_has_instances_and_parameters_with_types(http: httpx.Client, client: openai.OpenAI) -> None:
    headers = {"key": TOKEN}
    params: dict[str, Any] = {
        "max_tokens_to_generate": {"type": "int", "value": "8"}, "do_sample": {"type": "bool", "value": "False"},
        "temperature": {"type": "float", "value": "0.7"}, "stop_sequences": {"type": "list", "value": "['never']"},
        "top_p": {"type": "NoneType", "value": "None"},
    }  # fmt: skip
    plain = client.completions.create(model="llama", prompt="hi", max_tokens=8, temperature=0).choices[0].text
    body = {"instances": ["hi", "hi"], "params": params}
    found = http.post("/api/predict/generic/project/llama", json=body, headers=headers).json()
    assert [each["completion"] for each in found["predictions"]] == [plain, plain]
    stream = "/api/predict/generic/stream/project/llama"
    with http.stream("POST", stream, json={"instance": "hi", "params": params}, headers=headers) as answer:
        lines = [json.loads(line)["result"]["responses"][0] for line in answer.iter_lines()]
    assert "".join(line["stream_token"] for line in lines) == plain
    for wrong, words in (
        ({"items": [{"id": "a#b", "value": "x"}]}, "items.0.id"),
        ({"items": [{"id": "a", "value": "x"}] * 2}, "a unique id"),
        ({"items": [{"value": '{"messages": []}'}], "params": {"process_prompt": True}}, "not a chat"),
        ({"items": [{"value": "x"}], "params": {"nonsense": 1}}, "params.nonsense"),
        ({"items": [{"value": "x"}], "params": {"select_expert": "other"}}, "other"),
    ):
        refused = http.post("/api/v2/predict/generic/project/llama", json=wrong, headers=headers)
        assert refused.status_code in {400, 404} and words in refused.json()["error"]["message"]


# -- the vendor's client ---------------------------------------------------------------------------------------------


def test_the_vendors_client_has_every_field_that_is_served(vendor: SambaNova, client: openai.OpenAI) -> None:
    assert [model.id for model in vendor.models.list().data or ()] == ["llama"]
    told: Any = vendor.models.retrieve("llama")
    assert (told.context_length, told.max_completion_tokens) == (CONTEXT, CONTEXT - 1)
    messages: Any = [{"role": "system", "content": "s"}, {"role": "user", "content": [{"type": "text", "text": "hi"}]}]
    asked: Any = {
        "model": "llama", "messages": messages, "max_tokens": 8, "temperature": 0.7, "top_p": 0.9, "top_k": 5,
        "do_sample": False, "stop": ["never"], "n": 1, "frequency_penalty": 0, "presence_penalty": 0, "logit_bias": {},
        "logprobs": True, "top_logprobs": 1, "reasoning_effort": "low", "seed": 1,
        "chat_template_kwargs": {"enable_thinking": False}, "parallel_tool_calls": True,
        "extra_body": {"ignore_eos": True},
    }  # fmt: skip
    whole: Any = vendor.chat.completions.create(**asked)
    assert whole.choices[0].finish_reason == "length" and len(whole.choices[0].logprobs.content) == 8
    chunks: Any = list(vendor.chat.completions.create(**asked, stream=True, stream_options={"include_usage": True}))
    said = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    assert said == whole.choices[0].message.content
    assert chunks[-1].usage.completion_tokens == 8 and chunks[-1].usage.completion_tokens_per_sec > 0
    tools: Any = [{"type": "function", "function": {"name": "wait", "parameters": SCHEMA}}]
    short: Any = {"model": "llama", "messages": [{"role": "user", "content": "x"}], "max_tokens": 90}
    called: Any = vendor.chat.completions.create(**short, tools=tools, tool_choice="required")
    (call,) = called.choices[0].message.tool_calls
    back = [*short["messages"], called.choices[0].message.model_dump(exclude_none=True),
            {"role": "tool", "tool_call_id": call.id, "content": "y"}]  # fmt: skip
    assert vendor.chat.completions.create(**short | {"messages": back, "max_tokens": 1}).choices  # type: ignore[union-attr]
    form: Any = {"type": "json_schema", "json_schema": {"name": "x", "schema": SCHEMA, "strict": True}}
    formed: Any = vendor.chat.completions.create(**short, response_format=form)
    assert json.loads(formed.choices[0].message.content)["s"] in {1, 2}
    some: Any = vendor.completions.create(model="llama", prompt="hi", max_tokens=4, do_sample=False, top_k=3)
    plain = client.completions.create(model="llama", prompt="hi", max_tokens=4, temperature=0)
    assert some.choices[0].text == plain.choices[0].text
    vectors: Any = vendor.embeddings.create(model="llama", input=["a", "b"])
    assert len(vectors.data) == 2
    # Greedy: a drawn text may end with its first token.
    answer: Any = vendor.responses.create(model="llama", input="hi", max_output_tokens=2, temperature=0)
    assert answer.usage.output_tokens == 2
    message: Any = vendor.messages.create(
        model="llama", messages=[{"role": "user", "content": "hi"}], max_tokens=2, temperature=0
    )
    assert message.usage.output_tokens == 2
