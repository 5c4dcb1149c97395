"""GPT-2 on the text of Python's documentation: the losses of eager torch, then the checkpoint chats."""

import json
from pathlib import Path
from pydoc_data.topics import topics

import httpx
import numpy as np
import openai
import pytest
import torch

from rdukit.pef import read_pef
from rdukit_modelbox.contract.box import find_box_file, load_box
from rdukit_modelbox.contract.models import chosen_sizes, entry_of
from rdukit_modelbox.tasks.texts import open_texts
from rdukit_platform.backends.contract import BoxSpec
from rdukit_serving.device.parameters import load_parameters
from rdukit_serving.shape import shape_of
from rdukit_zoo.language.decoder import Decoder, generate_by_recomputing
from sambaflow.samba import utils
from support import shows
from support.boxes import run_verb
from support.platform.warm import start_box

pytestmark = shows("gpt2", "finetune-gpt2", "inference", "training")

STEPS, BATCH, LENGTH = 40, 8, 64
SIZES = {"width": 32, "layers": 2, "heads": 2, "vocabulary": 257, "context_length": LENGTH, "prompt_length": 16}


def test_gpt2_learns_pythons_documentation_as_eager_torch_does_and_chats(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RDUKIT_KERNELS", "portable")
    monkeypatch.setenv("RDUKIT_HOME", str(tmp_path / "home"))
    (tmp_path / "texts").mkdir()
    for name in ("compound", "formatstrings", "debugger"):
        (tmp_path / "texts" / f"{name}.txt").write_text(topics[name], encoding="utf-8")
    made = run_verb("gpt2", "preprocess", tmp_path / "data", {"data": tmp_path / "texts"}, max_seq_length=LENGTH)
    dataset = made.outputs["dataset"]
    pefs = {
        purpose: run_verb(
            "gpt2", "compile", tmp_path / purpose, purpose=purpose, precision="f32", batch_size=BATCH,
            clip_gradients=False, **SIZES,
        ).outputs["pef"]
        for purpose in ("train", "serve")
    }  # fmt: skip
    options = {"max_steps": STEPS, "lr": 0.003, "schedule": "constant", "warmup_steps": 0, "epochs": 9}
    trained = run_verb("gpt2", "train", tmp_path / "run", {"pef": pefs["train"], "dataset": dataset}, **options)
    lines = [json.loads(line) for line in trained.outputs["metrics"].read_text().splitlines()]
    losses = [line["loss"] for line in lines if "lr" in line]

    box = load_box(find_box_file("gpt2"))
    entry = entry_of(box)
    utils.set_seed(0)
    model = entry.build(**chosen_sizes(box, entry, {"variant": "tiny", **SIZES}))
    assert isinstance(model, Decoder)
    data = open_texts(shape_of(read_pef(pefs["train"]).pef, "gpt2"), dataset)
    optimizer = torch.optim.AdamW(model.parameters(), 0.003, betas=(0.9, 0.95), weight_decay=0.01)
    expected = []
    for batch, _ in zip(data.batches(BATCH, 0, 0, 0), range(STEPS), strict=False):
        optimizer.zero_grad()
        loss = model(*map(torch.from_numpy, batch))
        loss.backward()
        optimizer.step()
        expected.append(loss.item())
    assert len(losses) == len(expected) == STEPS
    np.testing.assert_allclose(losses, expected, rtol=1e-2)
    assert np.mean(losses[-5:]) < 0.75 * losses[0]

    checkpoint = trained.outputs["checkpoint"]
    model.load_state_dict(dict(load_parameters(checkpoint)[1]))
    environment = {
        "RDUKIT_BOX_PEF": str(pefs["serve"]), "RDUKIT_BOX_CHECKPOINT": str(checkpoint),
        "RDUKIT_HOME": str(tmp_path / "home"), "OMP_NUM_THREADS": "1",
    }  # fmt: skip
    started = start_box(BoxSpec("gpt2", tmp_path / "state", [tmp_path], environment))
    try:
        http = httpx.Client(trust_env=False)
        with openai.OpenAI(
            base_url=f"{started.rest_url}/v1", api_key="none", max_retries=0, http_client=http
        ) as client:
            prompt = "The with statement"
            text = client.completions.create(model="gpt2", prompt=prompt, max_tokens=12, temperature=0).choices[0].text
            tokens = torch.tensor([list(prompt.encode())])
            assert text == bytes(generate_by_recomputing(model.eval(), tokens, 12)).decode()
            chat = client.chat.completions.create(
                model="gpt2", messages=[{"role": "user", "content": prompt}], max_tokens=12, temperature=0
            )
            assert chat.choices[0].message.role == "assistant" and chat.choices[0].message.content
    finally:
        started.stop()
