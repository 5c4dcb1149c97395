"""Constraints of a folder's ``generation_config.json``: greedy tokens of transformers, or a refusal by name."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tokenizers import Tokenizer
from tokenizers.models import WordLevel

from rdukit.errors import InvalidArgument
from rdukit_modelbox.artifacts.hub_folder import limited_sizes, write_checkpoint
from rdukit_serving.shape import TextSizes
from rdukit_serving.text.constraints import Constraints
from rdukit_serving.text.generation import Generation, ModelTokens
from rdukit_serving.text.generation_config import (
    CONSTRAINTS,
    REFUSED,
    WITHOUT_EFFECT,
    end_tokens,
    forced_tokens,
    sampling_defaults,
)
from rdukit_serving.text.rows import Row
from rdukit_serving.text.token_bytes import TokenBytes
from rdukit_zoo.checkpoints.folder import open_hub_folder
from support import shows

pytestmark = shows("hub-files", "encoder-decoders")

transformers = pytest.importorskip("transformers", reason="the extra `models` is not installed")

WORDS, END, START, MOST = 40, 2, 5, 16


def write_folder(folder: Path, kind: str, said: dict[str, Any]) -> Any:
    """Write a random model's folder, and return the model of transformers as it reads it."""
    torch.manual_seed(11)
    if kind == "llama":
        sizes = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4}
        config = transformers.LlamaConfig(**sizes, vocab_size=WORDS, max_position_embeddings=64)
    else:
        sizes = {"d_model": 32, "d_kv": 8, "d_ff": 48, "num_layers": 1, "num_heads": 4, "n_positions": 64}
        config = transformers.T5Config(**sizes, vocab_size=WORDS, decoder_start_token_id=START)
    auto = transformers.AutoModelForCausalLM if kind == "llama" else transformers.AutoModelForSeq2SeqLM
    model = auto.from_config(config)
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.4)
    model.save_pretrained(folder)
    known = {"eos_token_id": END, "pad_token_id": 0, "bos_token_id": 1, "do_sample": False, **said}
    if kind != "llama":
        known["decoder_start_token_id"] = START
    (folder / "generation_config.json").write_text(json.dumps(known))
    return auto.from_pretrained(folder).eval()


def convert(folder: Path, checkpoint: Path) -> Path:
    hub = open_hub_folder(folder)
    write_checkpoint(hub, limited_sizes(hub.entry, hub.sizes), checkpoint)
    return checkpoint


def generated(theirs: Any, kind: str, checkpoint: Path, prompt: list[int]) -> list[int]:
    """Return our tokens of a text after transformers' logits, with the end if it has one."""
    tokenizer = Tokenizer(WordLevel({str(number): number for number in range(WORDS)}))
    ends = end_tokens(checkpoint)
    tokens = ModelTokens(
        tokenizer, TokenBytes(tokenizer), Constraints(tokenizer.to_str(), WORDS, ends), ends,
        sampling_defaults(checkpoint), forced_tokens(checkpoint),
    )  # fmt: skip
    has_encoder = kind != "llama"
    sizes = TextSizes(64, 64, WORDS, 1, source=64 if has_encoder else 0, start=START)
    message = {
        "number": 1, "max_tokens": MOST, "sampling": {}, "stop": [], "top_logprobs": None, "echo": False,
        "is_rendered": True, "form": None, "keeps_special": False,
    }  # fmt: skip
    text, chosen = Generation(prompt, message, tokens, sizes, lambda number, **event: None), list[int]()
    choose = text._sampler.choose
    text._sampler.choose = lambda *given: chosen.append(choose(*given)) or chosen[-1]  # type: ignore[method-assign,func-returns-value]
    text.begin(Row(0), 0)

    def logits() -> Any:
        so_far = torch.tensor([[*text.prompt, *chosen]])
        asked = {"input_ids": torch.tensor([prompt]) if has_encoder else so_far}
        asked |= {"decoder_input_ids": so_far} if has_encoder else {}
        with torch.no_grad():
            return theirs(**asked).logits[0, -1].numpy().copy()

    text.take_part(text.part(64), logits())
    while not text.is_over:
        text.take(np.stack([logits()]))
    return chosen


def expected(theirs: Any, kind: str, prompt: list[int]) -> list[int]:
    made = theirs.generate(torch.tensor([prompt]), attention_mask=torch.ones(1, len(prompt)), max_new_tokens=MOST)
    return made[0, len(prompt) if kind == "llama" else 1 :].tolist()  # type: ignore[no-any-return]


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[int]]:
    """Return what the models write without constraints, by kind."""
    folder = tmp_path_factory.mktemp("plain")
    return {kind: expected(write_folder(folder / kind, kind, {}), kind, [7, 9, 11]) for kind in ("llama", "t5")}


@pytest.mark.parametrize("kind", ["llama", "t5"])
@pytest.mark.parametrize(
    "rule",
    [
        "bad_words_ids", "longer bad words", "suppress_tokens", "begin_suppress_tokens", "min_length", "min_new_tokens",
        "no_repeat_ngram_size", "forced_bos_token_id", "forced_eos_token_id", "all",
    ],
)  # fmt: skip
def test_a_constraint_gives_the_greedy_tokens_of_transformers(
    kind: str, rule: str, plain: dict[str, list[int]], tmp_path: Path
) -> None:
    usual = plain[kind]
    rules: dict[str, dict[str, Any]] = {
        "bad_words_ids": {"bad_words_ids": [[usual[0]], [usual[2]], [END]]},
        "longer bad words": {"bad_words_ids": [usual[1:3], [11, usual[0]], [4] * 60, [START, usual[0]]]},
        "suppress_tokens": {"suppress_tokens": [usual[0], usual[1], 3]},
        "begin_suppress_tokens": {"begin_suppress_tokens": [usual[0]]},
        "min_length": {"min_length": 12, "suppress_tokens": [usual[0]]},
        "min_new_tokens": {"min_new_tokens": 12, "eos_token_id": usual[3]},
        "no_repeat_ngram_size": {"no_repeat_ngram_size": 2},
        "forced_bos_token_id": {"forced_bos_token_id": 8, "begin_suppress_tokens": [usual[1]]},
        "forced_eos_token_id": {"forced_eos_token_id": END, "min_new_tokens": MOST},
    }
    rules["all"] = {
        **rules["longer bad words"], **rules["forced_eos_token_id"], **rules["begin_suppress_tokens"],
        "no_repeat_ngram_size": 3, "repetition_penalty": 1.3,
    }  # fmt: skip
    said = rules[rule]
    theirs = write_folder(tmp_path / "theirs", kind, said)
    checkpoint = convert(tmp_path / "theirs", tmp_path / "checkpoint")
    has_changed = False
    for prompt in ([7, 9, 11], [7]):
        wanted = expected(theirs, kind, prompt)
        assert generated(theirs, kind, checkpoint, prompt) == wanted
        has_changed |= prompt == [7, 9, 11] and wanted != usual
    assert has_changed


@pytest.mark.parametrize("kind", ["llama", "t5"])
@pytest.mark.parametrize(
    ("said", "words"),
    [
        ({"sequence_bias": {"(5,)": -1.0}}, "sequence_bias is .*, which is not computed; expected none"),
        ({"encoder_repetition_penalty": 1.5, "typical_p": 0.9}, "encoder_repetition_penalty is 1.5, typical_p is 0.9"),
        ({"stop_strings": ["x"]}, r"stop_strings is \['x'\]"),
        ({"bad_words_ids": [7]}, r"bad_words_ids is \[7\]; expected lists of tokens' numbers, each of 1 to 256"),
        ({"bad_words_ids": [[]]}, r"bad_words_ids is \[\[\]\]; expected lists"),
        ({"bad_words_ids": [[1] * 257]}, "bad_words_ids is .*; expected lists"),
        ({"suppress_tokens": [-1]}, r"suppress_tokens is \[-1\]; expected a list of tokens' numbers"),
        ({"suppress_tokens": [WORDS]}, f"suppress_tokens is {WORDS}; expected a token, 0 <= x < {WORDS}"),
        ({"min_length": True}, "min_length is True; expected a number, 0 or more"),
        ({"forced_bos_token_id": [3]}, r"forced_bos_token_id is \[3\]; expected the number of one token"),
    ],
)
def test_what_is_not_computed_or_no_value_is_refused_by_name(
    kind: str, said: dict[str, Any], words: str, tmp_path: Path
) -> None:
    write_folder(tmp_path / "theirs", kind, {})
    known = json.loads((tmp_path / "theirs" / "generation_config.json").read_text())
    (tmp_path / "theirs" / "generation_config.json").write_text(json.dumps({**known, **said}))
    with pytest.raises(InvalidArgument, match=rf"generation_config\.json: {words}"):
        convert(tmp_path / "theirs", tmp_path / "checkpoint")


def test_without_the_file_the_configuration_has_the_constraints(tmp_path: Path) -> None:
    write_folder(tmp_path / "theirs", "llama", {})
    (tmp_path / "theirs" / "generation_config.json").unlink()
    config = json.loads((tmp_path / "theirs" / "config.json").read_text())
    usual = {"typical_p": 1.0, "bad_words_ids": None, "encoder_no_repeat_ngram_size": 0, "sequence_bias": None}
    (tmp_path / "theirs" / "config.json").write_text(json.dumps({**config, **usual, "suppress_tokens": [3, 4]}))
    checkpoint = convert(tmp_path / "theirs", tmp_path / "checkpoint")
    assert sampling_defaults(checkpoint) == {"suppressed": (3, 4)}


def test_the_table_has_every_field_of_transformers_that_can_change_a_text() -> None:
    known = set(transformers.GenerationConfig().to_dict())
    harmless = {  # how, not what is computed; and what an answer has in addition
        "use_cache", "cache_implementation", "cache_config", "max_cache_len", "low_memory", "return_legacy_cache",
        "compile_config", "disable_compile", "continuous_batching_config", "prefill_chunk_size", "use_mtp",
        "is_assistant", "num_assistant_tokens", "num_assistant_tokens_schedule", "assistant_confidence_threshold",
        "prompt_lookup_num_tokens", "max_matching_ngram_size", "assistant_early_exit", "assistant_lookbehind",
        "target_lookbehind", "assistant_ensemble_weight", "speculation_type", "output_attentions",
        "output_hidden_states", "output_scores", "output_logits", "return_dict_in_generate", "renormalize_logits",
        "remove_invalid_values", "transformers_version", "_from_model_config",
    }  # fmt: skip
    sampling = {"do_sample", "temperature", "top_k", "top_p", "min_p", "repetition_penalty"}
    tokens = {"pad_token_id", "bos_token_id", "eos_token_id", "decoder_start_token_id"}
    assert known <= harmless | sampling | tokens | {*CONSTRAINTS, *REFUSED, *WITHOUT_EFFECT}
    page = (Path(__file__).parents[2] / "docs" / "hub-files.md").read_text()
    assert all(f"`{key}`" in page for key in (*CONSTRAINTS, *REFUSED, *WITHOUT_EFFECT))
