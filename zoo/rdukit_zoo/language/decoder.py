"""What all causal language models share: training and serving as one module, and its inputs.

Axes: B batch, T tokens of a call, C width of the model, V vocabulary.
"""

import torch
import torch.nn.functional as F
from torch import nn

import sambaflow.samba as samba
from rdukit.errors import InvalidArgument
from rdukit_zoo.registry import IGNORED, SizeValue


class Decoder(nn.Module):
    """A causal language model; a subclass defines ``read`` and ``logits_of``.

    Without a cache it trains: (tokens [B, T], labels [B, T]) → loss [], the mean over labels that are not -100.

    With a cache it serves, by the shapes of its inputs:

    - (tokens [1, T], index [1]): a prompt from position 0, padded behind; logits [1, V] after its true last token,
      which is at the index. What the padding leaves in the cache is overwritten before it is read.
    - (token [1, 1], position [1]): one more token; logits [1, V] after it.
    - (tokens [1, T], shares [1, T] float): the text as a vector [1, C], the last states added up by their shares.

    Tokens alone give the logits [B, V] after the last of them.
    """

    def __init__(self, has_cache: bool) -> None:
        super().__init__()
        self.has_cache = has_cache

    def read(self, tokens: torch.Tensor, position: torch.Tensor | None = None) -> torch.Tensor:
        """Return the last states [B, T, C] after the final norm.

        Without ``position`` the tokens are the first T of a text; with ``position`` [1] there is one token there,
        which attends to the cache up to itself.
        """
        raise NotImplementedError

    def logits_of(self, states: torch.Tensor) -> torch.Tensor:
        """Project states [..., C] to logits [..., V]."""
        raise NotImplementedError

    def forward(self, tokens: torch.Tensor, at: torch.Tensor | None = None) -> torch.Tensor:
        if at is None:
            return self.logits_of(self.read(tokens)[:, -1])
        if not self.has_cache:
            logits_BTV = self.logits_of(self.read(tokens))
            return F.cross_entropy(logits_BTV.flatten(0, 1), at.flatten(), ignore_index=IGNORED)
        if at.is_floating_point():
            vector: torch.Tensor = (self.read(tokens) * at.unsqueeze(-1)).sum(1)
            return vector
        if tokens.shape[1] == 1:
            return self.logits_of(self.read(tokens, at)[:, -1])
        return self.logits_of(self.read(tokens).index_select(1, at)[:, 0])

    def logits(self, tokens: torch.Tensor) -> torch.Tensor:
        """Return the logits [B, T, V] after each token of whole texts; no cache is read."""
        return self.logits_of(self.read(tokens))


def make_inputs(batch_size: int, **sizes: SizeValue) -> tuple[samba.SambaTensor, ...]:
    """Return dummy inputs: ``tokens`` [batch, context_length] and ``labels`` of the same shape."""
    shape = (batch_size, int(sizes["context_length"]))
    vocabulary = int(sizes["vocabulary"])
    return tuple(samba.randint(vocabulary, shape, name=name, batch_dim=0) for name in ("tokens", "labels"))


def check_lengths(context_length: int, prompt_length: int) -> None:
    """Refuse a prompt that does not fit.

    Raises:
        InvalidArgument: it is shorter than 2 tokens or longer than the context.
    """
    if not 2 <= prompt_length <= context_length:
        raise InvalidArgument(f"prompt_length is {prompt_length}; legal: 2 <= x <= {context_length} (context_length)")


def usual_prompt(context_length: int) -> int:
    """Return how many tokens of a prompt are read at once where nobody says so."""
    return min(64, context_length)


def check_divides(width: int, heads: int, width_name: str = "width", heads_name: str = "heads") -> None:
    """Refuse a width that the heads do not divide.

    Raises:
        InvalidArgument: they do not.
    """
    if width % heads:
        raise InvalidArgument(f"{width_name} {width} is no multiple of {heads_name} {heads}")


def init_normal(model: nn.Module, std: float = 0.02) -> None:
    """Draw all weights of linear layers and embeddings from N(0, std); biases are 0."""
    for module in model.modules():
        if isinstance(module, nn.Linear | nn.Embedding):
            nn.init.normal_(module.weight, std=std)
        if isinstance(module, nn.Linear) and module.bias is not None:
            nn.init.zeros_(module.bias)


@torch.no_grad()
def generate_by_recomputing(model: Decoder, prompt: torch.Tensor, count: int) -> list[int]:
    """Continue ``prompt`` [1, T] greedily in plain torch, computing the whole text again for every token.

    No cache is read, so that it can be held against whoever reads one.
    """
    text = prompt
    for _ in range(count):
        text = torch.cat([text, model.logits_of(model.read(text)[:, -1]).argmax(-1, keepdim=True)], 1)
    return [int(token) for token in text[0, prompt.shape[1] :]]
