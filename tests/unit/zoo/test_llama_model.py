"""The Llama: grouped queries, windows and stretched positions give what plain attention gives.

In f32; 1e-5 covers sums in another order.
"""

import pytest
import torch

from rdukit.errors import InvalidArgument
from rdukit_zoo.language.llama import Llama, LlamaSizes, build
from rdukit_zoo.registry import IGNORED
from support import shows

pytestmark = shows("llama", "llama3", "mistral")

SMALL = {
    "width": 16, "layers": 2, "heads": 4, "feed_forward": 24, "vocabulary": 50, "context_length": 12,
    "prompt_length": 6,
}  # fmt: skip
SIZES = LlamaSizes(**SMALL, key_value_heads=2)


def make_model() -> Llama:
    """A model that keeps no cache."""
    torch.manual_seed(1)
    whole = Llama(SIZES, texts=0)
    for parameter in whole.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    return whole


@torch.no_grad()
def test_grouped_queries_are_plain_attention_with_repeated_heads() -> None:
    whole = make_model()
    plain = Llama(LlamaSizes(**SMALL, key_value_heads=4), texts=0)
    state = whole.state_dict()
    for name in [name for name in state if name.endswith(("k_proj.weight", "v_proj.weight"))]:
        state[name] = state[name].view(2, 4, 16).repeat_interleave(2, 0).reshape(16, 16)
    plain.load_state_dict(state)
    text = torch.randint(50, (1, 9))
    torch.testing.assert_close(whole(text), plain(text), rtol=1e-5, atol=1e-5)


def test_labels_that_are_ignored_count_in_no_loss() -> None:
    torch.manual_seed(0)
    sizes = {"width": 16, "layers": 1, "heads": 2, "key_value_heads": 1, "feed_forward": 24, "vocabulary": 50}
    model = build(**sizes, context_length=8, prompt_length=4)
    tokens, labels = torch.randint(50, (2, 8)), torch.randint(50, (2, 8))
    labels[1] = IGNORED
    torch.testing.assert_close(model(tokens, labels), model(tokens[:1], labels[:1]))


@pytest.mark.parametrize(
    ("sizes", "words"),
    [
        ({"width": 10, "heads": 4}, "width 10 is not a multiple of heads 4"),
        ({"width": 12, "heads": 4}, "expected an even number"),
        ({"heads": 4, "key_value_heads": 3, "width": 16}, "key_value_heads 3 does not divide heads 4"),
        ({"prompt_length": 600}, "expected 2 <= x <= 128"),
    ],
)
def test_sizes_that_do_not_fit_together_are_refused(sizes: dict[str, int], words: str) -> None:
    with pytest.raises(InvalidArgument, match=words):
        LlamaSizes(**sizes)
