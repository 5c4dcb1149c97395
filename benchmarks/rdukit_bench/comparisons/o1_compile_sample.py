"""One compile of the compile-time comparison in a fresh process, as JSON: seconds of the wall's and the CPU's clock.

``WHO LAYERS KIND FOLDER``; WHO is ``ours``, ``peer`` or ``peer-with-weights``, KIND ``inference`` or ``training``.
Counted from the model built in memory, with torch imported, to the file written; what else has to be imported counts,
for both. CPU time is that of the process and all that it started. The peer of training writes no file: it is
``torch.compile``, to the end of its first forward and backward.
"""

import json
import resource
import sys
import time
import warnings
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

import torch

from rdukit_zoo.modules import PlainGpt2

LENGTH = 128
WORDS = 50257

#: Model, kind and folder → the file's path, if there is one.
CompileModel = Callable[[PlainGpt2, str, str], str | None]


def ours(model: PlainGpt2, kind: str, folder: str) -> str:
    """Compile as a program's ``compile`` does, O1 in f32. Returns the PEF's path."""
    from sambaflow import samba

    samba.from_torch_model_(model)
    names = ["tokens"] if kind == "inference" else ["tokens", "targets"]
    inputs = tuple(samba.SambaTensor(shape=(1, LENGTH), dtype=torch.int64, name=name) for name in names)
    optimizer = None if kind == "inference" else samba.optim.AdamW(model.parameters(), lr=1e-4)
    config = {"output_folder": folder, "pef_name": "gpt2", "optim_level": "o1", "precision": "f32", "num_tiles": 4,
              "log_level": "error"}  # fmt: skip
    made = samba.session.compile(model, inputs, optimizer, name="gpt2", inference=optimizer is None, config_dict=config)
    return str(made)


def peer(model: PlainGpt2, kind: str, folder: str, has_weights: bool = False) -> str | None:
    """Compile the whole graph by AOTInductor, as a rule without the weights, which a PEF does not hold either."""
    tokens = torch.zeros(1, LENGTH, dtype=torch.int64)
    if kind == "training":
        loss = torch.compile(model)(tokens, tokens)
        loss.backward()
        return None
    with torch.no_grad():
        exported = torch.export.export(model, (tokens,))
        return str(
            torch._inductor.aoti_compile_and_package(
                exported, package_path=str(Path(folder) / "gpt2.pt2"),
                inductor_configs={"aot_inductor.package_constants_in_so": has_weights},
            )
        )  # fmt: skip


def measure(compile_model: CompileModel, layers: int, kind: str, folder: str) -> dict[str, float]:
    """Build the model, then count."""
    torch.manual_seed(0)
    model = PlainGpt2(layers=layers, words=WORDS)
    model.train(kind == "training")
    began, cpu_began = time.perf_counter(), cpu_seconds()
    path = compile_model(model, kind, folder)
    found = {"wall_s": time.perf_counter() - began, "cpu_s": cpu_seconds() - cpu_began}
    return {**found, "bytes": float(Path(path).stat().st_size) if path else 0.0}


def cpu_seconds() -> float:
    """Return the CPU time of this process and of its children that have ended."""
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(each.ru_utime + each.ru_stime for each in used)


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    WHO: Mapping[str, CompileModel] = {"ours": ours, "peer": peer, "peer-with-weights": partial(peer, has_weights=True)}
    who, layers, kind, folder = sys.argv[1:]
    print(json.dumps(measure(WHO[who], int(layers), kind, folder)))
