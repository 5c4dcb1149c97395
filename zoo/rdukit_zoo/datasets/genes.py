"""Synthetic genes: a start codon, a body drawn by codon usage, a stop codon; and the codons' order in a vocabulary.

``python -m rdukit_zoo.datasets.genes FILE`` writes 2000 genes, one on each line.

Source of the order: GenSLM's tokenizer with 69 tokens (github.com/ramanathanlab/genslm, MIT), the commonest codons of
its training data first. The usage by rank and the lengths are our choice; real genes are not independent draws.
"""

import sys
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from rdukit.errors import InvalidArgument
from rdukit.files.atomic import write_atomic

SPECIAL_TOKENS: Final = ("[UNK]", "[CLS]", "[SEP]", "[PAD]", "[MASK]")
#: All 64 codons; a codon's token is its position here, after the special tokens.
CODONS: Final = tuple(
    "GGC GCC ATC GAC GAA ATG GTG CTG GTC GCG GAT AAA GGT AAG GAG ACC AAC GTT ATT GCA CTC CGC GCT CAG CCG TTC GTA TCG "
    "GGA AAT TAC CTT TTG ACG TCC GGG AGC CCC ACA ACT TCT TTA CGT TAT CAA CGG TTT CAC CCT CCA TGG ATA TCA TGC AGT AGA "
    "CAT TGT CTA AGG TAA CGA TGA TAG".split()
)
START: Final = "ATG"
STOPS: Final = ("TAA", "TGA", "TAG")
_BODY: Final = tuple(codon for codon in CODONS if codon not in STOPS)
#: A codon of rank r, from 0, has a share of 1 / (r + this).
_FLATNESS: Final = 8.0


def codon_usage() -> NDArray[np.float64]:
    """Return the share of each codon in a body, [61], in ``CODONS``' order without stops. It falls with the rank."""
    shares = np.reciprocal(np.arange(len(_BODY), dtype=np.float64) + _FLATNESS)
    usage: NDArray[np.float64] = shares / shares.sum()
    return usage


def draw_genes(
    count: int, seed: int, shortest: int = 40, longest: int = 120, *, has_rare_codons: bool = False
) -> list[str]:
    """Draw ``count`` genes of ``shortest`` to ``longest`` codons, start and stop included, without spaces.

    With ``has_rare_codons`` they are of an organism that has the shares in the opposite order.

    Raises:
        InvalidArgument: no gene fits these numbers.
    """
    if count < 1 or not 3 <= shortest <= longest:
        raise InvalidArgument(
            f"{count} genes of {shortest} to {longest} codons; expected one or more genes of at least three codons"
        )
    chance, usage = np.random.default_rng(seed), codon_usage()
    usage = usage[::-1] if has_rare_codons else usage
    lengths = chance.integers(shortest - 2, longest - 1, count)
    return [
        "".join([START, *chance.choice(_BODY, length, p=usage), chance.choice(STOPS)]) for length in lengths.tolist()
    ]


if __name__ == "__main__":
    write_atomic(Path(sys.argv[1]), "".join(f"{gene}\n" for gene in draw_genes(2000, seed=0)).encode())
