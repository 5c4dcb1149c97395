"""A model of Llama-2-7B's size is compiled for inference from parameters that have no values: little memory, no weight.

Bars: under 3 GB and 3 minutes; the bounds here leave room for a busy machine.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from rdukit.pef import read_pef
from support import shows

pytestmark = [shows("pytorch", "engine", "o1"), pytest.mark.long]

PROGRAM = """
import json, resource, sys
import torch
from torch import nn
from sambaflow import samba

WIDTH, HEADS, LAYERS, INNER, VOCABULARY, LENGTH = 4096, 32, 32, 11008, 32000, 2048

class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.norms = nn.ModuleList(nn.RMSNorm(WIDTH) for _ in range(2))
        self.q, self.k, self.v, self.o = (nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(4))
        self.gate, self.up = (nn.Linear(WIDTH, INNER, bias=False) for _ in range(2))
        self.down = nn.Linear(INNER, WIDTH, bias=False)
    def forward(self, x):
        norm = self.norms[0](x)
        heads = (part(norm).view(1, LENGTH, HEADS, -1).transpose(1, 2) for part in (self.q, self.k, self.v))
        mixed = nn.functional.scaled_dot_product_attention(*heads, is_causal=True)
        x = x + self.o(mixed.transpose(1, 2).contiguous().view(1, LENGTH, WIDTH))
        norm = self.norms[1](x)
        return x + self.down(nn.functional.silu(self.gate(norm)) * self.up(norm))

class Llama(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(VOCABULARY, WIDTH)
        self.layers = nn.Sequential(*(Layer() for _ in range(LAYERS)))
        self.norm, self.head = nn.RMSNorm(WIDTH), nn.Linear(WIDTH, VOCABULARY, bias=False)
    def forward(self, tokens):
        return self.head(self.norm(self.layers(self.embed(tokens))))

with torch.device("meta"):
    model = Llama()
samba.from_torch_model_(model)
tokens = samba.SambaTensor(shape=(1, LENGTH), dtype=torch.int64, name="tokens")
options = {"output_folder": sys.argv[1], "pef_name": "llama", "optim_level": "o1", "log_level": "error"}
path = samba.session.compile(model, {"tokens": tokens}, name="llama", inference=True, config_dict=options)
print(json.dumps({
    "path": path,
    "still_meta": all(parameter.is_meta for parameter in model.parameters()),
    "peak_kib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss,
}))
"""


def test_llama_2_7b_is_planned_within_3_gb_and_3_minutes_and_touches_no_weight(tmp_path: Path) -> None:
    environ = {**os.environ, "RDUKIT_HOME": str(tmp_path / "home"), "RDUKIT_KERNELS": "portable"}
    made = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(tmp_path / "out")],
        env=environ, capture_output=True, text=True, check=True, timeout=180,
    )  # fmt: skip
    found = json.loads(made.stdout.splitlines()[-1])
    assert found["still_meta"]
    assert found["peak_kib"] < 3 << 20
    pef = read_pef(Path(found["path"])).pef
    weights = [symbol for symbol in pef.symbols.values() if symbol.kind == "parameter"]
    assert sum(symbol.bytes for symbol in weights) == 2 * 6_738_415_616
    assert Path(found["path"]).stat().st_size < 20 << 20
