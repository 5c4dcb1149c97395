"""Synthetic genes, and the tokenizer of codons that trains on them and is served."""

import itertools
import math
from collections import Counter
from pathlib import Path

import pytest

from rdukit.errors import InvalidArgument
from rdukit_modelbox.preprocessing.token_dataset import load_token_dataset
from rdukit_modelbox.preprocessing.tokenizer import codon_tokenizer
from rdukit_zoo.datasets.genes import CODONS, START, STOPS, codon_usage, draw_genes
from support import shows
from support.boxes import run_verb

pytestmark = shows("genslm", "preprocess")


def test_all_codons_have_a_token_behind_the_special_ones() -> None:
    assert sorted(CODONS) == sorted("".join(bases) for bases in itertools.product("ACGT", repeat=3))
    vocabulary = codon_tokenizer().tokenizer.get_vocab()
    assert [vocabulary[token] for token in ("[UNK]", "[CLS]", "[SEP]", "[PAD]", "[MASK]")] == [0, 1, 2, 3, 4]
    assert (vocabulary["GGC"], vocabulary["ATG"], vocabulary["TAG"], len(vocabulary)) == (5, 10, 68, 69)


@pytest.mark.parametrize("text", ["ATG AAA TAG", "ATGAAATAG", "atg aaatag"])
def test_codons_are_read_with_and_without_spaces_and_in_small_letters(text: str) -> None:
    tokenizer = codon_tokenizer().tokenizer
    assert tokenizer.encode(text).ids == [10, 16, 68]
    assert tokenizer.decode([10, 16, 68]) == "ATG AAA TAG"


def test_what_is_no_codon_is_unknown_and_special_tokens_are_themselves() -> None:
    tokenizer = codon_tokenizer().tokenizer
    assert tokenizer.encode("[CLS] ATG AA [SEP]").ids == [1, 10, 0, 2]
    assert tokenizer.encode("ATGAA").ids == [10, 0]


def test_genes_begin_end_and_use_codons_as_they_should() -> None:
    genes = draw_genes(400, seed=3)
    assert genes == draw_genes(400, seed=3) != draw_genes(400, seed=4)
    codons = [[gene[i : i + 3] for i in range(0, len(gene), 3)] for gene in genes]
    assert all(gene[0] == START and gene[-1] in STOPS and not set(gene[:-1]) & set(STOPS) for gene in codons)
    assert {len(gene) for gene in codons} <= set(range(40, 121))
    body = Counter(codon for gene in codons for codon in gene[1:-1])
    total, usage = sum(body.values()), codon_usage()
    order = [codon for codon in CODONS if codon not in STOPS]
    # Six standard deviations of a count.
    for codon, share in zip(order, usage, strict=True):
        assert abs(body[codon] - share * total) < 6 * math.sqrt(share * total), codon
    assert -sum(share * math.log(share) for share in usage) < math.log(61)


@pytest.mark.parametrize("numbers", [(0, 0, 40, 120), (1, 0, 2, 120), (1, 0, 50, 40)])
def test_impossible_genes_are_refused(numbers: tuple[int, int, int, int]) -> None:
    with pytest.raises(InvalidArgument, match="at least three codons"):
        draw_genes(*numbers)


def test_the_box_of_genslm_makes_codons_of_genes(tmp_path: Path) -> None:
    genes = draw_genes(20, seed=0, shortest=5, longest=9)
    (tmp_path / "genes.txt").write_text("".join(f"{gene}\n" for gene in genes))
    made = run_verb(
        "genslm", "preprocess", tmp_path / "data", {"data": tmp_path / "genes.txt"}, max_seq_length=16,
        input_packing_config="single::drop", dev_ratio=0, shuffle="False",
    ).outputs["dataset"]  # fmt: skip
    dataset = load_token_dataset(made)
    assert (dataset.vocab_size, dataset.end_of_text_id, dataset.pad_id) == (69, 2, 3)
    first = next(iter(dataset.batches("train", 1, seed=None, epoch=0))).input_ids_BL[0].tolist()
    expected = [*codon_tokenizer().tokenizer.encode(genes[0]).ids, 2]
    assert first == expected + [3] * (16 - len(expected))
