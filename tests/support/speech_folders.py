"""Random folders of Whisper with windows of a second, and audio to send."""

import io
import json
from pathlib import Path
from typing import Any, Final

import numpy as np
import soundfile
import torch
from numpy.typing import NDArray
from tokenizers import AddedToken, Tokenizer

from rdukit_modelbox.preprocessing.tokenizer import byte_level_tokenizer

#: Tokens behind those of the 256 bytes and the end of text.
SPECIAL: Final = (
    "<|startoftranscript|>", "<|en|>", "<|de|>", "<|haw|>", "<|translate|>", "<|transcribe|>", "<|startofprev|>",
    "<|nospeech|>", "<|notimestamps|>",
)  # fmt: skip
END: Final = 256
TOKENS: Final = {name: END + 1 + place for place, name in enumerate(SPECIAL)}
TIMES: Final = 51
RATE: Final = 16_000

SIZES: Final[dict[str, Any]] = {
    "vocab_size": END + 1 + len(SPECIAL) + TIMES, "d_model": 32, "encoder_layers": 2, "decoder_layers": 2,
    "encoder_attention_heads": 4, "decoder_attention_heads": 2, "encoder_ffn_dim": 48, "decoder_ffn_dim": 40,
    "num_mel_bins": 20, "max_source_positions": 50, "max_target_positions": 80, "pad_token_id": END,
    "bos_token_id": END, "eos_token_id": END, "decoder_start_token_id": TOKENS["<|startoftranscript|>"],
    "begin_suppress_tokens": None,
}  # fmt: skip

GENERATION: Final[dict[str, Any]] = {
    "decoder_start_token_id": TOKENS["<|startoftranscript|>"], "eos_token_id": END, "pad_token_id": END,
    "bos_token_id": END, "no_timestamps_token_id": TOKENS["<|notimestamps|>"], "is_multilingual": True,
    "lang_to_id": {name: TOKENS[name] for name in ("<|en|>", "<|de|>", "<|haw|>")},
    "task_to_id": {name: TOKENS[f"<|{name}|>"] for name in ("transcribe", "translate")},
    "prev_sot_token_id": TOKENS["<|startofprev|>"], "max_initial_timestamp_index": 10, "max_length": 80,
    "suppress_tokens": [1, 7, 66, *range(257, 265)], "begin_suppress_tokens": [32, END], "return_timestamps": False,
    "do_sample": False, "alignment_heads": [[1, 0], [0, 1], [1, 1]],
}  # fmt: skip
#: Limits that no transcript of random weights exceeds: each window is made once, as transformers does by default.
NO_LIMITS: Final[dict[str, Any]] = {
    "logprob_threshold": -1000.0, "compression_ratio_threshold": 1000.0, "no_speech_threshold": 1.0,
}  # fmt: skip


def speech_tokenizer() -> Tokenizer:
    """Return a tokenizer of bytes with Whisper's tokens; timestamps are not special, as in published folders."""
    tokenizer = Tokenizer.from_str(byte_level_tokenizer().json.decode())
    tokenizer.add_special_tokens(list(SPECIAL))
    tokenizer.add_tokens([AddedToken(f"<|{place * 0.02:.2f}|>", normalized=False) for place in range(TIMES)])
    return tokenizer


def write_speech_folder(folder: Path, generation: dict[str, Any] | None = None, **sizes: Any) -> Any:
    """Write a random model's folder, and return the model of transformers as it reads it."""
    import transformers

    torch.manual_seed(3)
    model = transformers.WhisperForConditionalGeneration(transformers.WhisperConfig(**{**SIZES, **sizes}))
    for name, parameter in model.named_parameters():
        if name != "model.encoder.embed_positions.weight":
            torch.nn.init.normal_(parameter, std=0.3)
    model.save_pretrained(folder)
    known = GENERATION if generation is None else generation
    (folder / "generation_config.json").write_text(json.dumps(known))
    extractor_of(model).save_pretrained(folder)
    speech_tokenizer().save(str(folder / "tokenizer.json"))
    read: Any = transformers.WhisperForConditionalGeneration.from_pretrained(folder, attn_implementation="eager")
    (folder / "generation_config.json").write_text(json.dumps({**NO_LIMITS, **known}))
    return read.eval()


def extractor_of(model: Any) -> Any:
    """Return transformers' features for windows of a second."""
    import transformers

    build: Any = transformers.WhisperFeatureExtractor
    return build(feature_size=model.config.num_mel_bins, chunk_length=1)


def spoken(seconds: float, rate: int = RATE) -> NDArray[np.float32]:
    """Return sounds that change, as 16-bit files hold them."""
    time_L = np.arange(int(seconds * rate)) / rate
    sound_L = 0.3 * np.sin(2 * np.pi * (200 + 300 * np.sin(3 * time_L)) * time_L) * (time_L % 0.5 < 0.35)
    noise_L = np.random.default_rng(5).normal(0, 0.02, len(time_L))
    return (np.round((sound_L + noise_L) * 32767) / 32768).astype(np.float32)


def file_of(samples: NDArray[np.float32], rate: int = RATE, form: str = "WAV", subtype: str | None = None) -> bytes:
    """Return samples [L] or [L, channels] as the content of a file."""
    content = io.BytesIO()
    soundfile.write(content, samples, rate, format=form, subtype=subtype)
    return content.getvalue()
