"""Texts with guesses are those without: greedy and drawn, in a form, with penalties, stops and probabilities."""

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import pytest

from rdukit_platform.backends.process import ProcessBox
from support.text_boxes import TINY, make_text_model, make_tiny_llama, serve_text_model

#: Boxes of one model that makes three texts at once: one guesses by lookup, one also by a draft, one by a draft that is
#: the model itself, one does not guess.
Boxes = dict[str, ProcessBox]
#: Sizes of the draft, whose parameters are other ones: it guesses wrong, too.
SMALL = {**TINY, "width": 8, "precision": "f32", "prompt_length": 32}

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
    folder, small = tmp_path_factory.mktemp("speculation"), tmp_path_factory.mktemp("draft")
    files = make_text_model(folder, make_tiny_llama(), {**TINY, "precision": "f32", "speculation": 7}, texts=3)
    pef, checkpoint = make_text_model(small, make_tiny_llama({**TINY, "width": 8}), SMALL, texts=3)
    settings = {
        "lookup": {},
        "draft": {"RDUKIT_BOX_DRAFT_PEF": str(pef), "RDUKIT_BOX_DRAFT_CHECKPOINT": str(checkpoint)},
        "twin": {"RDUKIT_BOX_DRAFT_PEF": str(files[0]), "RDUKIT_BOX_DRAFT_CHECKPOINT": str(files[1])},
        "plain": {"RDUKIT_BOX_SPECULATION": "0"},
    }
    with ExitStack() as stack:
        started: Boxes = {}
        for name, environment in settings.items():
            started[name] = serve_text_model(folder, *files, **environment)
            stack.callback(started[name].stop)
        yield started


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
    expected = [ask(boxes["plain"], request) for request in REQUESTS]
    assert metrics(boxes["plain"])["guessed"] == 0
    assert all(usage["acceptance_rate"] is None for _, usage in expected)
    for name in ("lookup", "draft"):
        with ThreadPoolExecutor(6) as pool:
            found = list(pool.map(partial(ask, boxes[name]), REQUESTS))
        for request, (choices, usage), (gold, plain) in zip(REQUESTS, found, expected, strict=True):
            assert choices == gold, (name, request)
            assert usage["completion_tokens"] == plain["completion_tokens"]
            assert usage["acceptance_rate"] is None or 0 <= usage["acceptance_rate"] <= 1
        assert found[4][1]["acceptance_rate"] is None  # a prompt that is only rated is known, not guessed
        counts = metrics(boxes[name])
        assert 0 < counts["accepted"] < counts["guessed"]


@pytest.mark.parametrize("name", ["lookup", "draft"])
def test_texts_join_and_leave_while_another_is_guessed(boxes: Boxes, name: str) -> None:
    request = {"prompt": "x", "temperature": 0, "logit_bias": {"97": 100.0}, "max_tokens": 150}
    body = {"model": "llama", **request, "stream": True}
    with ThreadPoolExecutor(2) as pool:
        whole = pool.submit(ask, boxes[name], request)
        for _ in range(3):
            with httpx.stream("POST", f"{boxes[name].rest_url}/v1/completions", json=body, trust_env=False) as left:
                next(line for line in left.iter_lines() if line)
        choices, usage = whole.result()
    assert choices[0]["text"] == "a" * 150
    assert usage["acceptance_rate"] > 0.5
    # Those that left have given their rows back, and what was guessed for them is nowhere.
    again = {"prompt": SENTENCE[:40], "temperature": 0}
    assert ask(boxes[name], again)[0] == ask(boxes["plain"], again)[0]


def test_a_draft_keeps_step_with_all_texts(boxes: Boxes) -> None:
    new = [{"prompt": [7 * n, 9, 250 - n, *range(n, 40 + 9 * n)], "temperature": 0, "max_tokens": 40} for n in range(6)]
    with ThreadPoolExecutor(6) as pool:
        found = list(pool.map(partial(ask, boxes["twin"]), new))
    again = [ask(boxes["twin"], request) for request in new]  # rows are copied and begun from elsewhere
    for request, *answers in zip(new, found, again, strict=True):
        gold, _ = ask(boxes["plain"], request)
        assert all(choices == gold for choices, _ in answers)
        # What was found in the text may be wrong, the model itself never is.
        assert all(usage["acceptance_rate"] > 0.5 for _, usage in answers)


def test_a_form_is_kept_whatever_was_guessed(boxes: Boxes) -> None:
    form = {"type": "json_schema", "json_schema": {"name": "s", "schema": SCHEMA}}
    requests = [{"prompt": SENTENCE, "seed": seed, "response_format": form, "max_tokens": 200} for seed in range(8)]
    with ThreadPoolExecutor(4) as pool:
        answers = [choices[0] for choices, _ in pool.map(partial(ask, boxes["draft"]), requests)]
    ended = [json.loads(answer["text"]) for answer in answers if answer["finish_reason"] == "stop"]
    assert ended and all(set(value) == {"name", "names"} for value in ended)


def test_a_draft_is_changed_with_the_model_and_a_wrong_one_is_refused(boxes: Boxes, tmp_path: Path) -> None:
    address = f"{boxes['draft'].rest_url}/v2/repository/models/llama/load"
    answer = httpx.post(address, json={"parameters": {"draft_pef": str(tmp_path / "gone.pef")}}, trust_env=False)
    assert answer.status_code in (400, 403, 404), answer.text
    assert httpx.post(address, json={}, timeout=60, trust_env=False).status_code == 200  # again, with its draft
    request = {"prompt": SENTENCE, "temperature": 0}
    assert ask(boxes["draft"], request)[0] == ask(boxes["plain"], request)[0]
