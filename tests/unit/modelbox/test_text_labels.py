"""What each token of a sequence predicts, and held-out sequences in batches."""

import math
from collections.abc import Iterator

import numpy as np

from rdukit_modelbox.preprocessing.token_dataset import TokenDataset, TokenRows
from rdukit_modelbox.tasks.language_modelling import text_scores
from rdukit_modelbox.tasks.texts import TextData, labels_of
from rdukit_serving.shape import IGNORED
from support import shows

pytestmark = shows("training")


def test_each_position_predicts_the_next_token_where_that_is_a_completion_or_a_separator() -> None:
    ids = np.array([[5, 6, 7, 8, 9, 0]], np.int32)
    types = np.array([[0, 0, 1, 1, 3, 2]], np.int32)
    assert labels_of(ids, types).tolist() == [[IGNORED, 7, 8, 9, IGNORED, IGNORED]]
    assert (labels_of(ids, np.full((1, 6), 2, np.int32)) == IGNORED).all()


class FiveSequences(TokenDataset):
    """A data set without files: sequence i is full of i."""

    def __init__(self) -> None:
        pass

    max_seq_length, digest = 3, "d"  # type: ignore[misc]

    def rows(self, split: str) -> int:
        return 5 if split == "dev" else 0

    def batches(
        self, split: str, batch_size: int, seed: int | None, epoch: int = 0, start: int = 0, rows_R: object = None
    ) -> Iterator[TokenRows]:
        assert (batch_size, seed) == (1, None)
        for number in range(5):
            yield TokenRows(np.full((1, 3), number, np.int32), np.ones((1, 3), np.int32))


def test_the_last_batch_of_held_out_sequences_is_filled_with_rows_that_count_in_no_loss() -> None:
    texts = TextData(FiveSequences())
    batches = list(texts.held_out("dev", 2))
    assert [tokens[:, 0].tolist() for tokens, _ in batches] == [[0, 1], [2, 3], [4, 3]]
    assert [(labels != IGNORED).sum(axis=1).tolist() for _, labels in batches] == [[2, 2], [2, 2], [2, 0]]
    assert len(list(texts.limited(3).held_out("dev", 2))) == 2
    assert (texts.limited(3).count("dev"), texts.count("test"), texts.count("train")) == (3, 0, 0)


def test_perplexity_is_the_exponential_of_the_mean_loss_and_never_overflows() -> None:
    scores = text_scores(6.0, 3, 2)
    assert (scores.loss, scores.perplexity) == (2.0, math.exp(2.0))
    assert text_scores(1e9, 1, 1).perplexity == math.exp(700.0)
    assert text_scores(0.0, 0, 1).loss == 0.0
