"""Checkpoints and PEFs of earlier versions are compared by the sizes that they wrote down."""

import json
import logging
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from rdukit.errors import InvalidArgument
from rdukit.pef.checkpoint_files import PREFIX, TRAINING_KEY, check_tokenizer, read_header
from rdukit.pef.identity import ModelIdentity, metadata_of, tokenizer_digest
from rdukit_serving.device.adapters import read_adapter
from rdukit_serving.device.parameters import load_parameters
from rdukit_serving.shape import Shape
from rdukit_serving.text.chat_template import check_draft_tokens
from support import shows

pytestmark = shows("checkpoints", "inference")

OWN = ModelIdentity("gpt2", {"heads": 4, "feed_forward": 64})
SHAPE = Shape("gpt2", {"heads": 4, "feed_forward": 0}, 1, "f32", identity=OWN)


def write(file: Path, sizes: dict[str, Any] | None = None, identity: ModelIdentity | None = None) -> Path:
    """Write a checkpoint: of a training that wrote down sizes, or plain; with an identity, or without."""
    training = {"step": 7, "identity": {"model": "gpt2", "sizes": sizes}}
    metadata = {} if sizes is None else {TRAINING_KEY: json.dumps(training)}
    metadata |= {} if identity is None else metadata_of(identity)
    save_file({f"{PREFIX if sizes else ''}weight": torch.zeros(2, 3)}, file, metadata=metadata)
    return file


def test_a_header_is_read_without_the_tensors(tmp_path: Path) -> None:
    header = read_header(write(tmp_path / "a.safetensors", {"heads": 8}))
    assert (header.step, header.shapes, header.identity, header.trained_sizes) == (
        7, {"weight": (2, 3)}, None, {"heads": 8},
    )  # fmt: skip
    assert read_header(write(tmp_path / "b.safetensors", None, OWN)).identity == OWN
    for damage in (b"", b"12345678", b"\x02" + bytes(7) + b"[]", bytes([255] * 8)):
        (tmp_path / "c.safetensors").write_bytes(damage)
        with pytest.raises(InvalidArgument, match="not a checkpoint that this version can read"):
            read_header(tmp_path / "c.safetensors")


def test_sizes_of_an_earlier_training_are_compared_with_the_pefs(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    other = write(tmp_path / "a.safetensors", {"heads": 8, "feed_forward": 0})
    with pytest.raises(InvalidArgument, match=r"heads \(num_attention_heads\): 8 in the checkpoint .*, 4 in the PEF"):
        load_parameters(other, wanted=SHAPE)
    same = write(tmp_path / "b.safetensors", {"heads": 4, "feed_forward": 0})
    with caplog.at_level(logging.WARNING):
        assert load_parameters(same, wanted=SHAPE)[0] == 7
    assert len(caplog.records) == 1 and "rdukit checkpoint stamp" in caplog.records[0].message


def test_a_checkpoint_is_compared_with_the_sizes_of_an_earlier_pef(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    earlier = replace(SHAPE, identity=None)
    other = write(tmp_path / "a.safetensors", None, replace(OWN, sizes={"heads": 2, "feed_forward": 64}))
    with pytest.raises(InvalidArgument, match=r"heads .*: 2 in the checkpoint .*, 4 in the PEF"):
        load_parameters(other, wanted=earlier)
    with caplog.at_level(logging.WARNING):
        load_parameters(write(tmp_path / "b.safetensors", None, OWN), wanted=earlier)
    assert len(caplog.records) == 1 and "compile it again" in caplog.records[0].message


def test_an_adapter_of_another_model_is_refused(tmp_path: Path) -> None:
    parts = {"layer.lora_A": torch.zeros(1, 3), "layer.lora_B": torch.zeros(2, 1), "layer.lora_scale": torch.ones(1)}
    save_file(parts, tmp_path / "a.safetensors", metadata=metadata_of(replace(OWN, sizes={"heads": 8})))
    assert list(read_adapter(tmp_path / "a.safetensors")[0]) == ["layer"]
    with pytest.raises(InvalidArgument, match=r"heads .*: 8 in the checkpoint .*, 4 in the PEF"):
        read_adapter(tmp_path / "a.safetensors", SHAPE)


def test_a_draft_without_a_tokenizer_was_trained_with_the_models(tmp_path: Path) -> None:
    ours, theirs = (json.dumps({"model": {"vocab": {word: 0}}}) for word in "ab")
    model, draft = tmp_path / "model", tmp_path / "draft"
    for folder, words in ((model, ours), (draft, theirs)):
        folder.mkdir()
        write(folder / "a.safetensors", None, replace(OWN, tokenizer=tokenizer_digest(words)))
    (model / "tokenizer.json").write_text(ours)
    with pytest.raises(InvalidArgument, match=r"tokenizer: .* in the checkpoint a\.safetensors"):
        check_draft_tokens(model / "a.safetensors", draft / "a.safetensors")
    check_draft_tokens(model / "a.safetensors", write(draft / "b.safetensors"))


def test_a_tokenizer_beside_a_checkpoint_is_the_one_that_it_says(tmp_path: Path) -> None:
    ours, theirs = (json.dumps({"model": {"vocab": {word: 0}}}) for word in "ab")
    file = write(tmp_path / "a.safetensors", None, replace(OWN, tokenizer=tokenizer_digest(ours)))
    (tmp_path / "tokenizer.json").write_text(ours)
    check_tokenizer(file, tmp_path / "tokenizer.json")
    (tmp_path / "tokenizer.json").write_text(theirs)
    with pytest.raises(InvalidArgument, match=r"tokenizer: .* in the checkpoint a\.safetensors, .*; add the tokenizer"):
        check_tokenizer(file, tmp_path / "tokenizer.json")
    check_tokenizer(write(tmp_path / "plain.safetensors"), tmp_path / "tokenizer.json")
