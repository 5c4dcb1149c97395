"""Folders of BERT and ViT that transformers wrote: loaded, written back byte for byte, and served, with its answers.

In f32; outputs within 1e-5 and gradients within 1e-4 cover sums in another order.
"""

import copy
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest
import torch
from safetensors.torch import load_file
from tokenizers import Tokenizer, models, pre_tokenizers, processors

from rdukit_modelbox.artifacts.hub_folder import prepare_hub_folder
from rdukit_platform.backends.contract import BoxSpec
from rdukit_zoo.checkpoints.folder import load_hub_folder, open_hub_folder, save_hub_folder
from rdukit_zoo.checkpoints.sentence_modules import files_of_pooling
from support import first_short, shows
from support.platform.warm import start_box

pytestmark = shows("huggingface", "bert", "bert-classifier", "bert-embedder", "vit", "inference")

transformers = pytest.importorskip("transformers", reason="the extra `models` is not installed")

WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", *"abcdefghijklmnopqrstuvwxyz"]
_BERT = {
    "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 48,
    "vocab_size": len(WORDS), "max_position_embeddings": 24, "type_vocab_size": 2,
}  # fmt: skip
_VIT = {
    "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 48, "image_size": 16,
    "patch_size": 8, "num_channels": 3,
}  # fmt: skip
#: Class of transformers → its configuration.
CONFIGS: dict[str, Callable[[], Any]] = {
    "BertForMaskedLM": lambda: transformers.BertConfig(**_BERT),
    "BertForSequenceClassification": lambda: transformers.BertConfig(**_BERT, num_labels=5),
    "BertModel": lambda: transformers.BertConfig(**_BERT),
    "ViTForImageClassification": lambda: transformers.ViTConfig(**_VIT, num_labels=7),
}


def write_folder(folder: Path, name: str) -> Any:
    """Write a random model's folder, and return the model of transformers."""
    torch.manual_seed(3)
    options = {"add_pooling_layer": False} if name == "BertModel" else {}
    config = CONFIGS[name]()
    config._attn_implementation = "eager"
    model = getattr(transformers, name)(config, **options).eval()
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.2)
    model.save_pretrained(folder)
    return model


def draw_inputs(name: str, rows: int) -> tuple[torch.Tensor, ...]:
    """Texts of different lengths as tokens, types and mask, each [rows, 24]; or images."""
    torch.manual_seed(4)
    if name.startswith("ViT"):
        return (torch.randn(rows, 3, 16, 16),)
    mask = (torch.arange(24) < torch.randint(4, 24, (rows, 1))).long()
    return torch.randint(4, len(WORDS), (rows, 24)) * mask, torch.randint(2, (rows, 24)) * mask, mask


def answers_of(name: str, theirs: Any, inputs: tuple[torch.Tensor, ...]) -> torch.Tensor:
    """What transformers answers: logits, or the mean of the last states."""
    if name.startswith("ViT"):
        return theirs(*inputs).logits  # type: ignore[no-any-return]
    tokens, types, mask = inputs
    found = theirs(tokens, attention_mask=mask, token_type_ids=types)
    if name != "BertModel":
        return found.logits  # type: ignore[no-any-return]
    shares = mask.float() / mask.sum(1, keepdim=True)
    return (found.last_hidden_state * shares.unsqueeze(-1)).sum(1)  # type: ignore[no-any-return]


@pytest.mark.long
@pytest.mark.parametrize("name", first_short(CONFIGS, 2))
def test_a_folder_loads_computes_the_same_and_is_written_back_byte_for_byte(name: str, tmp_path: Path) -> None:
    theirs = write_folder(tmp_path / "theirs", name)
    ours = load_hub_folder(tmp_path / "theirs").eval()
    inputs = draw_inputs(name, 3)
    wanted, found = answers_of(name, theirs, inputs), ours(*inputs)
    torch.testing.assert_close(found, wanted, rtol=1e-5, atol=1e-5)
    weights = torch.randn_like(wanted)
    if name == "BertForMaskedLM":  # padding counts in no loss, and transformers' embedding keeps no gradient for it
        weights *= inputs[-1].unsqueeze(-1)
    (wanted * weights).sum().backward(), (found * weights).sum().backward()
    # Written as weights, they have the names that files have.
    turned = copy.deepcopy(theirs)
    for (_, parameter), (_, of) in zip(turned.named_parameters(), theirs.named_parameters(), strict=True):
        parameter.data = of.grad.clone()
    turned.save_pretrained(tmp_path / "gradients")
    gradients = load_file(tmp_path / "gradients" / "model.safetensors")
    folder = open_hub_folder(tmp_path / "theirs")
    for key, parameter in ours.named_parameters():
        torch.testing.assert_close(parameter.grad, gradients[folder.hub.stored_name(key)], rtol=1e-4, atol=1e-4)
    save_hub_folder(ours, folder.entry, folder.sizes, tmp_path / "ours")
    one, other = (load_file(tmp_path / side / "model.safetensors") for side in ("theirs", "ours"))
    assert one.keys() == other.keys()
    assert all(torch.equal(one[key], other[key]) and one[key].dtype == other[key].dtype for key in one)
    again = getattr(transformers, name).from_pretrained(tmp_path / "ours").eval()
    torch.testing.assert_close(answers_of(name, again, inputs), wanted, rtol=1e-5, atol=1e-5)


def served(tmp_path: Path) -> tuple[Any, str]:
    """A box that serves the folder ``theirs``, and its model's name."""
    made = prepare_hub_folder(tmp_path / "theirs", tmp_path / "cache", context=24)
    environment = {
        "RDUKIT_BOX_PEF": made.pef, "RDUKIT_BOX_CHECKPOINT": made.checkpoint, "RDUKIT_HOME": str(tmp_path / "home"),
        "OMP_NUM_THREADS": "1",
    }  # fmt: skip
    return start_box(BoxSpec(made.box, tmp_path / "state", [tmp_path], environment)), made.box


@pytest.mark.parametrize(
    "name", first_short(["BertForSequenceClassification", "BertModel", "ViTForImageClassification"])
)
def test_a_folder_is_served_with_the_answers_of_transformers(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RDUKIT_KERNELS", "portable")
    theirs = write_folder(tmp_path / "theirs", name)
    inputs = draw_inputs(name, 3)
    running, box = served(tmp_path)
    try:
        with httpx.Client(trust_env=False, timeout=60, base_url=f"{running.rest_url}/v2/models/{box}") as http:
            known = http.get("").raise_for_status().json()
            body = [
                {"name": spec["name"], "datatype": spec["datatype"], "shape": list(value.shape),
                 "data": value.flatten().tolist()}
                for spec, value in zip(known["inputs"], inputs, strict=True)
            ]  # fmt: skip
            answer = http.post("/infer", json={"inputs": body}).raise_for_status().json()["outputs"][-1]
    finally:
        running.stop()
    found = torch.tensor(answer["data"]).reshape(answer["shape"])
    torch.testing.assert_close(found, answers_of(name, theirs, inputs).detach(), rtol=1e-5, atol=1e-5)


@pytest.mark.long
def test_a_bert_with_a_tokenizer_answers_texts_with_vectors(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RDUKIT_KERNELS", "portable")
    theirs = write_folder(tmp_path / "theirs", "BertModel")
    tokenizer = Tokenizer(models.WordLevel({word: at for at, word in enumerate(WORDS)}, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.post_processor = processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2))
    tokenizer.save(str(tmp_path / "theirs" / "tokenizer.json"))
    config = tmp_path / "theirs" / "config.json"
    config.write_text(json.dumps({**json.loads(config.read_text()), "matryoshka_dimensions": [8, 16]}))
    files = files_of_pooling({"pooling": "mean", "normalizes": True, "width": 32})
    for name, content in files.items():
        (tmp_path / "theirs" / name).parent.mkdir(exist_ok=True)
        (tmp_path / "theirs" / name).write_text(json.dumps(content))
    texts = ["a b c", "z y x w v u t s r q"]
    running, box = served(tmp_path)
    try:
        with httpx.Client(trust_env=False, timeout=60, base_url=running.rest_url) as http:
            answer = http.post("/v1/embeddings", json={"model": box, "input": texts}).raise_for_status().json()
            short = http.post("/v1/embeddings", json={"model": box, "input": texts, "dimensions": 8}).json()["data"]
            ready = http.get("/v2/health/ready")
            refused = http.post("/v1/completions", json={"model": box, "prompt": "a b"})
            too_long = http.post("/v1/embeddings", json={"model": box, "input": "a " * 23})
    finally:
        running.stop()
    assert ready.status_code == 200
    for text, entry in zip(texts, answer["data"], strict=True):
        tokens = torch.tensor([tokenizer.encode(text).ids])
        assert tokens[0, 0] == 2 and tokens[0, -1] == 3
        wanted = torch.nn.functional.normalize(theirs(tokens).last_hidden_state.mean(1)[0].detach(), dim=0)
        torch.testing.assert_close(torch.tensor(entry["embedding"]), wanted, rtol=1e-5, atol=1e-5)
        first = torch.nn.functional.normalize(wanted[:8], dim=0)
        found = torch.tensor(short[entry["index"]]["embedding"])
        torch.testing.assert_close(found, first, rtol=1e-5, atol=1e-5)
    assert answer["usage"]["prompt_tokens"] == 5 + 12
    assert (refused.status_code, refused.json()["error"]["message"]) == (
        400, "this model generates no text; expected /v1/embeddings",
    )  # fmt: skip
    assert too_long.status_code == 400 and "expected 1 to 24" in too_long.text
