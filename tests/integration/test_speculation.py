"""Texts with guesses are those without: greedy and drawn, in a form, with penalties, stops and probabilities."""

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import pytest
import torch
from safetensors.torch import save_file

from rdukit.errors import InvalidArgument, NotFound
from rdukit.pef import read_pef
from rdukit.pef.file import write_pef
from rdukit_modelbox.preprocessing.tokenizer import END_OF_TEXT
from rdukit_platform.backends.process import ProcessBox
from rdukit_serving.experts.bundle import load_bundle
from rdukit_serving.experts.legalizer import describe_fit
from rdukit_serving.experts.sizes import describe_bundle, find_bundle
from rdukit_zoo.language.decoder import generate_by_recomputing
from rdukit_zoo.language.llama import Llama
from support import shows
from support.text_boxes import TINY, make_text_model, make_tiny_llama, serve_text_model

pytestmark = [shows("inference", "bundles", "llama"), pytest.mark.long]

#: Boxes of one model that makes three texts at once: one guesses by lookup, one also by a draft, one by a draft that is
#: the model itself, one does not guess; one has it as an expert of a bundle, whose draft is another expert.
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
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("speculation")


@pytest.fixture(scope="module")
def boxes(folder: Path) -> Iterator[Boxes]:
    small = folder / "small"
    small.mkdir()
    files = make_text_model(folder, make_tiny_llama(), {**TINY, "precision": "f32", "speculation": 7}, texts=3)
    pef, checkpoint = make_text_model(small, make_tiny_llama({**TINY, "width": 8}), SMALL, texts=3)
    settings = {
        "lookup": {},
        "draft": {"RDUKIT_BOX_DRAFT_PEF": str(pef), "RDUKIT_BOX_DRAFT_CHECKPOINT": str(checkpoint)},
        "twin": {"RDUKIT_BOX_DRAFT_PEF": str(files[0]), "RDUKIT_BOX_DRAFT_CHECKPOINT": str(files[1])},
        "plain": {"RDUKIT_BOX_SPECULATION": "0"},
        "bundle": {"RDUKIT_BOX_BUNDLE": str(write_bundle(folder, files[0], pef))},
    }
    with ExitStack() as stack:
        started: Boxes = {}
        for name, environment in settings.items():
            started[name] = serve_text_model(folder, *files, **environment)
            stack.callback(started[name].stop)
        yield started


def other_model() -> Llama:
    """Return a model of the same sizes, whose parameters are other ones."""
    model = make_tiny_llama()
    torch.manual_seed(1)
    for parameter in model.parameters():
        if parameter.dim() > 1:
            torch.nn.init.normal_(parameter, std=0.3)
    return model


def write_bundle(folder: Path, pef: Path, draft_pef: Path) -> Path:
    """Return the file of a bundle: the model, another one of the same sizes, and the one that guesses their texts."""
    state = {name: each.clone() for name, each in other_model().state_dict().items()}
    save_file(state, folder / "tokenizer" / "other.safetensors")
    bundle = {
        "apiVersion": "rdukit.dev/v1", "kind": "Bundle", "name": "drafted", "memory": {"host": "1GiB"},
        "configurations": [
            {"name": "large", "pef": str(pef.relative_to(folder)), "draft": {"expert": "little"}},
            {"name": "small", "pef": str(draft_pef.relative_to(folder))},
        ],
        "experts": [
            {"name": "llama", "configuration": "large", "checkpoint": "checkpoint"},
            {"name": "other", "configuration": "large", "checkpoint": "tokenizer/other.safetensors"},
            {"name": "little", "configuration": "small", "checkpoint": "small/checkpoint"},
        ],
    }  # fmt: skip
    (folder / "bundle.yaml").write_text(json.dumps(bundle))
    return folder / "bundle.yaml"


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
    found = [line for line in lines if line.startswith("rdukit_box_text_tokens_total{") and 'model="llama"' in line]
    return {line.partition('kind="')[2].partition('"')[0]: float(line.split()[-1]) for line in found}


@pytest.mark.long
def test_texts_made_side_by_side_with_guesses_are_those_without(boxes: Boxes) -> None:
    expected = [ask(boxes["plain"], request) for request in REQUESTS]
    assert metrics(boxes["plain"])["guessed"] == 0
    assert all(usage["acceptance_rate"] is None for _, usage in expected)
    for name in ("lookup", "draft", "bundle"):
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


def test_experts_have_texts_of_their_own_with_one_draft(boxes: Boxes) -> None:
    prompts = [[n, 7 * n, 250 - n, *range(n, 20 + 9 * n)] for n in range(4)]
    request = {"temperature": 0, "max_tokens": 30, "ignore_eos": True, "logprobs": 0}
    asked = [{**request, "prompt": prompt, "model": model} for prompt in prompts for model in ("llama", "other")]
    with ThreadPoolExecutor(len(asked)) as pool:
        found = [choices[0] for choices, _ in pool.map(partial(ask, boxes["bundle"]), asked)]
    for each, choice in zip(asked, found, strict=True):
        if each["model"] == "llama":
            assert choice == ask(boxes["plain"], each)[0][0]
            continue
        gold = generate_by_recomputing(other_model(), torch.tensor([each["prompt"]]), 30)
        told = [bytes.fromhex(t[8:]) if t.startswith("bytes:\\x") else t.encode() for t in choice["logprobs"]["tokens"]]
        assert b"".join(told) == b"".join(bytes([t]) if t < 256 else END_OF_TEXT.encode() for t in gold)
    assert found[0]["text"] != found[1]["text"]
    drafts = [
        httpx.get(f"{boxes[name].rest_url}/v2/models/llama", trust_env=False).json()["properties"].get("draft")
        for name in ("lookup", "draft", "bundle")
    ]
    assert drafts[0] is None and drafts[1] == drafts[2] is not None


def test_a_draft_that_does_not_suit_is_refused_with_its_place_in_the_bundle(boxes: Boxes, folder: Path) -> None:
    file, tokenizer = folder / "bundle.yaml", folder / "checkpoint" / "tokenizer.json"
    text, tokens = file.read_text(), tokenizer.read_text()
    described = describe_fit(find_bundle(load_bundle(file)).fit)
    large, small = described["configurations"]
    assert large["draft_bytes"] == sum(small[f"{part}_bytes"] for part in ("weights", "caches", "graphs"))
    assert described["host_bytes"] == (1 << 30) - small["weights_bytes"]
    try:
        (folder / "small" / "checkpoint" / "tokenizer.json").write_text(tokens.replace('"a"', '"zz"'))
        with pytest.raises(InvalidArgument, match=r"experts.0.checkpoint: the draft's tokenizer.json differs"):
            find_bundle(load_bundle(file))
    finally:
        (folder / "small" / "checkpoint" / "tokenizer.json").write_text(tokens)
    pef = json.loads(text)["configurations"][0]["pef"]
    bundle = {**json.loads(text), "memory": {"host": "1GiB", "hbm": "1MiB"}}
    for draft, told in (
        ({"pef": pef, "checkpoint": "gone"}, "draft.checkpoint: there is no 'gone'"),
        ({"pef": "small.pef", "checkpoint": "checkpoint"}, "draft.pef: there is no 'small.pef'"),
        ({"pef": pef, "checkpoint": "checkpoint"}, "has no HBM|memory.hbm"),
    ):
        bundle["configurations"][0]["draft"] = draft
        (folder / "wrong.yaml").write_text(json.dumps(bundle))
        with pytest.raises((InvalidArgument, NotFound), match=told):
            find_bundle(load_bundle(folder / "wrong.yaml")).require_fit()


def test_a_bundle_needs_the_tiles_of_its_drafts(boxes: Boxes, folder: Path) -> None:
    bundle = json.loads((folder / "bundle.yaml").read_text())
    loaded = read_pef(folder / bundle["configurations"][1]["pef"])
    write_pef(folder / "wide.pef", replace(loaded.pef, num_tiles=2), loaded.kernels, loaded.natives)
    bundle["configurations"][0]["draft"] = {"pef": "wide.pef", "checkpoint": "small/checkpoint"}
    (folder / "wide.yaml").write_text(json.dumps(bundle))
    needed = [load_bundle(folder / name) for name in ("bundle.yaml", "wide.yaml")]
    assert [describe_bundle(each.bundle, find_bundle(each))["tiles"] for each in needed] == [1, 2]


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
