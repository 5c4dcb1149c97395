"""Folders of Whisper: logits, gradients and greedy texts of transformers, with caches and without."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from rdukit.errors import InvalidArgument, NotFound
from rdukit_modelbox.artifacts.hub_folder import box_of, prepare_hub_folder
from rdukit_modelbox.artifacts.speech_folder import describe_speech
from rdukit_serving.speech.description import SpeechDescription, read_description
from rdukit_serving.speech.loop import SpeechGeneration
from rdukit_serving.text.loop import read_tokens, tokenizer_file
from rdukit_serving.text.program import TextProgram
from rdukit_serving.text.rows import Row
from rdukit_zoo.checkpoints.folder import load_hub_folder, open_hub_folder, save_hub_folder
from rdukit_zoo.language.whisper_sizes import WhisperSizes
from support import shows
from support.speech_folders import END, GENERATION, SIZES, TOKENS, write_speech_folder

pytestmark = shows("speech", "huggingface")

transformers = pytest.importorskip("transformers", reason="the extra `models` is not installed")

#: Frames of audio in a window of which the rest is silence.
HEARD = 62
WORDS, MELS, FRAMES = SIZES["vocab_size"], SIZES["num_mel_bins"], 2 * SIZES["max_source_positions"]


def require_near(found: torch.Tensor, wanted: torch.Tensor, share: float) -> None:
    torch.testing.assert_close(found, wanted, rtol=0, atol=share * float(wanted.detach().abs().max()))


def draw_batch() -> tuple[torch.Tensor, torch.Tensor]:
    """Return spectrograms and labels of two texts, of which the first is the shorter one."""
    torch.manual_seed(7)
    features, labels = torch.randn(2, MELS, FRAMES), torch.randint(0, WORDS, (2, 20))
    labels[0, 15:] = -100
    return features, labels


@pytest.mark.parametrize("sizes", [{}, {"scale_embedding": True, "encoder_layers": 1, "d_model": 24}])
def test_a_folder_computes_and_trains_as_transformers_and_is_written_again(
    sizes: dict[str, Any], tmp_path: Path
) -> None:
    theirs = write_speech_folder(tmp_path / "theirs", **sizes)
    folder = open_hub_folder(tmp_path / "theirs")
    ours: Any = load_hub_folder(tmp_path / "theirs").eval()
    features, labels = draw_batch()
    wanted, found = theirs(input_features=features, labels=labels), ours(features, labels)
    require_near(ours.logits(features, ours.shifted(labels)), wanted.logits, 1e-5)
    require_near(found, wanted.loss, 1e-5)
    wanted.loss.backward()
    found.backward()
    gradients = {key: value.grad for key, value in theirs.named_parameters()}
    del gradients["model.encoder.embed_positions.weight"]  # transformers freezes it, and forgets that when it reads one
    assert {folder.hub.stored_name(key) for key, _ in ours.named_parameters()} == set(gradients)
    for key, parameter in ours.named_parameters():
        grad = gradients[folder.hub.stored_name(key)]
        torch.testing.assert_close(parameter.grad, grad, rtol=0, atol=1e-4 * float(grad.abs().max()))

    save_hub_folder(ours, folder.entry, folder.sizes, tmp_path / "ours")
    one, other = (load_file(tmp_path / each / "model.safetensors") for each in ("theirs", "ours"))
    assert one.keys() == other.keys() and all(torch.equal(one[key], other[key]) for key in one)
    again = type(theirs).from_pretrained(tmp_path / "ours").eval()
    with torch.no_grad():
        require_near(again(input_features=features, labels=labels).logits, wanted.logits, 1e-5)


def test_several_texts_with_audio_of_their_own_continue_from_the_caches(tmp_path: Path) -> None:
    write_speech_folder(tmp_path)
    folder = open_hub_folder(tmp_path)
    assert folder.entry.text_serving is not None
    built = folder.entry.text_serving.build
    ours: Any = load_hub_folder(tmp_path, lambda **sizes: built(texts=2, **sizes)).eval()
    features, tokens = draw_batch()[0], torch.randint(0, WORDS, (2, 12))
    with torch.no_grad():
        wanted = ours.logits(features, tokens)
        for row in (1, 0):
            ours(features[row : row + 1], torch.tensor([row]))
        for row in (0, 1):  # a prompt of five tokens, in a run of eight
            read = torch.stack([torch.zeros(1, 8), torch.arange(8.0)[None], torch.full((1, 8), 2.0)]).long()
            read[0, 0, :5], read[2, 0, :5] = tokens[row, :5], row
            found = ours(read[0], read[1], torch.tensor([row]), read[2], torch.tensor([4]))
            require_near(found[0], wanted[row, 4], 1e-5)
        for place in range(5, 12):
            at, rows = torch.tensor([[place], [place], [0]]), torch.tensor([0, 1, 2])
            token = torch.cat([tokens[:, place : place + 1], torch.zeros(1, 1, dtype=torch.int64)])
            require_near(ours(token, at, rows, rows.view(3, 1))[:2], wanted[:, place], 1e-5)


def test_files_of_old_folders_may_have_the_head_and_no_table_of_tokens(tmp_path: Path) -> None:
    theirs = write_speech_folder(tmp_path, {"suppress_tokens": [1]})
    tensors = load_file(tmp_path / "model.safetensors")
    tensors["proj_out.weight"] = theirs.proj_out.weight.detach().clone()
    save_file(tensors, tmp_path / "model.safetensors", {"format": "pt"})
    features, labels = draw_batch()
    with torch.no_grad():
        ours: Any = load_hub_folder(tmp_path)
        require_near(
            ours.logits(features, ours.shifted(labels)), theirs(input_features=features, labels=labels).logits, 1e-5
        )
    tokens = describe_speech(open_hub_folder(tmp_path)).tokens
    assert (tokens.start, tokens.end, tokens.no_timestamps) == (
        TOKENS["<|startoftranscript|>"], END, TOKENS["<|notimestamps|>"]
    )  # fmt: skip
    assert (tokens.transcribe, tokens.previous) == (TOKENS["<|transcribe|>"], TOKENS["<|startofprev|>"])
    assert dict(tokens.languages) == {"en": TOKENS["<|en|>"], "de": TOKENS["<|de|>"], "haw": TOKENS["<|haw|>"]}
    assert (list(tokens.suppressed), list(tokens.suppressed_first)) == ([1], [])


def test_a_model_of_one_language_has_no_tokens_of_languages_and_tasks(tmp_path: Path) -> None:
    write_speech_folder(tmp_path, {**GENERATION, "is_multilingual": False})
    tokens = describe_speech(open_hub_folder(tmp_path)).tokens
    assert (dict(tokens.languages), tokens.transcribe, tokens.translate) == ({}, None, None)


@pytest.mark.parametrize(
    ("file", "changed", "words"),
    [
        ("config.json", {"activation_function": "relu"}, "activation_function is 'relu'"),
        (
            "config.json",
            {"architectures": ["WhisperForAudioClassification"]},
            "nearest known architecture is WhisperForCond",
        ),
        ("config.json", {"decoder_start_token_id": 999}, "start is 999; expected a token"),
        ("preprocessor_config.json", {"chunk_length": 2}, "feature_size is 20 and chunk_length 2 s; expected 20, and"),
        ("preprocessor_config.json", {"dither": 0.1}, "dither is 0.1; expected 0.0"),
        ("preprocessor_config.json", {"hop_length": 0}, "expected numbers of 1 or more"),
        ("preprocessor_config.json", {"sampling_rate": 8000, "chunk_length": 2}, "sampling_rate is 8000"),
        ("generation_config.json", {"condition_on_prev_tokens": True}, "condition_on_prev_tokens is True; expected"),
        ("generation_config.json", {"logprob_threshold": "low"}, "logprob_threshold: expected finite numbers"),
        ("generation_config.json", {"alignment_heads": [1, 2]}, r"alignment_heads is \[1, 2\]; expected pairs such as"),
        ("config.json", {"median_filter_width": 4}, "median_filter_width is 4; expected an odd number"),
        ("generation_config.json", {"eos_token_id": [1, 2]}, r"eos_token_id is \[1, 2\]; expected the number"),
        ("generation_config.json", {"suppress_tokens": [-1]}, r"suppress_tokens is \[-1\]; expected numbers"),
        ("generation_config.json", {"lang_to_id": {"<|en|>": "x"}}, "lang_to_id is not a table"),
    ],
)
def test_what_is_not_computed_is_refused_by_name(
    file: str, changed: dict[str, Any], words: str, tmp_path: Path
) -> None:
    write_speech_folder(tmp_path)
    config = json.loads((tmp_path / file).read_text())
    (tmp_path / file).write_text(json.dumps({**config, **changed}))
    with pytest.raises(InvalidArgument, match=words):
        describe_speech(open_hub_folder(tmp_path))


def test_a_folder_without_its_tokenizer_is_refused_and_no_box_trains_it(tmp_path: Path) -> None:
    write_speech_folder(tmp_path)
    (tmp_path / "tokenizer.json").unlink()
    with pytest.raises(NotFound, match="transcripts need the model's tokenizer"):
        describe_speech(open_hub_folder(tmp_path))
    assert box_of(open_hub_folder(tmp_path).entry) == ""


def test_a_description_is_read_as_it_was_written_or_refused(tmp_path: Path) -> None:
    write_speech_folder(tmp_path)
    found = describe_speech(open_hub_folder(tmp_path))
    with pytest.raises(InvalidArgument, match="a speech model needs it next to its parameters"):
        read_description(tmp_path)
    (tmp_path / "speech.json").write_text(json.dumps(found.to_json()))
    assert read_description(tmp_path) == found
    for content, words in ((b"{", "damaged"), (b'{"version": 9}', "version 9; expected 2"), (b"[]", "damaged")):
        (tmp_path / "speech.json").write_bytes(content)
        with pytest.raises(InvalidArgument, match=words):
            read_description(tmp_path)


def transcribed(
    program: TextProgram, checkpoint: Path, features: torch.Tensor, asked: dict[str, Any], most: int
) -> dict[str, Any]:
    """Return what a device process tells of one window's transcript."""
    description: SpeechDescription = read_description(checkpoint)
    told: list[dict[str, Any]] = []
    message = {
        "number": 1, "max_tokens": most, "sampling": {"temperature": 0.0}, "stop": [], "top_logprobs": None,
        "echo": False, "is_rendered": True, "form": None, "keeps_special": False, "place": 0,
        "speech": {"timed_frames": None, **asked},
    }  # fmt: skip
    text = SpeechGeneration(
        [description.tokens.start], message, read_tokens(tokenizer_file(checkpoint), checkpoint, program),
        program.sizes, lambda number, **event: told.append(event), description.tokens, description.audio.frame_s,
    )  # fmt: skip
    text.begin(Row(0), 0)
    program.listen(0, features.numpy())
    while not text.is_over:
        assert text.row is not None
        if text.is_reading:
            part = text.part(8)
            text.take_part(part, program.read(0, part, len(text.row.tokens)))
        else:
            ((row, token, at, _),) = text.written()
            text.take(program.advance([row], [token], [at]).copy())
    text.end_with_times(program, description.median)
    speech: dict[str, Any] = told[-1]["speech"]
    return speech


@pytest.mark.parametrize("heads", [[[1, 0], [0, 1], [1, 1]], [[0, 0]]])
def test_heads_that_follow_the_audio_attend_as_in_transformers(heads: list[list[int]], tmp_path: Path) -> None:
    theirs = write_speech_folder(tmp_path, {**GENERATION, "alignment_heads": heads})
    folder = open_hub_folder(tmp_path)
    assert folder.entry.text_serving is not None and folder.entry.identity(folder.sizes) == folder.entry.identity(
        {**folder.sizes, "alignment": ""}
    )
    built = folder.entry.text_serving.build
    ours: Any = load_hub_folder(tmp_path, lambda **sizes: built(texts=2, **sizes)).eval()
    features, tokens = draw_batch()[0], torch.randint(0, WORDS, (2, 8))
    with torch.no_grad():
        wanted = theirs(input_features=features, decoder_input_ids=tokens, output_attentions=True).cross_attentions
        for row in (1, 0):
            ours(features[row : row + 1], torch.tensor([row]))
        places = torch.arange(8)[None]
        for row in (0, 1):
            found = ours(tokens[row : row + 1], places, torch.tensor([row]), torch.full((1, 8), row))
            stacked = torch.stack([wanted[layer][row, head] for layer, head in sorted(heads)])
            assert found.shape == (len(heads), 8, SIZES["max_source_positions"])
            torch.testing.assert_close(found, stacked, rtol=0, atol=1e-6)


@pytest.mark.parametrize("alignment", ["2.0", "0.2", "1", "0.1,", "-1.0"])
def test_heads_that_a_model_lacks_are_refused(alignment: str, tmp_path: Path) -> None:
    with pytest.raises(InvalidArgument, match=r"alignment is .*; expected up to 64 heads such as '1\.0,1\.3'"):
        WhisperSizes(decoder_layers=2, decoder_heads=2, alignment=alignment)


@pytest.mark.long
def test_a_folder_is_served_with_the_tokens_of_transformers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RDUKIT_KERNELS", "portable")
    # Without an end, so that each text has all tokens that were asked for.
    generation = {**GENERATION, "suppress_tokens": [*GENERATION["suppress_tokens"], END]}
    theirs = write_speech_folder(tmp_path / "theirs", generation)
    made = prepare_hub_folder(tmp_path / "theirs", tmp_path / "cache", precision="f32")
    assert (made.box, made.name) == ("", "whisper")
    features = draw_batch()[0]
    with TextProgram(Path(made.pef), Path(made.checkpoint)) as program, torch.no_grad():
        for number, (language, has_times) in enumerate(((None, False), ("de", True))):
            one = features[number : number + 1]
            asked = {
                "language": None if language is None else TOKENS[f"<|{language}|>"],
                "task": TOKENS["<|transcribe|>"], "has_times": has_times,
            }  # fmt: skip
            found = transcribed(program, Path(made.checkpoint), one[0], asked, 64)
            made_by_theirs = theirs.generate(
                one, language=language, task="transcribe", return_timestamps=has_times, max_new_tokens=64,
                force_unique_generate_call=True, return_segments=True,
            )["segments"][0][0]["result"].tolist()  # fmt: skip
            # The complete window, with what comes behind its last segment.
            assert found["tokens"] == made_by_theirs[-64:]
            if language is None:
                assert found["language"] == int(theirs.detect_language(one)[0])
            logits = theirs(
                input_features=one, decoder_input_ids=torch.tensor([[theirs.config.decoder_start_token_id]])
            )
            timed = theirs.generate(
                one, language=language, task="transcribe", return_timestamps=has_times, max_new_tokens=64,
                force_unique_generate_call=True, return_segments=True, return_token_timestamps=True,
                attention_mask=torch.tensor([[1] * HEARD + [0] * (FRAMES - HEARD)]),
            )["segments"][0][0]["result"]  # fmt: skip
            found = transcribed(program, Path(made.checkpoint), one[0], {**asked, "timed_frames": HEARD}, 64)
            assert found["tokens"] == made_by_theirs[-64:]
            times = timed["token_timestamps"][-64:].numpy()
            assert times.max() > 0.1 and found["times"] == sorted(found["times"])
            np.testing.assert_allclose(found["times"], times, atol=0.0201)
            # Rounding may move a token by a state where several paths cost nearly the same.
            assert (abs(np.array(found["times"]) - times) < 1e-3).mean() > 0.9
            share = logits.logits[0, 0].softmax(0)[TOKENS["<|nospeech|>"]]
            np.testing.assert_allclose(found["no_speech"], float(share), rtol=1e-4)
