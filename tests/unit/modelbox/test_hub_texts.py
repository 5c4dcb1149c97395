"""How many texts a Hugging Face folder's model is compiled to make at once."""

from rdukit_modelbox.artifacts.hub_folder import CACHE_BYTES, TEXTS, texts_at_once
from rdukit_zoo.registry import get_model
from support import shows

pytestmark = shows("huggingface", "llama")


def test_fewer_texts_are_made_at_once_where_their_caches_are_large() -> None:
    entry = get_model("llama")
    assert texts_at_once(entry, entry.sizes) == TEXTS[0]
    sizes = {**entry.sizes, **entry.variants["110m"].sizes, "context_length": 2048}
    # 12 layers of 12 heads of 64, keys and values, f32.
    row = 2048 * 12 * 2 * 768 * 4
    assert texts_at_once(entry, sizes) == max(texts for texts in TEXTS if (texts + 1) * row <= CACHE_BYTES)
    assert texts_at_once(entry, {**entry.sizes, **entry.variants["llama-2-7b"].sizes}) == 1
