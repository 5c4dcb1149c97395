"""An attempt to preprocess text: the request, and the shared state of its steps."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from rdukit_modelbox.contract.allowed_values import ParameterValue
from rdukit_modelbox.preprocessing.articles import ArticlePolicy
from rdukit_modelbox.preprocessing.external_shuffle import BUCKET_BYTES, Split, plan_splits, read_spilled
from rdukit_modelbox.preprocessing.progress import WorkFolder
from rdukit_modelbox.preprocessing.sources import Format, SourceFile
from rdukit_modelbox.preprocessing.tokenizer import BATCH_BYTES, BATCH_RECORDS
from rdukit_modelbox.verbs.context import VerbContext

#: Assumed factor by which a compressed file grows.
PARQUET_EXPANSION: Final = 4
GZIP_EXPANSION: Final = 4


@dataclass(frozen=True, slots=True)
class TextPreprocessRequest:
    """The values of the verb's parameters, by their names."""

    policy: ArticlePolicy
    max_seq_length: int
    packing: str
    seed: int | None
    training_splits: int
    dev_ratio: float
    test_ratio: float
    skips_bad_rows: bool

    @classmethod
    def of(cls, parameters: Mapping[str, ParameterValue]) -> "TextPreprocessRequest":
        """Make a request from checked parameters."""
        words = {name: str(parameters[name]) for name in _WORDS}
        policy = ArticlePolicy(
            **words,
            disable_space_separator=bool(parameters["disable_space_separator"]),
            keep_prompt_only_sequences=bool(parameters["keep_prompt_only_sequences"]),
        )
        return cls(
            policy, int(parameters["max_seq_length"]), str(parameters["input_packing_config"]),
            None if parameters["shuffle"] == "False" else int(parameters["seed"]),
            int(parameters["num_training_splits"]), float(parameters["dev_ratio"]), float(parameters["test_ratio"]),
            parameters["bad_rows"] == "skip",
        )  # fmt: skip


_WORDS: Final = (
    "prompt_keyword", "completion_keyword", "prompt_prefix", "prompt_postfix", "packing_boundary", "attention_boundary",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class TextRun:
    """The values that the steps share."""

    context: VerbContext
    request: TextPreprocessRequest
    sources: Sequence[SourceFile]
    work: WorkFolder
    splits: tuple[Split, ...]
    #: Buckets of each output file; each is shuffled in memory.
    buckets: int

    @classmethod
    def begin(
        cls, context: VerbContext, request: TextPreprocessRequest, sources: Sequence[SourceFile], work: WorkFolder
    ) -> "TextRun":
        """Plan the output files and buckets from the sources' sizes.

        Raises:
            IllegalValue: the ratios leave nothing to train on.
        """
        expanded = sum(source.bytes * _expansion(source) for source in sources)
        splits = plan_splits(expanded, request.training_splits, request.dev_ratio, request.test_ratio)
        largest = max(split.share for split in splits) * expanded
        buckets = 1 if request.seed is None else max(1, -(-int(largest) // BUCKET_BYTES))
        return cls(context, request, sources, work, splits, buckets)

    def records_of(self, file: int) -> Iterator[list[bytes]]:
        """Return the records of one output file, in their final order, in batches."""
        folder = self.work.folder / "records"
        return read_spilled(folder, file, self.buckets, self.request.seed, BATCH_BYTES, BATCH_RECORDS)

    def sequences_path(self, split: Split) -> Path:
        """Return the path at which an output file's sequences wait to be evened out."""
        return self.work.folder / "sequences" / f"{split.name}.hdf5"


def _expansion(source: SourceFile) -> int:
    if source.is_gzip:
        return GZIP_EXPANSION
    return PARQUET_EXPANSION if source.format == Format.PARQUET else 1
