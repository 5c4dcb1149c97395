"""Texts with guesses are those without: greedy and drawn, in a form, with penalties, stops and probabilities."""

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from typing import Any

import httpx
import pytest

from rdukit_platform.backends.process import ProcessBox
from support.helpers import wait_until
from support.text_boxes import TINY, make_text_model, make_tiny_llama, serve_text_model

#: A box that makes three texts at once and guesses, and one that does not.
Boxes = tuple[ProcessBox, ProcessBox]

SENTENCE = "the cat sat on the mat, the cat sat on the mat, the cat "
SCHEMA = {
    "type": "object", "required": ["name", "names"], "additionalProperties": False,
    "properties": {"name": {"enum": ["cat", "mat"]}, "names": {"type": "array", "items": {"type": "integer"}}},
}  # fmt: skip
REQUESTS: list[dict[str, Any]] = [
    {"prompt": SENTENCE, "temperature": 0},
    {"prompt": [65], "temperature": 0, "ignore_eos": True, "max_tokens": 120},
    {"prompt": SENTENCE, "temperature": 0, "logprobs": 2},
    {"prompt": SENTENCE[:30], "temperature": 0, "logprobs": 1, "echo": True, "max_tokens": 5},
    {"prompt": SENTENCE, "temperature": 0, "logprobs": 0, "echo": True, "max_tokens": 0},
    {"prompt": SENTENCE, "temperature": 0.1, "seed": 3},
    {"prompt": SENTENCE, "temperature": 1.0, "seed": 4, "top_p": 0.9, "n": 2},
    {"prompt": SENTENCE, "temperature": 0, "frequency_penalty": 0.5, "presence_penalty": 0.2},
    {"prompt": SENTENCE, "temperature": 0.5, "seed": 5, "repetition_penalty": 1.2},
    {"prompt": "x", "temperature": 0, "logit_bias": {"97": 100.0}, "max_tokens": 40},
    {"prompt": "x", "temperature": 0, "logit_bias": {"97": 100.0}, "max_tokens": 40, "stop": ["aaaaa"]},
    {"prompt": "x", "temperature": 1, "seed": 1, "response_format": {
        "type": "json_schema", "json_schema": {"name": "s", "schema": SCHEMA}}, "max_tokens": 100},
    {"prompt": "x", "temperature": 0, "structured_outputs": {"regex": "(ab){20}c"}, "max_tokens": 60},
    {"prompt": "y" * 200, "temperature": 0, "ignore_eos": True, "max_tokens": 100},  # up to the end of the context
]  # fmt: skip


@pytest.fixture(scope="module")
def boxes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Boxes]:
    folder = tmp_path_factory.mktemp("speculation")
    files = make_text_model(folder, make_tiny_llama(), {**TINY, "precision": "f32", "speculation": 7}, texts=3)
    with ExitStack() as stack:
        started = [serve_text_model(folder, *files, RDUKIT_BOX_SPECULATION=most) for most in ("7", "0")]
        for box in started:
            stack.callback(box.stop)
        yield started[0], started[1]


def ask(box: ProcessBox, request: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
    """Return what is told of the text, and its usage."""
    body = {"model": "llama", "max_tokens": 60, **request}
    answer = httpx.post(f"{box.rest_url}/v1/completions", json=body, timeout=60, trust_env=False).json()
    choices = [
        {**choice, "logprobs": choice["logprobs"] and rounded(choice["logprobs"])} for choice in answer["choices"]
    ]
    return choices, answer["usage"]


def rounded(logprobs: dict[str, Any]) -> dict[str, Any]:
    """Leave out the last bits of probabilities, in which runs of different widths differ."""
    values = [value and pytest.approx(value, abs=1e-4) for value in logprobs["token_logprobs"]]
    tops = [
        each and {token: pytest.approx(v, abs=1e-4) for token, v in each.items()}
        for each in logprobs["top_logprobs"] or ()
    ]
    return {**logprobs, "token_logprobs": values, "top_logprobs": tops}


def metrics(box: ProcessBox) -> dict[str, float]:
    lines = httpx.get(f"{box.rest_url}/metrics", trust_env=False).text.splitlines()
    found = [line for line in lines if line.startswith("rdukit_box_text_tokens_total{")]
    return {line.partition('kind="')[2].partition('"')[0]: float(line.split()[-1]) for line in found}


def test_texts_made_side_by_side_with_guesses_are_those_without(boxes: Boxes) -> None:
    with ThreadPoolExecutor(6) as pool:
        found = list(pool.map(lambda request: ask(boxes[0], request), REQUESTS))
    for request, (choices, usage) in zip(REQUESTS, found, strict=True):
        expected, plain = ask(boxes[1], request)
        assert choices == expected, request
        assert usage["completion_tokens"] == plain["completion_tokens"]
        assert plain["acceptance_rate"] is None
    rates = [usage["acceptance_rate"] for _, usage in found]
    assert rates[4] is None  # a prompt that is only rated is known, not guessed
    assert all(rate is None or 0 <= rate <= 1 for rate in rates)
    counts = metrics(boxes[0])
    assert 0 < counts["accepted"] < counts["guessed"]
    assert metrics(boxes[1])["guessed"] == 0


def test_a_text_that_repeats_itself_is_mostly_guessed_and_others_join_and_leave_meanwhile(boxes: Boxes) -> None:
    request = {"prompt": "x", "temperature": 0, "logit_bias": {"97": 100.0, "98": 90.0}, "max_tokens": 150}
    body = {"model": "llama", **request, "stream": True}
    with ThreadPoolExecutor(2) as pool:
        whole = pool.submit(ask, boxes[0], request)
        for _ in range(3):
            with httpx.stream("POST", f"{boxes[0].rest_url}/v1/completions", json=body, trust_env=False) as left:
                next(line for line in left.iter_lines() if line)
        choices, usage = whole.result()
    assert choices[0]["text"] == "a" * 150
    assert usage["acceptance_rate"] > 0.9
    wait_until(
        lambda: (
            ask(boxes[0], {"prompt": "x", "temperature": 0})[0] == ask(boxes[1], {"prompt": "x", "temperature": 0})[0]
        )
    )


def test_a_form_is_kept_whatever_was_guessed(boxes: Boxes) -> None:
    form = {"type": "json_schema", "json_schema": {"name": "s", "schema": SCHEMA}}
    requests = [{"prompt": SENTENCE, "seed": seed, "response_format": form, "max_tokens": 200} for seed in range(8)]
    with ThreadPoolExecutor(4) as pool:
        for choices, _ in pool.map(lambda request: ask(boxes[0], request), requests):
            if choices[0]["finish_reason"] == "stop":
                assert set(json.loads(choices[0]["text"])) == {"name", "names"}
