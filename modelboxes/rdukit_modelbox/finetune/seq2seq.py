"""Sources with targets: an encoder-decoder learns to write a completion behind what its encoder reads of a prompt.

A data set is arrays of tokens [N, S] and labels [N, T]. The decoder reads the labels, shifted to the right behind the
folder's start token.

Axes: N records, S tokens of a source, T tokens of a target.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
from tokenizers import Tokenizer

from rdukit.errors import InvalidArgument
from rdukit_modelbox.contract.box import Box, Verb, find_box_file, load_box
from rdukit_modelbox.finetune.examples import PAIRS, TEXT, json_lines, kind_of_record
from rdukit_modelbox.finetune.preferences import divide_records
from rdukit_modelbox.preprocessing.arrays import ArrayDataset
from rdukit_modelbox.preprocessing.sources import Format, RowErrors, find_sources
from rdukit_modelbox.preprocessing.table_rows import rows_of
from rdukit_modelbox.preprocessing.text_records import TEXT_FORMATS
from rdukit_modelbox.preprocessing.tokenizer import load_tokenizer
from rdukit_modelbox.tasks.arrays import Arrays, ArrayTask
from rdukit_modelbox.tasks.base import Batch, Scores, TaskData
from rdukit_modelbox.tasks.language_modelling import judge_batches
from rdukit_modelbox.tasks.program import ModelProgram
from rdukit_modelbox.verbs.context import VerbContext
from rdukit_serving.shape import IGNORED
from rdukit_serving.text.chat_template import GENERATION_FILE
from rdukit_serving.text.generation_config import folder_generation
from rdukit_zoo.checkpoints.folder import HubFolder, read_optional_json
from rdukit_zoo.language.seq2seq_sizes import SEQ2SEQ
from rdukit_zoo.registry import ModelEntry, SizeValue

TOKENS, LABELS = "tokens", "labels"
#: Key of ``generation_config.json`` with a completion's first token, which is the language of an mBART.
LANGUAGE: Final = "forced_bos_token_id"
#: Box whose parameters a training of an encoder-decoder has: that of a decoder.
_LIKE: Final = "decoder"
_EXPECTED: Final = '{"prompt": …, "completion": …}, two non-empty texts'


def seq2seq_box(entry: ModelEntry) -> Box:
    """Return what trains and evaluates an encoder-decoder, which has no box of its own that could be run."""
    like = load_box(find_box_file(_LIKE))
    return like.model_copy(update={"name": entry.name, "model": entry.name, "verbs": (Verb.TRAIN, Verb.EVALUATE)})


class SourcesWithTargets(ArrayTask):
    """(tokens, labels) → loss; see ``Task``."""

    def evaluate(self, program: ModelProgram, data: TaskData, split: str, context: VerbContext, stage: str) -> Scores:
        """Compute the mean loss of the targets' tokens, and its exponential."""
        assert isinstance(data, ArrayDataset)
        batches = _held_out(data, split, program.shape.batch_size)
        return judge_batches(program, batches, data.count(split), context, stage)


def _held_out(data: ArrayDataset, split: str, batch_size: int) -> Iterator[Batch]:
    """Yield a split's batches; rows that only fill the last one up count in no loss."""
    for count, given in data.held_out(split, batch_size):
        labels = given[LABELS].copy()
        labels[count:] = IGNORED
        yield given[TOKENS], labels


@dataclass(frozen=True, slots=True)
class _TargetForm:
    """Tokens that a target has before and after those of its text; None: the tokenizer's own."""

    before: tuple[int, ...]
    after: tuple[int, ...]
    has_own: bool

    def tokens_of(self, tokenizer: Tokenizer, text: str) -> tuple[list[int], int]:
        """Return a target's tokens, and the number of tokens at its end that do not depend on the text."""
        ids: list[int] = tokenizer.encode(text, add_special_tokens=self.has_own).ids
        if self.has_own and ids[-len(self.after) :] == list(self.after):
            return ids, len(self.after)
        return [*self.before, *ids, *self.after], len(self.after)


def _target_form(hub: HubFolder, end_id: int) -> _TargetForm:
    """Return the form of targets: that of the tokenizer, with an end; of mBART, as the folder generates.

    An mBART's tokenizer writes the language of the source. The target's language is ``forced_bos_token_id`` at its
    beginning, or else the start token at its end, from where training takes it to the beginning.

    Raises:
        InvalidArgument: tokenizer and folder end a text with different tokens, or an mBART generates from another token
            than its training would.
    """
    start, file = int(hub.sizes["start"]), hub.path / GENERATION_FILE
    said: Mapping[str, Any] = read_optional_json(file) if file.is_file() else hub.config
    ends = said.get("eos_token_id", hub.config.get("eos_token_id"))
    if ends is not None and end_id not in (ends if isinstance(ends, list) else [ends]):
        raise InvalidArgument(
            f"{hub.path}: the tokenizer ends a text with token {end_id}, but eos_token_id is {ends}; expected the "
            "same token in tokenizer_config.json (eos_token) and generation_config.json"
        )
    if not SEQ2SEQ[str(hub.sizes["family"])].wraps_target:
        return _TargetForm((), (end_id,), has_own=True)
    language = folder_generation(hub.path, hub.config, int(hub.sizes["vocabulary"])).get(LANGUAGE)
    if language is None:
        return _TargetForm((), (end_id,) if start == end_id else (end_id, start), has_own=False)
    if start != end_id:
        raise InvalidArgument(
            f"{hub.path}: {LANGUAGE} is {language} and decoder_start_token_id {start}; expected "
            f"decoder_start_token_id {end_id}, the end of a text, or no {LANGUAGE}"
        )
    return _TargetForm((int(language),), (end_id,), has_own=False)


def tokenize_sources(
    data: Path, hub: HubFolder, sizes: Mapping[str, SizeValue], held_out: float, seed: int, context: VerbContext
) -> dict[str, Arrays]:
    """Return both splits of a file of prompts with completions as tokens and labels.

    A source gets the tokens of a served prompt. Texts that are too long are cut on the right, before the end that each
    text has; their number is logged. Labels beyond a target are ``IGNORED``.

    Args:
        data: a file of JSON lines, CSV or Parquet with ``prompt`` and ``completion``, or a folder of such files.
    Raises:
        NotFound, InvalidArgument: there are no data, or a record cannot be used; names file and line.
    """
    known = load_tokenizer(hub.path)
    padding, longest, most = (int(sizes[name]) for name in ("padding", "prompt_length", "context_length"))
    form, reader = _target_form(hub, known.end_id), Tokenizer.from_str(known.tokenizer.to_str())
    if reader.num_special_tokens_to_add(False) >= min(longest, most):
        raise InvalidArgument(
            f"the context is {min(longest, most)} tokens; expected more than a text's special tokens need"
        )
    reader.enable_truncation(longest)
    tokens, labels, cut = [], [], [0, 0]
    for place, record in _records(data):
        read = reader.encode(record["prompt"])
        target, ends = form.tokens_of(known.tokenizer, record["completion"])
        for name, ids in (("prompt", read.ids), ("completion", target)):
            if not ids or padding in ids or max(ids) >= int(sizes["vocabulary"]):
                raise InvalidArgument(
                    f"{place}: the {name} is empty or has a token that the model cannot read; expected tokens from 0 "
                    "to "
                    f"{int(sizes['vocabulary']) - 1}, without {padding}, which is padding"
                )
        cut[0] += bool(read.overflowing)
        cut[1] += len(target) > most
        target = target if len(target) <= most else [*target[: most - ends], *target[len(target) - ends :]]
        tokens.append(np.array([*read.ids, *[padding] * (longest - len(read.ids))], np.int64))
        labels.append(np.array([*target, *[IGNORED] * (most - len(target))], np.int64))
    for count, name, room in zip(cut, ("prompts", "completions"), (longest, most), strict=True):
        if count:
            context.log(f"{count} of {len(tokens)} {name} were cut to {room} tokens (--context)")
    return divide_records({TOKENS: np.stack(tokens), LABELS: np.stack(labels)}, held_out, seed)


def _records(data: Path) -> Iterator[tuple[str, dict[str, str]]]:
    """Yield the place and the two texts of each record."""
    found, sources = False, find_sources(data, "**/*", "auto", TEXT_FORMATS)
    if sources[0].format is Format.TXT:
        raise InvalidArgument(f"{sources[0].name}: {TEXT} have no prompt for the encoder; expected lines {_EXPECTED}")
    if sources[0].format is Format.JSONL:
        rows: Iterator[tuple[str, Any]] = ((line.place, line.value) for line in json_lines(sources))
    else:
        bad = RowErrors(skips=False, may_skip=False)
        rows = ((f"{file.name}:{line}", row) for file in sources for line, row in rows_of(file, bad, [0]))
    for place, row in rows:
        found = True
        texts = {name: row.get(name) if isinstance(row, Mapping) else None for name in ("prompt", "completion")}
        if not all(isinstance(text, str) and text.strip() for text in texts.values()):
            kind = kind_of_record(row)
            other = f"{kind} are not trained with an encoder; " if kind not in (None, PAIRS) else ""
            raise InvalidArgument(f"{place}: {other}expected {_EXPECTED}")
        yield place, {name: str(text) for name, text in texts.items()}
    if not found:
        raise InvalidArgument(f"{data.name} has no record; expected lines {_EXPECTED}")
