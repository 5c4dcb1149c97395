"""Compile a language model to serve: one PEF with the graphs ``prefill`` and ``decode`` over one set of weights.

``prefill`` takes ``tokens`` [1, prompt] and ``last`` [1], the index of the prompt's true last token; ``decode`` takes
``token`` [1, 1] and its ``position`` [1]. Both give logits [1, vocabulary]. ``embed`` takes ``text`` [1, prompt] and
``shares`` [1, prompt], which add up to 1 over the true tokens, and gives a vector [1, width]; it overwrites the caches.
The caches are buffers in device memory.
"""

from dataclasses import replace
from pathlib import Path

import torch

from rdukit.errors import InvalidArgument
from rdukit_modelbox.shape import Shape, TextSizes
from rdukit_zoo.registry import ModelEntry
from sambaflow import samba
from sambaflow.samba.graph import FwdGraph


def compile_text_serving(
    entry: ModelEntry, shape: Shape, name: str, folder: Path, mode: str, target: str, num_tiles: int
) -> Path:
    """Compile to ``<folder>/<name>/<name>.pef`` and return that path.

    Raises:
        InvalidArgument: the model cannot generate.
        CompileError: the compiler refuses.
    """
    serving = entry.text_serving
    if serving is None:
        raise InvalidArgument(f"model {entry.name!r} has no text_serving: it cannot be compiled with purpose=serve")
    text = TextSizes(shape.sizes[serving.context], shape.sizes[serving.prompt], shape.sizes[serving.vocabulary])
    session = samba.session
    session.reset()
    model = serving.build(**shape.sizes)
    samba.from_torch_model_(model)
    tokens = samba.zeros(1, text.prompt, dtype=torch.int64, name="tokens")
    last = samba.zeros(1, dtype=torch.int64, name="last")
    token = samba.zeros(1, 1, dtype=torch.int64, name="token")
    position = samba.zeros(1, dtype=torch.int64, name="position")
    text_tokens = samba.zeros(1, text.prompt, dtype=torch.int64, name="text")
    shares = samba.zeros(1, text.prompt, name="shares")
    (after_prompt,) = session.trace_multigraph(model, (tokens, last), "prefill")
    (after_token,) = session.trace_multigraph(model, (token, position), "decode")
    (vector,) = session.trace_multigraph(model, (text_tokens, shares), "embed")
    session.add_graph(FwdGraph((tokens, last), after_prompt, "prefill"))
    session.add_graph(FwdGraph((token, position), after_token, "decode"))
    session.add_graph(FwdGraph((text_tokens, shares), vector, "embed"))
    found = replace(shape, batch_size=1, task=entry.task, text=text, outputs=("logits",))
    return Path(
        session.compile_multigraph(
            name=name,
            config_dict={
                "output_folder": str(folder), "pef_name": name, "optim_level": mode, "arch": target,
                "num_tiles": num_tiles, "precision": shape.precision,
            },
            pef_metadata=found.to_metadata(),
        )
    )  # fmt: skip
