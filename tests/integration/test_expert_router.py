"""Three experts behind one name: two boxes, a router as a process, and clients that ask by its name or an expert's."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import anthropic
import openai
import pytest
import torch
from click.testing import CliRunner

from rdukit_platform.backends.process import ProcessBox
from rdukit_serving.router.decision import load_router
from rdukit_zoo.kits import routing
from support import shows
from support.text_boxes import make_tiny_llama, start_text_box

pytestmark = shows("router", "kits")

CODE, MATHS = "Why does my Python loop never end?", "What is 17 times 23, and half of it?"


@pytest.fixture(scope="module")
def boxes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[ProcessBox]]:
    models = [make_tiny_llama(), make_tiny_llama()]
    for parameter in models[1].parameters():
        torch.nn.init.normal_(parameter)
    started = [start_text_box(tmp_path_factory.mktemp("expert"), model, texts=2) for model in models]
    yield started
    for box in started:
        box.stop()


@pytest.fixture(scope="module")
def url(boxes: list[ProcessBox], tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    folder = tmp_path_factory.mktemp("router")
    command = [str(Path(sys.executable).with_name("rdukit")), "router"]
    trained = subprocess.run(
        [*command, "train", str(routing.PROMPTS), "--to", str(folder / "r.safetensors")], capture_output=True,
        text=True, check=True,
    )  # fmt: skip
    assert load_router(folder / "r.safetensors")[1] in trained.stdout
    one, other = (f"{box.rest_url}/v1" for box in boxes)
    places = [f"code={one}", f"maths={other}", f"writing={one}#llama", "gone=http://127.0.0.1:1/v1"]
    process = subprocess.Popen(
        [*command, "serve", str(folder / "r.safetensors"), "--port", "0", *(f"--expert={place}" for place in places)],
        stderr=subprocess.PIPE, text=True, env={**os.environ, "RDUKIT_HOME": str(folder)},
    )  # fmt: skip
    assert process.stderr is not None
    line = process.stderr.readline()
    yield line.split(": ")[1].partition(";")[0]
    process.send_signal(signal.SIGTERM)
    assert process.wait(60) == 0, process.stderr.read()
    process.stderr.close()


@pytest.fixture(scope="module")
def client(url: str) -> Iterator[openai.OpenAI]:
    http = openai.DefaultHttpxClient(trust_env=False)
    with openai.OpenAI(base_url=url, api_key="none", max_retries=0, http_client=http) as client:
        yield client


def ask(client: openai.OpenAI, prompt: str, model: str = "router", **more: Any) -> Any:
    messages: Any = [{"role": "user", "content": prompt}]
    return client.chat.completions.create(model=model, messages=messages, max_tokens=8, temperature=0, **more)


def test_a_prompt_goes_to_the_expert_that_suits_it_and_a_name_always_wins(
    client: openai.OpenAI, boxes: list[ProcessBox]
) -> None:
    assert [model.id for model in client.models.list()] == ["router", "code", "maths", "writing", "gone"]
    answers = {prompt: ask(client, prompt) for prompt in (CODE, MATHS)}
    assert (answers[CODE].model, answers[MATHS].model) == ("code", "maths")
    for box, prompt, other in ((boxes[0], CODE, "maths"), (boxes[1], MATHS, "code")):
        http = openai.DefaultHttpxClient(trust_env=False)
        with openai.OpenAI(base_url=f"{box.rest_url}/v1", api_key="none", http_client=http) as alone:
            assert ask(alone, prompt, "llama").choices[0].message == answers[prompt].choices[0].message
        named = ask(client, prompt, other)
        assert named.model == other
        assert named.choices[0].message.content != answers[prompt].choices[0].message.content
    # A chat goes by what the user said last; a completion by its prompt.
    turns: Any = [{"role": "user", "content": CODE}, {"role": "user", "content": MATHS}]
    assert client.chat.completions.create(model="router", messages=turns, max_tokens=1).model == "maths"
    assert client.completions.create(model="router", prompt=CODE, max_tokens=1).model == "code"
    raw = client.completions.with_raw_response.create(model="router", prompt=CODE, max_tokens=1)
    assert raw.headers["x-rdukit-expert"].startswith("code; confidence=0.")


def test_streams_come_through_with_the_experts_name(client: openai.OpenAI, url: str) -> None:
    whole = ask(client, MATHS)
    chunks = list(ask(client, MATHS, stream=True, stream_options={"include_usage": True}))
    assert {chunk.model for chunk in chunks} == {"maths"} and chunks[-1].usage.completion_tokens == 8
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    assert text == whole.choices[0].message.content
    told = list(client.responses.create(model="router", input=MATHS, max_output_tokens=8, temperature=0, stream=True))
    assert told[0].type == "response.created" and told[-1].type == "response.incomplete"
    assert (told[0].response.model, told[-1].response.model) == ("maths", "maths")
    assert told[-1].response.output_text == text
    base = url.removesuffix("/v1")
    messages: Any = [{"role": "user", "content": MATHS}]
    with (
        anthropic.Anthropic(base_url=base, api_key="none", max_retries=0) as claude,
        claude.messages.stream(
            model="router", max_tokens=8, messages=messages, extra_body={"temperature": 0}
        ) as blocks,
    ):
        message = blocks.get_final_message()
    assert message.model == "maths"
    assert "".join(block.text for block in message.content if block.type == "text") == text
    # A stream that its caller leaves ends at the expert, too: its two rows are free for others.
    for _ in range(4):
        left = client.completions.create(model="maths", prompt="a", max_tokens=200, stream=True)
        next(left)
        left.close()
    assert ask(client, MATHS).model == "maths"


def test_what_cannot_be_answered_is_told_in_openais_form(client: openai.OpenAI) -> None:
    with pytest.raises(openai.NotFoundError, match="expected router, code, maths, writing, gone") as missing:
        ask(client, "x", "other")
    assert missing.value.code == "model_not_found"
    with pytest.raises(openai.InternalServerError, match=r"expert 'gone' at .* does not answer") as gone:
        ask(client, "x", "gone")
    assert gone.value.status_code == 503
    with pytest.raises(openai.BadRequestError, match="name an expert as its model"):
        client.completions.create(model="router", prompt=[1, 2])
    with pytest.raises(openai.BadRequestError, match="cannot be compared; name one expert"):
        client.embeddings.create(model="router", input="x")
    assert len(client.embeddings.create(model="code", input="x").data) == 1
    # What an expert refuses comes back as it says it.
    with pytest.raises(openai.BadRequestError, match="temperature"):
        client.completions.create(model="router", prompt=CODE, temperature=3)


def test_the_kit_prints_who_answered(url: str) -> None:
    run = CliRunner().invoke(routing.main, ["--url", url, CODE, MATHS], catch_exceptions=False)
    lines = run.output.splitlines()
    assert run.exit_code == 0 and lines[0].startswith("code (0.")
    assert any(line.startswith("maths (0.") for line in lines)
