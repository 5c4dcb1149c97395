"""A folder is served before its native kernels are built: texts go on while the server changes to them."""

from pathlib import Path
from typing import Any

import httpx
import pytest
import torch

from rdukit.pef import read_pef
from rdukit_modelbox.preprocessing.tokenizer import byte_level_tokenizer
from rdukit_serving.models.prepare_folder import find_prepared
from support import shows
from support.helpers import wait_until
from support.served_folders import running

pytestmark = [shows("huggingface", "serve"), pytest.mark.long]

transformers = pytest.importorskip("transformers", reason="the extra `models` is not installed")

SIZES: dict[str, Any] = {
    "vocab_size": 257, "n_embd": 24, "n_layer": 1, "n_head": 2, "n_positions": 48, "bos_token_id": 0,
    "eos_token_id": 256,
}  # fmt: skip
ASKED: dict[str, Any] = {
    "model": "gpt2", "prompt": [72, 101, 108], "max_tokens": 12, "temperature": 0, "ignore_eos": True, "logprobs": 0,
}  # fmt: skip


def write_folder(folder: Path) -> None:
    torch.manual_seed(3)
    model = transformers.GPT2LMHeadModel(transformers.GPT2Config(**SIZES))
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.2)
    model.save_pretrained(folder)
    (folder / "tokenizer.json").write_bytes(byte_level_tokenizer().json)


def ask(http: httpx.Client) -> list[str]:
    answer = http.post("/v1/completions", json=ASKED)
    assert answer.status_code == 200, answer.text
    return answer.json()["choices"][0]["logprobs"]["tokens"]  # type: ignore[no-any-return]


def test_texts_go_on_while_native_kernels_take_the_place_of_portable_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, home = tmp_path / "folder", tmp_path / "home"
    write_folder(folder)
    monkeypatch.setenv("RDUKIT_COMPILE_ROUTES", "bf16=native,f32=blas")  # not measured first
    command: list[str | Path] = ["serve", folder, "--precision", "f32", "--context", "48"]
    with running(command, home, kernels="auto") as http:
        wanted = ask(http)

        def kernels() -> str:
            assert ask(http) == wanted
            described = http.get("/v2/models/gpt2").json()
            assert described["versions"] == ["1"]
            return str(described["properties"]["kernels"])

        assert kernels().startswith("portable: native kernels are not built yet")
        wait_until(lambda: kernels().startswith("native"), 900)
        assert ask(http) == wanted
    monkeypatch.delenv("RDUKIT_KERNELS", raising=False)
    made = find_prepared(folder, home / "cache" / "huggingface", 48, "f32")
    assert made is not None
    assert not made.kernels_to_build
    first, native = read_pef(Path(made.pef)), read_pef(made.best_pef)
    assert not first.natives
    assert native.natives
    assert native.pef.sections == first.pef.sections
    with running(command, home, kernels="auto") as http:
        assert http.get("/v2/models/gpt2").json()["properties"]["kernels"].startswith("native")
        assert ask(http) == wanted
