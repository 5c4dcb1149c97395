"""Fine-tunings of 50 steps next to transformers' Trainer, and PEFT's updates in it, with the same weights and order.

Losses in f32 differ by sums in another order: at most 1e-3 over all steps. Logits of a folder that was written differ
by 1e-4 between both readers. The measured differences are printed: pytest -s.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from click.testing import CliRunner

from rdukit_modelbox.artifacts.hub_folder import prepare_hub_folder
from rdukit_modelbox.cli.finetune import finetune
from rdukit_modelbox.preprocessing.token_dataset import load_token_dataset
from rdukit_modelbox.tasks.texts import TextData
from rdukit_serving.text.program import TextProgram, generate_all
from rdukit_serving.text.sampling import Sampler, SamplingOptions
from rdukit_zoo.checkpoints.folder import load_hub_folder
from support import shows
from support.hub_classifiers import write_bert, write_colours, write_texts, write_vit
from support.hub_folders import CONTEXT, our_losses, write_data, write_model

pytestmark = [
    shows("finetune"), pytest.mark.long, pytest.mark.filterwarnings("ignore:.*:FutureWarning"),
    pytest.mark.filterwarnings("ignore:.*:UserWarning"),
]  # fmt: skip

transformers = pytest.importorskip("transformers", reason="the extra `models` is not installed")
pytest.importorskip("accelerate", reason="transformers' Trainer needs accelerate, which is not installed")

STEPS, BATCH, RANK, ALPHA = 50, 8, 4, 8.0
#: Learning rates by what is trained.
RATES = {"full": 0.005, "lora": 0.05}
DECODERS = ("gpt2", "llama", "llama-tied", "mistral")
#: Layers with updates, by the ends of their names in transformers' module.
TARGETS = {"gpt2": ["c_attn"], "bert": ["query", "value"], "vit": ["q_proj", "v_proj"]}
Row = dict[str, torch.Tensor]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("RDUKIT_KERNELS", "portable")
    monkeypatch.setenv("RDUKIT_HOME", str(tmp_path / "home"))
    return tmp_path


@pytest.mark.parametrize("way", ["full", "lora"])
@pytest.mark.parametrize("kind", DECODERS)
def test_a_decoder_trains_and_generates_as_transformers_has_it(folder: Path, kind: str, way: str) -> None:
    model = write_model(folder / "model", kind, positions=160)
    output = _finetune(folder, kind, way, model, write_data(folder), "--context", str(CONTEXT))
    read = transformers.AutoModelForCausalLM.from_pretrained(output, attn_implementation="eager").eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(output)
    prompt = tokenizer("<|begin|>user\nWhat is 7 and 8?", return_tensors="pt").input_ids
    with torch.no_grad():
        own, logits = load_hub_folder(output).eval()(prompt), read(prompt).logits
    torch.testing.assert_close(own.flatten(), logits[0, -1], atol=1e-4, rtol=1e-4)

    (end,) = {read.generation_config.eos_token_id}
    asked = {"attention_mask": torch.ones_like(prompt), "max_new_tokens": 64, "do_sample": False}
    whole, ended = (
        read.generate(prompt, **asked, eos_token_id=stop, pad_token_id=end)[0, prompt.shape[1] :].tolist()
        for stop in (None, end)
    )  # fmt: skip
    assert len(whole) == 64
    made = prepare_hub_folder(output, folder / "cache", context=128, precision="f32")
    with TextProgram(Path(made.pef), Path(made.checkpoint)) as program:
        greedy = SamplingOptions(temperature=0.0)
        found, stopped = (
            next(generate_all(program, [(prompt[0].tolist(), Sampler(greedy))], 64, ends))[1]
            for ends in (frozenset[int](), frozenset({end}))
        )
    assert found == whole
    assert stopped == [token for token in ended if token != end]
    if way == "full":
        assert len(stopped) < 64, "the model has learnt where texts end, so that the comparison has an end in it"


@pytest.mark.parametrize("way", ["full", "lora"])
def test_a_classifier_of_texts_trains_as_transformers_has_it_and_names_its_classes(folder: Path, way: str) -> None:
    labels = ("bad", "good")
    model = write_bert(folder / "model", id2label=dict(enumerate(labels)), label2id={"bad": 0, "good": 1})
    data = write_texts(folder / "reviews.jsonl", labels)
    output = _finetune(folder, "bert", way, model, data, "--context", "16", "--held-out", "0.25")
    read = transformers.AutoModelForSequenceClassification.from_pretrained(output).eval()
    assert read.config.id2label == {0: "bad", 1: "good"}
    tokenizer = transformers.AutoTokenizer.from_pretrained(output)
    given = tokenizer(["w1 w2 w3", "w101 w102"], return_tensors="pt", padding="max_length", max_length=16)
    with torch.no_grad():
        kinds = torch.zeros_like(given["input_ids"])
        own = load_hub_folder(output).eval()(given["input_ids"], kinds, given["attention_mask"])
        torch.testing.assert_close(own, read(**given).logits, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("way", ["full", "lora"])
def test_a_classifier_of_pictures_trains_as_transformers_has_it_and_names_its_classes(folder: Path, way: str) -> None:
    names = {0: "blue", 1: "green", 2: "red"}
    model = write_vit(folder / "model", id2label=names, label2id={name: number for number, name in names.items()})
    data = write_colours(folder / "colours")
    output = _finetune(folder, "vit", way, model, data, "--held-out", "0.25")
    read = transformers.ViTForImageClassification.from_pretrained(output).eval()
    assert read.config.id2label == names
    pictures = torch.from_numpy(np.load(output / ".finetune" / "data" / "dataset" / "test" / "image.npy"))
    with torch.no_grad():
        own, logits = load_hub_folder(output).eval()(pictures), read(pictures).logits
    torch.testing.assert_close(own, logits, atol=1e-4, rtol=1e-4)


def _finetune(folder: Path, kind: str, way: str, model: Any, data: Path, *more: str) -> Path:
    """Run the command on a folder, or an adapter of it, and compare losses with Trainer's; returns its output."""
    begun, trained = folder / "model", model
    if way == "lora":
        peft = pytest.importorskip("peft", reason="peft is not installed")
        begun = folder / "adapter"
        torch.manual_seed(5)
        config = peft.LoraConfig(
            r=RANK, lora_alpha=ALPHA, target_modules=TARGETS.get(kind, ["q_proj", "v_proj"]),
            fan_in_fan_out=kind == "gpt2", task_type="CAUSAL_LM" if kind in DECODERS else None,
        )  # fmt: skip
        trained = peft.get_peft_model(type(model).from_pretrained(folder / "model"), config)
        trained.save_pretrained(begun)
        more = (*more, "--base", str(folder / "model"))
    output = folder / "out"
    words = [str(begun), str(data), "--output", str(output), "--batch", str(BATCH), "--lr", str(RATES[way]), *more]
    done = CliRunner().invoke(
        finetune, [*words, "--max-steps", str(STEPS), "--epochs", "99", "--json"], catch_exceptions=False
    )
    assert done.exit_code == 0, done.output
    told = json.loads(done.stdout)
    assert told["after"]["held_out_loss"] < told["before"]["held_out_loss"]
    ours, theirs = our_losses(output), _losses_of_trainer(trained, output, folder / "trainer", RATES[way])
    assert len(ours) == len(theirs) == STEPS
    gap = max(abs(our - their) for our, their in zip(ours, theirs, strict=True))
    print(f"\n{kind} {way}: loss {ours[0]:.4f} to {ours[-1]:.4f}, largest difference {gap:.1e}")
    assert gap < 1e-3
    return output


def _losses_of_trainer(model: Any, output: Path, work: Path, rate: float) -> list[float]:
    """Train with Trainer's defaults but for batch, rate and number of steps, on the rows of ours in their order."""
    losses: list[float] = []

    class InOrder(transformers.Trainer):  # type: ignore[misc]
        def _get_train_sampler(self, *_: Any) -> Any:
            return torch.utils.data.SequentialSampler(self.train_dataset)

        def compute_loss(self, model: Any, inputs: Row, *_: Any, **__: Any) -> torch.Tensor:
            targets = inputs.pop("targets")  # those of texts are a token ahead already
            loss = torch.nn.functional.cross_entropy(model(**inputs).logits.flatten(0, -2), targets.flatten())
            losses.append(loss.item())
            return loss

    arguments = transformers.TrainingArguments(
        str(work), per_device_train_batch_size=BATCH, learning_rate=rate, max_steps=STEPS, report_to=[],
        save_strategy="no", use_cpu=True, disable_tqdm=True, remove_unused_columns=False, dataloader_pin_memory=False,
    )  # fmt: skip
    rows = list(_rows(output / ".finetune" / "data" / "dataset"))
    InOrder(model=model, args=arguments, train_dataset=rows).train()
    return losses


def _rows(dataset: Path) -> Iterator[Row]:
    """Yield the rows of all steps in the order of our training."""
    place, left = dataset / "train", STEPS * BATCH
    names = {
        "tokens": "input_ids", "types": "token_type_ids", "mask": "attention_mask", "image": "pixel_values",
        "label": "targets",
    }  # fmt: skip
    is_classes = (place / "label.npy").is_file()
    arrays = {path.stem: np.load(path) for path in place.glob("*.npy")} if is_classes else {}
    for epoch in range(99):
        if is_classes:
            order = np.random.default_rng([0, epoch]).permutation(len(arrays["label"]))
            batches = [
                {names[name]: values[order[at : at + BATCH]] for name, values in arrays.items()}
                for at in range(0, len(order) - BATCH + 1, BATCH)
            ]
        else:
            made = TextData(load_token_dataset(dataset)).batches(BATCH, 0, epoch, 0)
            batches = [{"input_ids": np.asarray(tokens), "targets": labels} for tokens, labels in made]
        for batch in batches:
            for row in range(BATCH if left else 0):
                yield {name: torch.from_numpy(np.array(values[row])) for name, values in batch.items()}
                left -= 1
