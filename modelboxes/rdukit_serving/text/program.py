"""A language model that a box compiled to serve, loaded from its PEF and a checkpoint, without SDK or zoo.

The PEF has graphs to read prompts (``prefill_T``) and to make a token of each of several texts (``decode_B``), and
``embed`` to make vectors or ``listen`` and ``align`` to hear audio, or ``embed`` alone (see
``rdukit_modelbox.verbs.compile``). Its caches in device memory have a row for each text. Axes: B texts of a run, V
vocabulary.
"""

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

import numpy as np
import torch
from numpy.typing import NDArray

from rdukit.errors import InvalidArgument, PefMismatch
from rdukit.pef import Pef
from rdukit_runtime.application import open_application
from rdukit_runtime.engine.device import return_freed_memory
from rdukit_runtime.engine.parameter_sets import ParameterSet
from rdukit_serving.device.loaded_model import properties_of
from rdukit_serving.device.parameters import merged_parameters, text_parameters
from rdukit_serving.shape import SERVE, TextSizes, shape_of
from rdukit_serving.text.generation_config import known_tokens
from rdukit_serving.text.rows import part_length
from rdukit_serving.text.sampling import Sampler, check_numbers

#: Number of initial timing runs of each width; the first one, which also plans, counts little.
_MEASURED: Final = 4


class TextProgram:
    """Program that reads prompts into rows of its caches, and continues the texts of several rows at once.

    ``start`` and ``step`` make one text, in row 0.
    """

    def __init__(
        self, pef: Path, checkpoint: Path | None, which: str = "newest", name: str = "text", is_raw: bool = False
    ) -> None:
        """Load the PEF onto tiles with the checkpoint's parameters; None: they stay zero until ``use``.

        ``which``: ``newest`` or ``best``; ``name``: of the application, for the node's tools. ``is_raw``: keep the
        logits of tokens that the tokenizer lacks; otherwise they become minus infinity, so that these are never chosen.

        Raises:
            PefError: it cannot be used, or was not compiled by a box with purpose=serve from a language model.
            NotFound, InvalidArgument: there is no such checkpoint, it is damaged, or of another model.
            NoResources: no tiles or memory are free.
        """
        began = time.perf_counter()
        self._application = open_application(pef, name)
        try:
            shape = shape_of(self._application.pef, str(pef))
            if shape.text is None or shape.purpose != SERVE:
                raise PefMismatch(
                    f"{pef} has purpose={shape.purpose}, task {shape.task}; compile a text model with purpose=serve"
                )
            if "decode" in self._application.pef.graphs:
                raise PefMismatch(f"{pef} was compiled by an earlier version for a single text; compile it again")
            self.sizes: TextSizes = shape.text
            #: Number of training steps of the parameters.
            self.checkpoint_step = 0
            self._program = self._application.program
            if checkpoint is not None:
                with merged_parameters(checkpoint, which, shape) as (self.checkpoint_step, parameters):
                    self._write_parameters(parameters)
                return_freed_memory()
            #: Tokens that the tokenizer has; a model may have room for more, which were never trained.
            self._known = self.sizes.vocabulary
            if checkpoint is not None and not is_raw:
                self._known = known_tokens(checkpoint) or self._known
            self._sections = {
                graph: self._program.choose_sections(self._program.find_graph(graph))
                for graph in self._application.pef.graphs
            }
            self._outputs = {graph: self._program.find_graph(graph).outputs[0] for graph in self._sections}
            self._scalars = dict(self._application.pef.hyperparameters)
            #: The least of a processor's time that a run of each width took; known of all after ``warm_up``.
            self.seconds: dict[int, float] = {}
            #: The same of a run that reads a part of a prompt, by its length.
            self.read_seconds: dict[int, float] = {}
            self._load_seconds = time.perf_counter() - began
        except BaseException:
            self._application.close()
            raise

    @property
    def generates(self) -> bool:
        """Return whether the program continues texts; otherwise it only makes vectors."""
        return any(graph.startswith("decode") for graph in self._sections)

    def start(self, prompt: Sequence[int], row: int = 0) -> NDArray[np.float32]:
        """Read a prompt into a row and return the logits [V] after it.

        Raises:
            InvalidArgument: the prompt is empty, fills the context, or has an unknown token; or the model does not
                generate text.
        """
        if not self.generates:
            raise InvalidArgument("this model generates no text; expected /v1/embeddings")
        if not 1 <= len(prompt) <= self.sizes.most_prompt:
            raise InvalidArgument(f"the prompt has {len(prompt)} tokens; expected 1 to {self.sizes.most_prompt}")
        self.sizes.check_tokens(prompt, "prompt")
        for at in range(0, len(prompt), self.sizes.prompt):
            logits_V = self.read(row, prompt[at : at + self.sizes.prompt], at)
        return logits_V

    def step(self, token: int, position: int) -> NDArray[np.float32]:
        """Return logits [V] after ``token`` at ``position`` of row 0; earlier positions hold the text so far.

        Raises:
            InvalidArgument: the context is full, or the model has no such token.
        """
        if not 0 <= position < self.sizes.context:
            raise InvalidArgument(f"position {position} is not valid; expected 0 to {self.sizes.context - 1}")
        self.sizes.check_tokens([token], "token")
        logits_V: NDArray[np.float32] = self.advance([0], [token], [position])[0]
        check_numbers("decode", logits_V)
        return logits_V

    def read(
        self, row: int, tokens: Sequence[int], position: int, adapter: int | None = None
    ) -> NDArray[np.float32]:  # fmt: skip
        """Read at most ``sizes.prompt`` tokens of a row's text from ``position`` on; return logits [V] after them.

        With an encoder they are the complete source of a new text in the row; the logits follow ``sizes.start``.

        ``adapter``: number of the text's adapter; None: no adapter.

        Raises:
            RuntimeFault: the logits are not finite.
        """
        count = len(tokens)
        size = next(length for length in self.sizes.prompt_lengths if length >= count)
        given = self._placed(row, tokens, position, size)
        graph, last = f"prefill_{size}", np.array([count - 1])
        began = time.thread_time()
        logits_V = self._run(
            graph, tokens=given[0], positions=given[1], rows=np.array([row]), targets=given[2], last=last,
            **self._shares([adapter], 1),
        )  # fmt: skip
        took = time.thread_time() - began
        self.read_seconds[size] = min(self.read_seconds.get(size, took), took)
        check_numbers(graph, logits_V)
        return logits_V

    def listen(self, row: int, features_MN: NDArray[np.float32]) -> None:
        """Hear a spectrogram [M, N], which the text of a row attends to from now on."""
        self._run("listen", features=features_MN[None], row=np.array([row]))

    def align(self, row: int, tokens: Sequence[int], position: int) -> NDArray[np.float32]:
        """Return the shares [A, T, S] with which heads attend to the audio of a row, for its tokens from ``position``.

        The row's text has these tokens already.
        """
        size, parts = self.sizes.prompt, list[NDArray[np.float32]]()
        for at in range(0, len(tokens), size):
            part = tokens[at : at + size]
            given = self._placed(row, part, position + at, size)
            found = self._run("align", tokens=given[0], positions=given[1], rows=np.array([row]), targets=given[2])
            parts.append(found.reshape(self.sizes.alignment, size, -1)[:, : len(part)].copy())
        return np.concatenate(parts, 1)

    def _placed(self, row: int, tokens: Sequence[int], position: int, size: int) -> NDArray[np.int64]:
        """Return tokens, positions and written rows [3, 1, size] of a run for one text, from ``position`` on."""
        count, given = len(tokens), np.zeros((3, 1, size), np.int64)
        given[0, 0, :count], given[1, 0, :count] = tokens, np.arange(position, position + count)
        given[2] = self.sizes.texts  # what fills the run is in the spare row
        given[2, 0, :count] = row
        return given

    def part_length(self, made: int) -> int:
        """Return the largest number of a prompt's tokens to read while ``made`` other texts wait for theirs."""
        width = next((each for each in self.sizes.widths if each >= made), self.sizes.widths[-1])
        step_s = self.seconds.get(width) if made else None
        return part_length(self.sizes.prompt_lengths, self.read_seconds, step_s)

    def advance(
        self, rows: Sequence[int], tokens: Sequence[int], positions: Sequence[int], adapters: Sequence[int | None] = (),
    ) -> NDArray[np.float32]:  # fmt: skip
        """Write a token to the text of each row and return the unchecked logits [B, V] after them.

        A row may be there several times with positions that follow each other: the tokens are written before any
        looks back. ``adapters``: number of each text's adapter; None: no adapter, as without the argument.
        """
        count = len(rows)
        width = next(each for each in self.sizes.widths if each >= count)
        given = np.zeros((3, width, 1), np.int64)
        given[2] = self.sizes.texts  # what fills the run is in the spare row
        given[0, :count, 0], given[1, :count, 0], given[2, :count, 0] = tokens, positions, rows
        began = time.thread_time()  # which others on the machine do not lengthen
        logits = self._run(
            f"decode_{width}", tokens=given[0], positions=given[1], rows=given[2, :, 0], targets=given[2],
            **self._shares(adapters, width),
        )  # fmt: skip
        took = time.thread_time() - began
        self.seconds[width] = min(self.seconds.get(width, took), took)
        return logits.reshape(width, -1)[:count]

    def copy(self, source: int, target: int) -> None:
        """Copy the text of one row to another row."""
        self._run("copy", source=np.array([source]), target=np.array([target]))

    def warm_up(self) -> None:
        """Run each graph, so that everything is planned, touched and timed before the first text."""
        if self.generates:
            for count in self.sizes.prompt_lengths:
                self.read(0, [0] * min(count, self.sizes.most_prompt), 0)
            for width in self.sizes.widths * _MEASURED:
                self.advance([self.sizes.texts] * width, [0] * width, [0] * width)
        if "copy" in self._sections:
            self.copy(0, 1)
        if "listen" in self._sections:
            self.listen(self.sizes.texts, np.zeros((self.sizes.mels, self.sizes.frames), np.float32))
        if "align" in self._sections:
            self.align(self.sizes.texts, [0], 0)
        if "embed" in self._sections:
            self.embed([0])

    def embed(self, tokens: Sequence[int]) -> NDArray[np.float32]:
        """Embed a text as a vector [C], the mean of the last layer over its tokens.

        Raises:
            InvalidArgument: it is empty, longer than the compiled prompt, or the PEF has no graph for it.
        """
        size = self.sizes.prompt
        if "embed" not in self._sections:
            raise InvalidArgument("this PEF has no graph 'embed': compile it again with purpose=serve")
        if not 1 <= len(tokens) <= size:
            raise InvalidArgument(
                f"the text has {len(tokens)} tokens; expected 1 to {size}, the compiled prompt", field="input"
            )
        self.sizes.check_tokens(tokens, "input")
        text, shares = torch.zeros(1, size, dtype=torch.int64), torch.zeros(1, size)
        text[0, : len(tokens)] = torch.tensor(tokens, dtype=torch.int64)
        shares[0, : len(tokens)] = 1 / len(tokens)
        self._program.write_all([("text", text), ("shares", shares)])
        vector: NDArray[np.float32] = self._outcome("embed")
        check_numbers("embed", vector)
        return vector

    @property
    def pef(self) -> Pef:
        """Return the loaded PEF."""
        return self._application.pef

    def use(self, parameters: ParameterSet | None, known: int | None = None) -> None:
        """Use parameters from a set from now on, whose tokenizer has ``known`` tokens; None: the program's own.

        The caches keep their content, which is valid only for texts of the same weights.
        """
        self._program.use(parameters)
        self._known = known or self.sizes.vocabulary

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

    def _shares(self, adapters: Sequence[int | None], width: int) -> dict[str, NDArray[np.float32]]:
        """Return each text's shares of the ranks of all adapters [B, 1, N * R]: ones for its own."""
        if not self.sizes.adapters:
            return {}
        shares = np.zeros((width, self.sizes.adapters, self.sizes.adapter_rank), np.float32)
        for place, number in enumerate(adapters):
            if number is not None:
                shares[place, number] = 1.0
        return {"shares": shares.reshape(width, 1, -1)}

    def _run(self, graph: str, **values: NDArray[Any]) -> NDArray[np.float32]:
        """Return a graph's logits; those of tokens that the tokenizer lacks are minus infinity."""
        self._program.write_all([(f"{graph}_{name}", torch.from_numpy(value)) for name, value in values.items()])
        found = self._outcome(graph)
        if graph not in {"copy", "listen", "align"} and self._known < self.sizes.vocabulary:
            found.reshape(-1, self.sizes.vocabulary)[:, self._known :] = -np.inf
        return found

    def _outcome(self, graph: str) -> NDArray[np.float32]:
        self._application.run(graph, self._sections[graph], self._scalars)
        found: NDArray[np.float32] = self._program.read(self._outputs[graph]).float().reshape(-1).numpy()
        return found

    def _write_parameters(self, parameters: Mapping[str, torch.Tensor]) -> None:
        """Copy the tensors of the checkpoint and of the PEF to the device; the caches stay zero."""
        with self._program.checkpointing():
            for symbol, value in text_parameters(self._application.pef, parameters):
                self._program.write(symbol, value)


def generate_all(
    program: TextProgram, prompts: Iterable[tuple[Sequence[int], Sampler]], max_tokens: int,
    ends: Set[int] = frozenset(),
) -> Iterator[tuple[int, list[int]]]:  # fmt: skip
    """Yield the number of each prompt and its at most ``max_tokens`` tokens, in the order in which the texts end.

    The program's maximum of texts runs at once; the next one begins when one ends.

    Raises:
        InvalidArgument: as ``TextProgram.start``. RuntimeFault: the logits are not finite.
    """
    waiting = enumerate(prompts)
    free = list(range(program.sizes.texts))
    made: dict[int, tuple[int, int, Sampler, list[int]]] = {}

    def choose(row: int, logits_V: NDArray[np.float32]) -> Iterator[tuple[int, list[int]]]:
        """Process a row's next token; yield its text if the token ends it."""
        number, begin, sampler, tokens = made[row]
        is_over = max_tokens == 0 or (token := sampler.choose(logits_V)) in ends
        if not is_over:
            tokens.append(token)
            is_over = len(tokens) == max_tokens or begin + len(tokens) > program.sizes.context
        if is_over:
            del made[row]
            free.append(row)
            yield number, tokens

    while True:
        while free and (following := next(waiting, None)) is not None:
            number, (prompt, sampler) = following
            row = free.pop()
            logits_V = program.start(prompt, row)
            made[row] = (number, len(program.sizes.begin_of(prompt)), sampler, [])
            yield from choose(row, logits_V)
        if not made:
            return
        rows = list(made)
        last = [(tokens[-1], begin + len(tokens) - 1) for _, begin, _, tokens in made.values()]
        logits = program.advance(rows, *zip(*last, strict=True))
        for row, logits_V in zip(rows, logits.copy(), strict=True):
            check_numbers("decode", logits_V)
            yield from choose(row, logits_V)
