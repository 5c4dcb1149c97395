"""``rdukit serve FOLDER`` and ``rdukit box run --checkpoint FOLDER`` as programs: names, greedy texts, sampling."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from rdukit_modelbox.preprocessing.tokenizer import byte_level_tokenizer
from support import shows
from support.served_folders import running

pytestmark = [shows("serve", "box", "huggingface", "decoder", "mistral"), pytest.mark.long]

transformers = pytest.importorskip("transformers", reason="the extra `models` is not installed")

SIZES: dict[str, Any] = {
    "vocab_size": 257, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 48,
    "num_key_value_heads": 2, "max_position_embeddings": 64, "bos_token_id": 0, "eos_token_id": 256, "head_dim": 8,
}  # fmt: skip
PROMPT = [72, 101, 108, 108, 111]


def write_folder(folder: Path, kind: str) -> Any:
    """Write a random model's folder in bf16 and in shards, with a tokenizer and a way of sampling; return the model."""
    torch.manual_seed(3)
    config = getattr(transformers, f"{kind}Config")(**SIZES)
    model = transformers.AutoModelForCausalLM.from_config(config, attn_implementation="eager").eval()
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.2)
    model.bfloat16().save_pretrained(folder, max_shard_size="30KB")
    (folder / "tokenizer.json").write_bytes(byte_level_tokenizer().json)
    (folder / "generation_config.json").write_text(json.dumps({"do_sample": False, "eos_token_id": 256}))
    return model.float()


@pytest.mark.parametrize(("kind", "name"), [("Qwen3", "qwen3"), ("Mistral", "mistral")])
def test_a_folder_is_called_by_its_model_type_and_answers_as_its_files_say(
    kind: str, name: str, tmp_path: Path
) -> None:
    theirs = write_folder(tmp_path / "folder", kind)
    prompt = torch.tensor([PROMPT])
    wanted = theirs.generate(
        prompt, attention_mask=torch.ones_like(prompt), max_new_tokens=12, do_sample=False, eos_token_id=None
    )[0, len(PROMPT) :]
    asked = {"prompt": PROMPT, "max_tokens": 12, "logprobs": 0, "ignore_eos": True}
    commands = {
        name: ["serve", tmp_path / "folder", "--precision", "f32", "--context", "64"],
        "org/own": [
            "box", "run", "--checkpoint", tmp_path / "folder", "--precision", "f32", "--context", "64",
            "--name", "org/own", "--state", tmp_path / "state",
        ],
    }  # fmt: skip
    for called, command in commands.items():
        with running(command, tmp_path / called.replace("/", "-")) as http:
            assert [model["id"] for model in http.get("/v1/models").json()["data"]] == [called]
            answer = http.post("/v1/completions", json={"model": called, **asked}).json()
            tokens = answer["choices"][0]["logprobs"]["tokens"]
            made = b"".join(bytes.fromhex(t[8:]) if t.startswith("bytes:\\x") else t.encode() for t in tokens)
            assert made == bytes(int(token) for token in wanted)
            answer = http.post("/v1/completions", json={"model": "llama", **asked})
            assert (answer.status_code, called in answer.text) == (404, True)
