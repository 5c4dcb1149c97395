"""Language modelling: the perplexity of texts, and continuations of prompts by a PEF that was compiled to serve."""

import json
import math
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
from tokenizers import Tokenizer

from rdukit.errors import InvalidArgument
from rdukit.files.atomic import write_atomic, write_json_atomic
from rdukit_modelbox.contract.allowed_values import ParameterValue
from rdukit_modelbox.contract.models import entry_of
from rdukit_modelbox.tasks.base import Batch, Scores, TaskData, measured, with_names
from rdukit_modelbox.tasks.program import ModelProgram
from rdukit_modelbox.tasks.texts import TextData, open_texts
from rdukit_modelbox.verbs.context import Progress, VerbContext, VerbResult
from rdukit_serving.device.parameters import check_checkpoint, load_parameters
from rdukit_serving.shape import IGNORED, SERVE, TRAIN, Shape
from rdukit_serving.text.program import TextProgram, generate_all
from rdukit_serving.text.sampling import Sampler, SamplingOptions, log_probabilities
from rdukit_zoo.registry import ModelEntry


class LanguageModelling:
    """The task; see ``Task``."""

    def open_data(self, entry: ModelEntry, shape: Shape, folder: Path) -> TextData:
        """Return a data set that preprocess made of texts."""
        return open_texts(shape, folder)

    def evaluate(self, program: ModelProgram, data: TaskData, split: str, context: VerbContext, stage: str) -> Scores:
        """Compute the mean loss of the predicted tokens, and its exponential."""
        assert isinstance(data, TextData)
        return judge_program(program, data, split, context, stage)

    def infer(
        self, context: VerbContext, shape: Shape, parameters: Mapping[str, ParameterValue],
        inputs: Mapping[str, Path], output: Path,
    ) -> VerbResult:  # fmt: skip
        """Compute the perplexity of a data set, or with ``figure=continuations`` continue prompts.

        Raises:
            InvalidArgument: data set, prompts or checkpoint are not of the PEF's model, or it cannot generate.
            Cancelled: between two texts.
        """
        data, split = open_texts(shape, inputs["dataset"]), str(parameters.get("split", "dev"))
        if "prompts" not in inputs and not data.count(split):
            raise InvalidArgument(
                f"the data set has no sequences in its {split} split; preprocess with dev_ratio above 0"
            )
        check_checkpoint(with_names(shape, data), inputs["checkpoint"], str(parameters.get("use", "newest")))
        if str(parameters.get("figure", "perplexity")) == "continuations":
            shape.require(SERVE, "figure=continuations")
            return write_continuations(context, data, split, parameters, inputs, output)
        return write_perplexity(context, shape, data, split, parameters, inputs, output)


def write_perplexity(
    context: VerbContext, shape: Shape, data: TextData, split: str, parameters: Mapping[str, ParameterValue],
    inputs: Mapping[str, Path], output: Path,
) -> VerbResult:  # fmt: skip
    """Write ``<output>/report.json``. Both kinds of PEF work; one compiled to serve reads token by token.

    Raises:
        InvalidArgument: the checkpoint is not of the PEF's model.
        Cancelled: between two texts or batches.
    """
    which, texts = str(parameters.get("use", "newest")), data.limited(int(parameters.get("limit", 0)))
    if shape.purpose == TRAIN:
        scores, step, figures = _judge_batches(context, shape, texts, split, which, inputs)
    else:
        scores, step, figures = _judge_steps(context, texts, split, which, inputs)
    context.log(f"perplexity {scores.perplexity:.4f} on {scores.samples} sequences of the {split} split")
    found = {**scores.to_json(), "samples": scores.samples, "checkpoint_step": step, **measured(figures)}
    write_json_atomic(output / "report.json", {"box": context.box.name, "split": split, **found})
    return VerbResult(found, {"report": output / "report.json"})


def judge_program(program: ModelProgram, data: TextData, split: str, context: VerbContext, stage: str) -> Scores:
    """Compute a split's mean loss of predicted tokens, and its exponential, in evaluation mode.

    Raises:
        InvalidArgument: padding of the last batch changes its loss, because sequences depend on each other.
        Cancelled: between two batches.
    """
    return judge_batches(program, data.held_out(split, program.shape.batch_size), data.count(split), context, stage)


def judge_batches(
    program: ModelProgram, batches: Iterable[Batch], count: int, context: VerbContext, stage: str
) -> Scores:  # fmt: skip
    """Compute the mean loss of the labels in batches of ``count`` sequences; see ``judge_program``."""
    size = program.shape.batch_size
    total, sums, tokens = -(-count // size), 0.0, 0
    for step, batch in enumerate(batches, 1):
        context.check_cancelled()
        counted = int((batch[1] != IGNORED).sum())
        if counted:
            (loss,) = program.forward_filled(batch, min(size, count - (step - 1) * size))
            sums += float(loss.mean()) * counted
            tokens += counted
        context.progress(Progress(stage, step, total))
    return text_scores(sums, tokens, count)


def text_scores(loss_sum: float, tokens: int, samples: int) -> Scores:
    """Return the scores for a sum of losses over ``tokens`` predicted tokens."""
    loss = loss_sum / max(tokens, 1)
    return Scores(loss=loss, samples=samples, perplexity=math.exp(min(loss, 700.0)))


def _judge_batches(
    context: VerbContext, shape: Shape, texts: TextData, split: str, which: str, inputs: Mapping[str, Path]
) -> tuple[Scores, int, Mapping[str, Any]]:
    """Compute perplexity by the training program's forward sections."""
    step, kept = load_parameters(inputs["checkpoint"], which, with_names(shape, texts))
    program = ModelProgram(shape, entry=entry_of(context.box))
    program.load(inputs["pef"])
    try:
        program.parameters_to_device(kept)
        scores = judge_program(program, texts, split, context, "infer")
        return scores, step, program.report()
    finally:
        program.close()


def _judge_steps(
    context: VerbContext, texts: TextData, split: str, which: str, inputs: Mapping[str, Path]
) -> tuple[Scores, int, Mapping[str, Any]]:
    """Compute perplexity by the serving program, token by token."""
    with TextProgram(inputs["pef"], inputs["checkpoint"], which, context.box.name, is_raw=True) as program:
        sums, counted, count = 0.0, 0, texts.count(split)
        for number, (tokens, labels) in enumerate(texts.held_out(split, 1), 1):
            context.check_cancelled()
            for position in range(int(np.flatnonzero(labels[0] != IGNORED).max(initial=-1)) + 1):
                token = int(tokens[0, position])
                logits_V = program.step(token, position) if position else program.start([token])
                if labels[0, position] != IGNORED:
                    sums -= float(log_probabilities(logits_V)[labels[0, position]])
                    counted += 1
            context.progress(Progress("infer", number, count))
        return text_scores(sums, counted, count), program.checkpoint_step, program.figures()


#: Tokens that serve as the prompt of a text without one.
PROMPT_TOKENS: Final = 16


@dataclass(frozen=True, slots=True)
class Prompt:
    """A prompt: its place in the data, and its tokens."""

    index: int
    text: str
    tokens: Sequence[int]


def write_continuations(
    context: VerbContext, data: TextData, split: str, parameters: Mapping[str, ParameterValue],
    inputs: Mapping[str, Path], output: Path,
) -> VerbResult:  # fmt: skip
    """Write ``<output>/predictions.jsonl`` for the prompts in a file, or a split's own, and ``<output>/report.json``.

    Raises:
        InvalidArgument: a prompt is empty or too long, or the PEF or checkpoint cannot generate.
        Cancelled: between two texts.
    """
    tokenizer, limit = data.dataset.tokenizer(), int(parameters.get("limit", 0))
    source = _prompts_in(inputs["prompts"], tokenizer) if "prompts" in inputs else _prompts_of(data, split, tokenizer)
    prompts = list(source)[: limit or None]
    _check_lengths(prompts, data.tokens_per_sample)
    which, ends = str(parameters.get("use", "newest")), frozenset([data.dataset.end_of_text_id])
    lines: list[dict[str, Any]] = [{} for _ in prompts]
    made, began = 0, time.perf_counter()
    asked = ((prompt.tokens, Sampler(_options(parameters, prompt))) for prompt in prompts)
    with TextProgram(inputs["pef"], inputs["checkpoint"], which, context.box.name) as program:
        texts = generate_all(program, asked, int(parameters.get("max_tokens", 32)), ends)
        for count, (number, tokens) in enumerate(texts, 1):
            context.check_cancelled()
            made += len(tokens)
            prompt, completion = prompts[number], tokenizer.decode(tokens)
            lines[number] = {"index": prompt.index, "prompt": prompt.text, "completion": completion, "tokens": tokens}
            elapsed = time.perf_counter() - began
            context.progress(
                Progress("infer", count, len(prompts), throughput=count / elapsed,
                         eta_s=elapsed / count * (len(prompts) - count))
            )  # fmt: skip
        step, figures = program.checkpoint_step, program.figures()
    found = {
        "samples": len(prompts), "tokens": made, "tokens_per_s": round(made / (time.perf_counter() - began), 3),
        "checkpoint_step": step, **measured(figures),
    }  # fmt: skip
    text = "".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines)
    write_atomic(output / "predictions.jsonl", text.encode())
    write_json_atomic(output / "report.json", {"box": context.box.name, "split": split, **found})
    context.log(f"{made} tokens for {len(prompts)} prompts")
    return VerbResult(found, {"predictions": output / "predictions.jsonl", "report": output / "report.json"})


def _check_lengths(prompts: Sequence[Prompt], context_length: int) -> None:
    long = next((prompt for prompt in prompts if len(prompt.tokens) >= context_length), None)
    if long is not None:
        raise InvalidArgument(
            f"prompt {long.index + 1} has {len(long.tokens)} tokens; expected 1 to {context_length - 1}, so that one "
            "more fits"
        )


def _options(parameters: Mapping[str, ParameterValue], prompt: Prompt) -> SamplingOptions:
    """Give each prompt a seed of its own, so that equal prompts are continued differently."""
    return SamplingOptions(
        float(parameters.get("temperature", 0.0)), float(parameters.get("top_p", 1.0)),
        int(parameters.get("top_k", 0)), int(parameters.get("seed", 0)) + prompt.index,
    )  # fmt: skip


def _prompts_in(path: Path, tokenizer: Tokenizer) -> Iterator[Prompt]:
    """Yield the lines of a JSONL file, objects with ``prompt``; or of a text file, each line a prompt."""
    try:
        texts = path.read_text().splitlines()
    except (OSError, UnicodeDecodeError) as cause:
        raise InvalidArgument(f"{path} is not readable as UTF-8 text: {cause}") from cause
    for index, text in enumerate(texts):
        if path.suffix == ".jsonl":
            try:
                text = str(json.loads(text)["prompt"])
            except (ValueError, KeyError, TypeError) as cause:
                raise InvalidArgument(
                    f'{path}, line {index + 1}: expected an object with the key "prompt", such as {{"prompt": "Once"}}'
                ) from cause
        tokens = tokenizer.encode(text).ids
        if not tokens:
            raise InvalidArgument(f"{path}, line {index + 1}: the prompt is empty")
        yield Prompt(index, text, tokens)


def _prompts_of(data: TextData, split: str, tokenizer: Tokenizer) -> Iterator[Prompt]:
    """Return the prompt at the beginning of each sequence; for plain text its first tokens."""
    for index, (tokens, labels) in enumerate(data.held_out(split, 1)):
        counts = np.flatnonzero(labels[0] != IGNORED)
        # The label at a position is the next token; the first predicting position is the prompt's last.
        size = int(counts[0]) + 1 if len(counts) and counts[0] else PROMPT_TOKENS
        chosen = [int(token) for token in tokens[0, : min(size, tokens.shape[1] - 1)]]
        yield Prompt(index, tokenizer.decode(chosen), chosen)
