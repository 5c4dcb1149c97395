"""How fast does a Llama of 110 million parameters read a prompt and generate, against torch and llama.cpp?

Batch 1, a static cache of 512. Ours is a SambaFlow program with two graphs over one copy of weights and caches; the
peers are the module itself in torch and llama.cpp with the same weights. ``prefill``: 128 tokens; ``decode``: one token
at position 200. All give logits on the host.
"""

import copy
import tempfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import torch

from rdukit_zoo.comparisons.llama_cpp_peer import LlamaCpp, find_missing_package, write_gguf
from rdukit_zoo.comparisons.llama_program import LlamaProgram
from rdukit_zoo.comparisons.model import PEER_MISSING, Options, Row, comparison
from rdukit_zoo.comparisons.models.llama import Llama, LlamaSizes
from rdukit_zoo.comparisons.timing import Timing, rounds_of, time_in_turn

#: Where decode is timed: the cache is filled up to here.
POSITION: Final = 200
#: Larger than the last-level cache of most processors.
READ_BYTES: Final = 256 << 20
EAGER: Final = "eager f32"
READ: Final = "memory read"


@dataclass(frozen=True, slots=True)
class Variant:
    """One of our programs, the format of llama.cpp that it is held against, and the bars.

    ``bytes_per_weight``: of ours and of the peer. ``tolerance``: largest difference of a logit from plain torch in f32,
    as a share of the largest logit: f32 sums in another order; bf16 has 8 bits; int8 rounds weights once more.
    """

    name: str
    config: Mapping[str, Any]
    peer: str
    bytes_per_weight: tuple[float, float]
    tolerance: float
    decode_bar: float
    prefill_bar: float | None = None
    prefill_eager_bar: float | None = None


VARIANTS: Final = (
    Variant("f32", {"precision": "f32"}, "f32", (4, 4), 1e-4, 0.9),
    Variant("bf16", {"precision": "bf16"}, "bf16", (2, 2), 5e-2, 0.8, 0.95, 2.8),
    # A block of 32 weights of q8_0 has a scale of two bytes.
    Variant("int8", {"precision": "bf16", "weight_dtype": "int8"}, "q8_0", (1, 1 + 2 / 32), 1e-1, 0.7),
)


@comparison("llama")
def compare(options: Options) -> Iterator[Row]:
    """Rows of prefill, then of decode."""
    torch.set_num_threads(options.threads)
    torch.manual_seed(0)
    sizes = LlamaSizes(layers=2) if options.quick else LlamaSizes()
    plain = Llama(sizes).eval()
    with tempfile.TemporaryDirectory(dir=options.folder or None) as folder, torch.no_grad():
        bench = _Bench(plain, sizes, Path(folder), options)
        try:
            yield from bench.prefill()
            yield from bench.decode()
        finally:
            bench.close()


class _Bench:
    """All variants, loaded."""

    def __init__(self, plain: Llama, sizes: LlamaSizes, folder: Path, options: Options) -> None:
        self._plain, self._sizes, self._options = plain, sizes, options
        self._text = torch.randint(sizes.vocabulary, (1, POSITION + 1))
        self._prompt, self._token = self._text[:, : sizes.prompt], self._text[:, -1:]
        self._position = torch.tensor([POSITION])
        self._ours: dict[str, LlamaProgram] = {}
        self._peers: dict[str, LlamaCpp] = {}
        missing = find_missing_package()
        # The programs share one model: their sessions only read it.
        model = copy.deepcopy(plain)
        for variant in VARIANTS:
            config = {
                **variant.config, "o3": True, "output_folder": str(folder), "pef_name": variant.name,
                "num_tiles": 1, "log_level": "error",
            }  # fmt: skip
            self._ours[variant.name] = LlamaProgram(model, sizes, config)
            if missing is None:
                path = folder / f"{variant.peer}.gguf"
                write_gguf(plain, sizes, path, variant.peer)
                self._peers[variant.peer] = LlamaCpp(path, sizes, options.threads)
        self._weight_count = sum(p.numel() for p in plain.parameters())
        self._source = torch.ones(READ_BYTES // 4).view(-1, 1024)

    def close(self) -> None:
        for program in self._ours.values():
            program.close()
        for peer in self._peers.values():
            peer.close()

    def prefill(self) -> Iterator[Row]:
        """Reading a prompt: rows of every variant against its format of llama.cpp, and against torch."""
        case = f"prefill {self._sizes.prompt}"
        calls: dict[str, Callable[[], torch.Tensor]] = {EAGER: lambda: self._plain(self._prompt)}
        for name, program in self._ours.items():
            calls[name] = lambda program=program: program.prefill(self._prompt)  # type: ignore[misc]
        for name, peer in self._peers.items():
            calls[f"llama.cpp {name}"] = lambda peer=peer: peer.prefill(self._prompt)  # type: ignore[misc]
        yield from self._rows(case, calls, self._timed(case, calls), None)

    def decode(self) -> Iterator[Row]:
        """One token more: rows as ``prefill``, with the share of what one thread reads from memory."""
        case = f"decode at {POSITION}"
        # Everybody's cache holds the same text.
        self._plain(self._prompt)
        for program in self._ours.values():
            program.prefill(self._prompt)
        for i in range(self._sizes.prompt, POSITION):
            token, position = self._text[:, i : i + 1], torch.tensor([i])
            self._plain(token, position)
            for program in self._ours.values():
                program.decode(token, position)
        for peer in self._peers.values():
            peer.prefill(self._text[:, :POSITION])
        calls: dict[str, Callable[[], torch.Tensor]] = {EAGER: lambda: self._plain(self._token, self._position)}
        for name, program in self._ours.items():
            calls[name] = lambda program=program: program.decode(self._token, self._position)  # type: ignore[misc]
        for name, peer in self._peers.items():
            calls[f"llama.cpp {name}"] = lambda peer=peer: peer.decode(self._token, POSITION)  # type: ignore[misc]
        vector = torch.ones(self._source.shape[1])
        timings = self._timed(case, {**calls, READ: lambda: torch.mv(self._source, vector)})
        yield from self._rows(case, calls, timings, READ_BYTES / timings[READ].best_s if timings else None)

    def _timed(self, case: str, calls: Mapping[str, Callable[[], Any]]) -> dict[str, Timing]:
        if not self._options.wants(case):
            return {}
        rounds = rounds_of(self._options)
        return time_in_turn(calls, rounds, sample_s=self._options.sample_s, warmup=2)

    def _rows(
        self, case: str, calls: Mapping[str, Callable[[], torch.Tensor]], timings: Mapping[str, Timing],
        bytes_per_s: float | None,
    ) -> Iterator[Row]:  # fmt: skip
        if not timings:
            return
        gold = calls[EAGER]()
        is_decode = bytes_per_s is not None
        for variant in VARIANTS:
            name, peer = variant.name, f"llama.cpp {variant.peer}"
            error = float((calls[name]() - gold).abs().max() / gold.abs().max())
            words = [f"logits within {error:.1e} of eager f32"]
            if error > variant.tolerance:
                words.append(f"WRONG: {variant.tolerance:.0e} is allowed")
            if bytes_per_s is not None:
                shares = [
                    f"{label} {self._weight_count * size / timings[key].median_s / bytes_per_s:.0%}"
                    for label, key, size in zip(("ours", "peer"), (name, peer), variant.bytes_per_weight, strict=True)
                    if key in timings
                ]
                words.append(f"of {bytes_per_s / 1e9:.1f} GB/s: {', '.join(shares)}")
            bar = variant.decode_bar if is_decode else variant.prefill_bar
            if peer not in timings:
                words.append(PEER_MISSING)
            yield _row(case, timings, name, peer, bar, "; ".join(words))
            yield _row(case, timings, name, EAGER, None if is_decode else variant.prefill_eager_bar, "")


def _row(case: str, timings: Mapping[str, Timing], ours: str, peer: str, bar: float | None, note: str) -> Row:
    """One row in milliseconds; without the peer's figure if it is not there."""
    mine, other = timings[ours], timings.get(peer)
    return Row(
        question="llama", case=case, ours=f"rdukit {ours}", peer=peer, unit="ms", bar=bar, note=note,
        ours_value=mine.median_s * 1e3,
        peer_value=None if other is None else other.median_s * 1e3,
        ratio=None if other is None else other.median_s / mine.median_s,
        samples=len(mine.samples_s),
        details={name: timings[name].body("ms") for name in (ours, peer, READ) if name in timings},
    )  # fmt: skip


__all__ = ["VARIANTS", "Variant", "compare"]
