"""Continuations of prompts, by a PEF that was compiled to serve."""

import json
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np
from tokenizers import Tokenizer

from rdukit.errors import InvalidArgument
from rdukit.files.atomic import write_atomic, write_json_atomic
from rdukit_modelbox.context import Progress, VerbContext, VerbResult
from rdukit_modelbox.legal import ParameterValue
from rdukit_modelbox.tasks.base import measured
from rdukit_modelbox.tasks.texts import TextData
from rdukit_serving.shape import IGNORED
from rdukit_serving.text.program import TextProgram, generate
from rdukit_serving.text.sampling import Sampler, SamplingOptions

#: Tokens of a text without a prompt of its own that are taken as the prompt.
PROMPT_TOKENS: Final = 16


@dataclass(frozen=True, slots=True)
class Prompt:
    """Where a prompt comes from, and its tokens."""

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
    lines, made, began = [], 0, time.perf_counter()
    with TextProgram(inputs["pef"], inputs["checkpoint"], which, context.box.name) as program:
        for number, prompt in enumerate(prompts, 1):
            context.check_cancelled()
            sampler = Sampler(_options(parameters, prompt))
            tokens = list(generate(program, prompt.tokens, sampler, int(parameters.get("max_tokens", 32)), ends))
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
            f"prompt {long.index + 1} has {len(long.tokens)} tokens; legal: 1 to {context_length - 1}, which leaves "
            "room for one more"
        )


def _options(parameters: Mapping[str, ParameterValue], prompt: Prompt) -> SamplingOptions:
    """Each prompt has a seed of its own: two prompts that are the same are not continued alike."""
    return SamplingOptions(
        float(parameters.get("temperature", 0.0)), float(parameters.get("top_p", 1.0)),
        int(parameters.get("top_k", 0)), int(parameters.get("seed", 0)) + prompt.index,
    )  # fmt: skip


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


def _prompts_of(data: TextData, split: str, tokenizer: Tokenizer) -> Iterator[Prompt]:
    """The prompt at the beginning of each sequence; of plain text its first tokens."""
    for index, (tokens, labels) in enumerate(data.held_out(split, 1)):
        counts = np.flatnonzero(labels[0] != IGNORED)
        # The label at a position is the token after it: the prompt ends with the first that predicts.
        size = int(counts[0]) + 1 if len(counts) and counts[0] else PROMPT_TOKENS
        chosen = [int(token) for token in tokens[0, : min(size, tokens.shape[1] - 1)]]
        yield Prompt(index, tokenizer.decode(chosen), chosen)
