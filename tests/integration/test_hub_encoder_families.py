"""RoBERTa, XLM-R, MPNet and ModernBERT as transformers wrote them: the same vectors, classes, gradients and files.

In f32; outputs within 1e-5 of the largest and gradients within 1e-4 cover sums in another order.
"""

import json
from pathlib import Path
from typing import Any, Final

import httpx
import pytest
import torch
from safetensors.torch import load_file
from tokenizers import Tokenizer, models, pre_tokenizers, processors

from rdukit_modelbox.artifacts.hub_folder import prepare_hub_folder
from rdukit_platform.backends.contract import BoxSpec
from rdukit_serving.text.program import TextProgram
from rdukit_zoo.checkpoints.folder import load_hub_folder, open_hub_folder, save_hub_folder
from support import first_short, shows
from support.platform.warm import start_box

pytestmark = shows("huggingface", "bert-classifier", "bert-embedder")

transformers = pytest.importorskip("transformers", reason="the extra `models` is not installed")

WORDS: Final = 60
_SMALL: Final[dict[str, Any]] = {
    "hidden_size": 32, "num_hidden_layers": 3, "num_attention_heads": 4, "intermediate_size": 48, "vocab_size": WORDS,
    "max_position_embeddings": 40, "num_labels": 5,
}  # fmt: skip
_OWN: Final[dict[str, dict[str, Any]]] = {
    "Roberta": {"type_vocab_size": 1, "pad_token_id": 1},
    "XLMRoberta": {"type_vocab_size": 2, "pad_token_id": 1},
    "MPNet": {},
    "ModernBert": {
        "pad_token_id": 0, "local_attention": 8, "bos_token_id": 1, "eos_token_id": 2, "cls_token_id": 1,
        "sep_token_id": 2,
    },
}  # fmt: skip
CASES: Final[dict[str, tuple[str, str, dict[str, Any]]]] = {
    **{f"{kind}-vectors": (kind, "Model", {}) for kind in _OWN},
    **{f"{kind}-classes": (kind, "ForSequenceClassification", {}) for kind in _OWN},
    "ModernBert-mean": ("ModernBert", "ForSequenceClassification", {
        "classifier_pooling": "mean", "classifier_bias": True, "global_attn_every_n_layers": 2,
    }),
}  # fmt: skip
#: Pooling by the key of sentence-transformers, as it is defined there.
POOLINGS: Final[dict[str, Any]] = {
    "cls_token": lambda states: states[0],
    "mean_tokens": lambda states: states.mean(0),
    "max_tokens": lambda states: states.amax(0),
    "mean_sqrt_len_tokens": lambda states: states.sum(0) / len(states) ** 0.5,
    "lasttoken": lambda states: states[-1],
    "weightedmean_tokens": lambda states: (
        (states * torch.arange(1.0, len(states) + 1)[:, None]).sum(0) / sum(range(1, len(states) + 1))
    ),
}


def write_folder(folder: Path, name: str) -> Any:
    """Write a random model's folder, and return the model of transformers."""
    torch.manual_seed(3)
    kind, head, changes = CASES[name]
    config = getattr(transformers, f"{kind}Config")(**{**_SMALL, **_OWN[kind], **changes})
    config._attn_implementation = "eager"
    has_pooler = head == "Model" and kind != "ModernBert"
    model = getattr(transformers, kind + head)(config, **({"add_pooling_layer": False} if has_pooler else {})).eval()
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.2)
    model.save_pretrained(folder)
    return model


def write_modules(folder: Path, pooling: str, normalizes: bool) -> None:
    """Write what sentence-transformers writes beside a model."""
    steps = ["Transformer", "Pooling", *(["Normalize"] if normalizes else [])]
    listed = [
        {
            "idx": at,
            "name": str(at),
            "path": f"{at}_{step}" if at else "",
            "type": f"sentence_transformers.models.{step}",
        }
        for at, step in enumerate(steps)
    ]
    (folder / "modules.json").write_text(json.dumps(listed))
    (folder / "1_Pooling").mkdir(exist_ok=True)
    modes = {f"pooling_mode_{name}": name == pooling for name in POOLINGS}
    (folder / "1_Pooling" / "config.json").write_text(json.dumps({"word_embedding_dimension": 32, **modes}))


def write_tokenizer(folder: Path) -> Tokenizer:
    words = ["<s>", "<pad>", "</s>", "[UNK]", *"abcdefghijklmnopqrstuvwxyz"]
    tokenizer = Tokenizer(models.WordLevel({word: at for at, word in enumerate(words)}, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.post_processor = processors.RobertaProcessing(("</s>", 2), ("<s>", 0), trim_offsets=False)
    tokenizer.save(str(folder / "tokenizer.json"))
    return tokenizer


def draw_inputs(theirs: Any, rows: int = 3) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Texts of different lengths as tokens, types and mask, each [rows, 24]."""
    torch.manual_seed(4)
    mask = (torch.arange(24) < torch.randint(4, 25, (rows, 1))).long()
    tokens = torch.randint(3, WORDS, (rows, 24)) * mask + theirs.config.pad_token_id * (1 - mask)
    kinds = getattr(theirs.config, "type_vocab_size", 1)
    return tokens, torch.randint(kinds, (rows, 24)) * mask, mask


def answers_of(theirs: Any, inputs: tuple[torch.Tensor, torch.Tensor, torch.Tensor]) -> torch.Tensor:
    """What transformers answers: logits, or the mean of the last states."""
    tokens, types, mask = inputs
    has_types = hasattr(theirs.config, "type_vocab_size")
    found = theirs(tokens, attention_mask=mask, **({"token_type_ids": types} if has_types else {}))
    if "logits" in found:
        return found.logits  # type: ignore[no-any-return]
    shares = mask.float() / mask.sum(1, keepdim=True)
    return (found.last_hidden_state * shares.unsqueeze(-1)).sum(1)  # type: ignore[no-any-return]


def require_near(found: torch.Tensor, wanted: torch.Tensor, share: float) -> None:
    torch.testing.assert_close(found, wanted, rtol=0, atol=share * float(wanted.detach().abs().max()))


@pytest.mark.parametrize("name", CASES)
def test_an_encoders_folder_gives_transformers_outputs_and_gradients_and_is_written_back(
    name: str, tmp_path: Path
) -> None:
    theirs = write_folder(tmp_path / "theirs", name)
    folder = open_hub_folder(tmp_path / "theirs")
    ours = load_hub_folder(tmp_path / "theirs").eval()
    inputs = draw_inputs(theirs)
    wanted, found = answers_of(theirs, inputs), ours(*inputs)
    require_near(found, wanted, 1e-5)
    weights = torch.randn_like(wanted)
    (wanted * weights).sum().backward(), (found * weights).sum().backward()
    gradients = {key: parameter.grad for key, parameter in theirs.named_parameters()}
    largest = max(float(value.abs().max()) for value in gradients.values() if value is not None)
    padding = theirs.config.pad_token_id
    for key, parameter in ours.named_parameters():
        wanted_grad, found_grad = gradients[folder.hub.stored_name(key)], parameter.grad
        if wanted_grad is None or found_grad is None:
            assert wanted_grad is None and found_grad is None, key
            continue
        if "word_embeddings" in key or "position_embeddings" in key or "tok_embeddings" in key:
            # transformers' tables keep no gradient for padding, whose states count for nothing.
            wanted_grad, found_grad = (torch.cat([g[:padding], g[padding + 1 :]]) for g in (wanted_grad, found_grad))
        # Biases of keys change nothing behind a softmax: their gradients are rounding.
        scale = max(float(wanted_grad.abs().max()), 1e-3 * largest)
        torch.testing.assert_close(found_grad, wanted_grad, rtol=0, atol=1e-4 * scale)
    save_hub_folder(ours, folder.entry, folder.sizes, tmp_path / "ours")
    one, other = (load_file(tmp_path / side / "model.safetensors") for side in ("theirs", "ours"))
    assert one.keys() == other.keys()
    assert all(torch.equal(one[key], other[key]) for key in one)
    again = open_hub_folder(tmp_path / "ours").sizes
    assert {**again, "num_classes": folder.sizes["num_classes"]} == folder.sizes
    read = type(theirs).from_pretrained(tmp_path / "ours").eval()
    require_near(answers_of(read, inputs), wanted, 1e-5)


@pytest.mark.parametrize("pooling", first_short(POOLINGS))
def test_a_folders_vectors_are_pooled_and_normed_as_it_states(
    pooling: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RDUKIT_KERNELS", "portable")
    theirs = write_folder(tmp_path / "theirs", "MPNet-vectors")
    normalizes = pooling in {"mean_tokens", "cls_token"}
    write_modules(tmp_path / "theirs", pooling, normalizes)
    tokenizer = write_tokenizer(tmp_path / "theirs")
    made = prepare_hub_folder(tmp_path / "theirs", tmp_path / "cache", context=24)
    assert made.name == "mpnet"
    folder = open_hub_folder(tmp_path / "theirs")
    save_hub_folder(load_hub_folder(tmp_path / "theirs"), folder.entry, folder.sizes, tmp_path / "ours")
    again = open_hub_folder(tmp_path / "ours").sizes
    assert {**again, "num_classes": 5} == folder.sizes
    with TextProgram(Path(made.pef), Path(made.checkpoint)) as program:
        for text in ("a b c", "z y x w v u t s r q", "a"):
            tokens = tokenizer.encode(text).ids
            with torch.no_grad():
                wanted = POOLINGS[pooling](theirs(torch.tensor([tokens])).last_hidden_state[0])
            if normalizes:
                wanted = wanted / wanted.norm()
            require_near(torch.from_numpy(program.embed(tokens)), wanted, 1e-5)


@pytest.mark.parametrize("kind", first_short(_OWN))
def test_each_encoder_embeds_texts_of_any_length(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RDUKIT_KERNELS", "portable")
    theirs = write_folder(tmp_path / "theirs", f"{kind}-vectors")
    write_tokenizer(tmp_path / "theirs")
    made = prepare_hub_folder(tmp_path / "theirs", tmp_path / "cache", context=24)
    with TextProgram(Path(made.pef), Path(made.checkpoint)) as program:
        for count in (1, 7, 24):
            tokens = torch.randint(3, WORDS, (1, count))
            with torch.no_grad():
                wanted = theirs(tokens).last_hidden_state.mean(1)[0]
            require_near(torch.from_numpy(program.embed(tokens[0].tolist())), wanted, 1e-5)


@pytest.mark.parametrize("name", first_short(["MPNet-classes", "ModernBert-mean", "Roberta-classes"]))
def test_a_classifiers_folder_is_served_with_the_logits_of_transformers(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RDUKIT_KERNELS", "portable")
    theirs = write_folder(tmp_path / "theirs", name)
    inputs = draw_inputs(theirs)
    made = prepare_hub_folder(tmp_path / "theirs", tmp_path / "cache", context=24)
    environment = {
        "RDUKIT_BOX_PEF": made.pef, "RDUKIT_BOX_CHECKPOINT": made.checkpoint, "RDUKIT_HOME": str(tmp_path / "home"),
        "OMP_NUM_THREADS": "1",
    }  # fmt: skip
    running = start_box(BoxSpec(made.box, tmp_path / "state", [tmp_path], environment))
    try:
        with httpx.Client(trust_env=False, timeout=60, base_url=f"{running.rest_url}/v2/models/{made.box}") as http:
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
    require_near(found, answers_of(theirs, inputs).detach(), 1e-5)
