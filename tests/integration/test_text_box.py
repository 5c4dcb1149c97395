"""A box with a language model under the ``openai`` package: texts, chats, streams, errors, callers that go."""

import json
import shutil
import socket
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
import torch
from safetensors.torch import save_file

from rdukit_platform.backends.process import ProcessBox
from rdukit_zoo.language.llama import Llama
from support import shows
from support.helpers import wait_until
from support.text_boxes import CONTEXT, END, connect, make_tiny_llama, start_text_box

pytestmark = shows("inference", "llama")


@pytest.fixture(scope="module")
def model() -> Llama:
    return make_tiny_llama()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("texts")


@pytest.fixture(scope="module")
def box(folder: Path, model: Llama) -> Iterator[ProcessBox]:
    started = start_text_box(folder, model)
    yield started
    started.stop()


@pytest.fixture(scope="module")
def client(box: ProcessBox) -> Iterator[openai.OpenAI]:
    with connect(box) as client:
        yield client


def read_raw(box: ProcessBox, path: str, body: dict[str, Any]) -> tuple[str, bytes]:
    """Content type and the bytes of a stream as they came."""
    with httpx.Client(trust_env=False) as http, http.stream("POST", f"{box.rest_url}{path}", json=body) as answer:
        return answer.headers["content-type"], b"".join(answer.iter_raw())


def test_the_model_is_listed(client: openai.OpenAI) -> None:
    (model,) = client.models.list().data
    assert (model.id, model.object) == ("llama", "model")
    found = client.models.retrieve("llama").model_dump()
    assert (found["id"], found["context_length"], found["max_completion_tokens"]) == ("llama", CONTEXT, CONTEXT - 1)


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
    assert answer.usage is not None
    # A prompt counts once, however many choices it has.
    assert (answer.usage.prompt_tokens, answer.usage.completion_tokens) == (2, 16)
    by_tokens = client.completions.create(model="llama", prompt=[97], max_tokens=4, temperature=0)
    by_text = client.completions.create(model="llama", prompt="a", max_tokens=4, temperature=0)
    assert by_tokens.choices[0].text == by_text.choices[0].text


def test_a_stop_sequence_ends_the_text_and_is_not_in_it(client: openai.OpenAI) -> None:
    whole = client.completions.create(model="llama", prompt="one", max_tokens=24, temperature=0).choices[0].text
    stop = whole[6:8]
    for stops in ([stop], stop, [stop, "a sequence that never comes"]):
        answer = client.completions.create(model="llama", prompt="one", max_tokens=24, temperature=0, stop=stops)
        assert answer.choices[0].finish_reason == "stop"
        assert answer.choices[0].text == whole[: whole.index(stop)]


def test_logprobs_are_those_of_the_tokens(client: openai.OpenAI) -> None:
    answer = client.completions.create(model="llama", prompt="one", max_tokens=5, temperature=0, logprobs=3)
    found = answer.choices[0].logprobs
    assert found is not None and found.tokens and found.token_logprobs and found.top_logprobs
    assert len(found.tokens) == len(found.token_logprobs) == len(found.top_logprobs)
    for logprob, top in zip(found.token_logprobs, found.top_logprobs, strict=True):
        assert logprob <= 0
        assert logprob == pytest.approx(max(top.values()), abs=1e-4)  # greedy: the likeliest
    chat = client.chat.completions.create(
        model="llama", messages=[{"role": "user", "content": "hi"}], max_tokens=3, logprobs=True, top_logprobs=2,
        temperature=0,
    )  # fmt: skip
    content = chat.choices[0].logprobs
    assert content is not None and content.content is not None
    assert all(len(token.top_logprobs) == 2 for token in content.content)
    # One token a byte: which one it is, is told also where it is a part of a character.
    for token in content.content:
        for each in (token, *token.top_logprobs):
            assert each.bytes is not None and len(each.bytes) == 1
            assert each.token == (chr(each.bytes[0]) if each.bytes[0] < 128 else f"\\x{each.bytes[0]:02x}")


def test_logprobs_tell_tokens_of_different_bytes_apart(client: openai.OpenAI) -> None:
    bias = {str(token): 100 for token in (0xE2, 0x82, 0xAC)}
    asked: Any = {"model": "llama", "max_tokens": 6, "seed": 4, "temperature": 1.0, "logit_bias": bias}
    chat = client.chat.completions.create(
        messages=[{"role": "user", "content": "hi"}], logprobs=True, top_logprobs=20, **asked
    )
    assert chat.choices[0].logprobs is not None and chat.choices[0].logprobs.content is not None
    for token in chat.choices[0].logprobs.content:
        assert token.bytes is not None and token.bytes[0] in {0xE2, 0x82, 0xAC}
        assert len({bytes(each.bytes or ()) for each in token.top_logprobs}) == 20
        assert len({each.token for each in token.top_logprobs}) == 20
    found = client.completions.create(prompt="one", logprobs=5, **asked).choices[0].logprobs
    assert found is not None and found.top_logprobs and found.tokens
    assert all(token.startswith("bytes:\\x") for token in found.tokens)
    # The chosen one is beside the five, or one of them.
    assert all(len(top) in {5, 6} for top in found.top_logprobs)


@pytest.mark.long
def test_a_safetensors_file_with_a_tokenizer_beside_it_is_a_checkpoint(
    box: ProcessBox, client: openai.OpenAI, folder: Path, model: Llama
) -> None:
    plain = folder / "plain"
    plain.mkdir()
    save_file({name: tensor.clone() for name, tensor in model.state_dict().items()}, plain / "llama.safetensors")
    load = f"{box.rest_url}/v2/repository/models/llama/load"
    asked = {"checkpoint": str(plain / "llama.safetensors"), "version": "9", "keep_others": True}
    with httpx.Client(trust_env=False, timeout=60) as http:
        refused = http.post(load, json={"parameters": asked})
        assert refused.status_code == 404
        assert f"{plain / 'tokenizer.json'} is missing" in refused.json()["error"]
        for name in ("tokenizer.json", "tokenizer_config.json"):
            shutil.copy(folder / "tokenizer" / name, plain)
        loaded = http.post(load, json={"parameters": asked})
        assert loaded.status_code == 200, loaded.text

        def text(name: str) -> str:
            return str(client.completions.create(model=name, prompt="one", max_tokens=8, temperature=0).choices[0].text)

        assert text("llama:9") == text("llama:1")
        chat = client.chat.completions.create(
            model="llama:9", messages=[{"role": "user", "content": "hi"}], max_tokens=2
        )
        assert chat.choices[0].message.content is not None
        unload = f"{box.rest_url}/v2/repository/models/llama/unload"
        assert http.post(unload, json={"parameters": {"version": "9"}}).status_code == 200
    assert text("llama") == text("llama:1")


def test_penalties_and_biases_change_what_is_chosen(client: openai.OpenAI) -> None:
    def text(**more: Any) -> str:
        answer = client.completions.create(model="llama", prompt="one", max_tokens=12, temperature=0, **more)
        return str(answer.choices[0].text)

    # A tiny model says the same all the time until it must not.
    assert len(set(text())) < len(set(text(presence_penalty=2.0, frequency_penalty=2.0)))
    assert text(logit_bias={str(ord("q")): 100}) == "q" * 12
    assert "q" not in text(logit_bias={str(ord("q")): -100})
    assert text(frequency_penalty=0, presence_penalty=0, logit_bias={}) == text()


@pytest.mark.parametrize("is_stream", [False, True])
def test_an_echo_is_the_prompt_and_then_the_text(client: openai.OpenAI, is_stream: bool) -> None:
    def ask(prompt: Any, **more: Any) -> str:
        asked: Any = {"model": "llama", "prompt": prompt, "max_tokens": 4, "temperature": 0, **more}
        if not is_stream:
            return str(client.completions.create(**asked).choices[0].text)
        return "".join(chunk.choices[0].text for chunk in client.completions.create(**asked, stream=True))

    assert ask("one", echo=True) == "one" + ask("one")
    assert ask([ord(letter) for letter in "one"], echo=True) == "one" + ask("one")


def test_an_echo_with_logprobs_tells_how_likely_the_model_found_each_token_of_the_prompt(
    client: openai.OpenAI, model: Llama
) -> None:
    prompt = "so it goes"
    answer = client.completions.create(model="llama", prompt=prompt, max_tokens=0, echo=True, logprobs=2)
    found = answer.choices[0].logprobs
    assert answer.choices[0].text == prompt and answer.usage is not None and answer.usage.completion_tokens == 0
    assert found is not None and found.token_logprobs is not None and found.tokens == list(prompt)
    tokens_BT = torch.tensor([[ord(letter) for letter in prompt]])
    with torch.inference_mode():
        logs_TV = model.logits_of(model.read(tokens_BT))[0].log_softmax(-1)
    expected = [float(logs_TV[at, token]) for at, token in enumerate(tokens_BT[0, 1:].tolist())]
    assert found.token_logprobs[0] is None
    # The device computes in bf16.
    assert found.token_logprobs[1:] == pytest.approx(expected, abs=0.02)
    streamed = client.completions.create(
        model="llama", prompt=prompt, max_tokens=2, echo=True, logprobs=0, stream=True, temperature=0
    )
    places = [chunk.choices[0].logprobs for chunk in streamed]
    offsets = [place.text_offset[0] for place in places if place is not None and place.text_offset]
    assert offsets == list(range(len(prompt) + 2))


def test_a_prompt_longer_than_a_packet_is_refused_by_its_length_and_harms_nobody(client: openai.OpenAI) -> None:
    wrong: Any
    for wrong in ("x" * 70_000, [1] * 30_000):
        with pytest.raises(openai.BadRequestError, match="expected 1 to 255"):
            client.completions.create(model="llama", prompt=wrong)
    with pytest.raises(openai.BadRequestError, match="expected 1 to 16"):
        client.embeddings.create(model="llama", input="x" * 70_000)
    stops = ["🚀" * 500] * 4
    assert client.completions.create(model="llama", prompt="a" * 200, max_tokens=1, stop=stops).choices


def counts(usage: Any) -> tuple[int, int, int]:
    return usage.prompt_tokens, usage.completion_tokens, usage.total_tokens


def test_usage_has_the_vendors_times_and_rates(client: openai.OpenAI) -> None:
    asked: Any = {
        "model": "llama", "prompt": "one", "max_tokens": 9, "temperature": 0, "extra_body": {"ignore_eos": True},
        "extra_headers": {"ss-sn-options": '{"accuracy_debug": true}'},
    }  # fmt: skip
    chunks = list(client.completions.create(**asked, stream=True, stream_options={"include_usage": True}))
    for usage in (client.completions.create(**asked).usage, chunks[-1].usage):
        assert usage is not None
        found = usage.model_dump()
        assert counts(usage) == (3, 9, 12) and usage.prompt_tokens_details.cached_tokens <= 2  # type: ignore[union-attr]
        assert 0 < found["time_to_first_token"] <= found["total_latency"]
        assert found["end_time"] - found["start_time"] == pytest.approx(found["total_latency"])
        assert found["completion_tokens_per_sec"] == pytest.approx(9 / found["total_latency"])
        assert found["completion_tokens_after_first_per_sec"] > 0
        assert (found["stop_reason"], found["is_last_response"]) == ("length", True)


def test_options_of_a_stream_say_nothing_without_one_as_the_vendors_notebooks_send_them(client: openai.OpenAI) -> None:
    options: Any = {"include_usage": True}
    answer = client.completions.create(model="llama", prompt="one", max_tokens=1, stream_options=options)
    assert answer.usage is not None


def test_a_text_goes_on_past_its_end_where_that_is_asked_for(client: openai.OpenAI) -> None:
    def ask(**more: Any) -> Any:
        biased: Any = {"logit_bias": {str(END): 100}, "max_tokens": 5, "temperature": 0}
        return client.completions.create(model="llama", prompt="one", **biased, extra_body=more)

    assert (ask().choices[0].finish_reason, ask().usage.completion_tokens) == ("stop", 0)
    longer = ask(ignore_eos=True)
    assert (longer.choices[0].finish_reason, longer.usage.completion_tokens) == ("length", 5)


def test_do_sample_min_p_and_the_penalty_of_repetition_have_their_effect(client: openai.OpenAI) -> None:
    def text(**more: Any) -> str:
        asked: Any = {"model": "llama", "prompt": "one", "max_tokens": 12, "temperature": 1.5, "seed": 1}
        return str(client.completions.create(**asked, extra_body=more).choices[0].text)

    greedy = text(do_sample=False)
    assert greedy == text(temperature=0) == text(min_p=1.0) != text(do_sample=True)
    assert len(set(text(do_sample=False, repetition_penalty=10.0))) > len(set(greedy))


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
    assert chunks[-1].choices == [] and counts(chunks[-1].usage) == counts(whole.usage)
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
        ("/completions", {"logit_bias": {"5": 101}}, "logit_bias", openai.BadRequestError),
        ("/completions", {"logit_bias": {"9999": 1}}, "logit_bias", openai.BadRequestError),
        ("/completions", {"frequency_penalty": 2.1}, "frequency_penalty", openai.BadRequestError),
        ("/completions", {"presence_penalty": -2.1}, "presence_penalty", openai.BadRequestError),
        ("/completions", {"best_of": 3, "n": 2}, "best_of", openai.BadRequestError),
        ("/completions", {"suffix": "x"}, "suffix", openai.BadRequestError),
        ("/completions", {"stop": ["a" * 5000] * 2}, "stop", openai.BadRequestError),
        ("/chat/completions", {"tools": [{"type": "function"}]}, "tools", openai.BadRequestError),
        ("/chat/completions", {"tool_choice": "required"}, "tool_choice", openai.BadRequestError),
        ("/chat/completions", {"top_logprobs": 2}, "top_logprobs", openai.BadRequestError),
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


def test_embeddings_of_tokens_are_those_of_their_text(client: openai.OpenAI) -> None:
    texts = client.embeddings.create(model="llama", input=["one", "two"])
    tokens: Any = [list(b"one"), list(b"two")]
    found = client.embeddings.create(model="llama", input=tokens, dimensions=16, user="somebody")
    assert [each.embedding for each in found.data] == [each.embedding for each in texts.data]
    (one,) = client.embeddings.create(model="llama", input=tokens[0]).data
    assert one.embedding == texts.data[0].embedding
    many = client.embeddings.create(model="llama", input=["one", "two"] * 20)
    assert [each.index for each in many.data] == list(range(40)) and many.data[38].embedding == one.embedding
    with_id = client.embeddings.with_raw_response.create(
        model="llama", input="x", extra_headers={"x-request-id": "of-the-caller"}
    )
    assert with_id.headers["x-request-id"] == "of-the-caller"
    assert client.embeddings.with_raw_response.create(model="llama", input="x").headers["x-request-id"]


def test_a_model_that_states_shorter_vectors_gives_them(client: openai.OpenAI, folder: Path) -> None:
    tokens: Any = [list(b"one"), list(b"two")]
    whole = client.embeddings.create(model="llama", input=tokens, encoding_format="float").data
    file = folder / "checkpoint" / "generation_config.json"
    known = file.read_text()
    file.write_text(json.dumps({**json.loads(known), "matryoshka_dimensions": [4, 8]}))
    try:
        packed = client.embeddings.create(model="llama", input=tokens, dimensions=8).data  # as base64
        short = client.embeddings.create(model="llama", input=tokens, dimensions=8, encoding_format="float").data
        # The model does not normalise: the beginning has the same numbers.
        for found in (packed, short):
            assert [each.embedding for each in found] == [pytest.approx(each.embedding[:8]) for each in whole]
        with pytest.raises(openai.BadRequestError, match="dimensions: 5 is not valid; expected one of 4, 8, 16"):
            client.embeddings.create(model="llama", input=tokens, dimensions=5)
    finally:
        file.write_text(known)


@pytest.mark.parametrize(
    ("fields", "param", "words"),
    [
        ({"input": "x" * 100}, "input", "expected 1 to"),
        ({"input": [9999]}, "input", "token 9999 is not in the vocabulary"),
        ({"input": ["a", "b", "x" * 20]}, "input", r"input\.2: the text has 20 tokens; expected 1 to 16"),
        ({"input": ["a", ""]}, "input", r"input\.1: the text has 0 tokens"),
        ({"input": []}, "input", "input"),
        ({"input": "a", "dimensions": 8}, "dimensions", "dimensions: 8 is not valid; expected 16, which this model's"),
        ({"input": "a", "encoding_format": "int8"}, "encoding_format", "encoding_format"),
    ],
)
def test_an_embedding_that_cannot_be_made_names_its_field(
    client: openai.OpenAI, fields: dict[str, Any], param: str, words: str
) -> None:
    with pytest.raises(openai.BadRequestError, match=words) as caught:
        client.embeddings.create(model="llama", **fields)
    assert str(caught.value.param).startswith(param)


def seconds_of(work: Callable[[], object]) -> float:
    began = time.monotonic()
    work()
    return time.monotonic() - began


def one_token(client: openai.OpenAI) -> None:
    client.completions.create(model="llama", prompt="b", max_tokens=1)


@pytest.fixture(scope="module")
def whole_s(client: openai.OpenAI) -> float:
    """Seconds that 16 whole texts take on this machine, in this minute."""
    return seconds_of(lambda: client.completions.create(model="llama", prompt="a", max_tokens=CONTEXT - 10, n=16))


@pytest.mark.long
def test_a_client_that_leaves_stops_its_text(box: ProcessBox, client: openai.OpenAI, whole_s: float) -> None:
    host, _, port = box.rest_url.removeprefix("http://").partition(":")
    body = json.dumps(
        {"model": "llama", "prompt": "a", "max_tokens": CONTEXT - 10, "n": 16, "stream": True, "temperature": 1.0}
    ).encode()
    head = "POST /v1/completions HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json"
    head += f"\r\ncontent-length: {len(body)}"
    with socket.create_connection((host, int(port)), 10) as connection:
        connection.sendall(head.encode() + b"\r\n\r\n" + body)
        assert b"200 OK" in connection.recv(1 << 16)
    # The next request is answered as soon as it left, not when its 16 texts would have been made.
    assert seconds_of(lambda: one_token(client)) < whole_s / 2


def test_rows_are_refused_by_a_box_that_takes_texts(box: ProcessBox) -> None:
    with httpx.Client(trust_env=False) as http:
        answer = http.post(f"{box.rest_url}/v1/infer", json={"rows": [[0.0]]})
    assert answer.status_code == 400
    assert "takes texts, not rows" in answer.json()["error"]["message"]


def test_a_client_that_leaves_before_a_whole_answer_stops_its_texts(client: openai.OpenAI, whole_s: float) -> None:
    impatient = client.with_options(timeout=0.1)
    with pytest.raises(openai.APITimeoutError):
        impatient.completions.create(model="llama", prompt="a", max_tokens=CONTEXT - 10, n=16)
    assert seconds_of(lambda: one_token(client)) < whole_s / 2


def test_texts_have_their_times_in_the_answer_and_are_counted(box: ProcessBox, client: openai.OpenAI) -> None:
    def metrics() -> dict[str, float]:
        with httpx.Client(trust_env=False) as http:
            lines = http.get(f"{box.rest_url}/metrics").text.splitlines()
        return {line.rpartition(" ")[0]: float(line.rpartition(" ")[2]) for line in lines if not line.startswith("#")}

    labels = '{model="llama",version="1"}'
    pending = f"nv_inference_pending_request_count{labels}"
    wait_until(lambda: metrics()[pending] == 0, what="what other tests have asked is over")
    before = metrics()
    answer = client.completions.with_raw_response.create(model="llama", prompt="one", max_tokens=3, temperature=0)
    assert [part.partition(";")[0] for part in answer.headers["server-timing"].split(", ")] == [
        "queue", "compute", "load", "compile",
    ]  # fmt: skip
    assert (
        "compute;dur=" in client.embeddings.with_raw_response.create(model="llama", input="a").headers["server-timing"]
    )
    with pytest.raises(openai.BadRequestError):
        client.completions.create(model="llama", prompt=[9999])
    after = metrics()
    for name, more in (("request_success", 2), ("request_failure", 1), ("count", 2), ("exec_count", 2)):
        name = f"nv_inference_{name}{labels}"
        assert after[name] - before[name] == more
    for kind, more in (("prompt", 4), ("completion", 3)):
        name = f'rdukit_box_text_tokens_total{{kind="{kind}",model="llama",version="1"}}'
        assert after[name] - before[name] == more
