"""Diagnostic program of a node: the same training and the same patterns in memory on each tile, compared.

``snfadm diag`` starts it. On each single tile it trains a small network with the common sections (convolution,
matrix product, layer norm, softmax, cross entropy, their gradients, an optimizer), and compares losses and parameters
with eager torch and, bit by bit, with the tile before. Then it fills device memory with patterns and reads them back.
At level 3 it trains longer, also in bf16, on more memory, and on whole RDUs. Prints one JSON object a line: ``check``,
``tiles`` (flat numbers), ``verdict`` (pass, skip, fail), ``said``, ``seconds``.
"""

import argparse
import json
import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import torch
from torch import nn

import sambaflow.samba as samba
from rdukit.errors import NoResources, RdukitError
from rdukit_node.private_node import open_lease
from rdukit_node.settings import TILE_AFFINITY_VARIABLE
from sambaflow.samba import utils

APPLICATION: Final = "snfadm-diag"
BATCH: Final = 4
#: Steps of a training on a tile, and bytes of memory that are written on it, by level.
STEPS: Final = {2: 3, 3: 60}
MEMORY: Final = {2: 2 << 20, 3: 32 << 20}
#: Largest difference from eager torch, over the largest value there. Source: the SDK reference's tolerances.
TOLERANCES: Final = {"f32": 1e-4, "bf16": 5e-2}
#: Bytes with which memory is filled; then random bytes follow, which reveal wrong addresses.
PATTERNS: Final = (0x00, 0xFF, 0x55, 0xAA)


class Probe(nn.Module):
    """Network with the common sections: (image [B, 1, 12, 12], label [B]) → (loss [], logits [B, 8])."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(1, 4, 3, padding=1)
        self.pool = nn.MaxPool2d(2)
        self.hidden = nn.Linear(144, 32)
        self.norm = nn.LayerNorm(32)
        self.gate = nn.Linear(32, 32)
        self.out = nn.Linear(32, 8)
        self.criterion = nn.CrossEntropyLoss()

    def forward(self, image: torch.Tensor, label: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        features = self.hidden(self.pool(torch.relu(self.conv(image))).flatten(1))
        mixed = self.norm(features) * torch.softmax(self.gate(features), 1) + torch.tanh(features)
        logits = self.out(nn.functional.gelu(mixed))
        return self.criterion(logits, label), logits


@dataclass(frozen=True, slots=True)
class Training:
    """Result of a training: the losses of its steps, and all parameters in one row."""

    losses: torch.Tensor
    parameters: torch.Tensor


class TrainingCheck:
    """The training of ``Probe`` in one precision, compiled for a number of tiles."""

    def __init__(self, folder: Path, arch: str, precision: str, tiles: int, steps: int) -> None:
        self.precision, self.steps = precision, steps
        self._config = {
            "arch": arch, "precision": precision, "num_tiles": tiles, "output_folder": str(folder),
            "pef_name": f"probe-{precision}-{tiles}", "log_level": "error",
        }  # fmt: skip
        model, inputs, optimizer = self._start()
        self._pef = samba.session.compile(model, inputs, optimizer, config_dict=self._config)
        #: Result of the first tiles, whose bits all others must equal.
        self._first: Training | None = None
        self._reference = self._train_in_torch()

    def run(self) -> str:
        """Train on the available tiles and compare; return a description of the comparison.

        Raises:
            AssertionError: the result differs. RdukitError: the node or the hardware failed.
        """
        found = self._train()
        for name, ours, theirs in (
            ("losses", found.losses, self._reference.losses),
            ("parameters", found.parameters, self._reference.parameters),
        ):
            difference = float((ours - theirs).abs().max() / theirs.abs().max())
            tolerance = TOLERANCES[self.precision]
            # Written with `not`, so that a difference of NaN is refused, too.
            if not difference <= tolerance:
                raise AssertionError(f"{name} differ by {difference:.1e} from eager torch; expected {tolerance:.0e}")
        if self._first is None:
            self._first = found
        elif not torch.equal(found.parameters, self._first.parameters):
            raise AssertionError("parameters differ from those on the first tile")
        return f"{self.steps} training steps in {self.precision}"

    def _start(self) -> tuple[nn.Module, Any, Any]:
        utils.set_seed(7)
        model = Probe()
        samba.from_torch_model_(model)
        inputs = (
            samba.randn(BATCH, 1, 12, 12, name="image", batch_dim=0),
            samba.randint(8, (BATCH,), name="label", batch_dim=0),
        )
        return model, inputs, samba.optim.SGD(model.parameters(), lr=0.05)

    def _train(self) -> Training:
        model, inputs, optimizer = self._start()
        outputs = utils.trace_graph(model, inputs, optimizer, pef=self._pef)
        try:
            losses = []
            for _ in range(self.steps):
                loss, _ = samba.session.run(input_tensors=inputs, output_tensors=outputs)
                losses.append(samba.to_torch(loss).float().mean())
            samba.session.to_cpu(model)
            return Training(torch.stack(losses), _row(samba.to_torch(each) for each in model.parameters()))
        finally:
            samba.session.close()

    def _train_in_torch(self) -> Training:
        model, inputs, _ = self._start()
        plain = Probe()
        plain.load_state_dict({name: samba.to_torch(value).clone() for name, value in model.state_dict().items()})
        optimizer = torch.optim.SGD(plain.parameters(), lr=0.05)
        image, label = (samba.to_torch(each) for each in inputs)
        losses = []
        for _ in range(self.steps):
            optimizer.zero_grad()
            loss, _ = plain(image, label)
            loss.backward()
            optimizer.step()
            losses.append(loss.detach())
        return Training(torch.stack(losses), _row(plain.parameters()))


def check_memory(arch: str, memory_bytes: int) -> str:
    """Fill device memory of the available tiles, and read it back; return a description.

    Raises:
        AssertionError: a byte differs. RdukitError: the node or the hardware failed.
    """
    with open_lease(APPLICATION, arch=arch, tiles=1, memory_bytes=memory_bytes) as lease:
        region = lease.allocate("diagnostic", memory_bytes)
        memory = torch.frombuffer(region.buffer, dtype=torch.uint8)
        for pattern in PATTERNS:
            memory.fill_(pattern)
            lease.check()
            _compare_bytes(memory, torch.full_like(memory, pattern), f"{pattern:#04x}")
        drawn = torch.randint(0, 256, memory.shape, dtype=torch.uint8, generator=torch.Generator().manual_seed(11))
        memory.copy_(drawn)
        lease.check()
        _compare_bytes(memory, drawn, "a random byte")
        del memory
        region.free()
    return f"{len(PATTERNS) + 1} patterns over {memory_bytes >> 20} MiB"


@contextmanager
def only_tiles(tiles: Sequence[int]) -> Iterator[None]:
    """Lease these tiles only, by flat number, while the block lasts."""
    os.environ[TILE_AFFINITY_VARIABLE] = hex(sum(1 << tile for tile in tiles))
    try:
        yield
    finally:
        del os.environ[TILE_AFFINITY_VARIABLE]


def run_check(check: str, tiles: Sequence[int], run: Callable[[], str]) -> dict[str, Any]:
    """Run one check on tiles and return its line."""
    began = time.perf_counter()
    try:
        # Programs print, but stdout is only for our JSON lines.
        with only_tiles(tiles), redirect_stdout(sys.stderr):
            verdict, said = "pass", run()
    except AssertionError as wrong:
        verdict, said = "fail", str(wrong)
    except NoResources as error:
        verdict, said = "skip", f"taken since: {error.message}"
    except RdukitError as error:
        verdict, said = "fail", error.message
    seconds = time.perf_counter() - began
    return {"check": check, "tiles": list(tiles), "verdict": verdict, "said": said, "seconds": round(seconds, 3)}


def main(argv: list[str]) -> None:
    """Run the checks of a level, one line each."""
    parser = argparse.ArgumentParser(prog="python -m rdukit_zoo.diagnostic", description=__doc__)
    parser.add_argument("--arch", required=True)
    parser.add_argument("--level", type=int, choices=(2, 3), default=2)
    parser.add_argument("--tiles", required=True, help="flat numbers, comma-separated")
    parser.add_argument("--rdus", default="", help="flat numbers with commas of each whole RDU, RDUs with semicolons")
    parser.add_argument("--folder", type=Path, required=True, help="folder for PEFs")
    args = parser.parse_args(argv)
    tiles = _numbers(args.tiles)
    rdus = [_numbers(text) for text in args.rdus.split(";") if text]
    is_long, steps = args.level == 3, STEPS[args.level]
    with redirect_stdout(sys.stderr):
        alone = [TrainingCheck(args.folder, args.arch, "f32", 1, steps)]
        if is_long:
            alone.append(TrainingCheck(args.folder, args.arch, "bf16", 1, steps))
        together = [TrainingCheck(args.folder, args.arch, "f32", len(rdus[0]), steps)] if is_long and rdus else []
    for tile in tiles:
        for check in alone:
            tell(run_check(f"sections {check.precision}", [tile], check.run))
        tell(run_check("memory", [tile], lambda: check_memory(args.arch, MEMORY[args.level])))
    for check in together:
        for rdu in rdus:
            tell(run_check("whole RDU", rdu, check.run))


def tell(line: dict[str, Any]) -> None:
    """Print one line, at once."""
    print(json.dumps(line), flush=True)


def _numbers(text: str) -> list[int]:
    return [int(part) for part in text.split(",")]


def _row(tensors: Any) -> torch.Tensor:
    return torch.cat([tensor.detach().float().flatten() for tensor in tensors])


def _compare_bytes(found: torch.Tensor, expected: torch.Tensor, written: str) -> None:
    wrong = int((found != expected).sum())
    if wrong:
        raise AssertionError(f"{wrong} of {len(found)} bytes differ from the written value {written}")


if __name__ == "__main__":
    main(sys.argv[1:])
