"""Sections are kept from compile to compile; what is damaged, foreign or too much is never used and never fails."""

import json
from pathlib import Path

import pytest

from rdukit.files.disk_cache import store_cached
from rdukit.hardware import find_chip
from rdukit_compiler.ir import ModelGraph
from rdukit_compiler.passes import section_cache
from rdukit_compiler.passes.assign_precision import Precision, assign_precision
from rdukit_compiler.passes.cut_sections import CutOptions, cut_sections
from rdukit_compiler.passes.differentiate import SectionKernels, build_kernels
from rdukit_compiler.passes.section_cache import SectionCache, SectionStore, open_section_store
from support import shows
from support.graphs import GraphBuilder

pytestmark = shows("engine", "settings")

PLENTY = 1 << 20
PRECISION = Precision("f32", True)


def mlp(layers: int, width: int = 8) -> ModelGraph:
    build = GraphBuilder("mlp")
    x = build.input("x", 3, width)
    for layer in range(layers):
        x = build.op("tanh", build.linear(x, width, f"l{layer}"), name=f"t{layer}")
    return assign_precision(build.build(), PRECISION)


def built(graph: ModelGraph, memo: SectionCache) -> list[SectionKernels]:
    """Kernels of the graph's sections in O0, the last first, with one gradient into every value."""
    by_name = {operator.name: operator for operator in graph.operators}
    plans = cut_sections(graph, CutOptions("o0", find_chip("sn30"), 4))
    contributions = dict.fromkeys(graph.values, 1)
    return [memo.build(graph, [by_name[n] for n in plan.operators], PRECISION, contributions) for plan in plans[::-1]]


@pytest.fixture
def no_tracing(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> SectionKernels:
        raise AssertionError("a section was traced although the store has it")

    monkeypatch.setattr(section_cache, "build_kernels", refuse)


def test_a_section_comes_back_as_it_was_written(tmp_path: Path) -> None:
    graph = mlp(2)
    first = built(graph, SectionCache(SectionStore(tmp_path, PLENTY)))
    assert first == built(graph, SectionCache())
    assert first == built(graph, SectionCache(SectionStore(tmp_path, PLENTY)))


@pytest.mark.usefixtures("no_tracing")
def test_a_deeper_model_of_the_same_layers_is_not_traced_again(tmp_path: Path) -> None:
    store = SectionStore(tmp_path, PLENTY)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(section_cache, "build_kernels", build_kernels)
        built(mlp(3), SectionCache(store))
    assert len(built(mlp(9), SectionCache(store))) == 18


@pytest.mark.parametrize("damage", [b"", b"\n{}", b"not a section", bytes(range(256))])
def test_a_damaged_file_is_compiled_again_and_repaired(tmp_path: Path, damage: bytes) -> None:
    graph, store = mlp(1), SectionStore(tmp_path, PLENTY)
    first = built(graph, SectionCache(store))
    files = sorted(tmp_path.iterdir())
    whole = [path.read_bytes() for path in files]
    for path in files:
        path.write_bytes(damage)
    assert built(graph, SectionCache(store)) == first
    assert [path.read_bytes() for path in files] == whole


def test_a_flipped_byte_is_noticed(tmp_path: Path) -> None:
    graph, store = mlp(1), SectionStore(tmp_path, PLENTY)
    first = built(graph, SectionCache(store))
    for path in tmp_path.iterdir():
        content = bytearray(path.read_bytes())
        content[len(content) // 2] ^= 1
        path.write_bytes(content)
    assert built(graph, SectionCache(store)) == first


def test_content_of_another_form_is_left_out_although_its_digest_holds(tmp_path: Path) -> None:
    graph, store = mlp(1), SectionStore(tmp_path, PLENTY)
    first = built(graph, SectionCache(store))
    for path in tmp_path.iterdir():
        store_cached(path, json.dumps({"forward": 1}).encode())
    assert built(graph, SectionCache(store)) == first


def test_the_files_used_longest_ago_go_first(tmp_path: Path) -> None:
    import os

    store = SectionStore(tmp_path / "compiler", PLENTY)
    built(mlp(1, 4), SectionCache(store))
    old = sorted((tmp_path / "compiler").iterdir())
    for path in old:
        os.utime(path, (1, 1))
    SectionStore(tmp_path / "another", PLENTY).keep("x", built(mlp(1, 8), SectionCache())[0])
    bound = sum(path.stat().st_size for path in tmp_path.glob("*/*")) - 1
    small = SectionStore(tmp_path / "compiler", bound)
    small.find("nothing")
    small.trim()
    assert all(path.exists() for path in old), "nothing was written, so nothing has to go"
    built(mlp(1, 16), SectionCache(small))
    small.trim()
    assert not any(path.exists() for path in old)
    assert sum(path.stat().st_size for path in tmp_path.glob("*/*")) <= bound


def test_a_folder_that_cannot_be_written_costs_only_time(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    store = SectionStore(tmp_path / "file" / "folder", PLENTY)
    assert built(mlp(1), SectionCache(store)) == built(mlp(1), SectionCache())
    store.trim()


def test_zero_mebibytes_switch_the_store_off(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("RDUKIT_HOME", str(tmp_path))
    monkeypatch.setenv("RDUKIT_COMPILE_SECTION_CACHE_MIB", "0")
    assert open_section_store() is None
    monkeypatch.setenv("RDUKIT_COMPILE_SECTION_CACHE_MIB", "1")
    store = open_section_store()
    assert store is not None
    assert store.folder.is_relative_to(tmp_path / "sections")
