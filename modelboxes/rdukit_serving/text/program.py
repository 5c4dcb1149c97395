"""A language model that a box compiled to serve, loaded from its PEF and a checkpoint, without SDK or zoo.

The PEF has the graphs ``prefill`` and ``decode`` to generate and ``embed`` to make vectors, or the last alone (see
``rdukit_modelbox.verbs.compile``), and its caches in device memory: one text at a time. Axes: V vocabulary.
"""

import json
import time
from collections.abc import Iterator, Mapping, Sequence, Set
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import NDArray

from rdukit.errors import InvalidArgument, PefMismatch
from rdukit_runtime.application import open_application
from rdukit_serving.device.loaded_model import properties_of
from rdukit_serving.device.parameters import (
    load_parameters,
    match_parameters,
    merge_adapters,
    read_constants,
)
from rdukit_serving.shape import SERVE, TextSizes, shape_of
from rdukit_serving.text.chat_template import GENERATION_FILE, companion
from rdukit_serving.text.sampling import Sampler, check_numbers


class TextProgram:
    """Program that reads prompts and steps from token to token; ``start`` begins another text."""

    def __init__(
        self, pef: Path, checkpoint: Path, which: str = "newest", name: str = "text", is_raw: bool = False
    ) -> None:
        """Load the PEF onto tiles and put the checkpoint's parameters there.

        ``which``: ``newest`` or ``best``; ``name``: of the application, for the node's tools. ``is_raw``: leave the
        logits of tokens that the tokenizer lacks as they are; else they are minus infinity, so that none is chosen.

        Raises:
            PefError: it cannot be used, or was not compiled by a box with purpose=serve from a language model.
            NotFound, InvalidArgument: there is no such checkpoint, it is damaged, or of another model.
            NoResources: no tiles or memory are free.
        """
        began = time.perf_counter()
        step, stored = load_parameters(checkpoint, which)
        parameters = merge_adapters(stored)
        self._application = open_application(pef, name)
        try:
            shape = shape_of(self._application.pef, str(pef))
            if shape.text is None or shape.purpose != SERVE:
                raise PefMismatch(
                    f"{pef} is of purpose={shape.purpose}, task {shape.task}; compile a model of texts with "
                    "purpose=serve"
                )
            self.sizes: TextSizes = shape.text
            #: Steps of the training that the parameters come from.
            self.checkpoint_step = step
            self._program = self._application.program
            self._write_parameters(parameters)
            #: Tokens that the tokenizer has; a model may have room for more, which were never trained.
            self._known = (None if is_raw else known_tokens(checkpoint)) or self.sizes.vocabulary
            self._sections = {
                graph: self._program.choose_sections(self._program.find_graph(graph))
                for graph in ("prefill", "decode", "embed")
                if graph in self._application.pef.graphs
            }
            self._outputs = {graph: self._program.find_graph(graph).outputs[0] for graph in self._sections}
            self._scalars = dict(self._application.pef.hyperparameters)
            self._load_seconds = time.perf_counter() - began
        except BaseException:
            self._application.close()
            raise

    @property
    def generates(self) -> bool:
        """Return whether texts are continued; else there are only vectors of them."""
        return "prefill" in self._sections

    def start(self, prompt: Sequence[int]) -> NDArray[np.float32]:
        """Read a prompt from position 0 and return the logits [V] after it.

        What is longer than the compiled prompt is read token by token.

        Raises:
            InvalidArgument: it is empty, leaves no room in the context, or has a token that the model does not have;
                or the model generates no text.
        """
        sizes = self.sizes
        if not self.generates:
            raise InvalidArgument("this model generates no text; legal: /v1/embeddings")
        if not 1 <= len(prompt) < sizes.context:
            raise InvalidArgument(f"the prompt has {len(prompt)} tokens; legal: 1 to {sizes.context - 1}")
        self.check_tokens(prompt, "prompt")
        head = prompt[: sizes.prompt]
        tokens = torch.zeros(1, sizes.prompt, dtype=torch.int64)
        tokens[0, : len(head)] = torch.tensor(head, dtype=torch.int64)
        logits_V = self._run("prefill", {"tokens": tokens, "last": torch.tensor([len(head) - 1])})
        for position in range(len(head), len(prompt)):
            logits_V = self._decode(prompt[position], position)
        return logits_V

    def step(self, token: int, position: int) -> NDArray[np.float32]:
        """Return logits [V] after ``token`` at ``position``; positions before it hold the text so far.

        Raises:
            InvalidArgument: the context is full, or the model has no such token.
        """
        if not 0 <= position < self.sizes.context:
            raise InvalidArgument(f"position {position} is not legal; legal: 0 to {self.sizes.context - 1}")
        self.check_tokens([token], "token")
        return self._decode(token, position)

    def embed(self, tokens: Sequence[int]) -> NDArray[np.float32]:
        """Embed a text as a vector [C], the mean of the last layer over its tokens. Ends the text so far.

        Raises:
            InvalidArgument: it is empty, longer than the compiled prompt, or the PEF has no graph for it.
        """
        size = self.sizes.prompt
        if "embed" not in self._sections:
            raise InvalidArgument("this PEF has no graph 'embed': compile it again with purpose=serve")
        if not 1 <= len(tokens) <= size:
            raise InvalidArgument(
                f"the text has {len(tokens)} tokens; legal: 1 to {size}, the compiled prompt", field="input"
            )
        self.check_tokens(tokens, "input")
        text, shares = torch.zeros(1, size, dtype=torch.int64), torch.zeros(1, size)
        text[0, : len(tokens)] = torch.tensor(tokens, dtype=torch.int64)
        shares[0, : len(tokens)] = 1 / len(tokens)
        return self._run("embed", {"text": text, "shares": shares})

    def check_tokens(self, tokens: Sequence[int], field: str) -> None:
        """Raise ``InvalidArgument``, naming ``field``, if a token is not in the vocabulary."""
        wrong = next((token for token in tokens if not 0 <= token < self.sizes.vocabulary), None)
        if wrong is not None:
            raise InvalidArgument(
                f"token {wrong} is not in the vocabulary; legal: 0 to {self.sizes.vocabulary - 1}", field=field
            )

    def stop(self) -> None:
        """Tear down and release the lease. Calling again does nothing."""
        self._application.close()

    def properties(self) -> dict[str, str]:
        """Describe the loaded PEF for people."""
        return properties_of(self._application, self._load_seconds)

    def figures(self) -> dict[str, Any]:
        """Return emulated and host figures since the load."""
        return self._application.figures()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def _decode(self, token: int, position: int) -> NDArray[np.float32]:
        return self._run("decode", {"token": torch.tensor([[token]]), "position": torch.tensor([position])})

    def _run(self, graph: str, values: dict[str, torch.Tensor]) -> NDArray[np.float32]:
        self._program.write_all(list(values.items()))
        self._application.run(graph, self._sections[graph], self._scalars)
        found: NDArray[np.float32] = self._program.read(self._outputs[graph]).float().reshape(-1).numpy()
        check_numbers(graph, found)
        if graph != "embed":
            found[self._known :] = -np.inf
        return found

    def _write_parameters(self, parameters: Mapping[str, torch.Tensor]) -> None:
        """Put the checkpoint's tensors and the PEF's own on the device; the caches stay zero."""
        symbols = match_parameters(self._application.pef, parameters)
        written = [*read_constants(self._application.pef).items()]
        written += [(symbol, parameters[name]) for name, symbol in symbols.items()]
        with self._program.checkpointing():
            self._program.write_all(written)


def end_tokens(checkpoint: Path) -> frozenset[int]:
    """Return the tokens that end a text, as kept next to the checkpoint; empty if none are.

    Raises:
        InvalidArgument: the file is damaged.
    """
    value = _generation_value(checkpoint, "eos_token_id")
    return frozenset(value if isinstance(value, list) else [] if value is None else [value])


def known_tokens(checkpoint: Path) -> int | None:
    """Return how many tokens the tokenizer has, as kept next to the checkpoint; None if it is not.

    Raises:
        InvalidArgument: the file is damaged.
    """
    value = _generation_value(checkpoint, "vocab_size")
    return value[0] if isinstance(value, list) else value


def _generation_value(checkpoint: Path, key: str) -> int | list[int] | None:
    """Return a number or numbers of ``generation_config.json``; None without the file or the key."""
    path = companion(checkpoint, GENERATION_FILE)
    if not path.is_file():
        return None
    try:
        value = json.loads(path.read_text()).get(key)
    except (ValueError, AttributeError) as cause:
        raise InvalidArgument(f"{path} is damaged: {cause!r}") from cause
    numbers = value if isinstance(value, list) else [] if value is None else [value]
    if not all(isinstance(number, int) and number >= 0 for number in numbers) or value == []:
        raise InvalidArgument(f"{path}: {key} is {value!r}; legal: a token's number, or a list of them")
    return value  # type: ignore[no-any-return]


def generate(
    program: TextProgram, prompt: Sequence[int], sampler: Sampler, max_tokens: int, ends: Set[int] = frozenset()
) -> Iterator[int]:
    """Yield at most ``max_tokens`` tokens after ``prompt``, up to one of ``ends`` or a full context.

    Close the iterator to stop early.

    Raises:
        InvalidArgument: as ``TextProgram.start``.
    """
    logits_V = program.start(prompt)
    for position in range(len(prompt), len(prompt) + max_tokens):
        token = sampler.choose(logits_V)
        if token in ends:
            return
        yield token
        if position >= program.sizes.context or position + 1 == len(prompt) + max_tokens:
            return
        logits_V = program.step(token, position)
