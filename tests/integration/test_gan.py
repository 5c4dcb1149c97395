"""The GAN as a program: two optimizers in one step, as eager torch does it, and a picture of samples each epoch."""

import copy
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from rdukit_zoo.vision.gan import Gan, generate, make_optimizers
from sambaflow import samba
from support import shows
from support.programs import load_model

pytestmark = [shows("gan"), pytest.mark.long]


@pytest.fixture(autouse=True)
def portable(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Kernels that need no compiler, and a home of its own."""
    monkeypatch.setenv("RDUKIT_KERNELS", "portable")
    monkeypatch.setenv("RDUKIT_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("OMP_NUM_THREADS", "1")


def test_two_optimizers_in_one_step_are_those_of_eager_torch(tmp_path: Path) -> None:
    samba.session.reset()
    torch.manual_seed(0)
    net = Gan(latent=8, width=4)
    reference = copy.deepcopy(net)
    arrays = {k: torch.from_numpy(v) for k, v in generate(80, 0, latent=8).items()}
    batches = [{k: v[start : start + 16] for k, v in arrays.items()} for start in range(0, 80, 16)]
    named = [tuple(samba.from_torch_tensor(v, name=k, batch_dim=0) for k, v in batch.items()) for batch in batches]
    loaded = load_model(net, named[0], tmp_path, lambda _: make_optimizers(net, 1e-3), precision="f32")
    theirs = [
        torch.optim.AdamW(part.parameters(), rate, betas=(0.5, 0.99), weight_decay=0.0)
        for part, rate in ((reference.generator, 1e-3), (reference.discriminator, 5e-4))
    ]
    losses, expected = [], []
    for step in range(40):
        losses.append(samba.to_torch(loaded.run(input_tensors=named[step % 5])[0]).item())
        for optimizer in theirs:
            optimizer.zero_grad()
        loss = reference(*batches[step % 5].values())[0]
        loss.backward()
        for optimizer in theirs:
            optimizer.step()
        expected.append(loss.item())
    np.testing.assert_allclose(losses, expected, rtol=1e-2)
    assert max(losses) - min(losses) > 0.05


def test_the_program_leaves_a_picture_of_samples_for_each_epoch(tmp_path: Path) -> None:
    options = ["--epochs", "2", "--images", "64", "--batch-size", "16", "--out", str(tmp_path)]
    done = subprocess.run(
        [sys.executable, "-m", "rdukit_zoo.vision.gan", *options], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert "Epoch [2/2], Loss: " in done.stdout
    pictures = [np.asarray(Image.open(tmp_path / f"epoch-{epoch}.png")) for epoch in (1, 2)]
    assert pictures[0].shape == (2 * 28, 8 * 28) and (pictures[0] != pictures[1]).any()
