"""``rdukit serve FOLDER`` of BART as a program: completions, streams, several at once, and what is refused."""

import asyncio
import json
from pathlib import Path
from typing import Any, Final

import httpx
import pytest
import torch

from rdukit.errors import NotFound
from rdukit_modelbox.artifacts.hub_folder import prepare_hub_folder
from rdukit_modelbox.preprocessing.tokenizer import byte_level_tokenizer
from support import shows
from support.served_folders import running

pytestmark = shows("encoder-decoders", "serve")

transformers = pytest.importorskip("transformers", reason="the extra `models` is not installed")

SIZES: Final[dict[str, Any]] = {
    "vocab_size": 257, "d_model": 32, "encoder_layers": 1, "decoder_layers": 1, "encoder_attention_heads": 2,
    "decoder_attention_heads": 2, "encoder_ffn_dim": 32, "decoder_ffn_dim": 32, "max_position_embeddings": 32,
    "dropout": 0.0, "bos_token_id": 0, "eos_token_id": 256, "pad_token_id": 1, "decoder_start_token_id": 256,
    "forced_eos_token_id": 256,
}  # fmt: skip
SOURCES: Final = ["To be read", "Another text, longer than it", "x"]


def write_folder(folder: Path) -> Any:
    """Write a random model's folder with a tokenizer of bytes, and return the model."""
    torch.manual_seed(3)
    model = transformers.BartForConditionalGeneration(transformers.BartConfig(**SIZES)).eval()
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    model.save_pretrained(folder)
    known = {"do_sample": False, "no_repeat_ngram_size": 1, "min_length": 13, "forced_bos_token_id": 65}
    config = {**json.loads((folder / "generation_config.json").read_text()), **known}
    (folder / "generation_config.json").write_text(json.dumps(config))
    (folder / "tokenizer.json").write_bytes(byte_level_tokenizer().json)
    return transformers.BartForConditionalGeneration.from_pretrained(folder).eval()


def test_a_tokenizer_of_another_form_is_refused_with_the_command_that_writes_it(tmp_path: Path) -> None:
    write_folder(tmp_path)
    (tmp_path / "tokenizer.json").rename(tmp_path / "spiece.model")
    with pytest.raises(NotFound, match=r"only as spiece\.model; expected tokenizer\.json\. Write it with python -c"):
        prepare_hub_folder(tmp_path, tmp_path / "cache")


@pytest.mark.long
def test_a_folder_answers_as_transformers_at_once_and_in_streams(tmp_path: Path) -> None:
    theirs = write_folder(tmp_path / "folder")
    wanted = {}
    for source in SOURCES:
        tokens = torch.tensor([list(source.encode())])
        made = theirs.generate(tokens, attention_mask=torch.ones_like(tokens), max_new_tokens=12)[0, 1:].tolist()
        wanted[source] = bytes(token for token in made if token != 256).decode(errors="replace")
        assert made[0] == 65 and made[-1] == 256 and len(made) == 12
    with running(["serve", tmp_path / "folder", "--precision", "f32"], tmp_path / "home") as http:
        (model,) = http.get("/v1/models").json()["data"]
        assert (model["id"], model["context_length"]) == ("bart", 32)

        async def ask_all() -> list[str]:
            async with httpx.AsyncClient(base_url=http.base_url, trust_env=False, timeout=60) as client:
                return await asyncio.gather(*(read_stream(client, source) for source in SOURCES * 4))

        assert asyncio.run(ask_all()) == [wanted[source] for source in SOURCES * 4]
        answer = http.post(
            "/v1/completions", json={"model": "bart", "prompt": SOURCES[0], "max_tokens": 12, "n": 2}
        ).json()
        assert [choice["text"] for choice in answer["choices"]] == [wanted[SOURCES[0]]] * 2
        assert [choice["finish_reason"] for choice in answer["choices"]] == ["length"] * 2
        assert answer["usage"]["prompt_tokens"] == len(SOURCES[0])
        vector = http.post("/v1/embeddings", json={"model": "bart", "input": "abc"}).json()["data"][0]["embedding"]
        states = theirs.get_encoder()(torch.tensor([list(b"abc")]))[0]
        torch.testing.assert_close(torch.tensor(vector), states.mean(1)[0], rtol=0, atol=1e-4)
        user = [{"role": "user", "content": "x"}]
        refused: dict[str, tuple[dict[str, Any], str]] = {
            "/v1/chat/completions": ({"messages": user}, "supports no chats; send the text as prompt"),
            "/v1/messages": ({"messages": user, "max_tokens": 5}, "supports no chats"),
            "/v1/responses": ({"input": "x"}, "supports no chats"),
            "/v1/completions": ({"prompt": "x" * 33}, "it has 33 tokens; expected 1 to 32"),
        }
        for route, (fields, words) in refused.items():
            answer = http.post(route, json={"model": "bart", **fields})
            assert answer.status_code == 400 and words in answer.text, answer.text
        answer = http.post("/v1/completions", json={"model": "bart", "prompt": "x", "echo": True})
        assert answer.status_code == 400 and "echo: an encoder reads the prompt" in answer.text


async def read_stream(client: httpx.AsyncClient, source: str) -> str:
    """Return the text of a streamed completion."""
    body = {"model": "bart", "prompt": source, "max_tokens": 12, "stream": True}
    async with client.stream("POST", "/v1/completions", json=body) as answer:
        lines = [line.removeprefix("data: ") async for line in answer.aiter_lines() if line]
    assert lines.pop() == "[DONE]"
    return "".join(choice["text"] for line in lines for choice in json.loads(line)["choices"])
