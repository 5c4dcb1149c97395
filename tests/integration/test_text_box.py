"""A box with a language model under the ``openai`` package: texts, chats, streams, errors, callers that go."""

import json
import os
import shutil
import socket
import time
from collections.abc import Iterator
from typing import Any

import httpx
import openai
import pytest
import torch

from rdukit_modelbox.backends.base import BoxSpec
from rdukit_modelbox.backends.process import ProcessBackend, ProcessBox
from rdukit_modelbox.checkpoints import Checkpoint, Identity, Totals, save_checkpoint
from rdukit_modelbox.preprocessing.token_manifest import write_tokenizer
from rdukit_modelbox.preprocessing.tokenizer import byte_level_tokenizer
from rdukit_modelbox.testing import run_verb
from rdukit_zoo.llama import Llama, LlamaSizes

CONTEXT = 256


@pytest.fixture(scope="module")
def box(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ProcessBox]:
    """Random parameters: any text will do, and the same request gives the same text."""
    folder = tmp_path_factory.mktemp("texts")
    os.environ["RDUKIT_KERNELS"] = "portable"
    pef = run_verb(
        "llama", "compile", folder, purpose="serve", width=16, layers=1, heads=2, key_value_heads=1, feed_forward=16,
        vocabulary=257, context_length=CONTEXT, prompt_length=16, batch_size=1,
    ).outputs["pef"]  # fmt: skip
    torch.manual_seed(0)
    model = Llama(LlamaSizes(16, 1, 2, 16, 257, positions=CONTEXT, prompt=16, key_value_heads=1), has_cache=False)
    checkpoint = folder / "checkpoint"
    identity = Identity("llama", {}, 1, "none", 0)
    optimizer: dict[str, Any] = {"state": {}, "param_groups": []}
    save_checkpoint(checkpoint, Checkpoint(1, model.state_dict(), optimizer, torch.get_rng_state(), identity, Totals()))
    write_tokenizer(folder, byte_level_tokenizer())
    shutil.copy(folder / "tokenizer" / "tokenizer.json", checkpoint)
    environment = {
        "RDUKIT_BOX_PEF": str(pef), "RDUKIT_BOX_CHECKPOINT": str(checkpoint), "RDUKIT_HOME": str(folder / "home"),
        "OMP_NUM_THREADS": "1",
    }  # fmt: skip
    started = ProcessBackend().start(BoxSpec("llama", folder / "state", [folder], environment))
    yield started
    started.stop()


@pytest.fixture(scope="module")
def client(box: ProcessBox) -> Iterator[openai.OpenAI]:
    http = httpx.Client(trust_env=False)
    with openai.OpenAI(base_url=f"{box.rest_url}/v1", api_key="none", max_retries=0, http_client=http) as client:
        yield client


def read_raw(box: ProcessBox, path: str, body: dict[str, Any]) -> tuple[str, bytes]:
    """Content type and the bytes of a stream as they came."""
    with httpx.Client(trust_env=False) as http, http.stream("POST", f"{box.rest_url}{path}", json=body) as answer:
        return answer.headers["content-type"], b"".join(answer.iter_raw())


def test_the_model_is_listed(client: openai.OpenAI) -> None:
    (model,) = client.models.list().data
    assert (model.id, model.object) == ("llama", "model")
    assert client.models.retrieve("llama").id == "llama"


def test_a_completion_has_text_reason_and_usage_and_a_seed_repeats_it(client: openai.OpenAI) -> None:
    def ask(seed: int) -> Any:
        return client.completions.create(model="llama", prompt="one two", max_tokens=8, seed=seed, temperature=1.0)

    first = ask(3)
    assert (first.object, first.model, first.choices[0].index) == ("text_completion", "llama", 0)
    assert first.choices[0].finish_reason in {"length", "stop"}
    assert first.usage.prompt_tokens == 7
    assert first.usage.total_tokens == first.usage.prompt_tokens + first.usage.completion_tokens
    assert ask(3).choices[0].text == first.choices[0].text
    assert len({ask(seed).choices[0].text for seed in range(5)}) > 1


def test_n_choices_and_several_prompts_come_with_their_index(client: openai.OpenAI) -> None:
    answer = client.completions.create(model="llama", prompt=["a", "b"], n=2, max_tokens=4, seed=1)
    assert [choice.index for choice in answer.choices] == [0, 1, 2, 3]
    assert answer.usage is not None and answer.usage.prompt_tokens >= 2
    by_tokens = client.completions.create(model="llama", prompt=[97], max_tokens=4, temperature=0)
    by_text = client.completions.create(model="llama", prompt="a", max_tokens=4, temperature=0)
    assert by_tokens.choices[0].text == by_text.choices[0].text


def test_a_stop_sequence_ends_the_text_and_is_not_in_it(client: openai.OpenAI) -> None:
    whole = client.completions.create(model="llama", prompt="one", max_tokens=24, temperature=0).choices[0].text
    stop = whole[6:8]
    cut = client.completions.create(model="llama", prompt="one", max_tokens=24, temperature=0, stop=[stop]).choices[0]
    assert cut.finish_reason == "stop"
    assert cut.text == whole[: whole.index(stop)]


def test_logprobs_are_those_of_the_tokens(client: openai.OpenAI) -> None:
    answer = client.completions.create(model="llama", prompt="one", max_tokens=5, temperature=0, logprobs=3)
    found = answer.choices[0].logprobs
    assert found is not None and found.tokens and found.token_logprobs and found.top_logprobs
    assert len(found.tokens) == len(found.token_logprobs) == len(found.top_logprobs)
    for logprob, top in zip(found.token_logprobs, found.top_logprobs, strict=True):
        assert logprob <= 0
        assert logprob == pytest.approx(max(top.values()), abs=1e-4)  # greedy: the likeliest
    chat = client.chat.completions.create(
        model="llama", messages=[{"role": "user", "content": "hi"}], max_tokens=3, logprobs=True, top_logprobs=2
    )
    content = chat.choices[0].logprobs
    assert content is not None and content.content is not None
    assert all(len(token.top_logprobs) == 2 and token.bytes is not None for token in content.content)


def test_a_chat_streams_the_text_that_it_gives_at_once(client: openai.OpenAI) -> None:
    asked: Any = {
        "model": "llama", "messages": [{"role": "system", "content": "x"}, {"role": "user", "content": "hi"}],
        "max_tokens": 12, "temperature": 0,
    }  # fmt: skip
    whole = client.chat.completions.create(**asked)
    assert whole.choices[0].message.role == "assistant"
    chunks = list(client.chat.completions.create(**asked, stream=True, stream_options={"include_usage": True}))
    assert chunks[0].choices[0].delta.role == "assistant"
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    assert text == whole.choices[0].message.content
    assert [c.choices[0].finish_reason for c in chunks if c.choices][-1] == whole.choices[0].finish_reason
    assert chunks[-1].choices == [] and chunks[-1].usage == whole.usage
    assert len({chunk.id for chunk in chunks}) == 1


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions"])
def test_a_stream_is_framed_byte_by_byte_as_clients_expect(box: ProcessBox, path: str) -> None:
    asked = {"prompt": "one"} if path == "/v1/completions" else {"messages": [{"role": "user", "content": "one"}]}
    kind, data = read_raw(box, path, {"model": "llama", **asked, "max_tokens": 6, "temperature": 0, "stream": True})
    assert kind.startswith("text/event-stream")
    assert b"\r" not in data
    events = data.split(b"\n\n")
    assert events[-2:] == [b"data: [DONE]", b""]
    values = []
    for event in events[:-2]:
        assert event.startswith(b"data: {") and b"\n" not in event
        values.append(json.loads(event.removeprefix(b"data: ")))
    assert {value["object"] for value in values} == {
        "text_completion" if path == "/v1/completions" else "chat.completion.chunk"
    }
    assert [value["choices"][0]["finish_reason"] for value in values][:-1] == [None] * (len(values) - 1)
    assert values[-1]["choices"][0]["finish_reason"] in {"length", "stop"}


@pytest.mark.parametrize(
    ("path", "changes", "param", "kind"),
    [
        ("/completions", {"model": "other"}, "model", openai.NotFoundError),
        ("/completions", {"temperature": 3}, "temperature", openai.BadRequestError),
        ("/completions", {"max_tokens": 0}, "max_tokens", openai.BadRequestError),
        ("/completions", {"n": 0}, "n", openai.BadRequestError),
        ("/completions", {"prompt": [9999]}, "prompt", openai.BadRequestError),
        ("/completions", {"prompt": "x" * 1000}, "prompt", openai.BadRequestError),
        ("/completions", {"logit_bias": {"5": 1}}, "logit_bias", openai.BadRequestError),
        ("/completions", {"stream": "maybe"}, "stream", openai.BadRequestError),
        ("/completions", {"nonsense": 1}, "nonsense", openai.BadRequestError),
        ("/chat/completions", {"messages": []}, "messages", openai.BadRequestError),
        ("/chat/completions", {"messages": [{"role": "cat", "content": "x"}]}, "messages", openai.BadRequestError),
    ],
)
def test_an_error_names_its_type_parameter_and_code(
    client: openai.OpenAI, path: str, changes: dict[str, Any], param: str, kind: type[openai.APIStatusError]
) -> None:
    base = {"prompt": "a"} if path == "/completions" else {"messages": [{"role": "user", "content": "a"}]}
    with pytest.raises(kind) as caught:
        client.post(path, body={"model": "llama", **base, **changes}, cast_to=object)
    assert caught.value.type == ("not_found_error" if kind is openai.NotFoundError else "invalid_request_error")
    assert str(caught.value.param).startswith(param)
    assert caught.value.code
    assert isinstance(caught.value.body, dict) and caught.value.body["message"]


def test_embeddings_are_the_same_as_numbers_and_as_base64(client: openai.OpenAI) -> None:
    # The client asks for base64 by itself and decodes it.
    decoded = client.embeddings.create(model="llama", input=["one", "two"])
    plain = client.embeddings.create(model="llama", input=["one", "two"], encoding_format="float")
    assert [item.index for item in plain.data] == [0, 1]
    for left, right in zip(decoded.data, plain.data, strict=True):
        assert left.embedding == pytest.approx(right.embedding)
        assert len(left.embedding) == 16
    assert plain.usage.prompt_tokens == 6


def test_an_embedding_of_too_much_or_of_unknown_tokens_names_the_input(client: openai.OpenAI) -> None:
    for wrong in ("x" * 100, [9999]):
        with pytest.raises(openai.BadRequestError) as caught:
            client.embeddings.create(model="llama", input=wrong)
        assert caught.value.param == "input"


def test_a_client_that_leaves_stops_its_text(box: ProcessBox, client: openai.OpenAI) -> None:
    host, _, port = box.rest_url.removeprefix("http://").partition(":")
    body = json.dumps(
        {"model": "llama", "prompt": "a", "max_tokens": CONTEXT - 10, "n": 16, "stream": True, "temperature": 1.0}
    ).encode()
    head = f"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: {len(body)}"
    with socket.create_connection((host, int(port)), 10) as connection:
        connection.sendall(head.encode() + b"\r\n\r\n" + body)
        assert b"200 OK" in connection.recv(1 << 16)
    began = time.monotonic()
    client.completions.create(model="llama", prompt="b", max_tokens=1)
    # 16 texts of 246 tokens would have taken many times this; the next request is answered as soon as it left.
    assert time.monotonic() - began < 2.0
