"""Common parts of causal language models: training and serving as one module, and its inputs.

Axes: B batch, T tokens of a call, C width of the model, V vocabulary.
"""

import torch
import torch.nn.functional as F
from torch import nn

import sambaflow.samba as samba
from rdukit.errors import InvalidArgument
from rdukit_zoo.language.attention import CachedAttention, Places
from rdukit_zoo.registry import IGNORED, SizeValue


class Decoder(nn.Module):
    """A causal language model; a subclass defines ``read`` and ``logits_of``.

    Without caches it trains: (tokens [B, T], labels [B, T]) → loss [], the mean over labels that are not -100.

    With caches of R ``texts`` it serves, by the shapes of its inputs:

    - (tokens [B, 1], positions [B, 1], rows [B], targets [B, 1]): one more token of B texts, each at its position and
      row of the caches (see ``Places``); logits [B, V] after it.
    - (tokens [1, T], positions [1, T], rows [1], targets [1, T], last [1]): more tokens of a text; logits [1, V] after
      the one with the index ``last``, behind which others only fill the call.
    - (source [1], target [1]): the text of a row of the caches is in another row, too; the latter [1].
    - (tokens [1, T], shares [1, T] float): the text as a vector [1, C], the last states added up by their shares; no
      cache is touched.

    Tokens alone give the logits [B, V] after the last of them.
    """

    def __init__(self, texts: int, groups: int, context: int) -> None:
        super().__init__()
        self.texts, self.groups, self.context = texts, groups, context

    def read(self, tokens: torch.Tensor, places: Places | None = None) -> torch.Tensor:
        """Return the last states [B, T, C] after the final norm.

        Without ``places`` the tokens are the first T of texts, and no cache is touched.
        """
        raise NotImplementedError

    def logits_of(self, states: torch.Tensor) -> torch.Tensor:
        """Project states [..., C] to logits [..., V]."""
        raise NotImplementedError

    def forward(
        self, tokens: torch.Tensor, at: torch.Tensor | None = None, rows: torch.Tensor | None = None,
        targets: torch.Tensor | None = None, last: torch.Tensor | None = None,
    ) -> torch.Tensor:  # fmt: skip
        if at is None:
            return self.logits_of(self.read(tokens)[:, -1])
        if rows is not None and targets is not None:
            states_BTC = self.read(tokens, Places.find(at, rows, targets, self.groups, self.context))
            return self.logits_of(states_BTC[:, 0] if last is None else states_BTC.index_select(1, last)[:, 0])
        if tokens.dim() == 1:
            target = at + 0  # a graph keeps what is written with what its output is made of
            for module in self.modules():
                if isinstance(module, CachedAttention):
                    module.copy(tokens, target)
            return target
        if at.is_floating_point():
            vector: torch.Tensor = (self.read(tokens) * at.unsqueeze(-1)).sum(1)
            return vector
        logits_BTV = self.logits_of(self.read(tokens))
        return F.cross_entropy(logits_BTV.flatten(0, 1), at.flatten(), ignore_index=IGNORED)

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
        raise InvalidArgument(f"prompt_length is {prompt_length}; expected 2 <= x <= {context_length} (context_length)")


def usual_prompt(context_length: int) -> int:
    """Return the default number of prompt tokens that are read at once."""
    return min(64, context_length)


def check_divides(width: int, heads: int, width_name: str = "width", heads_name: str = "heads") -> None:
    """Refuse a width that the heads do not divide.

    Raises:
        InvalidArgument: they do not.
    """
    if width % heads:
        raise InvalidArgument(f"{width_name} {width} is not a multiple of {heads_name} {heads}")


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
