"""Infer with a language model: the perplexity of a data set, or continuations of prompts.

Perplexity takes either kind of PEF; one that was compiled to serve reads every text token by token. Continuations need
one that was compiled to serve.
"""

import json
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from tokenizers import Tokenizer

from rdukit.errors import InvalidArgument
from rdukit.files import write_atomic, write_json_atomic
from rdukit_modelbox.checkpoints import load_parameters
from rdukit_modelbox.context import Progress, VerbContext, VerbResult
from rdukit_modelbox.legal import ParameterValue
from rdukit_modelbox.models import entry_of
from rdukit_modelbox.program import Program
from rdukit_modelbox.serving.generation import generate
from rdukit_modelbox.serving.sampling import Sampler, SamplingOptions, log_probabilities
from rdukit_modelbox.serving.text_program import TextProgram
from rdukit_modelbox.shape import SERVE, TRAIN, Shape
from rdukit_modelbox.tasks.base import Scores
from rdukit_modelbox.tasks.language_modelling import IGNORED, LanguageModelling, Texts, text_scores

#: Tokens of a text without a prompt of its own that are taken as the prompt.
PROMPT_TOKENS = 16


@dataclass(frozen=True, slots=True)
class Prompt:
    """Where a prompt comes from, and its tokens."""

    index: int
    text: str
    tokens: Sequence[int]


def infer_text(
    context: VerbContext, shape: Shape, parameters: Mapping[str, ParameterValue], inputs: Mapping[str, Path],
    output: Path,
) -> VerbResult:  # fmt: skip
    """Write ``<output>/report.json``, and with ``figure=continuations`` ``<output>/predictions.jsonl`` with them.

    Raises:
        InvalidArgument: data set, prompts or checkpoint are not of the PEF's model, or it cannot generate.
        Cancelled: between two texts.
    """
    data = LanguageModelling().open_data(shape, inputs["dataset"])
    split, which = str(parameters.get("split", "dev")), str(parameters.get("use", "newest"))
    limit = int(parameters.get("limit", 0))
    if "prompts" not in inputs and not data.count(split):
        raise InvalidArgument(f"the data set has no sequences in its {split} split; preprocess with dev_ratio above 0")
    if str(parameters.get("figure", "perplexity")) == "continuations":
        shape.require(SERVE, "figure=continuations")
        return _continue(context, data, split, limit, which, parameters, inputs, output)
    if shape.purpose == TRAIN:
        scores, step, figures = _judge_batches(context, shape, data, split, limit, which, inputs)
    else:
        scores, step, figures = _judge_steps(context, data, split, limit, which, inputs)
    context.log(f"perplexity {scores.perplexity:.4f} on {scores.samples} sequences of the {split} split")
    found = {**scores.to_json(), "samples": scores.samples, "checkpoint_step": step, **_measured(figures)}
    write_json_atomic(output / "report.json", {"box": context.box.name, "split": split, **found})
    return VerbResult(found, {"report": output / "report.json"})


def _judge_batches(
    context: VerbContext, shape: Shape, data: Texts, split: str, limit: int, which: str, inputs: Mapping[str, Path]
) -> tuple[Scores, int, Mapping[str, Any]]:
    """Perplexity by the training program's forward sections."""
    step, kept = load_parameters(inputs["checkpoint"], which)
    program = Program(shape, entry=entry_of(context.box))
    program.load(inputs["pef"])
    try:
        program.parameters_to_device(kept)
        scores = LanguageModelling().evaluate(program, data.limited(limit), split, context, "infer")
        return scores, step, program.report()
    finally:
        program.close()


def _judge_steps(
    context: VerbContext, data: Texts, split: str, limit: int, which: str, inputs: Mapping[str, Path]
) -> tuple[Scores, int, Mapping[str, Any]]:
    """Perplexity by the serving program, a token at a time."""
    texts = data.limited(limit)
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


def _continue(
    context: VerbContext, data: Texts, split: str, limit: int, which: str, parameters: Mapping[str, ParameterValue],
    inputs: Mapping[str, Path], output: Path,
) -> VerbResult:  # fmt: skip
    """Continuations of the prompts in a file, or of a split's own."""
    tokenizer = data.dataset.tokenizer()
    source = _prompts_in(inputs["prompts"], tokenizer) if "prompts" in inputs else _prompts_of(data, split, tokenizer)
    prompts = list(source)[: limit or None]
    long = next((prompt for prompt in prompts if len(prompt.tokens) >= data.tokens_per_sample), None)
    if long is not None:
        raise InvalidArgument(
            f"prompt {long.index + 1} has {len(long.tokens)} tokens; legal: 1 to {data.tokens_per_sample - 1}, which "
            "leaves room for one more"
        )
    seed, most = int(parameters.get("seed", 0)), int(parameters.get("max_tokens", 32))
    lines, made = [], 0
    began = time.perf_counter()
    with TextProgram(inputs["pef"], inputs["checkpoint"], which, context.box.name) as program:
        for number, prompt in enumerate(prompts, 1):
            context.check_cancelled()
            options = SamplingOptions(
                float(parameters.get("temperature", 0.0)), float(parameters.get("top_p", 1.0)),
                int(parameters.get("top_k", 0)), seed + prompt.index,
            )  # fmt: skip
            ends = frozenset([data.dataset.end_of_text_id])
            tokens = list(generate(program, prompt.tokens, Sampler(options), most, ends))
            made += len(tokens)
            lines.append(
                {"index": prompt.index, "prompt": prompt.text, "completion": tokenizer.decode(tokens), "tokens": tokens}
            )
            elapsed = time.perf_counter() - began
            context.progress(
                Progress("infer", number, len(prompts), throughput=number / elapsed,
                         eta_s=elapsed / number * (len(prompts) - number))
            )  # fmt: skip
        step, figures = program.checkpoint_step, program.figures()
    found = {
        "samples": len(prompts), "tokens": made, "tokens_per_s": round(made / (time.perf_counter() - began), 3),
        "checkpoint_step": step, **_measured(figures),
    }  # fmt: skip
    text = "".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines)
    write_atomic(output / "predictions.jsonl", text.encode())
    write_json_atomic(output / "report.json", {"box": context.box.name, "split": split, **found})
    context.log(f"{made} tokens for {len(prompts)} prompts")
    return VerbResult(found, {"predictions": output / "predictions.jsonl", "report": output / "report.json"})


def _prompts_in(path: Path, tokenizer: Tokenizer) -> Iterator[Prompt]:
    """Lines of a JSONL file, objects with ``prompt``; or of a text file, each line a prompt."""
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
                    f'{path}, line {index + 1}: legal is an object with the key "prompt", such as {{"prompt": "Once"}}'
                ) from cause
        tokens = tokenizer.encode(text).ids
        if not tokens:
            raise InvalidArgument(f"{path}, line {index + 1}: the prompt is empty")
        yield Prompt(index, text, tokens)


def _prompts_of(data: Texts, split: str, tokenizer: Tokenizer) -> Iterator[Prompt]:
    """The prompt at the beginning of each sequence; of plain text its first tokens."""
    for index, (tokens, labels) in enumerate(data.held_out(split, 1)):
        counts = np.flatnonzero(labels[0] != IGNORED)
        # The label at a position is the token after it: the prompt ends with the first that predicts.
        size = int(counts[0]) + 1 if len(counts) and counts[0] else PROMPT_TOKENS
        chosen = [int(token) for token in tokens[0, : min(size, tokens.shape[1] - 1)]]
        yield Prompt(index, tokenizer.decode(chosen), chosen)


def _measured(figures: Mapping[str, Any]) -> dict[str, Any]:
    """Measured on this host, and projected for the emulated RDU."""
    return {name: figures[name] for name in ("host_seconds", "emulated_seconds", "emulated_cycles") if name in figures}
