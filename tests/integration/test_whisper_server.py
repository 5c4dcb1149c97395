"""``rdukit serve FOLDER`` of Whisper as a program, called by OpenAI's client: forms, streams, and what is refused."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from rdukit_serving.speech.words import words_of
from support import shows
from support.served_folders import running
from support.speech_folders import END, TOKENS, extractor_of, file_of, speech_tokenizer, spoken, write_speech_folder

pytestmark = shows("speech", "serve")

pytest.importorskip("transformers", reason="the extra `models` is not installed")
openai = pytest.importorskip("openai", reason="the extra `test` is not installed")

SHORT_S, LONG_S = 0.9, 2.6


def expected(model: Any, seconds: float, **options: Any) -> Any:
    """Return what transformers makes of audio: tokens, or with timestamps segments."""
    samples = spoken(seconds)
    length: dict[str, Any] = {"padding": "longest", "truncation": False} if seconds > 1 else {}
    extract = extractor_of(model)
    made = extract(samples, sampling_rate=16000, return_tensors="np", return_attention_mask=True, **length)
    heard = torch.from_numpy(np.asarray(made.attention_mask))
    return model.generate(torch.from_numpy(np.asarray(made.input_features)), attention_mask=heard, **options)


def words_in(segment: Any) -> list[tuple[str, float, float]]:
    """Return the words of a segment of transformers, as pairs of a token's time and the one before."""
    times = [float(time) for time in segment["token_timestamps"]]
    tokens = [(int(token), at) for at, token in enumerate(segment["tokens"]) if int(token) < END]
    pieces, spans = [bytes([token]) for token, _ in tokens], [(times[at - 1], times[at]) for _, at in tokens]
    return [(word.text, word.start_s, word.end_s) for word in words_of(pieces, spans, "en")]


def set_limits(home: Path, **limits: float) -> None:
    """Set the limits of transcripts of the served folder, which each request reads."""
    (file,) = home.rglob("speech.json")
    known = json.loads(file.read_text())
    file.write_text(json.dumps({**known, "limits": {**known["limits"], **limits}}))


def text_of(tokens: Any) -> str:
    return speech_tokenizer().decode([int(token) for token in tokens if int(token) < END])


@pytest.mark.long
@pytest.mark.filterwarnings("ignore:deprecated:DeprecationWarning")  # the client warns of whisper-1
def test_a_folder_transcribes_as_transformers_for_openais_client(tmp_path: Path) -> None:
    theirs = write_speech_folder(tmp_path / "folder")
    short, long = (("speech.wav", file_of(spoken(seconds))) for seconds in (SHORT_S, LONG_S))
    with running(["serve", tmp_path / "folder", "--precision", "f32"], tmp_path / "home") as http:
        client = openai.OpenAI(base_url=f"{http.base_url}/v1", api_key="none", max_retries=0)
        create, translate = client.audio.transcriptions.create, client.audio.translations.create
        made = expected(theirs, SHORT_S, language="de", task="transcribe")[0]
        assert create(model="whisper", file=short, language="de").text == text_of(made).strip()

        heard = expected(theirs, SHORT_S, task="translate")[0]
        assert translate(model="whisper", file=short, response_format="text") == text_of(heard).strip() + "\n"

        prompt = [TOKENS["<|startofprev|>"], *b" Names: Ada"]
        made = expected(theirs, SHORT_S, language="en", task="transcribe", prompt_ids=torch.tensor(prompt))[0]
        found = create(model="whisper", file=short, language="en", prompt="Names: Ada ", temperature=0)
        assert found.text == text_of(made[len(prompt) :] if int(made[0]) == prompt[0] else made).strip()

        wanted = expected(
            theirs, LONG_S, language="en", task="transcribe", return_timestamps=True, return_segments=True
        )["segments"][0]
        verbose = create(
            model="whisper",
            file=long,
            language="en",
            response_format="verbose_json",
            timestamp_granularities=["segment"],
        )
        shown = [each for each in wanted if text_of(each["tokens"]).strip()]
        assert [each.tokens for each in verbose.segments] == [each["tokens"].tolist() for each in shown]
        for each, other in zip(verbose.segments, shown, strict=True):
            assert abs(each.start - float(other["start"])) < 0.01
            assert abs(each.end - min(float(other["end"]), LONG_S)) < 0.01
            assert 0 <= each.no_speech_prob <= 1 and each.avg_logprob < 0 and each.compression_ratio > 0
        assert len(verbose.segments) > 1 and verbose.language == "en" and verbose.duration == LONG_S

        whole = create(model="whisper", file=long, language="en").text
        assert whole == verbose.text
        deltas = list(create(model="whisper", file=long, language="en", stream=True))
        assert deltas[-1].type == "transcript.text.done" and deltas[-1].text == whole
        assert "".join(each.delta for each in deltas[:-1]).strip() == whole and len(deltas) > 2
        subtitles = create(model="whisper", file=long, language="en", response_format="srt")
        assert subtitles.count(" --> ") == len(verbose.segments) and subtitles.startswith("1\n00:00:0")
        assert create(model="whisper", file=long, language="en", response_format="vtt").startswith("WEBVTT\n\n00:00:0")

        timed = expected(
            theirs, LONG_S, language="en", task="transcribe", return_timestamps=True, return_segments=True,
            return_token_timestamps=True,
        )["segments"][0]  # fmt: skip
        asked: dict[str, Any] = {"model": "whisper", "file": long, "language": "en", "response_format": "verbose_json"}
        spoken_words = create(**asked, timestamp_granularities=["word", "segment"])
        known = [word for segment in timed for word in words_in(segment)]
        assert [word.word for word in spoken_words.words] == [word for word, _, _ in known] and len(known) > 5
        for each, (_, start_s, end_s) in zip(spoken_words.words, known, strict=True):
            assert abs(each.start - start_s) < 0.021 and abs(each.end - min(end_s, LONG_S)) < 0.021
        assert [each.tokens for each in spoken_words.segments] == [each.tokens for each in verbose.segments]
        assert create(**asked, timestamp_granularities=["word"]).segments is None

        assert {each.temperature for each in verbose.segments} == {0.0}
        set_limits(tmp_path / "home", logprob=0.0)  # all transcripts are poor
        raised = create(**asked)
        assert {each.temperature for each in raised.segments} == {1.0} and raised.text != verbose.text
        assert create(**asked).text == raised.text
        assert create(**asked, extra_body={"seed": 1}).text != raised.text
        stated = [create(**asked, temperature=0.4, extra_body={"seed": 1}) for _ in range(2)]
        assert {each.temperature for each in stated[0].segments} == {0.4} and stated[0].text == stated[1].text
        set_limits(tmp_path / "home", no_speech=-1.0)  # and silent
        silent = create(**asked, timestamp_granularities=["word", "segment"])
        assert (silent.text, silent.segments, silent.words) == ("", [], [])
        set_limits(tmp_path / "home", logprob=-1000.0, no_speech=1.0)

        for fields, words in (
            ({"language": "xx"}, "whisper does not support 'xx'; expected one of de, en, haw"),
            ({"file": ("x.wav", b"RIFF")}, "file: it is damaged, or no audio; expected WAV, FLAC, MP3 or Ogg"),
            (
                {"timestamp_granularities": ["word"]},
                "timestamp_granularities: only response_format verbose_json supports it",
            ),
            ({"temperature": 2}, "temperature"),
            ({"prompt": "<|en|>"}, "special token"),
            ({"extra_body": {"languag": "en"}}, "write language"),
            ({"include": ["logprobs"]}, "include is not served here"),
            ({"response_format": "srt", "stream": True}, "srt cannot be streamed"),
        ):
            with pytest.raises(openai.BadRequestError, match=words):
                create(**{"model": "whisper", "file": short, **fields})
        with pytest.raises(openai.BadRequestError, match="use /v1/audio/transcriptions"):
            client.completions.create(model="whisper", prompt="x")
        with pytest.raises(openai.NotFoundError):
            create(model="other", file=short)
        assert http.get("/v2/health/ready").status_code == 200
