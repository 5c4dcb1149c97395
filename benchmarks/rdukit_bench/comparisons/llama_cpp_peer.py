"""The peer: llama.cpp, on a GGUF file with the weights of a model of ours."""

import ctypes
from collections.abc import Iterator, Sequence
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

import torch

from rdukit.errors import InvalidArgument
from rdukit_zoo.language.llama import Llama, LlamaSizes

#: Weight formats: name → how GGUF calls it.
FORMATS: Final = {"f32": "F32", "bf16": "BF16", "q8_0": "Q8_0", "q4_0": "Q4_0"}


def find_missing_package() -> str | None:
    """Return the first missing package that this peer needs; None if all are installed."""
    return next((name for name in ("llama_cpp", "gguf") if find_spec(name) is None), None)


def write_gguf(
    model: Llama, sizes: LlamaSizes, path: Path, weights: str, words: Sequence[str] | None = None
) -> None:  # fmt: skip
    """Write the model's weights as a GGUF file; norms stay f32. ``words``: its tokens as text, which a server wants.

    Raises:
        InvalidArgument: ``weights`` is none of ``FORMATS``.
    """
    gguf: Any = import_module("gguf")

    if weights not in FORMATS:
        raise InvalidArgument(f"weights {weights!r} are not valid; expected {', '.join(FORMATS)}")
    kind = gguf.GGMLQuantizationType[FORMATS[weights]]
    writer = gguf.GGUFWriter(str(path), "llama")
    writer.add_context_length(sizes.context_length)
    writer.add_embedding_length(sizes.width)
    writer.add_block_count(sizes.layers)
    writer.add_feed_forward_length(sizes.feed_forward)
    writer.add_head_count(sizes.heads)
    writer.add_head_count_kv(sizes.heads)
    writer.add_layer_norm_rms_eps(sizes.epsilon)
    writer.add_rope_dimension_count(sizes.width_of_head)
    writer.add_rope_freq_base(sizes.rotary_base)
    writer.add_vocab_size(sizes.vocabulary)
    writer.add_tokenizer_model("no_vocab" if words is None else "llama")
    if words is not None:
        writer.add_token_list(words)
        writer.add_token_scores([0.0] * len(words))
        writer.add_token_types([1] * len(words))
    for name, weight in _named_weights(model, sizes.heads):
        values = weight.detach().float().contiguous().numpy()
        if weight.dim() == 1 or weights == "f32":
            writer.add_tensor(name, values)
        else:
            writer.add_tensor(name, gguf.quants.quantize(values, kind), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _named_weights(model: Llama, heads: int) -> Iterator[tuple[str, torch.Tensor]]:
    """Map GGUF's names to weights. The head is the embedding, which GGUF says by leaving it out."""
    yield "token_embd.weight", model.model.embed_tokens.weight
    for number, layer in enumerate(model.model.layers):
        attention: Any = layer.self_attn
        feed_forward: Any = layer.mlp
        named = {
            "attn_norm": layer.input_layernorm,
            "attn_q": attention.q_proj,
            "attn_k": attention.k_proj,
            "attn_v": attention.v_proj,
            "attn_output": attention.o_proj,
            "ffn_norm": layer.post_attention_layernorm,
            "ffn_gate": feed_forward.gate_proj,
            "ffn_up": feed_forward.up_proj,
            "ffn_down": feed_forward.down_proj,
        }
        for name, module in named.items():
            weight: Any = module.weight
            yield (
                f"blk.{number}.{name}.weight",
                interleave_halves(weight, heads) if name in {"attn_q", "attn_k"} else weight,
            )
    yield "output_norm.weight", model.model.norm.weight


def interleave_halves(weight: torch.Tensor, heads: int) -> torch.Tensor:
    """Order the rows of a query or key weight as llama.cpp wants for this architecture.

    It turns neighbouring pairs of a head, where our rotary embedding turns element ``i`` with ``i + half``.
    """
    rows, width = weight.shape
    return weight.view(heads, 2, rows // heads // 2, width).transpose(1, 2).reshape(rows, width)


class LlamaCpp:
    """A GGUF file loaded by llama.cpp, with its own defaults: an f16 cache, flash attention where it chooses so.

    ``is_exact``: an f32 cache and plain attention, so that f32 weights give f32 logits; slower.
    """

    def __init__(self, path: Path, sizes: LlamaSizes, threads: int, is_exact: bool = False) -> None:
        llama_cpp: Any = import_module("llama_cpp")

        self._library = llama_cpp
        self._vocabulary = sizes.vocabulary
        # Kept: the library calls it for as long as it lives.
        self._on_log = llama_cpp.llama_log_callback(lambda level, text, user: None)
        llama_cpp.llama_log_set(self._on_log, ctypes.c_void_p(0))
        llama_cpp.llama_backend_init()
        self._model = llama_cpp.llama_model_load_from_file(
            str(path).encode(), llama_cpp.llama_model_default_params()
        )  # fmt: skip
        if not self._model:
            raise InvalidArgument(f"llama.cpp cannot load {path}")
        params = llama_cpp.llama_context_default_params()
        params.n_ctx = params.n_batch = sizes.context_length
        params.n_threads = params.n_threads_batch = threads
        if is_exact:
            params.type_k = params.type_v = llama_cpp.GGML_TYPE_F32
            params.flash_attn_type = llama_cpp.LLAMA_FLASH_ATTN_TYPE_DISABLED
        self._context = llama_cpp.llama_init_from_model(self._model, params)
        if not self._context:
            raise InvalidArgument(f"llama.cpp cannot make a context for {path}")
        self._memory = llama_cpp.llama_get_memory(self._context)

    def prefill(self, tokens: torch.Tensor) -> torch.Tensor:
        """Return logits [1, vocabulary] after a prompt [1, T]; the cache is cleared first."""
        self._library.llama_memory_clear(self._memory, False)
        return self._run(tokens, 0)

    def decode(self, token: torch.Tensor, position: int) -> torch.Tensor:
        """Return logits [1, vocabulary] after one token [1, 1] at ``position``; the cache from there on is dropped."""
        self._library.llama_memory_seq_rm(self._memory, 0, position, -1)
        return self._run(token, position)

    def _run(self, tokens: torch.Tensor, begin: int) -> torch.Tensor:
        count = tokens.shape[1]
        batch = self._library.llama_batch_init(count, 0, 1)
        try:
            batch.n_tokens = count
            for i, token in enumerate(tokens[0].tolist()):
                batch.token[i], batch.pos[i] = token, begin + i
                batch.n_seq_id[i], batch.seq_id[i][0] = 1, 0
                batch.logits[i] = i == count - 1
            if status := self._library.llama_decode(self._context, batch):
                raise InvalidArgument(f"llama.cpp refused {count} tokens at position {begin} with status {status}")
        finally:
            self._library.llama_batch_free(batch)
        logits = self._library.llama_get_logits_ith(self._context, -1)
        return _copied(logits, self._vocabulary)

    def close(self) -> None:
        """Free the context and the model."""
        self._library.llama_free(self._context)
        self._library.llama_model_free(self._model)


def _copied(logits: Any, count: int) -> torch.Tensor:
    """Copy [1, count] values that llama.cpp holds until its next call."""
    size = count * ctypes.sizeof(ctypes.c_float)
    made = torch.empty(1, count)
    ctypes.memmove(made.data_ptr(), logits, size)
    return made
