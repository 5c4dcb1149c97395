"""Ours: a Llama as a SambaFlow program: two graphs, prefill and decode, over one copy of weights and caches."""

from collections.abc import Mapping
from typing import Any

import torch

from rdukit_zoo.llama import Llama, LlamaSizes
from sambaflow import samba
from sambaflow.samba.graph import FwdGraph
from sambaflow.samba.session import SambaSession


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
        tokens = samba.zeros(1, sizes.prompt, dtype=torch.int64, name="tokens")
        token = samba.zeros(1, 1, dtype=torch.int64, name="token")
        position = samba.zeros(1, dtype=torch.int64, name="position")
        (self._after_prompt,) = self.session.trace_multigraph(model, (tokens,), "prefill")
        (self._after_token,) = self.session.trace_multigraph(model, (token, position), "decode")
        self.session.add_graph(FwdGraph(tokens, self._after_prompt, "prefill"))
        self.session.add_graph(FwdGraph((token, position), self._after_token, "decode"))
        self.pef_path = self.session.compile_multigraph(name="llama", config_dict=self.config)
        self.session.init_multigraph_runtime(self.pef_path)

    def prefill(self, tokens: torch.Tensor) -> torch.Tensor:
        """Logits [1, vocabulary] after a prompt [1, sizes.prompt], which is in the caches from then on."""
        given = [samba.from_torch_tensor(tokens, name="tokens")]
        return self.session.run(given, [self._after_prompt], graph_name="prefill")[0].data

    def decode(self, token: torch.Tensor, position: torch.Tensor) -> torch.Tensor:
        """Logits [1, vocabulary] after one token [1, 1] at ``position`` [1]."""
        given = [samba.from_torch_tensor(token, name="token"), samba.from_torch_tensor(position, name="position")]
        return self.session.run(given, [self._after_token], graph_name="decode")[0].data

    def generate(self, prompt: torch.Tensor, count: int) -> list[int]:
        """Greedy continuation of ``prompt`` [1, sizes.prompt] by ``count`` tokens."""
        token = self.prefill(prompt).argmax(-1, keepdim=True)
        made = [int(token)]
        for position in range(prompt.shape[1], prompt.shape[1] + count - 1):
            token = self.decode(token, torch.tensor([position])).argmax(-1, keepdim=True)
            made.append(int(token))
        return made

    def close(self) -> None:
        """Unload the PEF."""
        self.session.close()
