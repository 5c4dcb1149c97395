"""How far a model of the zoo on the emulated device is from eager torch: results, gradients, losses of a training.

Small sizes of each model, two a model, are here for tests and for the coverage table of the documents.
"""

import copy
import statistics
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import torch
from torch import nn

from rdukit_zoo.registry import ModelEntry, SizeValue, get_model
from sambaflow import samba
from sambaflow.samba.sambatensor import SambaTensor, unwrap
from support.programs import load_model

_TEXT: Final[dict[str, SizeValue]] = {
    "width": 32,
    "layers": 2,
    "vocabulary": 96,
    "context_length": 16,
    "prompt_length": 8,
}
_BERT: Final[dict[str, SizeValue]] = {
    "width": 32,
    "layers": 2,
    "feed_forward": 48,
    "vocabulary": 264,
    "context_length": 16,
}
_COSMIC: Final[dict[str, SizeValue]] = {"height": 16, "width": 16, "depth": 2, "filters": 2}

#: Model → two sets of sizes, each quick; what is not named has its default.
SMALL_SIZES: Final[Mapping[str, tuple[dict[str, SizeValue], dict[str, SizeValue]]]] = {
    "autodicnn": ({"size": 16}, {"size": 8, "width": 4, "latent": 6}),
    "autophasenn": ({"size": 16, "blocks": 2}, {"size": 8, "width": 2, "blocks": 2, "has_strides": True}),
    "bert": (_BERT, {**_BERT, "heads": 2, "layers": 1, "context_length": 12}),
    "bert_classifier": (_BERT, {**_BERT, "heads": 2, "layers": 1, "num_classes": 5}),
    "bert_embedder": (_BERT, {**_BERT, "heads": 2, "layers": 1, "context_length": 12}),
    "bloom": (_TEXT, {**_TEXT, "heads": 2, "layers": 1}),
    "braggnn": ({}, {"patch_size": 15, "is_wide": True}),
    "cosmictagger2d": (_COSMIC, {**_COSMIC, "is_residual": False, "concatenates": False}),
    "cosmictagger3d": (_COSMIC, {**_COSMIC, "is_residual": False, "concatenates": False}),
    "dcrnn": ({"nodes": 4, "units": 4, "steps": 3, "layers": 1}, {"nodes": 3, "units": 6, "steps": 2, "layers": 2}),
    "decoder": (
        {**_TEXT, "feed_forward": 48},
        {
            **_TEXT, "family": "gemma3", "feed_forward": 40, "window": 5, "window_layers": "01", "attention_cap": 3.0,
            "logit_cap": 2.0, "local_rotary_base": 1e4,
        },
    ),
    "deepvit": ({"width": 32, "layers": 2}, {"width": 16, "layers": 2, "heads": 2, "norm": "layer"}),
    "falcon": (_TEXT, {**_TEXT, "key_value_heads": 2, "has_two_norms": True}),
    "ffn": ({}, {"num_features": 20, "hidden_size": 24, "num_classes": 3}),
    "gan": ({"latent": 8, "width": 4}, {"latent": 16, "width": 3}),
    "gpt2": (_TEXT, {**_TEXT, "heads": 2, "layers": 1, "feed_forward": 40}),
    "lenet": ({}, {"num_classes": 12}),
    "llama": (
        {**_TEXT, "feed_forward": 48},
        {
            **_TEXT, "feed_forward": 40, "is_tied": False, "window": 5, "rotary_kind": "llama3", "rotary_factor": 8.0,
            "rotary_original_length": 8,
        },
    ),
    "logreg": ({}, {"num_features": 30, "num_classes": 3}),
    "mlp": ({}, {"num_features": 20, "hidden_size": 24, "num_classes": 3}),
    "neox": (_TEXT, {**_TEXT, "heads": 2, "is_parallel": False, "rotary_share": 0.5}),
    "polymers": ({}, {"kinds": 7, "length": 9, "width": 12, "layers": 1}),
    "rescalenet": ({"width": 4}, {"width": 4, "blocks_2": 2, "num_classes": 12}),
    "seq2seq": (
        {**_TEXT, "head_width": 8, "feed_forward": 48, "decoder_feed_forward": 48},
        {
            **_TEXT, "family": "bart", "layers": 1, "decoder_layers": 1, "heads": 2, "decoder_heads": 2,
            "head_width": 16, "feed_forward": 40, "decoder_feed_forward": 40, "positions": 20, "activation": "gelu",
            "epsilon": 1e-5, "scales_head": False, "start": 2, "padding": 1,
        },
    ),
    "unet2d": ({"image_size": 16, "init_features": 4}, {"image_size": 32, "init_features": 2, "in_channels": 1}),
    "unet3d": ({"size": 8, "levels": 2, "features": 4}, {"size": 8, "levels": 3, "features": 2}),
    "uno": ({}, {"cell": 20, "descriptors": 24, "fingerprints": 16, "width": 24, "has_two_drugs": False}),
    "vit": ({"width": 32, "layers": 2}, {"width": 16, "layers": 1, "heads": 2, "patch_size": 14}),
    "whisper": (
        {
            "width": 32, "feed_forward": 48, "decoder_feed_forward": 48, "vocabulary": 96, "mels": 8, "states": 12,
            "context_length": 16, "positions": 16, "prompt_length": 8,
        },
        {
            "width": 32, "layers": 1, "decoder_layers": 2, "heads": 2, "decoder_heads": 4, "feed_forward": 40,
            "decoder_feed_forward": 32, "vocabulary": 96, "mels": 5, "states": 7, "context_length": 12, "positions": 16,
            "prompt_length": 8, "start": 3, "padding": 2,
        },
    ),
}  # fmt: skip

BATCH: Final = 4
#: Batches of a training; each comes again after the last.
BATCHES: Final = 5
ADAMW: Final[dict[str, Any]] = {"lr": 1e-3, "betas": (0.9, 0.99), "weight_decay": 0.01, "eps": 1e-8}


@dataclass(frozen=True, slots=True)
class Distance:
    """The largest differences of a training from eager torch in f32, each over the largest value there."""

    outputs: float
    #: Over all parameters but those whose gradient is nothing but rounding, and the parameter that has it.
    gradients: float
    where: str
    #: The median over the parameters.
    median_gradient: float
    #: Of the losses of all steps.
    losses: float
    #: The median gradient of eager torch in bf16; 0 where torch has no such operators.
    eager_bf16_gradient: float = 0.0


def draw_batches(entry: ModelEntry, sizes: Mapping[str, SizeValue]) -> list[tuple[SambaTensor, ...]]:
    """Return ``BATCHES`` batches of named inputs: drawn from the model's physics, else random."""
    if entry.generate is None:
        torch.manual_seed(11)
        return [entry.make_inputs(BATCH, **sizes) for _ in range(BATCHES)]
    arrays = entry.generate(BATCH * BATCHES, 11, **sizes)
    return [
        tuple(
            samba.from_torch_tensor(torch.from_numpy(values[i * BATCH : (i + 1) * BATCH]), name=name, batch_dim=0)
            for name, values in arrays.items()
        )
        for i in range(BATCHES)
    ]


def trains(name: str) -> bool:
    """Return whether the model has a loss: one for embeddings has none."""
    return get_model(name).task != "embedding"


def measure_inference(name: str, sizes: Mapping[str, SizeValue], folder: Path, **config: Any) -> float:
    """Compile a model for inference and return the largest difference of an output, over the largest value there.

    Args:
        name: of the zoo. sizes: those that are not its defaults. config: options of the command line, such as
            ``optim_level="o1", precision="f32"``.
    """
    model, reference, batches = _start(name, sizes)
    model.eval(), reference.eval()
    loaded = load_model(model, batches[0], folder, **config)
    found = [samba.to_torch(tensor).float() for tensor in loaded.run()]
    with torch.no_grad():
        gold = _flat(reference(*_plain(batches[0])))
    return max(_difference(*pair) for pair in zip(found, gold, strict=True))


def measure_training(
    name: str, sizes: Mapping[str, SizeValue], folder: Path, *, steps: int, **config: Any
) -> Distance:  # fmt: skip
    """Compile a model and train it with AdamW beside eager torch, from the same start on the same batches.

    Args:
        name, sizes, config: as of ``measure_inference``. steps: of the training, after a step that changes nothing.
    """
    model, reference, batches = _start(name, sizes)
    half = copy.deepcopy(reference).bfloat16()
    loaded = load_model(model, batches[0], folder, lambda p: samba.optim.AdamW(p, **ADAMW), **config)
    optimizer = torch.optim.AdamW(reference.parameters(), **ADAMW)
    found = [samba.to_torch(tensor).float() for tensor in loaded.run(section_types=["fwd", "bckwd"])]
    gold = _flat(reference(*_plain(batches[0])))
    gold[0].backward()  # type: ignore[no-untyped-call]
    outputs = max(_difference(*pair) for pair in zip(found, gold, strict=True))
    known = {n: p.grad.clone() for n, p in reference.named_parameters() if p.grad is not None}
    gradients = _gradients({n: p.sn_grad for n, p in model.named_parameters()}, known)  # type: ignore[attr-defined]
    where = max(gradients, key=gradients.__getitem__)
    losses, expected = [], []
    for step in range(steps):
        batch = batches[step % BATCHES]
        losses.append(samba.to_torch(loaded.run(input_tensors=batch)[0]).item())
        optimizer.zero_grad()
        loss = _flat(reference(*_plain(batch)))[0]
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        expected.append(loss.item())
    apart = max(abs(ours - theirs) for ours, theirs in zip(losses, expected, strict=True)) / max(map(abs, expected))
    return Distance(
        outputs, gradients[where], where, statistics.median(gradients.values()), apart,
        _bf16_gradient(half, _plain(batches[0]), known),
    )  # fmt: skip


def _start(name: str, sizes: Mapping[str, SizeValue]) -> tuple[nn.Module, nn.Module, list[tuple[SambaTensor, ...]]]:
    """Return a model, its twin and the batches; parameters and inputs are numbers that bf16 has."""
    entry = get_model(name)
    known = entry.check_sizes(sizes)
    torch.manual_seed(5)
    model = entry.build(**known)
    for parameter in model.parameters():
        parameter.data.copy_(parameter.data.bfloat16())
    return model, copy.deepcopy(model), draw_batches(entry, known)


def _plain(batch: tuple[SambaTensor, ...]) -> list[torch.Tensor]:
    return [tensor.torch().clone() for tensor in batch]


def _flat(outputs: Any) -> list[torch.Tensor]:
    return [unwrap(t) for t in (outputs if isinstance(outputs, tuple) else (outputs,))]


def _difference(found: torch.Tensor, gold: torch.Tensor) -> float:
    assert found.shape == gold.shape, f"shape {tuple(found.shape)}, in torch {tuple(gold.shape)}"
    largest = gold.detach().abs().max().item()
    return float((found.detach().double() - gold.detach().double()).abs().max()) / max(largest, 1e-9)


def _gradients(found: Mapping[str, torch.Tensor], gold: Mapping[str, torch.Tensor]) -> dict[str, float]:
    """Return differences by parameter; those whose gradient in torch is nothing but rounding are left out."""
    least = 1e-4 * max(float(value.abs().max()) for value in gold.values())
    return {n: _difference(found[n].float(), value) for n, value in gold.items() if value.abs().max() > least}


def _bf16_gradient(half: nn.Module, batch: list[torch.Tensor], gold: Mapping[str, torch.Tensor]) -> float:
    """Return the median over parameters of the difference that eager torch in bf16 has."""
    try:
        _flat(half(*(t.bfloat16() if t.is_floating_point() else t for t in batch)))[0].backward()  # type: ignore[no-untyped-call]
    except RuntimeError:  # as FFT
        return 0.0
    found = {n: p.grad for n, p in half.named_parameters() if p.grad is not None}
    return statistics.median(_gradients(found, gold).values())
