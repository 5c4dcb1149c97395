"""Checks native kernels: they are used only in sections whose results equal those of the portable kernels.

The runtime's ``rdukit_runtime.check`` judges, in forks of the processes that build; verdicts are kept next to the
libraries. Decision 0073.
"""

import itertools
import queue
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Final

from rdukit.errors import CompileError, Unavailable
from rdukit.files.atomic import sha256_of
from rdukit.pef.kernel import KernelGraph
from rdukit.pef.model import Section
from rdukit.pef.units import KernelVerdict, Outcome, Unit, describe_verdicts, find_units, verdict_from_json
from rdukit.settings import SANITIZE, resolve
from rdukit_compiler.backend.kernel_cache import BuildPlace, KernelCache
from rdukit_compiler.backend.native import NativeBuilder, worker_count
from rdukit_compiler.backend.workers import Worker
from rdukit_compiler.settings import KERNEL_CHECK

#: Name of the judging module, which is not imported: compiler and runtime share only the PEF.
JUDGE: Final = "rdukit_runtime.check"

#: Prefix of the reason of a unit that is refused because it shares a native kernel with a failing one.
_SHARED: Final = "a section with the same kernel runs portably: "

#: Called with each unit's digest and its verdict.
OnJudged = Callable[[str, KernelVerdict], None]


@cache
def checker_version() -> str:
    """Digest the sources of the check: verdicts of other versions do not count."""
    found = find_spec(JUDGE)
    if found is None or not found.submodule_search_locations:
        raise CompileError(
            f"{JUDGE} checks native kernels, but it is not installed; install it, or set RDUKIT_KERNEL_CHECK=off"
        )
    sources = [p for folder in found.submodule_search_locations for p in sorted(Path(folder).glob("*.py"))]
    return sha256_of(b"".join(path.read_bytes() for path in sources))[:12]


def name_verdict(unit: Unit, libraries: Mapping[str, bytes]) -> str:
    """Return the name of a kept verdict: its unit, which kernels of it are native, the checker's version and level."""
    forms = "".join("n" if kernel in libraries else "p" for kernel in unit.kernel_digests)
    return f"{unit.digest}-{forms}-{checker_version()}-{resolve(KERNEL_CHECK)}"


def has_native(unit: Unit, libraries: Mapping[str, bytes]) -> bool:
    """Return whether any of a unit's kernels has a library."""
    return any(kernel in libraries for kernel in unit.kernel_digests)


def judge_units(
    units: Mapping[str, Unit], libraries: Mapping[str, bytes], builder: NativeBuilder, on_judged: OnJudged
) -> dict[str, KernelVerdict]:
    """Return the verdict on each unit that has a native kernel: a kept one, or a new one.

    Args:
        libraries: native libraries by kernel digest.
    """
    cache = builder.cache
    native = {digest: unit for digest, unit in units.items() if has_native(unit, libraries)}
    verdicts: dict[str, KernelVerdict] = {}
    for digest, unit in native.items():
        kept = _find(cache, name_verdict(unit, libraries))
        if kept is not None:
            verdicts[digest] = kept
            on_judged(digest, kept)
    missing = [digest for digest in native if digest not in verdicts]
    place = builder.open() if missing else None
    if place is not None and _lay_out(place, [native[digest] for digest in missing], libraries, cache):

        def on_new(digest: str, verdict: KernelVerdict) -> None:
            verdicts[digest] = verdict
            cache.keep_verdict(name_verdict(native[digest], libraries), verdict.to_json().encode())
            on_judged(digest, verdict)

        _judge(missing, place, builder, on_new)
    for digest in missing:
        if digest not in verdicts:
            verdicts[digest] = KernelVerdict(Outcome.REFUSED, cache.refusal or "the process that checks it ended")
            on_judged(digest, verdicts[digest])
    return verdicts


def _find(cache: KernelCache, name: str) -> KernelVerdict | None:
    content = cache.find_verdict(name)
    try:
        return None if content is None else verdict_from_json(content)
    except ValueError:
        return None


def _lay_out(place: BuildPlace, units: Sequence[Unit], libraries: Mapping[str, bytes], cache: KernelCache) -> bool:
    """Write units and libraries where workers look for them; return False, with the reason in the cache, if they cannot
    be written.
    """
    try:
        for unit in units:
            (place.scratch / f"{unit.digest}.unit").write_bytes(unit.to_json())
            for digest in unit.kernel_digests:
                library = place.scratch / f"{digest}.so"
                if digest in libraries and not library.exists():
                    library.write_bytes(libraries[digest])
    except OSError as cause:
        cache.refuse(cause)
    return cache.refusal is None


def _judge(missing: Sequence[str], place: BuildPlace, builder: NativeBuilder, on_new: OnJudged) -> None:
    """Deal the units to the workers, and wait for all."""
    count = min(len(missing), worker_count())
    dealt: queue.SimpleQueue[Sequence[str]] = queue.SimpleQueue()
    for number in range(count):
        dealt.put(missing[number::count])

    def check(worker: Worker) -> None:
        for digest, verdict in worker.check(dealt.get(), is_full=resolve(KERNEL_CHECK) == "full"):
            on_new(digest, verdict)

    try:
        failures: list[BaseException] = builder.drive(place, check, count)
    except Unavailable as cause:
        failures = [cause]
    if failures:
        raise CompileError(f"checking native kernels failed: {failures[0]}; RDUKIT_KERNELS=portable avoids it")


def choose_judged(
    sections: Iterable[Section], kernels: Mapping[str, KernelGraph], libraries: dict[str, bytes],
    builder: NativeBuilder, on_judged: Callable[[KernelVerdict, int, int], None],
) -> tuple[dict[str, bytes], dict[str, str]]:  # fmt: skip
    """Return the libraries that may be used, and the check's verdict on each kernel of a PEF.

    Args:
        on_judged: called with each verdict, the number of verdicts so far, and the number of all.
    """
    if resolve(KERNEL_CHECK) == "off" or resolve(SANITIZE):  # a sanitized library runs under the sanitizer only
        return libraries, {}
    units = find_units(sections, kernels)
    total, numbers = sum(has_native(unit, libraries) for unit in units.values()), itertools.count(1)
    verdicts = judge_units(
        units, libraries, builder, lambda digest, verdict: on_judged(verdict, next(numbers), total)
    )  # fmt: skip
    verdicts = spread_refusals(units, libraries, verdicts)
    return keep_judged(units, libraries, verdicts), describe_verdicts(units, verdicts)


def spread_refusals(
    units: Mapping[str, Unit], libraries: Mapping[str, bytes], verdicts: Mapping[str, KernelVerdict]
) -> dict[str, KernelVerdict]:
    """Refuse also units that share a native kernel with a failing unit: a unit uses all its native kernels or none."""
    found = dict(verdicts)
    lost: dict[str, str] = {}
    fresh = [digest for digest, verdict in found.items() if not verdict.is_right]
    while fresh:
        for digest in fresh:
            reason = found[digest].reason.removeprefix(_SHARED)
            lost.update((kernel, reason) for kernel in units[digest].kernel_digests if kernel in libraries)
        fresh = []
        for digest, verdict in found.items():
            shared = [kernel for kernel in units[digest].kernel_digests if kernel in lost]
            if shared and verdict.is_right:
                found[digest] = replace(verdict, outcome=Outcome.REFUSED, reason=_SHARED + lost[shared[0]])
                fresh.append(digest)
    return found


def keep_judged(
    units: Mapping[str, Unit], libraries: Mapping[str, bytes], verdicts: Mapping[str, KernelVerdict]
) -> dict[str, bytes]:
    """Return the libraries of kernels whose units all passed."""
    lost = {k for digest, verdict in verdicts.items() if not verdict.is_right for k in units[digest].kernel_digests}
    return {kernel: library for kernel, library in libraries.items() if kernel not in lost}
