"""Figures of a token data set. Pure.

Axes: R rows, L tokens of a row.
"""

from dataclasses import dataclass, fields

from rdukit_modelbox.preprocessing.packing import PackedRows, Tokens, TokenType


@dataclass(slots=True)
class TokenStatistics:
    """Sums over one split.

    Source: generative_data_prep, README "Terminal Output"; ``completion_tokens`` has the separators too, as theirs.
    """

    articles: int = 0
    sequences: int = 0
    input_tokens: int = 0
    output_tokens: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    padding_tokens: int = 0
    tokens_dropped_from_packing: int = 0
    tokens_dropped_from_all_prompt: int = 0
    #: Ours: units that packing cut or dropped, and tokens of the longest unit before that.
    cut_units: int = 0
    longest_unit: int = 0

    def count_units(self, tokens: Tokens) -> None:
        """Units before packing."""
        self.input_tokens += len(tokens.ids_T)
        if len(tokens.lengths_U):
            self.longest_unit = max(self.longest_unit, int(tokens.lengths_U.max()))

    def count_rows(self, rows: PackedRows) -> None:
        """Finished rows."""
        by_type = [int((rows.types_RL == kind).sum()) for kind in TokenType]
        self.sequences += len(rows)
        self.output_tokens += rows.types_RL.size
        self.prompt_tokens += by_type[TokenType.PROMPT]
        self.completion_tokens += by_type[TokenType.COMPLETION] + by_type[TokenType.SEPARATOR]
        self.padding_tokens += by_type[TokenType.PADDING]

    def add(self, other: "TokenStatistics") -> None:
        """Another file's sums."""
        for field in fields(self):
            name = field.name
            mine, theirs = getattr(self, name), getattr(other, name)
            setattr(self, name, max(mine, theirs) if name == "longest_unit" else mine + theirs)

    @property
    def padding_share(self) -> float:
        """Share of the rows' tokens that is padding."""
        return self.padding_tokens / self.output_tokens if self.output_tokens else 0.0

    def to_json(self) -> dict[str, int]:
        """Each sum by its name."""
        return {field.name: getattr(self, field.name) for field in fields(self)}


#: The sums that generative_data_prep writes to its metadata.yaml, each after the split's name.
METADATA_NAMES = tuple(f.name for f in fields(TokenStatistics) if f.name not in {"cut_units", "longest_unit"})


def without_prompt_only(rows: PackedRows, statistics: TokenStatistics) -> PackedRows:
    """The rows that have a completion token; nothing could be learned from the others."""
    is_kept_R = (rows.types_RL == TokenType.COMPLETION).any(axis=1)
    if is_kept_R.all():
        return rows
    statistics.tokens_dropped_from_all_prompt += int((~is_kept_R).sum()) * rows.ids_RL.shape[1]
    return PackedRows(rows.ids_RL[is_kept_R], rows.types_RL[is_kept_R])
