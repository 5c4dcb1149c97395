"""Comparison: the time of O1 to compile GPT-2, against AOTInductor on the whole graph.

Every sample is a fresh process with caches of its own: ours an empty home folder, torch's an empty folder of Inductor.
``again`` compiles once more in the home of the cold compile, and is set against AOTInductor's cold compile; beside it,
for information, against our own. A PEF holds no weights; AOTInductor is measured without them, and for information with
them in its library, as it comes. Half a minute a sample, so there are as many as a third of the rounds, three at least.
"""

import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from rdukit.errors import RuntimeFault
from rdukit_bench.comparisons.contestants import run_sample, warm_environment
from rdukit_bench.comparisons.model import BenchOptions, BenchProgress, ComparisonRow, comparison
from rdukit_bench.comparisons.timing import SampleTiming, missing_row, rows_against_peers

QUESTION: Final = "o1_compile"
LAYERS: Final = 12
DEEP: Final = 48
#: Least ratios: AOTInductor over ours, cold and again; ours of 12 layers over ours of 48.
BARS: Final = {"cold": 1 / 0.7, "again": 20.0, "deep": 1 / 1.5}
WEIGHTS: Final = "peer-with-weights"
_OURS: Final = "rdukit o1"


@comparison(QUESTION)
def compare(options: BenchOptions) -> Iterator[ComparisonRow | BenchProgress]:
    """Yield the rows of inference, and one of training, which only informs."""
    kinds = ["inference"] if options.quick else ["inference", "training"]
    for kind in kinds:
        if options.wants(kind):
            yield from measure(kind, options)


@dataclass(slots=True)
class CompileSamples:
    """Seconds of one compile, by both clocks; why there are none."""

    wall_s: list[float] = field(default_factory=list)
    cpu_s: list[float] = field(default_factory=list)
    error: str = ""

    def timing(self) -> SampleTiming:
        return SampleTiming(tuple(self.wall_s), tuple(self.cpu_s))

    def take(
        self, shared: Path, caches: Path, is_ours: bool, module: str, *arguments: str, **variables: str
    ) -> None:  # fmt: skip
        """Take one sample; a peer that fails is left out from then on.

        Args:
            shared: folder of Python's bytecode. caches: folder of the home, and of Inductor's. module, arguments: what
                ``run_sample`` runs; ``caches`` is its last argument. variables: of its environment.
        Raises:
            RuntimeFault: our side failed.
        """
        caches.mkdir(parents=True, exist_ok=True)
        environ = warm_environment(
            shared, RDUKIT_HOME=str(caches / "home"), TORCHINDUCTOR_CACHE_DIR=str(caches / "inductor"), **variables
        )
        try:
            found = run_sample(module, *arguments, str(caches), environ=environ)
        except RuntimeFault as cause:
            if is_ours:
                raise
            self.error = str(cause)
            return
        self.wall_s.append(found["wall_s"])
        self.cpu_s.append(found["cpu_s"])


def measure(kind: str, options: BenchOptions) -> Iterator[ComparisonRow | BenchProgress]:
    """Compile cold, again and deep, ours and the peer in turn.

    Raises:
        RuntimeFault: our side failed.
    """
    layers = 2 if options.quick else LAYERS
    deep = layers * DEEP // LAYERS
    names = ["cold", "again", "peer", *(["deep", WEIGHTS] if kind == "inference" else [])]
    samples = {name: CompileSamples() for name in names}
    count = 1 if options.quick or kind == "training" else max(3, options.rounds // 3)
    total = count * len(names)
    yield BenchProgress(kind, 0, total)
    for number in range(count):
        folder = Path(options.folder) / f"{QUESTION}-{kind}-{number}"
        for done, name in enumerate(names, number * len(names) + 1):
            if not samples[name].error:
                _take(samples[name], name, deep if name == "deep" else layers, kind, folder)
            yield BenchProgress(kind, done, total)
        shutil.rmtree(folder, ignore_errors=True)
    yield from make_rows(kind, samples, layers, deep)


def _take(samples: CompileSamples, name: str, layers: int, kind: str, folder: Path) -> None:
    who = name if name in {"peer", WEIGHTS} else "ours"
    caches = folder / ("cold" if name == "again" else name)
    samples.take(folder.parent, caches, who == "ours", "o1_compile_sample", who, str(layers), kind)


def make_rows(kind: str, samples: "dict[str, CompileSamples]", layers: int, deep: int) -> Iterator[ComparisonRow]:
    """Yield the rows of one kind's samples."""
    is_inference = kind == "inference"
    peers = {"peer": "AOTInductor" if is_inference else "torch.compile, forward and backward"}
    peers |= {WEIGHTS: "AOTInductor, weights in the library"} if is_inference else {}
    cold, case = samples["cold"].timing(), f"{kind} {layers} layers"
    for name, peer in peers.items():
        bar = BARS["cold"] if name == "peer" and is_inference else None
        if samples[name].error:
            yield missing_row(QUESTION, f"{case} cold", _OURS, cold, peer, "s", samples[name].error, bar)
            continue
        theirs = samples[name].timing()
        note = f"imports beyond torch count for both; {describe_cpu(cold, theirs)}"
        yield from _pair(f"{case} cold", (_OURS, cold), (peer, theirs), bar, note)
    again = samples["again"].timing()
    if is_inference and not samples["peer"].error:
        theirs = samples["peer"].timing()
        note = describe_cpu(again, theirs)
        yield from _pair(f"{case} again", (_OURS, again), (peers["peer"], theirs), BARS["again"], note)
    yield from _pair(f"{case} again", (_OURS, again), (f"{_OURS}, cold", cold), None, describe_cpu(again, cold))
    if "deep" in samples:
        more = samples["deep"].timing()
        yield from _pair(
            f"{kind} {deep} layers cold", (_OURS, more), (f"{_OURS}, {layers} layers", cold), BARS["deep"],
            describe_cpu(more, cold),
        )  # fmt: skip


def describe_cpu(ours: SampleTiming, theirs: SampleTiming) -> str:
    """Describe both contestants' CPU time: on a machine that others use it is steadier than the clock."""
    seconds: Sequence[float] = [SampleTiming(timing.cpu_s).median_s for timing in (ours, theirs)]
    return f"CPU {seconds[0]:.1f} s and {seconds[1]:.1f} s"


def _pair(
    case: str, ours: tuple[str, SampleTiming], peer: tuple[str, SampleTiming], bar: float | None, note: str
) -> list[ComparisonRow]:  # fmt: skip
    timings = dict((ours, peer))
    return rows_against_peers(QUESTION, case, timings, ours=ours[0], unit="s", bar=bar, note=note)
