"""The kernel cache keeps what was built, one builds what many want, and nothing about it can fail a compile."""

import os
import queue
import resource
import tempfile
from collections.abc import Callable, Generator, Iterable
from contextlib import closing
from pathlib import Path

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from rdukit.files.locks import shared_lock
from rdukit_compiler.backend.kernel_cache import (
    BUILDING,
    INDUCTOR,
    LOCKS,
    WAIT_S,
    KernelCache,
    list_inductor,
    list_kernels,
    own_place,
    place_of,
    trim_kernels,
)
from support import shows

pytestmark = shows("engine", "native", "settings")

PLENTY = 1 << 30


def pending_of(digests: Iterable[str]) -> "queue.SimpleQueue[str]":
    made: queue.SimpleQueue[str] = queue.SimpleQueue()
    for digest in digests:
        made.put(digest)
    return made


def one_by_one(
    cache: KernelCache, digests: Iterable[str], on_found: Callable[[str, bytes], None] = lambda *_: None,
    wait_s: float = WAIT_S,
) -> Generator[str]:  # fmt: skip
    """Batches of one kernel."""
    with closing(cache.unbuilt_batches(pending_of(digests), 1, on_found, wait_s)) as batches:
        for (digest,) in batches:
            yield digest


def library_of(digest: str) -> bytes:
    return digest.encode() * 50


def fill(cache: KernelCache, digests: Iterable[str]) -> tuple[list[str], dict[str, bytes]]:
    """Build what is missing; the digests that were built here, and all libraries."""
    libraries: dict[str, bytes] = {}
    built = []
    with cache.building() as place:
        if place is None:
            return [], {}
        for digest in one_by_one(cache, digests, libraries.__setitem__):
            built.append(digest)
            libraries[digest] = library_of(digest)
            cache.keep(digest, libraries[digest])
    return built, libraries


def test_a_kernel_is_built_once_and_found_by_later_compiles(tmp_path: Path) -> None:
    assert fill(KernelCache(tmp_path, "v", PLENTY), "abc") == (["a", "b", "c"], {d: library_of(d) for d in "abc"})
    assert fill(KernelCache(tmp_path, "v", PLENTY), "bcd") == (["d"], {d: library_of(d) for d in "bcd"})
    assert not list((tmp_path / "scratch").iterdir())
    assert [path.name for path in (tmp_path / LOCKS).iterdir()] == [BUILDING]


def test_another_variant_is_built_again_in_a_folder_of_its_own(tmp_path: Path) -> None:
    fill(KernelCache(tmp_path, "v", PLENTY), "a")
    assert fill(KernelCache(tmp_path, "w", PLENTY), "a")[0] == ["a"]
    places = [place_of(file.path, tmp_path) for file in list_kernels(tmp_path)]
    assert places == [(*own_place(), "v"), (*own_place(), "w")]


def test_a_damaged_library_is_built_again(tmp_path: Path) -> None:
    cache = KernelCache(tmp_path, "v", PLENTY)
    fill(cache, "ab")
    path = cache.folder / "a.so"
    content = bytearray(path.read_bytes())
    content[7] ^= 4
    path.write_bytes(content)
    assert fill(cache, "ab") == (["a"], {d: library_of(d) for d in "ab"})
    assert cache.find("a") == library_of("a")


def test_what_another_builds_is_waited_for_and_found_then(tmp_path: Path) -> None:
    """The caller builds the rest first."""
    mine, theirs = KernelCache(tmp_path, "v", PLENTY), KernelCache(tmp_path, "v", PLENTY)
    order = []
    found: dict[str, bytes] = {}
    with mine.building(), theirs.building():
        others = one_by_one(theirs, "a", found.__setitem__)
        assert next(others) == "a"
        for digest in one_by_one(mine, "ab", lambda digest, library: order.append(digest + " found")):
            order.append(digest)
            mine.keep(digest, library_of(digest))
            theirs.keep("a", library_of("a"))
            others.close()
    assert order == ["b", "a found"]


def test_batches_share_what_is_free_and_wait_for_what_is_not(tmp_path: Path) -> None:
    mine, theirs = KernelCache(tmp_path, "v", PLENTY), KernelCache(tmp_path, "v", PLENTY)
    found: list[str] = []
    given = []
    with mine.building(), theirs.building():
        others = theirs.unbuilt_batches(pending_of("abcd"), 3, lambda *_: None)
        assert next(others) == ["a", "b", "c"]
        theirs.keep("a", library_of("a"))
        for batch in mine.unbuilt_batches(pending_of("abcdefg"), 2, lambda digest, library: found.append(digest)):
            given.append(batch)
            for digest in batch:
                mine.keep(digest, library_of(digest))
            if len(given) == 2:
                others.close()  # it has kept one of its three
    assert given == [["d", "e"], ["f", "g"], ["b", "c"]]
    assert found == ["a"]
    assert [path.name for path in (tmp_path / LOCKS).iterdir()] == [BUILDING]


def test_a_folder_that_cannot_be_made_refuses_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "file").write_text("")
    cache = KernelCache(tmp_path / "file" / "kernels", "v", PLENTY)
    assert fill(cache, "abc") == ([], {})
    assert fill(cache, "abc") == ([], {})
    assert cache.refusal is not None
    assert "cannot be written" in cache.refusal
    assert len([record for record in caplog.records if record.levelname == "WARNING"]) == 1


def test_a_disk_that_fills_up_ends_the_builds_and_says_so_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A limit on the size of files stands for the end of the disk: in both cases a write fails in the middle."""
    cache = KernelCache(tmp_path, "v", PLENTY)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    given = []
    with cache.building():
        for digest in one_by_one(cache, "abc"):
            given.append(digest)
            resource.setrlimit(resource.RLIMIT_FSIZE, (50, hard))
            try:
                cache.keep(digest, library_of(digest))
            finally:
                resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert given == ["a"]
    assert cache.find("a") is None
    assert not list(tmp_path.rglob("*.part"))
    assert len([record for record in caplog.records if "cannot be written" in record.getMessage()]) == 1


def test_a_failed_build_refuses_only_for_want_of_room(tmp_path: Path) -> None:
    cache = KernelCache(tmp_path, "v", PLENTY)
    assert not cache.is_refused_by("CppCompileError: C++ compile error")
    assert cache.is_refused_by("OSError: [Errno 28] No space left on device")


def test_a_trim_leaves_the_empty_folder_of_a_compile_that_has_begun(tmp_path: Path) -> None:
    cache = KernelCache(tmp_path, "v", PLENTY)
    with cache.building() as place:
        trim_kernels(tmp_path, PLENTY, 0.0)
        assert place is not None
        assert place.scratch.is_dir()
        assert cache.folder.is_dir()
    assert not cache.folder.exists()


def test_what_inductor_left_goes_before_any_library_and_not_while_somebody_builds(tmp_path: Path) -> None:
    cache = KernelCache(tmp_path, "v", PLENTY)
    fill(cache, "abc")
    for name in ("x", "y"):
        (tmp_path / INDUCTOR / name).mkdir()
        (tmp_path / INDUCTOR / name / "made.cpp").write_bytes(bytes(1000))
    kept = sum(file.size_bytes for file in list_kernels(tmp_path))
    with shared_lock(tmp_path / LOCKS / BUILDING):
        assert trim_kernels(tmp_path, kept, 0.0) == 0
    assert trim_kernels(tmp_path, kept + 1000, 0.0) == 1000
    assert [file.path.name for file in list_inductor(tmp_path)] == ["y"]
    assert len(list_kernels(tmp_path)) == 3
    assert trim_kernels(tmp_path, kept - 1, 0.0) > 1000
    assert len(list_kernels(tmp_path)) == 2


def test_the_end_of_a_compile_trims_and_sweeps_what_killed_ones_left(tmp_path: Path) -> None:
    old = tmp_path / "2.0.0-cpu-x86_64-ffff-1"
    scratch = tmp_path / "scratch" / "1-abcd"
    for folder in (old, scratch, tmp_path / LOCKS):
        folder.mkdir(parents=True)
    (old / "a.so").write_bytes(bytes(1000))
    os.utime(old / "a.so", (1, 1))
    (scratch / "b.so").write_bytes(b"half")
    (tmp_path / LOCKS / "b-v.lock").write_bytes(b"")
    (tmp_path / "trust.key").write_bytes(bytes(32))
    fill(KernelCache(tmp_path, "v", 500), "ab")
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(
        [own_place()[0], INDUCTOR, LOCKS, "scratch", "trust.key"]
    )
    assert not list((tmp_path / "scratch").iterdir())
    assert [path.name for path in (tmp_path / LOCKS).iterdir()] == [BUILDING]
    assert sum(file.size_bytes for file in list_kernels(tmp_path)) <= 500


def test_a_bound_of_nothing_keeps_nothing_and_loses_nothing(tmp_path: Path) -> None:
    built, libraries = fill(KernelCache(tmp_path, "v", 0), "ab")
    assert built == ["a", "b"]
    assert libraries == {d: library_of(d) for d in "ab"}
    assert list_kernels(tmp_path) == []


class CacheMachine(RuleBasedStateMachine):
    """Compiles, damage, killed processes and trims in any order, on one folder."""

    digests = st.sets(st.sampled_from("abcdef"), min_size=1)

    def __init__(self) -> None:
        super().__init__()
        self._folder = tempfile.TemporaryDirectory(prefix="kernel-cache-")
        self.root = Path(self._folder.name)
        self.now = 1e9
        self.bound = PLENTY
        self.has_trimmed = False

    def cache(self) -> KernelCache:
        return KernelCache(self.root, "v", self.bound, lambda: self.now)

    @rule(digests=digests)
    def compile(self, digests: set[str]) -> None:
        held = {digest for digest in digests if self.cache().find(digest) is not None}
        built, libraries = fill(self.cache(), sorted(digests))
        assert set(built) == digests - held
        assert libraries == {digest: library_of(digest) for digest in digests}
        self.has_trimmed = True

    @rule(digest=st.sampled_from("abcdef"))
    def die_while_building(self, digest: str) -> None:
        """What a killed process leaves: a lock file without a lock, a scratch folder, half a temporary file."""
        cache = self.cache()
        (self.root / LOCKS).mkdir(exist_ok=True)
        (self.root / LOCKS / f"{digest}.lock").write_bytes(b"")
        scratch = self.root / "scratch" / f"1-{digest}"
        scratch.mkdir(parents=True, exist_ok=True)
        (scratch / digest).write_bytes(b"half")
        cache.folder.mkdir(parents=True, exist_ok=True)
        half = cache.folder / f".{digest}.so.x.0123.part"
        half.write_bytes(b"half")
        os.utime(half, (self.now - 100, self.now - 100))
        self.has_trimmed = False

    @rule(digest=st.sampled_from("abcdef"), size=st.integers(0, 400))
    def damage(self, digest: str, size: int) -> None:
        path = self.cache().folder / f"{digest}.so"
        if path.exists():
            os.truncate(path, min(size, path.stat().st_size - 1))

    @rule(digest=st.sampled_from("abcdef"))
    def use(self, digest: str) -> None:
        assert self.cache().find(digest) in {None, library_of(digest)}

    @rule(seconds=st.integers(0, 9000))
    def wait(self, seconds: int) -> None:
        self.now += seconds

    @rule(bound=st.integers(0, 1000))
    def bind(self, bound: int) -> None:
        self.bound = bound
        self.has_trimmed = False

    @rule()
    def trim(self) -> None:
        self.cache().trim()
        self.has_trimmed = True

    @precondition(lambda self: self.has_trimmed and self.root.joinpath(LOCKS).exists())
    @invariant()
    def the_bound_holds_and_nothing_half_is_left(self) -> None:
        assert sum(file.size_bytes for file in list_kernels(self.root)) <= self.bound
        assert [path.name for path in (self.root / LOCKS).iterdir()] == [BUILDING]
        assert not list(self.root.glob("scratch/*"))
        assert not list(self.root.rglob("*.part"))

    def teardown(self) -> None:
        self._folder.cleanup()


CacheMachine.TestCase.settings = settings(max_examples=15, stateful_step_count=12, deadline=None)
TestAnyHistoryOfTheCache = CacheMachine.TestCase
