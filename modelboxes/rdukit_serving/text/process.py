"""The device process of a text model: it loads the model and runs the loop of its texts or transcripts."""

import contextlib
import socket
from pathlib import Path

from rdukit.errors import NotFound
from rdukit_serving.text.chat_template import check_draft_tokens
from rdukit_serving.text.draft import load_draft
from rdukit_serving.text.loop import TextLoop, read_tokens, tell_ready, tokenizer_file
from rdukit_serving.text.program import TextProgram


def serve_text(
    box: socket.socket, name: str, pef: Path, checkpoint: Path | None, draft: tuple[Path, Path] | None = None
) -> None:  # fmt: skip
    """Load and answer ``generate`` until the box stops; ``draft``: PEF and checkpoint of a model that guesses.

    Raises:
        NotFound: no checkpoint, or none with a tokenizer. RdukitError: as ``TextProgram``.
        InvalidArgument: the draft has other tokens, or is compiled for less.
    """
    if checkpoint is None:
        raise NotFound(
            "a text model needs a checkpoint: a folder that train wrote, or a file with a tokenizer next to it"
        )
    file = tokenizer_file(checkpoint)
    with contextlib.ExitStack() as loaded:
        program = loaded.enter_context(TextProgram(pef, checkpoint, name=name))
        # Plans and touches everything before the first caller waits.
        program.warm_up()
        tokens = read_tokens(file, checkpoint, program)
        guessing = None if draft is None else load_draft(loaded, *draft, program.sizes, name)
        if guessing is not None:
            check_draft_tokens(checkpoint, guessing.checkpoint)
        if program.sizes.frames:
            from rdukit_serving.speech.loop import serve_speech  # only models that hear need it

            serve_speech(box, program, tokens, checkpoint, guessing)
            return
        tell_ready(box, program, guessing)
        TextLoop(box, program, tokens, guessing).serve()
