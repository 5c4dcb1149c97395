"""A box that makes several texts at once: each is what it would be alone, and begins where another one began."""

import os
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import openai
import pytest
import torch

from rdukit_platform.backends.process import ProcessBox
from rdukit_platform.backends.process_tree import tree_of
from rdukit_zoo.language.decoder import generate_by_recomputing
from rdukit_zoo.language.llama import Llama
from support import shows
from support.helpers import wait_until
from support.text_boxes import connect, make_tiny_llama, start_text_box

pytestmark = shows("inference", "llama")

SIZES: dict[str, Any] = {
    "width": 32, "layers": 2, "heads": 4, "key_value_heads": 2, "feed_forward": 32, "vocabulary": 257,
    "context_length": 256, "prompt_length": 16,
}  # fmt: skip
MODULE = "rdukit_serving.device.process"


@pytest.fixture(scope="module")
def model() -> Llama:
    model = make_tiny_llama(SIZES)
    for parameter in model.parameters():
        if parameter.dim() > 1:
            torch.nn.init.normal_(parameter, std=0.3)  # so large that a text does not repeat itself
    return model


@pytest.fixture(scope="module")
def box(tmp_path_factory: pytest.TempPathFactory, model: Llama) -> Iterator[ProcessBox]:
    started = start_text_box(tmp_path_factory.mktemp("several"), model, SIZES | {"precision": "f32"}, texts=3)
    yield started
    started.stop()


@pytest.fixture(scope="module")
def client(box: ProcessBox) -> Iterator[openai.OpenAI]:
    with connect(box) as client:
        yield client


def ask(client: openai.OpenAI, prompt: str | list[int], count: int = 24, **more: Any) -> Any:
    return client.completions.create(
        model="llama", prompt=prompt, max_tokens=count, temperature=0, extra_body={"ignore_eos": True}, **more
    )


def test_more_texts_than_rows_are_each_what_plain_torch_makes(client: openai.OpenAI, model: Llama) -> None:
    prompts = [[(7 * number + place) % 256 for place in range(1 + 9 * number)] for number in range(6)]
    with ThreadPoolExecutor(len(prompts)) as pool:
        answers = list(pool.map(lambda prompt: ask(client, prompt, 12, logprobs=0), prompts))
    for prompt, answer in zip(prompts, answers, strict=True):
        assert answer.usage.prompt_tokens == len(prompt)
        gold = generate_by_recomputing(model, torch.tensor([prompt]), 12)
        # Tokens are bytes: what is no text is told as escapes.
        found = [
            bytes.fromhex(t[8:]) if t.startswith("bytes:\\x") else t.encode() for t in answer.choices[0].logprobs.tokens
        ]
        assert b"".join(found) == bytes(gold)


def test_texts_are_made_side_by_side(client: openai.OpenAI) -> None:
    long = ask(client, "a" * 100, 150, stream=True)
    next(long)
    short = ask(client, "b", 3)
    assert short.usage.completion_tokens == 3
    assert len(list(long)) > 50  # it went on all the while, and after


@pytest.mark.long
def test_choices_are_made_at_once_after_one_reading_of_their_prompt(client: openai.OpenAI) -> None:
    asked: Any = {"model": "llama", "prompt": "Once upon a time there was", "max_tokens": 150, "temperature": 1.0}
    asked["extra_body"] = {"ignore_eos": True}
    alone = [client.completions.create(**asked, seed=7 + choice).choices[0].text for choice in range(5)]
    client.completions.create(model="llama", prompt=["x" * 200, "y" * 200, "z" * 200], max_tokens=1)
    whole = client.completions.create(**asked, seed=7, n=5)
    assert [choice.text for choice in whole.choices] == alone
    assert whole.usage is not None and whole.usage.prompt_tokens_details is not None
    assert (whole.usage.prompt_tokens, whole.usage.completion_tokens) == (26, 750)
    assert whole.usage.prompt_tokens_details.cached_tokens == 0
    chunks = [chunk.choices[0] for chunk in client.completions.create(**asked, seed=7, n=5, stream=True)]
    assert ["".join(chunk.text for chunk in chunks if chunk.index == index) for index in range(5)] == alone
    order = [chunk.index for chunk in chunks]
    # Three rows: as many begin before any ends.
    assert len(set(order[: next(at for at, chunk in enumerate(chunks) if chunk.finish_reason)])) == 3


def test_a_prompt_that_is_wrong_ends_the_others_of_its_request(client: openai.OpenAI) -> None:
    for prompts in ([[97], [999], [98]], [[97]] * 4 + [[999]]):
        with pytest.raises(openai.BadRequestError, match="token 999"):
            client.completions.create(model="llama", prompt=prompts, max_tokens=50)
    stream = client.completions.create(model="llama", prompt=[[97]] * 4 + [[999]], max_tokens=50, stream=True)
    with pytest.raises(openai.APIError, match="token 999"):
        list(stream)
    answer = client.completions.create(model="llama", prompt=["a"] * 9, max_tokens=2)
    assert len(answer.choices) == 9


def test_a_further_turn_reads_only_what_is_new(client: openai.OpenAI) -> None:
    prompt = "Instructions that are long enough to be kept: answer in one word. Question: "
    first = ask(client, prompt)
    again = ask(client, prompt)
    assert again.usage.prompt_tokens_details.cached_tokens == len(prompt) - 1
    assert again.choices[0].text == first.choices[0].text
    other = ask(client, prompt + "why?")
    assert other.usage.prompt_tokens_details.cached_tokens >= len(prompt)
    # Another question after the same instructions: these are copied, and the first text can still be continued.
    copied = ask(client, prompt[:60] + "completely different", 4)
    assert copied.usage.prompt_tokens_details.cached_tokens == 60
    assert ask(client, prompt + "why?").choices[0].text == other.choices[0].text


def test_what_one_text_does_wrong_harms_no_other(client: openai.OpenAI) -> None:
    whole = ask(client, "steady", 60).choices[0].text
    stream = ask(client, "steady", 60, stream=True)
    first = next(stream).choices[0].text
    with pytest.raises(openai.BadRequestError, match="expected 1 to 255"):
        ask(client, "x" * 300)
    for _ in range(8):  # each gives its row back
        left = ask(client, "gone", 200, stream=True)
        next(left)
        left.close()
    assert first + "".join(chunk.choices[0].text for chunk in stream if chunk.choices) == whole


@pytest.mark.long
def test_when_the_process_dies_each_text_says_so_and_the_next_ones_are_made(
    client: openai.OpenAI, box: ProcessBox
) -> None:  # fmt: skip
    ends: list[str] = []
    while "killed" not in ends:  # a text may be whole before the kill, but not each time
        assert len(ends) < 60, ends
        wait_until(lambda: _answers(client))
        (process,) = [f.pid for f in tree_of(box.pid) if MODULE in Path(f"/proc/{f.pid}/cmdline").read_text()]
        with ThreadPoolExecutor(3) as pool:
            streams = list(pool.map(lambda letter: ask(client, letter, 240, stream=True), "abc"))
        for stream in streams:
            next(stream)
        os.kill(process, signal.SIGKILL)
        ends += [_end_of(stream) for stream in streams]
        assert set(ends) <= {"whole", "killed"}
    wait_until(lambda: _answers(client))


def _end_of(stream: Any) -> str:
    """Return how a stream ended: ``whole``, ``killed``, or what it said else."""
    try:
        *_, last = stream
    except openai.APIError as error:
        return "killed" if "process was killed by SIGKILL" in str(error) else str(error)
    return "whole" if last.choices[0].finish_reason == "length" else "without a word"


def _answers(client: openai.OpenAI) -> bool:
    try:
        return bool(ask(client, "a", 2).usage.completion_tokens == 2)
    except openai.APIStatusError:
        return False


def test_a_prompt_of_megabytes_is_refused_and_streams_go_on_meanwhile(box: ProcessBox, client: openai.OpenAI) -> None:
    def device() -> int:
        (process,) = [f.pid for f in tree_of(box.pid) if MODULE in Path(f"/proc/{f.pid}/cmdline").read_text()]
        return process

    before = device()
    stream = ask(client, "a" * 100, 150, stream=True)
    next(stream)
    for prompt in ("x" * 8_000_000, "y" * 5_000, [1] * 200_000):
        with pytest.raises(openai.BadRequestError, match=r"prompt: it has"):
            ask(client, prompt, 3)
    assert len(list(stream)) > 50
    assert device() == before
    assert ask(client, "b", 3).usage.completion_tokens == 3
