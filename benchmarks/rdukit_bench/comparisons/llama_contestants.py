"""The contestants of the Llama comparison, each for a process of its own: torch, ours, llama.cpp.

Each has the calls ``prefill``; ``fill``, which puts the text up to ``POSITION`` into the cache; and ``decode``, one
token there. All give logits [1, vocabulary] but ``fill``.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import torch

from rdukit_bench.comparisons.contestant import ContestantCalls
from rdukit_bench.comparisons.llama_cpp_peer import LlamaCpp, write_gguf
from rdukit_zoo.language.llama import Llama, LlamaSizes
from rdukit_zoo.registry import get_model
from sambaflow import samba
from sambaflow.samba.graph import FwdGraph
from sambaflow.samba.session import SambaSession

#: Where decode is timed: the cache is filled up to here.
POSITION: Final = 200
#: Larger than the last-level cache of most processors.
READ_BYTES: Final = 256 << 20


def sizes_of(layers: int | None) -> LlamaSizes:
    """Return the sizes of the Llama of 110 million parameters, with fewer layers if ``layers`` says so."""
    sizes = get_model("llama").sizes_of("110m")
    return LlamaSizes(**(sizes if layers is None else sizes | {"layers": layers}))  # type: ignore[arg-type]


def make_llama(layers: int | None, threads: int) -> tuple[Llama, LlamaSizes, torch.Tensor]:
    """Build the model, its sizes and a text [1, POSITION + 1], the same in every process, and set up inference.

    ``layers``: fewer than usual, to be quick.
    """
    torch.set_num_threads(threads)
    torch.set_grad_enabled(False)
    torch.manual_seed(0)
    sizes = sizes_of(layers)
    return Llama(sizes, texts=1).eval(), sizes, torch.randint(sizes.vocabulary, (1, POSITION + 1))


def eager(layers: int | None, threads: int) -> ContestantCalls:
    """Build the module in torch; also ``read``, which reads ``READ_BYTES`` from memory. The fact ``weights`` counts
    them.
    """
    model, sizes, text = make_llama(layers, threads)
    source, vector = torch.ones(READ_BYTES // 4).view(-1, 1024), torch.ones(1024)

    def fill() -> None:
        for i in range(POSITION):
            model(text[:, i : i + 1], *_inputs(1, None, torch.tensor([i]))[1:])

    here = _inputs(1, None, torch.tensor([POSITION]))[1:]
    return ContestantCalls(
        {
            "prefill": lambda: model(text[:, : sizes.prompt_length]), "fill": fill,
            "decode": lambda: model(text[:, -1:], *here), "read": lambda: torch.mv(source, vector),
        },
        {"weights": sum(p.numel() for p in model.parameters())},
    )  # fmt: skip


def compiled(precision: str, layers: int | None, threads: int) -> ContestantCalls:
    """Build the module under ``torch.compile``, in f32 or with bf16 weights and caches; f32 logits; only prefill."""
    model, sizes, text = make_llama(layers, threads)
    if precision == "bf16":
        model = model.bfloat16()
    forward = torch.compile(model)
    return ContestantCalls({"prefill": lambda: forward(text[:, : sizes.prompt_length]).float()})


def ours(name: str, config: Mapping[str, Any], folder: str, layers: int | None, threads: int) -> ContestantCalls:
    """Build a SambaFlow program; ``config`` as ``compile_multigraph`` takes it."""
    model, sizes, text = make_llama(layers, threads)
    program = LlamaProgram(
        model, sizes,
        {**config, "o3": True, "output_folder": folder, "pef_name": name, "num_tiles": 1, "log_level": "error"},
    )  # fmt: skip

    def fill() -> None:
        program.prefill(text[:, : sizes.prompt_length])
        for i in range(sizes.prompt_length, POSITION):
            program.decode(text[:, i : i + 1], torch.tensor([i]))

    position = torch.tensor([POSITION])
    return ContestantCalls({"prefill": lambda: program.prefill(text[:, : sizes.prompt_length]), "fill": fill,
                 "decode": lambda: program.decode(text[:, -1:], position)})  # fmt: skip


def llama_cpp(weights: str, folder: str, layers: int | None, threads: int) -> ContestantCalls:
    """Load llama.cpp, with weights in its format ``weights``."""
    model, sizes, text = make_llama(layers, threads)
    path = Path(folder) / f"{weights}.gguf"
    write_gguf(model, sizes, path, weights)
    peer = LlamaCpp(path, sizes, threads)
    return ContestantCalls({"prefill": lambda: peer.prefill(text[:, : sizes.prompt_length]),
                 "fill": lambda: peer.prefill(text[:, :POSITION]),
                 "decode": lambda: peer.decode(text[:, -1:], POSITION)})  # fmt: skip


def _inputs(
    count: int, tokens: torch.Tensor | None = None, positions: torch.Tensor | None = None
) -> tuple[torch.Tensor, ...]:  # fmt: skip
    """Return the inputs of forward for ``count`` tokens of one text; tokens default to zeros."""
    tokens = torch.zeros(1, count, dtype=torch.int64) if tokens is None else tokens
    positions = torch.arange(count) if positions is None else positions
    row = torch.zeros(1, dtype=torch.int64)
    last = () if count == 1 else (torch.tensor([count - 1]),)
    return tokens, positions.view(1, -1), row, torch.zeros_like(tokens), *last


class LlamaProgram:
    """A loaded PEF with the graphs ``prefill`` and ``decode``.

    The caches are buffers of the model, in device memory; each graph updates them in place. Each program has a session
    of its own, so that several can be loaded in one process.
    """

    def __init__(self, model: Llama, sizes: LlamaSizes, config: Mapping[str, Any]) -> None:
        """Compile and load; ``config`` as ``compile_multigraph`` takes it. ``model`` becomes a samba model."""
        self.session = SambaSession()
        self.config = dict(config)
        samba.from_torch_model_(model)
        graphs = {"prefill": sizes.prompt_length, "decode": 1}
        inputs = {
            graph: tuple(samba.from_torch_tensor(given, name=f"{graph}_{i}") for i, given in enumerate(_inputs(count)))
            for graph, count in graphs.items()
        }
        self._made = {graph: self.session.trace_multigraph(model, inputs[graph], graph) for graph in graphs}
        for graph in graphs:
            self.session.add_graph(FwdGraph(inputs[graph], self._made[graph][0], graph))
        self.pef_path = self.session.compile_multigraph(name="llama", config_dict=self.config)
        self.session.init_multigraph_runtime(self.pef_path)

    def prefill(self, tokens: torch.Tensor) -> torch.Tensor:
        """Return logits [1, vocabulary] after a prompt [1, sizes.prompt_length], kept in the caches."""
        return self._run("prefill", tokens, torch.arange(tokens.shape[1]))

    def decode(self, token: torch.Tensor, position: torch.Tensor) -> torch.Tensor:
        """Return logits [1, vocabulary] after one token [1, 1] at ``position`` [1]."""
        return self._run("decode", token, position)

    def _run(self, graph: str, tokens: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        given = enumerate(_inputs(tokens.shape[1], tokens, positions))
        named = [samba.from_torch_tensor(tensor, name=f"{graph}_{i}") for i, tensor in given]
        return self.session.run(named, list(self._made[graph]), graph_name=graph)[0].data

    def generate(self, prompt: torch.Tensor, count: int) -> list[int]:
        """Greedy continuation of ``prompt`` [1, sizes.prompt_length] by ``count`` tokens."""
        token = self.prefill(prompt).argmax(-1, keepdim=True)
        made = [int(token)]
        for position in range(prompt.shape[1], prompt.shape[1] + count - 1):
            token = self.decode(token, torch.tensor([position])).argmax(-1, keepdim=True)
            made.append(int(token))
        return made

    def close(self) -> None:
        """Unload the PEF."""
        self.session.close()
