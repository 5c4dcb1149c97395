"""Run a box's verbs for its picture: draw data, compile, train, and keep what the trained model says of held-out data.

Axes: N samples, T tokens, V vocabulary.
"""

import json
import math
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from docs import load_recipes
from rdukit_modelbox.contract.box import find_box_file, load_box
from rdukit_modelbox.contract.models import entry_of, read_shape
from rdukit_modelbox.tasks import task_of
from rdukit_modelbox.tasks.arrays import ArrayTask, run_batches
from rdukit_modelbox.tasks.program import ModelProgram
from rdukit_modelbox.tasks.texts import TextData, open_texts
from rdukit_serving.device.parameters import load_parameters
from rdukit_serving.shape import IGNORED
from rdukit_serving.text.program import TextProgram
from rdukit_serving.text.sampling import Sampler, SamplingOptions, log_probabilities
from rdukit_zoo.datasets.genes import draw_genes
from support.boxes import RecordingContext, run_verb

#: Held-out samples that a run keeps.
KEPT: Final = 512
#: Tokens of a prompt that is cut out of the data, and of its continuation.
PROMPT_TOKENS, NEW_TOKENS = 12, 72
#: What a language model is trained with: less than its recipe, which takes longer.
LANGUAGE: Final[Mapping[str, Any]] = {
    "preprocess": {"tokenizer": "bpe", "vocab_size": 1024, "max_seq_length": 96},
    "compile": {"width": 96, "layers": 2, "heads": 4, "batch_size": 16},
    "train": {"epochs": 6, "lr": 0.004},
}
#: What is run instead of the recipes in docs/zoo.md.
RECIPES: Final[Mapping[str, Mapping[str, Any]]] = {
    "cosmictagger3d": {
        "preprocess": {"samples": 200}, "compile": {"batch_size": 8},
        "train": {"epochs": 6, "lr": 0.01, "schedule": "cosine"},
    },
    "deepvit": {
        "preprocess": {"samples": 10000}, "compile": {"batch_size": 64},
        "train": {"epochs": 4, "lr": 0.002, "schedule": "cosine"},
    },
    "ffn": {"train": {"epochs": 4}},
    "gan": {
        "preprocess": {"samples": 10000}, "compile": {"batch_size": 64},
        "train": {"epochs": 20, "lr": 0.0005},
    },
    "logreg": {"train": {"epochs": 5}},
    "mlp": {"train": {"epochs": 4}},
    "rescalenet": {
        "preprocess": {"samples": 10000}, "compile": {"batch_size": 64},
        "train": {"epochs": 4, "lr": 0.002, "schedule": "cosine"},
    },
    "genslm": {
        "preprocess": {"max_seq_length": 128}, "compile": {"width": 64, "layers": 2, "heads": 4, "batch_size": 16},
        "train": {"epochs": 3, "lr": 0.003},
    },
    **dict.fromkeys(
        ("decoder", "gpt2", "llama", "llama2", "llama3", "mistral", "falcon", "bloom", "deepseek-coder"), LANGUAGE
    ),
}  # fmt: skip
#: Beginnings of texts that language models continue.
PROMPTS: Final[Mapping[str, str]] = {
    "decoder": "The name of the module is",
    "gpt2": "The with statement is used to", "llama": "If the class has a method named",
    "llama2": "An exception is raised when", "llama3": "The value of the expression is",
    "mistral": "When a function is called,", "falcon": "The string is converted to",
    "bloom": "Sequences are compared", "deepseek-coder": "class C:\n    def __init__(self",
}  # fmt: skip
#: A box that is trained for another, which itself does not train.
TRAINED_BY: Final[Mapping[str, str]] = {"bert-embedder": "bert"}


@dataclass(slots=True)
class Run:
    """Results of a run: arrays by name, and the facts for its caption."""

    box: str
    steps: int
    seconds: float
    figures: dict[str, float]
    recipe: dict[str, dict[str, Any]]
    sizes: dict[str, Any]
    texts: dict[str, Any] = field(default_factory=dict)
    arrays: dict[str, NDArray[Any]] = field(default_factory=dict)

    def save(self, folder: Path) -> None:
        """Write ``run.json`` and ``arrays.npz``."""
        folder.mkdir(parents=True, exist_ok=True)
        np.savez_compressed(folder / "arrays.npz", allow_pickle=False, **self.arrays)
        known = {key: value for key, value in asdict(self).items() if key != "arrays"}
        (folder / "run.json").write_text(json.dumps(known))


def read_run(folder: Path) -> Run:
    """Read what ``Run.save`` wrote."""
    with np.load(folder / "arrays.npz") as arrays:
        return Run(**json.loads((folder / "run.json").read_text()), arrays=dict(arrays))


def run_box(name: str, folder: Path) -> Run:
    """Train a box by its recipe and collect results on held-out data; the seed is 0 everywhere."""
    recipes = {**load_recipes(), **RECIPES}
    trained = TRAINED_BY.get(name, name)
    recipe = {verb: dict(recipes[trained].get(verb) or {}) for verb in ("preprocess", "compile", "train")}
    box = load_box(find_box_file(name))
    is_text = "max_seq_length" in {parameter.name for parameter in box.parameters}
    data = {"data": _write_texts(name, folder / "texts")} if is_text else {}
    made = run_verb(trained, "preprocess", folder / "data", data, **recipe["preprocess"])
    dataset = made.outputs["dataset"]
    settings = {**made.figures["compile_parameters"], **recipe["compile"], "precision": "f32"}  # type: ignore[dict-item]
    pef = run_verb(trained, "compile", folder / "pef", purpose="train", **settings).outputs["pef"]
    began = time.process_time()  # of one thread: what else the machine does does not count
    done = run_verb(trained, "train", folder / "run", {"pef": pef, "dataset": dataset}, **recipe["train"])
    seconds = float(recipes[trained].get("seconds") or time.process_time() - began)
    checkpoint = done.outputs["checkpoint"]
    shape = read_shape(load_box(find_box_file(trained)), pef)
    figures = {key: value for key, value in done.figures.items() if isinstance(value, float | int)}
    run = Run(name, int(figures["steps"]), seconds, {}, recipe, dict(shape.sizes))
    if is_text:
        settings = {**settings, "purpose": "serve"}
        serving = run_verb(name, "compile", folder / "serve", **settings).outputs["pef"]
        _collect_texts(run, open_texts(shape, dataset), serving, checkpoint, done.outputs["metrics"])
        run.figures = {"held_out_loss": figures["held_out_loss"], "perplexity": figures["perplexity"]}
        return run
    if trained != name:
        kept = {key: value for key, value in settings.items() if key in {p.name for p in box.parameters}}
        pef = run_verb(name, "compile", folder / "serve", **kept).outputs["pef"]
        dataset = run_verb(name, "preprocess", folder / "own", **recipe["preprocess"]).outputs["dataset"]
    _collect_arrays(run, pef, dataset, checkpoint)
    return run


def _collect_arrays(run: Run, pef: Path, dataset: Path, checkpoint: Path) -> None:
    """Keep the first held-out samples and what the model gives for them, and the figures of all of them."""
    box = load_box(find_box_file(run.box))
    entry, shape = entry_of(box), read_shape(box, pef)
    task: Any = task_of(shape.task)
    data = task.open_data(entry, shape, dataset)
    _, kept = load_parameters(checkpoint, "newest")
    program = ModelProgram(shape, entry=entry)
    program.load(pef)
    try:
        if not isinstance(task, ArrayTask):
            program.parameters_to_device(kept)
            samples = data.dataset.split("test")
            size = shape.batch_size
            outputs = [program.logits_of(samples.features_NF[row : row + size]) for row in range(0, len(samples), size)]
            output = np.concatenate(outputs)
            run.figures = {"accuracy": float((output.argmax(1) == samples.labels_N).mean())}
            run.arrays = {"images": samples.features_NF, "labels": samples.labels_N, "output": output}
        else:
            program.parameters_to_device(task.parameters(program, kept))
            meter, parts = task.meter(program), []
            for given, _, output in run_batches(program, data, "test", RecordingContext(box), "infer"):
                meter.add(output, given)
                parts.append({**given, "output": output})
            run.figures = {key: float(value) for key, value in meter.figures().items()}
            run.arrays = {key: np.concatenate([part[key] for part in parts]) for key in parts[0]}
    finally:
        program.close()
    run.arrays = {key: values[:KEPT] for key, values in run.arrays.items()}
    if run.box == "logreg":
        run.arrays["weight"] = next(value.numpy() for value in kept.values() if value.dim() == 2)


def _collect_texts(run: Run, data: TextData, pef: Path, checkpoint: Path, metrics: Path) -> None:
    """Keep a prompt, its continuation with the probability of each token, and the curves of the losses."""
    tokenizer = data.dataset.tokenizer()
    if run.box in PROMPTS:
        prompt = tokenizer.encode(PROMPTS[run.box]).ids
    else:
        prompt = [int(token) for token in next(iter(data.held_out("dev", 1)))[0][0, :PROMPT_TOKENS]]
    chosen: list[int] = []
    chances: list[float] = []
    with TextProgram(pef, checkpoint) as program:
        sampler = Sampler(SamplingOptions(temperature=0.5, top_k=40, seed=0))
        logits_V, position = program.start(prompt), len(prompt)
        while len(chosen) < NEW_TOKENS:
            token = sampler.choose(logits_V)
            chosen.append(int(token))
            chances.append(float(np.exp(log_probabilities(logits_V)[token])))
            logits_V, position = program.step(chosen[-1], position), position + 1
    lines = [json.loads(line) for line in metrics.read_text().splitlines()]
    losses = [(line["step"], line["loss"]) for line in lines if "lr" in line]
    held_out = [(line["step"], line["loss"]) for line in lines if "split" in line]
    run.arrays = {"loss": np.array(losses), "held_out": np.array(held_out), "chances": np.array(chances)}
    run.texts = {
        "prompt": _pieces(tokenizer, prompt), "tokens": _pieces(tokenizer, chosen),
        "unigram": _unigram_entropy(data),
    }  # fmt: skip


def _pieces(tokenizer: Any, tokens: Sequence[int]) -> list[str]:
    """Return each token's text."""
    texts = [tokenizer.decode(list(tokens[: end + 1])) for end in range(len(tokens))]
    return [text[len(before) :] for before, text in zip(["", *texts], texts, strict=False)]


def _unigram_entropy(data: TextData) -> float:
    """Return the loss of who knows only how often each token is in the training texts, on the held-out ones; in nats.

    A token is counted once more than it occurs.
    """
    counts: Counter[int] = Counter()
    for _, labels in data.batches(1, 0, 0, 0):
        counts.update(labels[labels != IGNORED].tolist())
    total = sum(counts.values()) + data.dataset.vocab_size
    lost = [
        -math.log((counts[int(token)] + 1) / total)
        for _, labels in data.held_out("dev", 1)
        for token in labels[labels != IGNORED]
    ]
    return float(np.mean(lost))


def _write_texts(name: str, folder: Path) -> Path:
    """Write the texts that a language model reads: Python's documentation, or drawn genes for GenSLM."""
    from pydoc_data.topics import topics

    folder.mkdir(parents=True, exist_ok=True)
    texts = {"genes": "".join(f"{gene}\n" for gene in draw_genes(2000, seed=0))} if name == "genslm" else topics
    for topic, text in texts.items():
        (folder / f"{topic}.txt").write_text(text)
    return folder


def some_wrong(is_right: NDArray[np.bool_], count: int) -> list[int]:
    """Return the first samples that are right, and as the last two those that are wrong."""
    right, wrong = np.flatnonzero(is_right), np.flatnonzero(~is_right)[:2]
    return [*map(int, right[: count - len(wrong)]), *map(int, wrong)]


def softmax(logits: NDArray[Any]) -> NDArray[Any]:
    """Return probabilities along the last axis."""
    powers = np.exp(logits - logits.max(-1, keepdims=True))
    found: NDArray[Any] = powers / powers.sum(-1, keepdims=True)
    return found
