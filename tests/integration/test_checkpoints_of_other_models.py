"""Twelve models of the zoo: a checkpoint of other sizes, classes or tokenizer is refused by name, whoever brings it."""

import json
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import CliRunner
from safetensors.torch import save_file

from rdukit.errors import InvalidArgument, RdukitError
from rdukit.pef import read_pef
from rdukit.pef.identity import ModelIdentity, metadata_of, tokenizer_digest
from rdukit_modelbox.contract.box import find_box_file, load_box
from rdukit_modelbox.preprocessing.tokenizer import byte_level_tokenizer
from rdukit_serving.device.loaded_model import LoadedModel
from rdukit_serving.device.prepared_weights import prepare_weights
from rdukit_serving.experts.bundle import load_bundle
from rdukit_serving.experts.sizes import check_checkpoints, find_bundle
from rdukit_serving.shape import Shape, shape_of
from rdukit_serving.text.process import serve_text
from rdukit_zoo.checkpoints.cli import checkpoint
from rdukit_zoo.registry import ModelEntry, SizeValue, get_model
from support import first_short, shows
from support.boxes import run_verb

pytestmark = shows("training", "huggingface", "checkpoints", "portable", "bundles", "vit", "llama")

TEXTS: dict[str, Any] = {
    "width": 16, "layers": 1, "heads": 4, "vocabulary": 257, "context_length": 32, "prompt_length": 16,
}  # fmt: skip
PASSAGES: dict[str, Any] = {"width": 16, "layers": 1, "heads": 4, "context_length": 24}
IMAGES: dict[str, Any] = {"width": 16, "layers": 1, "heads": 4}
BUNDLE = """
apiVersion: rdukit.dev/v1
kind: Bundle
name: shop
memory: {host: 4GiB}
configurations:
  - {name: one, pef: served.pef}
experts:
  - {name: expert, configuration: one, checkpoint: weights.safetensors}
"""


@dataclass(frozen=True)
class Case:
    """A model in its box, with sizes that another checkpoint of the same shapes, or of other classes, may have."""

    box: str
    sizes: dict[str, Any]
    #: Size → its value in the other checkpoint.
    other: Mapping[str, SizeValue] = field(default_factory=dict)
    #: Whether a data set or the box names its classes, and has a tokenizer.
    classes: bool = False
    tokenizer: bool = False

    @property
    def is_text(self) -> bool:
        """Whether it is compiled to continue texts."""
        return "prompt_length" in self.sizes


LLAMA = {"heads": 2, "epsilon": 1e-6, "window": 8, "is_tied": False, "rotary_base": 5e5}
CASES = [
    Case("vit", IMAGES, {"heads": 2, "epsilon": 1e-6, "num_classes": 3}, classes=True),
    Case("llama", {**TEXTS, "key_value_heads": 2, "feed_forward": 16}, LLAMA, tokenizer=True),
    Case("gpt2", TEXTS, {"heads": 2}, tokenizer=True),
    Case("bloom", TEXTS, {"heads": 2, "epsilon": 1e-6}, tokenizer=True),
    Case("falcon", {**TEXTS, "key_value_heads": 1}, {"heads": 2, "epsilon": 1e-6}, tokenizer=True),
    Case(
        "genslm",
        {**TEXTS, "width": 32, "feed_forward": 16},
        {"heads": 2, "epsilon": 1e-6, "rotary_share": 0.5},
        tokenizer=True,
    ),
    Case("bert", PASSAGES, {"heads": 2, "epsilon": 1e-6}, tokenizer=True),
    Case("bert-classifier", PASSAGES, {"heads": 2, "epsilon": 1e-6, "num_classes": 3}, classes=True, tokenizer=True),
    Case("bert-embedder", PASSAGES, {"heads": 2, "epsilon": 1e-6}, tokenizer=True),
    Case("deepvit", IMAGES, {"heads": 2, "num_classes": 3, "norm": "layer"}, classes=True),
    Case("lenet", {}, {"num_classes": 3}, classes=True),
    Case("mlp", {"num_features": 2, "num_classes": 2, "hidden_size": 4}, {"num_classes": 3}, classes=True),
]


@pytest.fixture(autouse=True)
def portable(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Kernels that need no compiler, and a home of its own."""
    monkeypatch.setenv("RDUKIT_KERNELS", "portable")
    monkeypatch.setenv("RDUKIT_HOME", str(tmp_path / "home"))


class Consumers:
    """Everyone who brings a checkpoint of a model together with a PEF, a data set, a tokenizer or a folder."""

    def __init__(self, case: Case, folder: Path) -> None:
        self.case, self.folder = case, folder
        self.dataset = run_verb(case.box, "preprocess", folder / "data", self._texts(), **self._asked()).outputs[
            "dataset"
        ]
        trains = case.box != "bert-embedder"
        self.trained = self._compile("train") if trains else None
        self.served = self._compile("serve")
        self.shape: Shape = shape_of(read_pef(self.served).pef, case.box)
        self.entry = get_model(self.shape.model)
        self.weights = folder / "weights.safetensors"
        shutil.copy(self.served, folder / "served.pef")
        (folder / "bundle.yaml").write_text(BUNDLE)

    def _asked(self) -> dict[str, Any]:
        """Parameters of preprocess: the sizes that it takes, too."""
        if self.case.is_text:
            return {"max_seq_length": self.case.sizes["context_length"], "dev_ratio": 0.3}
        if self.case.box == "mlp":
            return {}
        taken = self.case.sizes if self.case.sizes is IMAGES else {}
        taken = {"context_length": 24} if self.case.sizes is PASSAGES else taken
        columns = {"text_column": "text"} if self.case.sizes is PASSAGES else {}
        return {**taken, **columns, **({} if columns else {"samples": 20})}

    def _texts(self) -> dict[str, Path]:
        """The data that preprocess reads; none for models that draw their own."""
        if self.case.is_text:
            lines = [json.dumps({"prompt": f"{n}+{n}=", "completion": f"{n + n};"}) for n in range(200)]
            (self.folder / "data.jsonl").write_text("\n".join(lines) + "\n")
            return {"data": self.folder / "data.jsonl"}
        if self.case.box == "mlp" or self.case.sizes is PASSAGES:
            rows = [f"{n % 7},{n % 3},{'pos' if n % 2 else 'neg'}" for n in range(40)]
            head = "text,weight,label" if self.case.sizes is PASSAGES else "height,weight,label"
            (self.folder / "data.csv").write_text("\n".join([head, *rows]) + "\n")
            return {"data": self.folder / "data.csv"}
        return {}

    def _compile(self, purpose: str) -> Path:
        made = run_verb(
            self.case.box, "compile", self.folder / purpose, batch_size=4, purpose=purpose, **self.case.sizes
        )
        return Path(made.outputs["pef"])

    def bring(self, **changes: SizeValue) -> ModelIdentity:
        """Write a checkpoint whose model has these sizes in place of the PEF's; return its identity."""
        sizes = {**self.shape.sizes, **changes}
        torch.manual_seed(0)
        model = self.entry.build(**sizes)
        tensors = {name: tensor.clone().contiguous() for name, tensor in model.state_dict().items()}
        identity = self.entry.identity(sizes)
        save_file(tensors, self.weights, metadata=metadata_of(identity))
        return identity

    def name(self, identity: ModelIdentity) -> None:
        """Give the checkpoint that was brought last another identity."""
        tensors = {name: t.clone() for name, t in self.entry.build(**self.shape.sizes).state_dict().items()}
        save_file(tensors, self.weights, metadata=metadata_of(identity))

    def untie(self) -> bool:
        """Give the checkpoint another tensor under the second name of a tied one; returns whether the model has any."""
        tied = self.shape.tensors.tied
        if tied:
            sizes = self.shape.sizes
            tensors = {name: t.clone() for name, t in self.entry.build(**sizes).state_dict().items()}
            save_file({**tensors, tied[0][1]: tensors[tied[0][1]] + 1}, self.weights,
                      metadata=metadata_of(self.entry.identity(sizes)))  # fmt: skip
        return bool(tied)

    def verbs(self) -> Iterator[tuple[str, Callable[[], object]]]:
        """Yield the verbs of the box that take a checkpoint with a data set."""
        asked = {"dataset": self.dataset, "checkpoint": self.weights}
        if self.trained is not None:
            own = {**asked, "pef": self.trained}
            for how in ("weights", "resume"):
                yield f"train {how}", lambda how=how: self._verb("train", own, continue_as=how)  # type: ignore[misc]
            yield "evaluate", lambda: self._verb("evaluate", own)
            yield "infer", lambda: self._verb("infer", own)
        yield "infer served", lambda: self._verb("infer", {**asked, "pef": self.served})

    def _verb(self, verb: str, inputs: dict[str, Path], **parameters: Any) -> object:
        return run_verb(self.case.box, verb, self.folder / "out", inputs, **parameters)

    def servers(self, labels: tuple[str, ...] = ()) -> Iterator[tuple[str, Callable[[], object]]]:
        """Yield what serves the checkpoint: an endpoint or ``rdukit serve``, an expert, a bundle."""
        if not self.case.is_text:
            serving = {"labels": labels} if labels else {}
            yield "serve", lambda: LoadedModel("served", self.served, self.weights, serving)
            return
        (self.folder / "tokenizer.json").write_bytes(byte_level_tokenizer().json)
        yield "serve", lambda: serve_text(None, "served", self.served, self.weights)  # type: ignore[arg-type]
        yield "bundle", lambda: check_checkpoints(find_bundle(load_bundle(self.folder / "bundle.yaml")))

    def expert(self) -> Iterator[tuple[str, Callable[[], object]]]:
        """Yield what prepares an expert's weights."""
        if self.case.is_text:
            pef = read_pef(self.served).pef
            yield "expert", lambda: prepare_weights(pef, self.weights, self.folder / "prepared")

    def converters(self) -> Iterator[tuple[str, Callable[[], object]]]:
        """Yield the export to a Hugging Face folder with the PEF's sizes."""
        if self.entry.hub is not None:
            words = [f"--size={name}={str(value).lower() if isinstance(value, bool) else value}"
                     for name, value in self.shape.sizes.items()]  # fmt: skip
            yield "convert", lambda: convert(self.weights, self.folder / "hub", "--model", self.entry.name, *words)


def convert(*words: object) -> None:
    """Run ``rdukit checkpoint convert``; raises what it is refused with."""
    told = CliRunner().invoke(checkpoint, ["convert", *map(str, words)])
    if told.exception is not None:
        raise told.exception


def outcomes(calls: Iterator[tuple[str, Callable[[], object]]]) -> dict[str, str]:
    """Return what each caller is told; empty: it went on."""
    found = {}
    for name, call in calls:
        found[name] = ""
        try:
            with suppress(AttributeError):  # a server that got as far as its socket, which is none
                call()
        except RdukitError as error:
            found[name] = f"{type(error).__name__}: {error.message}"
    return found


@pytest.mark.parametrize("case", first_short(CASES, 1), ids=lambda case: case.box)
def test_what_differs_is_named_by_everyone_who_is_brought_the_checkpoint(case: Case, tmp_path: Path) -> None:
    consumers = Consumers(case, tmp_path)
    wrong: list[tuple[str, str, str]] = []

    def expect(word: str, calls: Iterator[tuple[str, Callable[[], object]]], least: int) -> None:
        told = outcomes(calls)
        assert len(told) >= least, (word, told)
        wrong.extend((word, who, words) for who, words in told.items()
                     if not words.startswith(InvalidArgument.__name__) or f" {word}" not in words)  # fmt: skip

    for name, value in case.other.items():
        consumers.bring(**{name: value})
        everyone = (*consumers.verbs(), *consumers.servers(), *consumers.expert(), *consumers.converters())
        expect(name, iter(everyone), 2)
    known = consumers.bring()
    if consumers.untie():
        everyone = (*consumers.verbs(), *consumers.servers(), *consumers.expert(), *consumers.converters())
        expect("tie_word_embeddings", iter(each for each in everyone if each[0] != "train resume"), 3)
    if case.classes:
        count = int(consumers.shape.sizes["num_classes"])
        consumers.name(replace(known, classes=tuple(f"kind-{n}" for n in range(count))))
        expect("classes:", consumers.servers(tuple(f"sort-{n}" for n in range(count))), 1)
        if case.box in {"mlp", "bert-classifier"}:
            expect("classes:", consumers.verbs(), 4)
    if case.tokenizer:
        (tmp_path / "tokenizer.json").unlink(missing_ok=True)
        consumers.name(replace(known, tokenizer=tokenizer_digest('{"model": {"vocab": {"a": 0}}}')))
        expect("tokenizer:", consumers.verbs(), 1)
        if case.is_text:
            expect("tokenizer:", iter((*consumers.servers(), *consumers.converters())), 3)
    assert wrong == []


def entry_of_case(case: Case) -> ModelEntry:
    """Return the model of a case's box."""
    return get_model(str(load_box(find_box_file(case.box)).model))


HUB = [case for case in CASES if entry_of_case(case).hub is not None]


@pytest.mark.parametrize("case", first_short(HUB, 1), ids=lambda case: case.box)
def test_a_folder_that_says_another_model_than_its_weights_or_its_options_is_refused(
    case: Case, tmp_path: Path
) -> None:
    entry = entry_of_case(case)
    sizes = entry.check_sizes(case.sizes)
    tensors = {name: tensor.clone() for name, tensor in entry.build(**sizes).state_dict().items()}
    save_file(tensors, tmp_path / "own.safetensors", metadata=metadata_of(entry.identity(sizes)))
    folder = tmp_path / "hub"
    kept = [f"--size={name}={sizes[name]}" for name in ("context_length", "prompt_length") if name in sizes]
    convert(tmp_path / "own.safetensors", folder, "--model", entry.name, *kept)
    convert(folder, tmp_path / "back.safetensors")
    config = json.loads((folder / "config.json").read_text())
    for name, value in case.other.items():
        with pytest.raises(InvalidArgument, match=rf"{name}.* in config\.json, .* in the options"):
            convert(folder, tmp_path / "no.safetensors", f"--size={name}={str(value).lower()}")
        changed = {**config, **entry.hub.config_of_sizes(entry.check_sizes(case.sizes | {name: value}))}  # type: ignore[union-attr]
        (folder / "config.json").write_text(json.dumps(changed))
        with pytest.raises(InvalidArgument, match=rf"{name}.* in the weights model\.safetensors, .* in config\.json"):
            convert(folder, tmp_path / "no.safetensors")
    assert not (tmp_path / "no.safetensors").exists()
