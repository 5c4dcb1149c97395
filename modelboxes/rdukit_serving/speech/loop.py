"""Transcripts in a device process: each hears a window of audio, and is then made as other texts are.

Axes: M bands, N frames of a window, V vocabulary.
"""

import mmap
import os
import socket
from collections.abc import Mapping, Sequence
from enum import Enum, auto
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rdukit.errors import InvalidArgument
from rdukit_serving.device.messages import Prompt
from rdukit_serving.shape import TextSizes
from rdukit_serving.speech.alignment import token_times
from rdukit_serving.speech.description import SpeechDescription, SpeechTokens, read_description
from rdukit_serving.speech.rules import SpeechRules, SpeechSampler
from rdukit_serving.text.draft import DraftModel
from rdukit_serving.text.generation import Generation, ModelTokens, Tell
from rdukit_serving.text.generation_config import options_of
from rdukit_serving.text.loop import TextLoop, tell_ready
from rdukit_serving.text.program import TextProgram
from rdukit_serving.text.sampling import check_numbers


def serve_speech(
    box: socket.socket, program: TextProgram, tokens: ModelTokens, checkpoint: Path, draft: DraftModel | None
) -> None:  # fmt: skip
    """Answer ``generate`` until the box stops, with memory for the audio of each text.

    Raises:
        InvalidArgument: the description next to the checkpoint is missing or damaged. PefMismatch: it is of another
            model.
    """
    description = read_description(checkpoint)
    sizes = program.sizes
    description.check_sizes(sizes.figures(), str(checkpoint))
    descriptor = os.memfd_create("rdukit-audio", os.MFD_CLOEXEC)
    shape = (sizes.texts, sizes.mels, sizes.frames)
    os.ftruncate(descriptor, 4 * int(np.prod(shape)))
    heard = np.frombuffer(mmap.mmap(descriptor, 0), np.float32).reshape(shape)
    tell_ready(box, program, draft, [descriptor])
    os.close(descriptor)
    SpeechLoop(box, program, tokens, description, heard).serve()


class _Stage(Enum):
    """Meaning of the next logits: the language, whether somebody speaks, or the next token."""

    LANGUAGE = auto()
    SPEECH = auto()
    TOKENS = auto()


class SpeechGeneration(Generation):
    """Transcript of a window of audio that is made in a row of the caches.

    The prompt ends with the token that begins transcripts. The loop detects the language first, unless the request
    states it: the logits after the start token give it. Then it reads the prompt, followed by language and task.
    """

    def __init__(
        self, prompt: Prompt, message: Mapping[str, Any], vocabulary: ModelTokens, sizes: TextSizes, tell: Tell,
        known: SpeechTokens, frame_s: float,
    ) -> None:  # fmt: skip
        super().__init__(prompt, message, vocabulary, sizes, tell)
        self._frame_s = frame_s
        asked = message["speech"]
        #: Place of the audio in the memory, until it is heard.
        self.place: int | None = message["place"]
        self._known, self._sizes = known, sizes
        self._has_times: bool = asked["has_times"]
        self._task: int | None = asked["task"]
        self._language: int | None = asked["language"]
        #: Frames of audio in the window, to say when each token is spoken; None: not asked.
        self._timed_frames: int | None = asked["timed_frames"]
        self._times: list[float] = []
        #: How the text ended, until its tokens have times.
        self._ending: str | None = None
        self._no_speech = 0.0
        self._beginning = list(self.prompt)
        options = options_of(message["sampling"], vocabulary.defaults)
        self._speech = SpeechSampler(options, SpeechRules(known, self._has_times), self.prompt, self._ends)
        self._sampler = self._speech
        self._stage = _Stage.SPEECH
        if self._language is None and known.languages:
            self._stage, self.prompt = _Stage.LANGUAGE, [known.start]

    def _choose(self, logits_V: NDArray[np.float32]) -> None:
        assert self.row is not None
        if self._stage is _Stage.LANGUAGE:
            languages = sorted(self._known.languages.values())
            self._language, self._stage = languages[int(logits_V[languages].argmax())], _Stage.SPEECH
            if self._beginning != self.prompt:
                self.prompt, self.row.tokens = self._beginning, []
                return
        if self._stage is _Stage.SPEECH:
            self._stage = _Stage.TOKENS
            if self._known.no_speech is not None:
                shares_V = np.exp(logits_V.astype(np.float64) - float(logits_V.max()))
                self._no_speech = float(shares_V[self._known.no_speech] / shares_V.sum())
            self.prompt = [*self._beginning, *self._stated()]
            self._most = min(self._most, self._sizes.context - len(self.prompt))
            if self.is_reading:
                return
        super()._choose(logits_V)

    def _stated(self) -> list[int]:
        """Return the tokens that state the language, the task, and that there are no timestamps."""
        silent = None if self._has_times else self._known.no_timestamps
        return [token for token in (self._language, self._task, silent) if token is not None]

    def end(self, reason: str) -> None:
        """Report the end, or keep it until the tokens have times."""
        if self._timed_frames is None or reason == "cancelled":
            super().end(reason)
        else:
            self.is_over, self._ending = True, reason

    def end_with_times(self, program: TextProgram, median: int) -> None:
        """Find out when the tokens are spoken if that is asked, and report the end. The row still has the text.

        Raises:
            RuntimeFault: the attention is not numbers.
        """
        ending, self._ending = self._ending, None
        if ending is None or self.row is None or self._timed_frames is None:
            return
        written, made = self.row.tokens[len(self.prompt) :], len(self._speech.record.tokens)
        if written:
            shares_ATS = program.align(self.row.number, written, len(self.prompt))
            check_numbers("align", shares_ATS)
            # A state is two frames.
            state_s = 2 * self._frame_s
            self._times = token_times(shares_ATS, self._timed_frames // 2, state_s, median)
        # The last token was not read again, and has the time of the one before, as in transformers.
        self._times += [self._times[-1] if self._times else 0.0] * (made - len(self._times))
        super().end(ending)

    def _told_at_end(self) -> dict[str, Any]:
        record = self._speech.record
        speech: dict[str, Any] = {"tokens": record.tokens, "language": self._language, "no_speech": self._no_speech}
        if self._timed_frames is not None:
            speech |= {"times": self._times, "pieces": [self._told(token) for token in record.tokens]}
        return {"speech": {**speech, "logprob": float(np.mean(record.logprobs)) if record.logprobs else 0.0}}


class SpeechLoop(TextLoop):
    """The transcripts that are made now."""

    def __init__(
        self, box: socket.socket, program: TextProgram, vocabulary: ModelTokens, description: SpeechDescription,
        heard_RMN: NDArray[np.float32],
    ) -> None:  # fmt: skip
        super().__init__(box, program, vocabulary)
        self._description, self._known, self._heard_RMN = description, description.tokens, heard_RMN

    def _new_text(self, prompt: Prompt, message: dict[str, Any]) -> Generation:
        if "speech" not in message:  # a probe of whether texts are made
            return super()._new_text(prompt, message)
        sizes = self._program.sizes
        frame_s = self._description.audio.frame_s
        text = SpeechGeneration(prompt, message, self._vocabulary(message), sizes, self._tell, self._known, frame_s)
        if text.prompt[-1] != self._known.start or len(text.prompt) + 4 > sizes.context:
            raise InvalidArgument(
                f"prompt: expected at most {sizes.context - 4} tokens, of which the last is the start token"
            )
        return text

    def _free_ended(self) -> None:
        for text in self._made.values():
            if isinstance(text, SpeechGeneration) and text.is_over:
                with self._refusing(text):
                    text.end_with_times(self._program, self._description.median)
        super()._free_ended()

    def _read(self, text: Generation, part: Sequence[int]) -> NDArray[np.float32]:
        if isinstance(text, SpeechGeneration) and text.place is not None:
            assert text.row is not None
            self._program.listen(text.row.number, self._heard_RMN[text.place])
            text.place = None
        return super()._read(text, part)
