"""Learning of a router from labelled texts, and its accuracy on unseen texts.

scikit-learn fits the regression's weights; the artifact contains no part of scikit-learn.
"""

import json
import random
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from rdukit.errors import InvalidArgument
from rdukit_serving.router.decision import Router, unit_rows

#: Longest line of a file of labelled texts.
MAX_LINE: Final = 1 << 20


@dataclass(frozen=True, slots=True)
class LabelledPrompt:
    """Text, and the expert that should answer it."""

    prompt: str
    expert: str


@dataclass(frozen=True, slots=True)
class Score:
    """Number of judged texts, number of right choices, and the wrong choices.

    ``confusions`` counts pairs (right expert, chosen expert) of wrong choices.
    """

    texts: int
    right: int
    confusions: tuple[tuple[str, str, int], ...]

    @property
    def accuracy(self) -> float:
        """Return the part that went to the right expert."""
        return self.right / self.texts if self.texts else 0.0


def read_examples(path: Path) -> list[LabelledPrompt]:
    """Read lines of ``{"prompt", "expert"}``; of equal prompts only the first counts.

    Raises:
        InvalidArgument: a line is wrong, or there are not two experts.
    """
    found: dict[str, LabelledPrompt] = {}
    try:
        lines = path.read_text().split("\n")  # other separators may be in a text
    except (OSError, UnicodeDecodeError) as cause:
        raise InvalidArgument(f"{path} cannot be read: {cause}") from cause
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            value: Any = json.loads(line) if len(line) <= MAX_LINE else None
        except ValueError:
            value = None
        if not (isinstance(value, dict) and all(isinstance(value.get(k), str) and value[k] for k in _KEYS)):
            raise InvalidArgument(
                f'{path}, line {number}: expected {{"prompt": text, "expert": name}} in at most {MAX_LINE} characters'
            )
        found.setdefault(" ".join(value["prompt"].split()), LabelledPrompt(value["prompt"], value["expert"]))
    if len({example.expert for example in found.values()}) < 2:
        raise InvalidArgument(
            f"{path} has fewer than two experts in its {len(found)} prompts; a router needs two or more"
        )
    return list(found.values())


_KEYS: Final = ("prompt", "expert")


def hold_out(examples: Sequence[LabelledPrompt], share: float, seed: int) -> tuple[list[int], list[int]]:
    """Return the numbers of the texts to learn from and to judge by: the same share of each expert's."""
    by_expert: dict[str, list[int]] = defaultdict(list)
    for number, example in enumerate(examples):
        by_expert[example.expert].append(number)
    chance, held = random.Random(seed), set[int]()
    for expert in sorted(by_expert):
        numbers = by_expert[expert]
        chance.shuffle(numbers)
        held |= set(numbers[: min(round(share * len(numbers)), len(numbers) - 1)])
    return [at for at in range(len(examples)) if at not in held], sorted(held)


def learn(
    vectors: Sequence[NDArray[np.float32]], experts: Sequence[str], neighbours: int = 0, model: str = ""
) -> Router:  # fmt: skip
    """Learn which vectors [D] belong to which expert: by logistic regression, or from the ``neighbours`` nearest texts.

    Words of most texts count little (inverse document frequency); vectors of a model are used unchanged.

    Raises:
        InvalidArgument: the regression needs scikit-learn.
    """
    names = tuple(sorted(set(experts)))
    labels = np.array([names.index(expert) for expert in experts], np.int64)
    scale = np.ones(len(vectors[0]), np.float32)
    if not model:
        have = sum((vector != 0).astype(np.float32) for vector in vectors)
        scale = np.asarray(1 + np.log((1 + len(vectors)) / (1 + have)), np.float32)
    rows = unit_rows([vector * scale for vector in vectors])
    if neighbours:
        count = min(neighbours, len(rows))
        return Router(names, scale, rows, np.zeros(len(names), np.float32), labels, count, model)
    try:
        from sklearn.linear_model import LogisticRegression  # type: ignore[import-untyped]
    except ImportError as cause:
        raise InvalidArgument(
            "logistic regression needs scikit-learn: pip install 'rdukit[router]'; or use --neighbours 5"
        ) from cause
    found = LogisticRegression(C=30.0, max_iter=1000).fit(rows, labels)
    # Weights as in the file, so that sums are equal.
    weights, bias = np.ascontiguousarray(found.coef_, np.float32), np.asarray(found.intercept_, np.float32)
    if len(names) == 2:  # one row says how much more the second is
        weights, bias = np.concatenate([0 * weights, weights]), np.concatenate([0 * bias, bias])
    return Router(names, scale, weights, bias, np.zeros(0, np.int64), 0, model)


def judge(router: Router, vectors: Sequence[NDArray[np.float32]], experts: Sequence[str]) -> Score:
    """Return how often a router chooses the right expert."""
    chosen = [router.decide(vector).expert for vector in vectors]
    wrong = Counter((right, found) for right, found in zip(experts, chosen, strict=True) if right != found)
    confusions = tuple((*pair, count) for pair, count in sorted(wrong.items()))
    return Score(len(chosen), len(chosen) - sum(wrong.values()), confusions)
