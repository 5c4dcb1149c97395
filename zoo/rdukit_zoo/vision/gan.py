"""A generative adversarial network for digits: one network draws them, another distinguishes drawn from real ones.

Both train in one step, each with its own optimizer. The discriminator sees detached images, and the generator is judged
by a discriminator with frozen parameters. `python -m rdukit_zoo.vision.gan` trains it and leaves a picture of samples
for each epoch.

Source: Goodfellow et al., Generative Adversarial Networks (2014); transposed convolutions as in Radford et al., DCGAN
(2016), without batch norms, which would let one step's two passes disturb each other's statistics.

Axes: B batch, Z latent values of a sample.
"""

import argparse
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import nn
from torch.func import functional_call

import sambaflow.samba as samba
from rdukit.files.atomic import atomic_target
from rdukit_zoo.datasets.digits import SIDE, digit_images
from rdukit_zoo.registry import SizeValue, Variant, model


class Generator(nn.Module):
    """noise [B, Z] → image [B, 1, 28, 28] on 0..1."""

    def __init__(self, latent: int, width: int) -> None:
        super().__init__()
        self.width = width
        self.dense = nn.Linear(latent, 2 * width * 49)
        self.grow_1 = nn.ConvTranspose2d(2 * width, width, 4, 2, 1)
        self.grow_2 = nn.ConvTranspose2d(width, 1, 4, 2, 1)

    def forward(self, noise: torch.Tensor) -> torch.Tensor:
        x = F.relu(self.dense(noise)).view(-1, 2 * self.width, 7, 7)
        return torch.sigmoid(self.grow_2(F.relu(self.grow_1(x))))


class Discriminator(nn.Module):
    """image [B, 1, 28, 28] → logit [B, 1], positive for images that look real."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.conv_1, self.conv_2 = nn.Conv2d(1, width, 4, 2, 1), nn.Conv2d(width, 2 * width, 4, 2, 1)
        self.dense = nn.Linear(2 * width * 49, 1)

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        x = F.leaky_relu(self.conv_1(image), 0.2)
        logit: torch.Tensor = self.dense(F.leaky_relu(self.conv_2(x), 0.2).flatten(1))
        return logit


class Gan(nn.Module):
    """(noise [B, Z], image [B, 1, 28, 28]) → (loss [], samples [B, 1, 28, 28]); the noise alone → the samples.

    The loss is the sum of the discriminator's and the generator's; each part's gradient reaches its own network only.
    """

    def __init__(self, latent: int = 32, width: int = 16) -> None:
        super().__init__()
        self.generator, self.discriminator = Generator(latent, width), Discriminator(width)

    def forward(
        self, noise: torch.Tensor, image: torch.Tensor | None = None
    ) -> torch.Tensor | tuple[torch.Tensor, torch.Tensor]:
        samples: torch.Tensor = self.generator(noise)
        if image is None:
            return samples
        real, drawn = self.discriminator(image), self.discriminator(samples.detach())
        told_apart = F.softplus(-real).mean() + F.softplus(drawn).mean()
        still = {name: parameter.detach() for name, parameter in self.discriminator.named_parameters()}
        believed = F.softplus(-functional_call(self.discriminator, still, (samples,))).mean()
        return told_apart + believed, samples


def make_inputs(batch_size: int, latent: int = 32, **sizes: SizeValue) -> tuple[samba.SambaTensor, ...]:
    """Return dummy inputs: ``noise`` [batch, latent] and ``image`` [batch, 1, 28, 28]."""
    noise = samba.randn(batch_size, latent, name="noise", batch_dim=0)
    return noise, samba.rand(batch_size, 1, SIDE, SIDE, name="image", batch_dim=0)


def generate(count: int, seed: int, **sizes: SizeValue) -> dict[str, NDArray[Any]]:
    """Return noise, and the bundled digits; see ``digit_images``."""
    noise = np.random.default_rng([seed, 23]).standard_normal((count, int(sizes["latent"])), np.float32)
    return {"noise": noise, "image": digit_images(count, seed)["image"]}


def make_optimizers(net: Gan, lr: float) -> list[samba.optim.AdamW]:
    """Return the optimizers of the generator and of the discriminator, which learns at half the rate."""
    parts = ((net.generator, lr), (net.discriminator, lr / 2))
    return [samba.optim.AdamW(part.parameters(), lr=rate, betas=(0.5, 0.99), weight_decay=0.0) for part, rate in parts]


def draw_samples(images: NDArray[Any], path: Path, columns: int = 8) -> None:
    """Write images [N, 1, Y, X] on 0..1 as a PNG of rows of ``columns``."""
    from PIL import Image

    rows = len(images) // columns
    sheet = images[: rows * columns, 0].reshape(rows, columns, SIDE, SIDE).transpose(0, 2, 1, 3)
    with atomic_target(path) as temporary:
        Image.fromarray((sheet.reshape(rows * SIDE, columns * SIDE) * 255).astype(np.uint8)).save(temporary, "png")


def main() -> None:
    """Compile a graph with two optimizers, train, and leave ``epoch-<n>.png`` with samples after each epoch."""
    from rich.progress import track

    from sambaflow.samba import utils

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--images", type=int, default=10_000, help="number of bundled digits")
    parser.add_argument("--batch-size", "-b", type=int, default=64)
    parser.add_argument("--lr", type=float, default=1e-3)
    parser.add_argument("--precision", choices=["bf16", "f32"], default="bf16")
    parser.add_argument("--out", type=Path, default=Path("out/gan"))
    options = parser.parse_args()
    utils.set_seed(0)
    net = Gan()
    samba.from_torch_model_(net)
    inputs, optimizers = make_inputs(options.batch_size), make_optimizers(net, options.lr)
    config = {
        "output_folder": str(options.out), "pef_name": "gan", "precision": options.precision, "log_level": "error",
    }  # fmt: skip
    pef = samba.session.compile(net, inputs, optimizers, name="gan", config_dict=config)
    traced = utils.trace_graph(net, inputs, optimizers, pef=pef)
    arrays = generate(options.images, 0, latent=32)
    shown = arrays["noise"][: options.batch_size]
    steps = options.images // options.batch_size
    for epoch in range(1, options.epochs + 1):
        order, total = np.random.default_rng(epoch).permutation(options.images), 0.0
        noise = np.random.default_rng([epoch, 1]).standard_normal(arrays["noise"].shape, np.float32)
        for step in track(range(steps), f"epoch {epoch}"):
            chosen = order[step * options.batch_size : (step + 1) * options.batch_size]
            batch = {"noise": noise[chosen], "image": arrays["image"][chosen]}
            given = [samba.from_torch_tensor(torch.from_numpy(v), name=k) for k, v in batch.items()]
            loss, _ = samba.session.run(input_tensors=given, output_tensors=traced)
            total += samba.to_torch(loss).item()
        batch = {"noise": shown, "image": arrays["image"][: options.batch_size]}
        given = [samba.from_torch_tensor(torch.from_numpy(v), name=k) for k, v in batch.items()]
        _, samples = samba.session.run(input_tensors=given, output_tensors=traced, section_types=["fwd"])
        draw_samples(samba.to_torch(samples).float().numpy(), options.out / f"epoch-{epoch}.png")
        print(f"Epoch [{epoch}/{options.epochs}], Loss: {total / steps:.4f}", flush=True)
    samba.session.close()


model(
    name="gan",
    title="GAN that draws digits",
    task="generative",
    licence="Apache-2.0",
    source="Goodfellow et al., Generative Adversarial Networks (2014), arXiv 1406.2661; the sizes are ours",
    sizes={"latent": 32, "width": 16},
    make_inputs=make_inputs,
    variants={"digits": Variant({}, 70_274)},
    generate=generate,
    is_drawn_from_a_set=True,
)(Gan)

if __name__ == "__main__":
    main()
