"""Texts that every Python installation has: the default corpora of language models.

Their size depends on the version of Python; ``documentation`` and ``sources`` have about half a megabyte each.
"""

import importlib.util
from pathlib import Path
from typing import Final

from rdukit.errors import InvalidArgument
from rdukit_zoo.datasets.genes import draw_genes

#: Corpora to train on if no text is given.
CORPORA: Final = ("documentation", "sources", "genes", "rare_genes")
#: Modules of Python's standard library whose sources are read.
MODULES: Final = (
    "argparse", "ast", "calendar", "cmd", "configparser", "contextlib", "copy", "csv", "dataclasses", "difflib",
    "fractions", "functools", "heapq", "pprint", "statistics", "textwrap",
)  # fmt: skip
GENES: Final = 2000


def read_corpus(name: str) -> dict[str, str]:
    """Return a corpus as file name → text.

    - ``documentation``: the topics of Python's documentation (``pydoc_data.topics``).
    - ``sources``: modules of Python's standard library.
    - ``genes``: synthetic genes, one on each line; in ``rare_genes`` the rarest codons are the commonest.

    Raises:
        InvalidArgument: there is no such corpus.
    """
    match name:
        case "documentation":
            from pydoc_data.topics import topics

            return {f"{topic}.txt": text for topic, text in sorted(topics.items())}
        case "sources":
            return {f"{module}.txt": _source_of(module) for module in MODULES}
        case "genes" | "rare_genes":
            genes = draw_genes(GENES, seed=0, has_rare_codons=name == "rare_genes")
            return {"genes.txt": "".join(f"{gene}\n" for gene in genes)}
        case _:
            raise InvalidArgument(f"unknown corpus {name!r}; expected {', '.join(CORPORA)}")


def _source_of(module: str) -> str:
    found = importlib.util.find_spec(module)
    assert found is not None and found.origin is not None
    return Path(found.origin).read_text(encoding="utf-8")
