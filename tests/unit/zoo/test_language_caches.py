"""Caches of the language models: several texts side by side, read in parts, copied, give what whole texts give.

In f32; 1e-5 covers sums in another order.
"""

from typing import Any

import pytest
import torch

from rdukit.errors import InvalidArgument
from rdukit_modelbox.tasks.adapters import share_adapters
from rdukit_zoo.registry import get_model, model_names
from support import shows

pytestmark = shows("inference", "bloom", "decoder", "falcon", "genslm", "gpt2", "llama")

TEXTS, CONTEXT = 3, 12
LANGUAGE = [name for name in model_names() if get_model(name).task == "language-modelling"]

#: Sizes of families of the decoder whose caches or attention are of their own.
FAMILIES: dict[str, dict[str, Any]] = {
    "deepseek_v3": {"family": "deepseek_v3", "experts": 4, "expert_groups": 2, "key_value_heads": 0},
    "gpt_oss": {"family": "gpt_oss", "experts": 4, "window_layers": "10"},
}


class Cached:
    """A model with caches, and one with the same weights without."""

    def __init__(self, name: str, family: str = "") -> None:
        torch.manual_seed(1)
        entry = get_model(name)
        sizes: dict[str, Any] = {
            **entry.sizes,
            **FAMILIES.get(family, {}),
            "context_length": CONTEXT,
            "prompt_length": 4,
        }
        if "window" in sizes:
            sizes["window"] = 5
        self.whole = entry.build(**sizes).eval()
        for parameter in self.whole.parameters():
            if parameter.dim() > 1:
                torch.nn.init.normal_(parameter, std=0.3)
        assert entry.text_serving is not None
        self.model = entry.text_serving.build(texts=TEXTS, **sizes).eval()
        self.model.load_state_dict(self.whole.state_dict())
        self.texts = torch.randint(int(sizes["vocabulary"]), (TEXTS, CONTEXT))

    def read(self, row: int, start: int, count: int, padding: int = 0) -> torch.Tensor:
        """Read a part of a row's text, with tokens behind it that only fill the call."""
        tokens, positions = torch.zeros(2, 1, count + padding, dtype=torch.int64)
        targets = torch.full_like(tokens, TEXTS)
        tokens[0, :count], targets[0, :count] = self.texts[row, start : start + count], row
        positions[0, :count] = torch.arange(start, start + count)
        found: torch.Tensor = self.model(tokens, positions, torch.tensor([row]), targets, torch.tensor([count - 1]))
        return found

    def advance(self, rows: list[int], positions: list[int]) -> torch.Tensor:
        """Write one more token of several rows."""
        at, of = torch.tensor(positions), torch.tensor(rows)
        found: torch.Tensor = self.model(self.texts[of, at][:, None], at[:, None], of, of[:, None])
        return found

    def expected(self, row: int, length: int) -> torch.Tensor:
        """Return the logits [1, V] after the first tokens of a text."""
        found: torch.Tensor = self.whole(self.texts[row : row + 1, :length])
        return found


@torch.no_grad()
@pytest.mark.parametrize(("name", "family"), [*((name, "") for name in LANGUAGE), *(("decoder", f) for f in FAMILIES)])
def test_texts_in_one_cache_do_not_disturb_each_other(name: str, family: str) -> None:
    cached = Cached(name, family)

    def check(found: torch.Tensor, *expected: torch.Tensor) -> None:
        torch.testing.assert_close(found, torch.cat(expected), rtol=1e-4, atol=1e-4)

    for row in (2, 0):
        check(cached.read(row, 0, 3, padding=1), cached.expected(row, 3))
    check(cached.advance([0, 2], [3, 3]), cached.expected(0, 4), cached.expected(2, 4))
    check(cached.read(1, 0, 4), cached.expected(1, 4))
    check(cached.read(1, 4, 2, padding=2), cached.expected(1, 6))
    check(cached.advance([2, 1, 0], [4, 6, 4]), *(cached.expected(*of) for of in ((2, 5), (1, 7), (0, 5))))
    # Row 0 gets the text of row 1, and continues it.
    cached.model(torch.tensor([1]), torch.tensor([0]))
    cached.texts[0] = cached.texts[1]
    cached.texts[0, 7:] = cached.texts[2, 7:]
    check(cached.advance([0, 1], [7, 7]), cached.expected(0, 8), cached.expected(1, 8))
    for position in range(8, CONTEXT):
        check(cached.advance([0], [position]), cached.expected(0, position + 1))


def test_a_latent_cache_refuses_adapters_that_it_would_not_apply() -> None:
    model: Any = Cached("decoder", "deepseek_v3").model
    share_adapters(model, 1, 2, 512)
    tokens = torch.zeros(1, 1, dtype=torch.int64)
    with pytest.raises(InvalidArgument, match="expected adapters=0: merge the adapter into"):
        model(tokens, tokens, tokens[0], tokens)
