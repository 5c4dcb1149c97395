"""Preference pairs: a language model learns to prefer one completion of a prompt to another (DPO).

Source: Rafailov et al., Direct Preference Optimization (2023), arXiv 2305.18290. The reference is the model that the
training begins with; its margins are computed once, by the same program, and lie in the data set.

Axes: N pairs, B pairs of a batch, T tokens of a sequence, V vocabulary. In a pair, index 0 is the chosen text and 1 the
    rejected one.
"""

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray

from rdukit.errors import InvalidArgument
from rdukit_modelbox.contract.models import read_shape
from rdukit_modelbox.preprocessing.arrays import array_forms, open_arrays, write_arrays
from rdukit_modelbox.preprocessing.articles import trim
from rdukit_modelbox.preprocessing.tokenizer import TextTokenizer, load_tokenizer
from rdukit_modelbox.tasks.arrays import Arrays, run_batches
from rdukit_modelbox.tasks.program import ModelProgram
from rdukit_modelbox.tasks.self_supervised import SelfSupervised
from rdukit_modelbox.verbs.context import VerbContext
from rdukit_serving.device.parameters import load_parameters
from rdukit_zoo.checkpoints.folder import HubFolder, identity_of
from rdukit_zoo.metrics import Meter
from rdukit_zoo.registry import ModelEntry, SizeValue
from sambaflow import samba

#: Arrays of a data set: tokens [N, 2, T], mask of learnt tokens [N, 2, T], and the reference's margins [N].
TOKENS, COUNTED, MARGIN = "tokens", "counted", "margin"


def preference_entry(entry: ModelEntry, beta: float) -> ModelEntry:
    """Return a language model's entry with the same parameters that trains on preference pairs.

    Its forward takes (tokens [B, 2, T], counted [B, 2, T], margin [B]) and returns (loss [], advantage [B]). An
    advantage is ``beta`` times the difference of the model's and the reference's margin; positive: the model prefers
    the chosen text.
    """

    def build(**sizes: SizeValue) -> torch.nn.Module:
        model = entry.build(**sizes)

        def forward(
            self: Any, tokens: torch.Tensor, counted: torch.Tensor, margin: torch.Tensor
        ) -> tuple[torch.Tensor, torch.Tensor]:
            logits = self.logits(tokens.flatten(0, 1))[:, :-1]
            learnt = counted[:, :, 1:].flatten(0, 1)
            lost = F.cross_entropy(logits.flatten(0, 1), tokens[:, :, 1:].flatten(), reduction="none")
            likely_B2 = -(lost.view(learnt.shape) * learnt).sum(-1).view(-1, 2)
            advantage = beta * (likely_B2[:, 0] - likely_B2[:, 1] - margin)
            return -F.logsigmoid(advantage).mean(), advantage

        model.__class__ = type(f"Preferring{type(model).__name__}", (type(model),), {"forward": forward})
        return model

    return replace(
        entry, task="self-supervised", build=build, make_inputs=_make_inputs, text_serving=None,
        limits={TOKENS: "vocabulary"}, output_channels=("advantage",),
    )  # fmt: skip


def _make_inputs(batch_size: int, **sizes: SizeValue) -> tuple[samba.SambaTensor, ...]:
    shape = (batch_size, 2, int(sizes["context_length"]))
    return (
        samba.randint(int(sizes["vocabulary"]), shape, name=TOKENS, batch_dim=0),
        samba.randn(*shape, name=COUNTED, batch_dim=0),
        samba.randn(batch_size, name=MARGIN, batch_dim=0),
    )


class PreferenceMeter:
    """``preferred``: the share of pairs whose chosen completion the model favours more than the reference does.

    ``mean_margin``: the mean advantage, in nats times beta.
    """

    def __init__(self) -> None:
        self._count, self._right, self._sum = 0, 0, 0.0

    def add(self, output: NDArray[Any], given: Mapping[str, NDArray[Any]]) -> None:
        """See ``Meter``."""
        self._count += len(output)
        self._right += int((output > 0).sum())
        self._sum += float(output.sum())

    def figures(self) -> dict[str, float]:
        """See ``Meter``."""
        count = max(self._count, 1)
        return {"preferred": self._right / count, "mean_margin": self._sum / count}


class Preferences(SelfSupervised):
    """(tokens, counted, margin) → (loss, advantage); see ``Task``."""

    def meter(self, program: ModelProgram) -> Meter:
        """Return the meter of correctly ranked pairs."""
        return PreferenceMeter()


def tokenize_pairs(records: Path, hub: HubFolder, context: int, held_out: float, seed: int) -> dict[str, Arrays]:
    """Return both splits of pairs as tokens, with margins of 0.

    A sequence is the prompt, the completion and the end of the text; only completion and end are learnt. A completion
    that does not fit is cut on the right, and has no end then.

    Args:
        records: JSON lines with ``prompt``, ``chosen`` and ``rejected``, as ``prepare_examples`` writes them, with
            their ``place``.
    Raises:
        InvalidArgument: a prompt leaves no room, or the completions of a pair are the same; names file and line.
    """
    tokenizer = load_tokenizer(hub.path)
    tokens, counted = [], []
    for text in records.read_text().split("\n")[:-1]:
        record = json.loads(text)
        made = [_sequence(tokenizer, record, name, context) for name in ("chosen", "rejected")]
        if made[0][0].tolist() == made[1][0].tolist():
            raise InvalidArgument(
                f"{record['place']}: chosen and rejected are the same {context} tokens; expected two completions that "
                "differ, or a larger --context"
            )
        tokens.append(np.stack([sequence for sequence, _ in made]))
        counted.append(np.stack([counts for _, counts in made]))
    margins = np.zeros(len(tokens), np.float32)
    arrays: Arrays = {TOKENS: np.stack(tokens), COUNTED: np.stack(counted), MARGIN: margins}
    return divide_records(arrays, held_out, seed)


def divide_records(arrays: Arrays, held_out: float, seed: int) -> dict[str, Arrays]:
    """Return records [N, …] as the splits ``train`` and ``test``, of which the latter has a share of the records."""
    count = len(next(iter(arrays.values())))
    order = np.random.default_rng(seed).permutation(count)
    held = max(1, int(count * held_out)) if held_out and count > 1 else 0
    chosen = {"train": order[held:], "test": order[:held]}
    return {split: {name: values[rows] for name, values in arrays.items()} for split, rows in chosen.items()}


def _sequence(
    tokenizer: TextTokenizer, record: Mapping[str, str], name: str, context: int
) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
    end = tokenizer.end_id
    prompt = trim(tokenizer.tokenizer.encode(record["prompt"]).ids, end, tokenizer.begin_id, is_inside=False)
    completion = [*tokenizer.tokenizer.encode(record[name], add_special_tokens=False).ids, end]
    if not 0 < len(prompt) < context:
        raise InvalidArgument(
            f"{record['place']}: the prompt has {len(prompt)} tokens; expected 1 to {context - 1}, so that a "
            "completion has room (--context)"
        )
    ids = [*prompt, *completion][:context]
    tokens = np.full(context, tokenizer.pad_id, np.int64)
    counted = np.zeros(context, np.float32)
    tokens[: len(ids)] = ids
    counted[len(prompt) : len(ids)] = 1
    return tokens, counted


def write_records(
    folder: Path, splits: Mapping[str, Arrays], entry: ModelEntry, hub: HubFolder, sizes: Mapping[str, SizeValue]
) -> Path:  # fmt: skip
    """Write records as a data set of arrays; returns its folder."""
    about = {"source": "a fine-tuning's records", "sizes": dict(sizes), "tokenizer": identity_of(hub).tokenizer}
    return write_arrays(folder, array_forms(entry, sizes), splits, about)


def reference_margins(
    context: VerbContext, entry: ModelEntry, pef: Path, checkpoint: Path, dataset: Path, beta: float
) -> dict[str, NDArray[np.float32]]:  # fmt: skip
    """Return a checkpoint's preference for the chosen texts, by split, in nats: the reference of the training.

    Raises:
        Cancelled: between two batches.
    """
    shape = read_shape(context.box, pef)
    program = ModelProgram(shape, entry=entry)
    data = open_arrays(dataset, array_forms(entry, program.shape.sizes))
    program.load(pef)
    try:
        program.parameters_to_device(load_parameters(checkpoint)[1])
        found = {}
        for split in ("train", "test"):
            made = [
                output.reshape(-1) / beta for _, _, output in run_batches(program, data, split, context, "reference")
            ]
            found[split] = np.concatenate([*made, np.zeros(0)]).astype(np.float32)
    finally:
        program.close()
    return found
