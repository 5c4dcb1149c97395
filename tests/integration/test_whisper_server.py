"""``rdukit serve FOLDER`` of Whisper as a program, called by OpenAI's client: forms, streams, and what is refused."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

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
    features = extractor_of(model)(samples, sampling_rate=16000, return_tensors="np", **length).input_features
    return model.generate(torch.from_numpy(np.asarray(features)), **options)


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

        for fields, words in (
            ({"language": "xx"}, "whisper does not support 'xx'; expected one of de, en, haw"),
            ({"file": ("x.wav", b"RIFF")}, "file: it is damaged, or no audio; expected WAV, FLAC, MP3 or Ogg"),
            (
                {"timestamp_granularities": ["word"], "response_format": "verbose_json"},
                "times of words are not supported",
            ),
            ({"temperature": 2}, "temperature"),
            ({"prompt": "<|en|>"}, "special token"),
            ({"extra_body": {"languag": "en"}}, "write language"),
            ({"include": ["logprobs"]}, "include is not served here"),
            ({"response_format": "srt", "stream": True}, "srt is not streamed"),
        ):
            with pytest.raises(openai.BadRequestError, match=words):
                create(**{"model": "whisper", "file": short, **fields})
        with pytest.raises(openai.BadRequestError, match="use /v1/audio/transcriptions"):
            client.completions.create(model="whisper", prompt="x")
        with pytest.raises(openai.NotFoundError):
            create(model="other", file=short)
        assert http.get("/v2/health/ready").status_code == 200
