"""Adapters beside one base: each text is what plain torch makes with its own, whoever is in the run with it."""

import copy
import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
import torch
from safetensors.torch import save_file

from rdukit.errors import InvalidArgument
from rdukit.pef import read_pef
from rdukit_modelbox.tasks.adapters import add_adapters
from rdukit_serving.device.adapters import place_adapters
from rdukit_serving.device.parameters import text_parameters
from rdukit_zoo.language.decoder import generate_by_recomputing
from rdukit_zoo.language.llama import Llama
from support import shows
from support.helpers import wait_until
from support.text_boxes import make_text_model, make_tiny_llama

pytestmark = [shows("bundle", "serve", "bundles", "training", "llama"), pytest.mark.long]

SIZES: dict[str, Any] = {
    "width": 32, "layers": 2, "heads": 4, "key_value_heads": 2, "feed_forward": 32, "vocabulary": 257,
    "context_length": 128, "prompt_length": 16,
}  # fmt: skip
RANKS = {"poet": 2, "clerk": 4}
ALPHA = 8.0
MADE = 12
RDUKIT = Path(sys.executable).with_name("rdukit")


@pytest.fixture(scope="module")
def models() -> Mapping[str, Llama]:
    """Return the base, and the model with each adapter."""
    base = make_tiny_llama(SIZES)
    for parameter in base.parameters():
        if parameter.dim() > 1:
            torch.nn.init.normal_(parameter, std=0.3)
    found = {"base": base}
    for name, rank in RANKS.items():
        found[name] = copy.deepcopy(base)
        add_adapters(found[name], rank, ALPHA, SIZES["vocabulary"])
        for part, parameter in found[name].named_parameters():
            if "lora" in part:
                torch.nn.init.normal_(parameter, std=0.3)
    return found


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, models: Mapping[str, Llama]) -> Path:
    """Return a folder with PEF and checkpoint, and adapters: one that train makes, one of PEFT's."""
    folder = tmp_path_factory.mktemp("adapters")
    options = {"precision": "f32", "adapters": 2, "adapter_rank": 4, "target": "sn40l"}
    make_text_model(folder, models["base"], SIZES | options, texts=3)
    write_checkpoint(folder / "poet.safetensors", models["poet"])
    write_peft(folder / "clerk", models["clerk"])
    return folder


def write_checkpoint(file: Path, model: Llama, **changed: torch.Tensor) -> Path:
    save_file({**{name: value.clone() for name, value in model.state_dict().items()}, **changed}, file)
    return file


def write_peft(folder: Path, model: Llama, **config: Any) -> Path:
    """Write a model's adapter as the library PEFT does."""
    folder.mkdir()
    parts = {name: value for name, value in model.state_dict().items() if name.endswith(("lora_A", "lora_B"))}
    save_file(
        {f"base_model.model.{name}.weight": value.clone() for name, value in parts.items()},
        folder / "adapter_model.safetensors",
    )
    written = {"peft_type": "LORA", "r": RANKS["clerk"], "lora_alpha": ALPHA, "bias": "none", **config}
    (folder / "adapter_config.json").write_text(json.dumps(written))
    return folder


@pytest.fixture(scope="module")
def client(folder: Path) -> Iterator[openai.OpenAI]:
    expert = {
        "name": "base", "configuration": "tiny", "checkpoint": "checkpoint",
        "adapters": [{"name": "poet", "checkpoint": "poet.safetensors"},
                     {"name": "clerk", "checkpoint": "clerk", "aliases": ["vendor/clerk"]}],
    }  # fmt: skip
    bundle = {
        "apiVersion": "rdukit.dev/v1", "kind": "Bundle", "name": "one", "memory": {"host": "1GiB"},
        "configurations": [{"name": "tiny", "pef": "llama/llama.pef"}], "experts": [expert],
    }  # fmt: skip
    file, announced, log = folder / "bundle.yaml", folder / "announced.json", folder / "log"
    file.write_text(json.dumps(bundle))
    assert subprocess.run([RDUKIT, "bundle", "check", file], check=False, stdout=subprocess.DEVNULL).returncode == 0
    command = [RDUKIT, "serve", "--bundle", file, "--rest-port", "0", "--grpc-port", "0", "--announce", announced]
    environment = {**os.environ, "RDUKIT_HOME": str(folder / "home"), "OMP_NUM_THREADS": "1"}
    with log.open("wb") as stream:
        process = subprocess.Popen(command, env=environment, stdout=stream, stderr=stream)
    try:
        wait_until(lambda: announced.exists() or process.poll() is not None, 60)
        assert announced.exists(), log.read_text()
        url = f"{json.loads(announced.read_text())['rest']}/v1"
        with openai.OpenAI(
            base_url=url, api_key="none", max_retries=0, http_client=httpx.Client(trust_env=False)
        ) as client:  # fmt: skip
            yield client
    finally:
        process.terminate()
        process.wait(30)


def ask(client: openai.OpenAI, name: str, prompt: list[int]) -> tuple[bytes, Any]:
    answer = client.completions.create(
        model=name, prompt=prompt, max_tokens=MADE, temperature=0, logprobs=0, extra_body={"ignore_eos": True}
    )
    tokens = answer.choices[0].logprobs.tokens  # type: ignore[union-attr]
    assert tokens is not None
    return b"".join(
        bytes.fromhex(t[8:]) if t.startswith("bytes:\\x") else t.encode() for t in tokens
    ), answer  # fmt: skip


def gold(model: Llama, prompt: list[int]) -> bytes:
    return bytes(generate_by_recomputing(model, torch.tensor([prompt]), MADE))


def test_texts_of_several_adapters_at_once_are_what_each_makes_alone(
    client: openai.OpenAI, models: Mapping[str, Llama]
) -> None:
    asked = [
        (name, [(7 * number + place) % 256 for place in range(20 + number)]) for number in range(3) for name in models
    ]
    with ThreadPoolExecutor(len(asked)) as pool:
        answers = list(pool.map(lambda each: ask(client, *each), asked))
    for (name, prompt), (text, answer) in zip(asked, answers, strict=True):
        assert (text, answer.model) == (gold(models[name], prompt), name)
    assert ask(client, "vendor/clerk", [1, 2, 3])[0] == gold(models["clerk"], [1, 2, 3])


def test_what_was_read_with_one_adapter_is_not_continued_by_another(
    client: openai.OpenAI, models: Mapping[str, Llama]
) -> None:
    prompt = [(3 * place) % 256 for place in range(40)]
    for name in ("poet", "clerk", "base"):
        for turn in range(2):
            text, answer = ask(client, name, prompt)
            assert text == gold(models[name], prompt)
            assert (answer.usage.prompt_tokens_details.cached_tokens > 0) == (turn == 1), name


def test_adapters_are_models_that_come_with_their_expert(client: openai.OpenAI) -> None:
    ask(client, "poet", [1])
    listed = {model.id: model.model_extra or {} for model in client.models.list()}
    assert {name: (each["state"], each.get("adapter_of")) for name, each in listed.items()} == {
        "base": ("Live", None), "poet": ("Live", "base"), "clerk": ("Live", "base"),
    }  # fmt: skip
    with pytest.raises(openai.BadRequestError, match="an adapter computes no vectors; use its expert, base"):
        client.embeddings.create(model="poet", input="x", encoding_format="float")
    with pytest.raises(openai.NotFoundError, match="expected base, poet, clerk, vendor/clerk"):
        ask(client, "nobody", [1])


def test_tables_of_positions_are_cut_to_those_of_the_pef_and_too_short_ones_refused(
    folder: Path, models: Mapping[str, Llama]
) -> None:
    pef, state = read_pef(folder / "llama" / "llama.pef").pef, models["base"].state_dict()
    longer = make_tiny_llama({**SIZES, "context_length": 200}).state_dict()
    tables = [name for name, value in state.items() if len(value) == SIZES["context_length"] and "rotary" in name]
    assert len(tables) == 2
    found = dict(text_parameters(pef, {**state, **{name: longer[name] for name in tables}}))
    assert all(any(torch.equal(value, state[name]) for value in found.values()) for name in tables)
    with pytest.raises(InvalidArgument, match="has 100 positions, but llama was compiled with context_length=128"):
        dict(text_parameters(pef, {**state, tables[0]: state[tables[0]][:100]}))


def test_an_adapter_that_does_not_fit_is_refused(folder: Path, models: Mapping[str, Llama], tmp_path: Path) -> None:
    wide = copy.deepcopy(models["base"])
    add_adapters(wide, 8, ALPHA, SIZES["vocabulary"])
    norm = models["poet"].state_dict()["model.norm.weight"] + 1
    one, pef, base = (
        folder / "poet.safetensors",
        read_pef(folder / "llama" / "llama.pef").pef,
        models["base"].state_dict(),
    )
    cases: list[tuple[dict[str, Path], str]] = [
        ({"a": write_checkpoint(tmp_path / "changed", models["poet"], **{"model.norm.weight": norm})},
         "'a' was trained with other base weights: model.norm.weight differs"),
        ({"a": write_checkpoint(tmp_path / "wide", wide)}, "'a' has the rank 8; expected 1 to 4, because the PEF was"),
        ({"a": write_checkpoint(tmp_path / "none", models["base"])}, "has no adapter; expected"),
        ({"a": one, "b": one, "c": one}, "'c' is one too many; expected 2"),
        ({"a": write_peft(tmp_path / "dora", models["clerk"], use_dora=True)}, "use_dora is True, which is not"),
        ({"a": write_peft(tmp_path / "other", models["clerk"], peft_type="IA3")}, "peft_type is 'IA3'; expected LORA"),
        ({"a": write_peft(tmp_path / "half", models["clerk"], r="x")}, "is damaged"),
    ]  # fmt: skip
    for adapters, words in cases:
        with pytest.raises(InvalidArgument, match=words):
            place_adapters(pef, base, adapters)
