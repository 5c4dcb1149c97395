"""``rdukit cache`` (kernels and sections kept for later) and ``rdukit pef build`` (native kernels for a PEF)."""

import itertools
import json
import time
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Final

import click

from rdukit.cli.commands import ExtensibleGroup
from rdukit.cli.tables import print_table
from rdukit.errors import CompileError, InvalidArgument
from rdukit.files.disk_cache import CachedFile, choose_evicted, remove_cached
from rdukit.pef import read_pef, write_pef
from rdukit.pef.units import KERNEL_CHECK, KERNELS_LATER, KernelVerdict
from rdukit.settings import resolve
from rdukit.units import format_bytes, format_seconds
from rdukit_compiler.backend.kernel_cache import (
    kernels_folder,
    list_inductor,
    list_kernels,
    own_place,
    place_of,
    trim_kernels,
)
from rdukit_compiler.backend.native import build_word
from rdukit_compiler.passes.section_cache import compiler_digest, list_sections, sections_folder
from rdukit_compiler.settings import KERNEL_CACHE, SECTION_CACHE

_COLUMNS: Final = ("WHAT", "FILES", "SIZE", "LAST USED", "HERE", "TORCH", "PROCESSOR", "BUILT")

_json_option = click.option("--json", "as_json", is_flag=True, help="Machine-readable.")


@dataclass(frozen=True, slots=True)
class CacheRow:
    """Cached files of one kind that were built for the same torch and processor, in the same way."""

    what: str
    torch: str
    processor: str
    built: str
    files: int
    bytes: int
    #: Seconds of the epoch, exact to an hour.
    last_used_s: float
    #: Whether this version, with this torch on this processor, can use the files.
    is_usable_here: bool


@click.group(cls=ExtensibleGroup)
def cache() -> None:
    """Show, trim and clear the compiler's cache.

    The cache holds native kernels and compiled sections. Removing them only slows the next compile down; PEF files have
    their own copies.

    Example: rdukit cache show

    Example: rdukit cache show --json
    """


@cache.command()
@_json_option
def show(as_json: bool) -> None:
    """Show the cached files by torch version and processor.

    Example: rdukit cache show

    Example: rdukit cache show --json
    """
    rows = _rows()
    bounds = {"kernels": resolve(KERNEL_CACHE) << 20, "sections": resolve(SECTION_CACHE) << 20}
    if as_json:
        folders = {"kernels": str(kernels_folder()), "sections": str(sections_folder())}
        shown = {"folders": folders, "rows": [asdict(row) for row in rows], "max_bytes": bounds}
        click.echo(json.dumps(shown, sort_keys=True))
        return
    if rows:
        print_table(_COLUMNS, [_cells(row, time.time()) for row in rows])
    else:
        click.echo("nothing is kept")
    for what, setting in (("kernels", KERNEL_CACHE), ("sections", SECTION_CACHE)):
        used = sum(row.bytes for row in rows if (row.what == "sections") == (what == "sections"))
        click.echo(f"{what}: {format_bytes(used)} of {format_bytes(bounds[what])} ({setting.name})")


@cache.command()
@click.option(
    "--bytes", "max_bytes", type=click.IntRange(0), default=None, help="Maximum number of bytes to keep in total."
)
@_json_option
def trim(max_bytes: int | None, as_json: bool) -> None:
    """Remove files of other versions of torch and of this package, and files beyond the bounds.

    Files that are quick to build again go first: inductor's own files and sections, then kernels; of these, the least
    recently used. Kernels for other processors stay while there is space: other machines may share the home folder.

    Example: rdukit cache trim --bytes 500000000

    Example: rdukit cache trim
    """
    kernels, sections = kernels_folder(), list_sections(sections_folder())
    foreign = [file for file in sections if file.path.parent.name != compiler_digest()]
    freed = remove_cached([*foreign, *choose_evicted(_without(sections, foreign), resolve(SECTION_CACHE) << 20)])
    freed += trim_kernels(
        kernels, resolve(KERNEL_CACHE) << 20, time.time(), lambda path: not _is_of_this_version(place_of(path, kernels))
    )
    if max_bytes is not None:
        freed += trim_kernels(kernels, max_bytes, time.time(), beside=list_sections(sections_folder()))
    _tell(freed, as_json)


@cache.command()
@_json_option
def clear(as_json: bool) -> None:
    """Remove all kept kernels and sections.

    The installation's key stays, so PEF files that were compiled here stay trusted.

    Example: rdukit cache clear

    Example: rdukit cache clear --json
    """
    freed = remove_cached(list_sections(sections_folder()))
    _tell(freed + trim_kernels(kernels_folder(), 0, time.time(), lambda _: True), as_json)


def cache_rows(groups: Iterable[tuple[tuple[str, str, str, str], bool, Sequence[CachedFile]]]) -> list[CacheRow]:
    """Return a row for each (what, torch, processor, built), whether it is usable here, and its files; rows without
    files are left out.
    """
    return [
        CacheRow(*key, len(files), sum(file.size_bytes for file in files), max(file.used_s for file in files), usable)
        for key, usable, files in groups
        if files
    ]


def _cells(row: CacheRow, now_s: float) -> tuple[object, ...]:
    age = f"{format_seconds(max(round(now_s - row.last_used_s), 0))} ago"
    here = "yes" if row.is_usable_here else "no"
    return row.what, row.files, format_bytes(row.bytes), age, here, row.torch, row.processor, row.built


def _rows() -> list[CacheRow]:
    kernels = kernels_folder()
    places: dict[tuple[str, str, str], list[CachedFile]] = {}
    for file in list_kernels(kernels):
        places.setdefault(place_of(file.path, kernels), []).append(file)
    compilers: dict[str, list[CachedFile]] = {}
    for file in list_sections(sections_folder()):
        compilers.setdefault(file.path.parent.name, []).append(file)
    return cache_rows(
        [
            *(
                (("kernels", *place), _is_of_this_version(place) and place[1] == own_place()[1], files)
                for place, files in sorted(places.items())
            ),
            (("inductor", "-", "-", "-"), True, list_inductor(kernels)),
            *(
                (("sections", "-", "-", name), name == compiler_digest(), files)
                for name, files in sorted(compilers.items())
            ),
        ]
    )


def _is_of_this_version(place: tuple[str, str, str]) -> bool:
    """Return whether this torch and this version of the package built it, for any processor."""
    torch, _, variant = place
    return torch == own_place()[0] and variant.startswith(build_word())


def _without(files: Sequence[CachedFile], others: Sequence[CachedFile]) -> list[CachedFile]:
    left_out: set[Path] = {file.path for file in others}
    return [file for file in files if file.path not in left_out]


def _tell(freed: int, as_json: bool) -> None:
    left = sum(row.bytes for row in _rows())
    if as_json:
        click.echo(json.dumps({"freed_bytes": freed, "left_bytes": left}, sort_keys=True))
    else:
        click.echo(f"{format_bytes(freed)} freed, {format_bytes(left)} left")


@click.command()
@click.argument("source", metavar="FILE", type=click.Path(path_type=Path, dir_okay=False))
@click.option(
    "-o", "--output", required=True, type=click.Path(path_type=Path, dir_okay=False), help="Path of the new PEF."
)
def build(source: Path, output: Path) -> None:
    """Build native kernels for this machine. The PEF computes the same; its libraries are built again.

    Without this, a PEF from another installation or processor runs from generated code: its libraries are not trusted
    or do not fit. The libraries are built from the kernels' graphs in the PEF.

    Example: rdukit pef build /models/mlp.pef -o /var/lib/rdukit/mlp.pef

    Example: rdukit pef build mlp.pef --output mlp-native.pef
    """
    built, wanted = build_pef(source, output)
    click.echo(f"{output}: {built} of {wanted} kernels are native", err=True)


def build_pef(source: Path, output: Path) -> tuple[int, int]:
    """Write ``source`` with libraries of this installation to ``output``; return the numbers of built libraries and of
    kernels that may have one.

    Raises:
        PefError: ``source`` cannot be read. InvalidArgument: it was compiled with mode o0, which has no native kernels.
        CompileError: there is no C++ compiler, or a kernel cannot be built.
    """
    import torch

    from rdukit.system.cpu import native_signature
    from rdukit_compiler.backend.check_natives import choose_judged
    from rdukit_compiler.backend.native import NativeBuilder, build_natives, has_native_form
    from rdukit_compiler.backend.section_library import find_cpp_compiler
    from rdukit_compiler.reports import ConsoleReporter

    loaded = read_pef(source)
    if loaded.pef.mode == "o0":
        raise InvalidArgument(f"{source} was compiled with mode o0, which runs each operator by itself")
    if find_cpp_compiler() is None:
        raise CompileError("no C++ compiler was found (g++, or $CXX); install one")
    failures: list[str] = []
    ready, wanted = itertools.count(1), sum(has_native_form(kernel) for kernel in loaded.kernels.values())
    with ConsoleReporter() as reporter, NativeBuilder() as builder:

        def on_built(digest: str, error: str | None) -> None:
            reporter.progress("kernels", next(ready), wanted)
            if error:
                failures.append(f"kernel {digest[:12]}: {error}")

        def on_judged(verdict: KernelVerdict, number: int, total: int) -> None:
            reporter.progress("kernels checked", number, total)
            if not verdict.is_right:
                failures.append(f"a section: {verdict.complaint}")

        reporter.progress("kernels", 0, wanted)
        natives = build_natives(loaded.kernels, on_built, builder=builder)
        natives, checked = choose_judged(loaded.pef.sections, loaded.kernels, natives, builder, on_judged)
    for failure in failures:
        click.echo(f"not native: {failure}", err=True)
    pef = replace(
        loaded.pef, torch_version=torch.__version__, cpu_capability=native_signature() if natives else "",
        metadata={k: v for k, v in loaded.pef.metadata.items() if k != KERNELS_LATER} | {KERNEL_CHECK: checked},
    )  # fmt: skip
    output.parent.mkdir(parents=True, exist_ok=True)
    write_pef(output, pef, loaded.kernels, natives)
    return len(natives), wanted
