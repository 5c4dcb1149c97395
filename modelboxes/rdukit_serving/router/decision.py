"""The router as an artifact: it chooses an expert for a text, as learned from labelled texts. Data, no program.

Axes: D numbers of a vector, E experts, N labelled texts.
Source: SambaStudio's "Samba-1-Chat-Router": an embedding and a classifier of nearest neighbours before the experts.
"""

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.numpy import load, save

from rdukit.errors import InvalidArgument, NotFound
from rdukit.files.atomic import write_atomic
from rdukit_serving.router.word_vectors import word_vector

FORMAT: Final = "rdukit-router-1"
#: Largest file that is read.
MAX_BYTES: Final = 256 << 20
#: More than the root of the places that a vector may have.
_SMALLER: Final = np.float32(2.0**-16)


@dataclass(frozen=True, slots=True)
class RoutedChoice:
    """Expert for a text, and the certainty, from 0 to 1."""

    expert: str
    confidence: float


@dataclass(frozen=True, slots=True)
class Router:
    """Experts, and the rule that chooses one of them for a vector.

    ``model`` names the embedding model that makes the vectors; empty: words are counted in ``D`` places. ``neighbours``
    0: logistic regression with ``weights`` [E, D] and ``bias`` [E]. Otherwise the nearest of ``weights`` [N, D], unit
    vectors of labelled texts, vote for the experts ``labels`` [N]. ``scale`` [D] weighs the places.
    """

    experts: tuple[str, ...]
    scale: NDArray[np.float32]
    weights: NDArray[np.float32]
    bias: NDArray[np.float32]
    labels: NDArray[np.int64]
    neighbours: int = 0
    model: str = ""

    def choose(self, text: str) -> RoutedChoice:
        """Choose the expert for a text by its words.

        Raises:
            InvalidArgument: the router needs vectors of a model.
        """
        if self.model:
            raise InvalidArgument(f"this router chooses by vectors of {self.model!r}; give it one: decide(vector)")
        return self.decide(word_vector(text, len(self.scale)))

    def decide(self, vector: NDArray[np.float32]) -> RoutedChoice:
        """Choose the expert for the vector [D] of a text.

        Raises:
            InvalidArgument: the vector has another length, or a value that is not a number.
        """
        if vector.shape != self.scale.shape:
            raise InvalidArgument(
                f"the vector has {vector.size} numbers; expected {self.scale.size}, as in the router's training"
            )
        if not np.isfinite(vector).all():
            raise InvalidArgument("the vector has NaN or infinite values; expected finite ones")
        # Values of a hostile file can overflow f32 products; a power of two scales them down, exactly.
        found = unit(vector.astype(np.float64) * self.scale) * _SMALLER
        scores = (self.weights @ found).astype(np.float64) / _SMALLER
        if self.neighbours == 0:
            shares = np.exp(scores + self.bias - np.max(scores + self.bias))
        else:
            nearest = np.argsort(-scores, kind="stable")[: self.neighbours]
            # A text with nothing in common has no vote; if no text has any, all votes are equal.
            votes = np.maximum(scores[nearest], 0) + 1e-6
            shares = np.bincount(self.labels[nearest], votes, len(self.experts))
        shares = shares / shares.sum()
        best = int(np.argmax(shares))
        return RoutedChoice(self.experts[best], float(shares[best]))

    def save(self, path: Path) -> str:
        """Write the router as a safetensors file, the same bytes for the same router; returns its version."""
        described = {
            "format": FORMAT, "experts": list(self.experts), "neighbours": self.neighbours, "model": self.model,
        }  # fmt: skip
        # One key, because several are unordered.
        metadata = {"router": json.dumps(described, sort_keys=True)}
        tensors = {"bias": self.bias, "labels": self.labels, "scale": self.scale, "weights": self.weights}
        content = save({name: np.ascontiguousarray(each) for name, each in tensors.items()}, metadata)
        write_atomic(path, content)
        return version_of(content)


@dataclass(frozen=True, slots=True)
class NamedRouter:
    """Router under a model name; a text whose choice is less certain than ``least`` goes to ``fallback``, if there is
    one.
    """

    name: str
    router: Router
    fallback: str = ""
    least: float = 0.0

    def choose(self, text: str) -> RoutedChoice:
        """Choose the expert for a text by its words.

        Raises:
            InvalidArgument: the router needs vectors of a model.
        """
        return self.or_fallback(self.router.choose(text))

    def or_fallback(self, choice: RoutedChoice) -> RoutedChoice:
        """Return a choice, or the fallback if the choice is not certain enough."""
        is_sure = not self.fallback or choice.confidence >= self.least
        return choice if is_sure else RoutedChoice(self.fallback, choice.confidence)


def load_router(path: Path) -> tuple[Router, str]:
    """Read a router and its version, the beginning of its digest.

    Raises:
        NotFound: there is no such file. InvalidArgument: the file is not a router, or is damaged.
    """
    try:
        if path.stat().st_size > MAX_BYTES:
            raise InvalidArgument(f"{path} has {path.stat().st_size} bytes; expected up to {MAX_BYTES} for a router")
        content = path.read_bytes()
    except OSError as cause:
        raise NotFound(f"{path} cannot be read: {cause.strerror}; rdukit router train writes a router") from cause
    try:
        size = int.from_bytes(content[:8], "little")
        described = json.loads(json.loads(content[8 : 8 + size])["__metadata__"]["router"])
        return _checked(described, load(content)), version_of(content)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError, SafetensorError) as cause:
        raise InvalidArgument(
            f"{path} is not a router, or is damaged: {cause!r}; rdukit router train writes one"
        ) from cause


def _checked(described: dict[str, Any], tensors: dict[str, NDArray[Any]]) -> Router:
    experts, neighbours, model = described["experts"], described["neighbours"], described["model"]
    weights, labels = tensors["weights"], tensors["labels"]
    floats = [tensors[name] for name in ("scale", "weights", "bias")]
    is_legal = (
        described["format"] == FORMAT
        and isinstance(experts, list)
        and 2 <= len(experts) == len({str(name) for name in experts})
        and all(isinstance(name, str) for name in (*experts, model))
        and isinstance(neighbours, int)
        and all(each.dtype == np.float32 and np.isfinite(each).all() for each in floats)
        and labels.dtype == np.int64
        and weights.ndim == 2
        and tensors["scale"].shape == weights.shape[1:]
        and (
            labels.shape == (len(weights),) and 1 <= neighbours <= len(weights) and labels.min() >= 0
            and labels.max() < len(experts)
            if neighbours
            else len(weights) == len(experts) and tensors["bias"].shape == (len(experts),)
        )
    )  # fmt: skip
    if not is_legal:
        raise ValueError("its parts do not match")
    return Router(tuple(experts), tensors["scale"], weights, tensors["bias"], labels, neighbours, model)


def version_of(content: bytes) -> str:
    """Return the version of a router's file."""
    return hashlib.sha256(content).hexdigest()[:12]


def unit(vector: NDArray[Any]) -> NDArray[np.float32]:
    """Return a vector [D] with the length 1; zeros stay zeros."""
    return np.asarray(vector / max(float(np.linalg.norm(vector)), 1e-12), np.float32)


def unit_rows(vectors: Sequence[NDArray[Any]]) -> NDArray[np.float32]:
    """Return vectors as rows of the length 1."""
    return np.stack([unit(vector) for vector in vectors])
