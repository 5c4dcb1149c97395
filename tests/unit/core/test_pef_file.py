"""The PEF file: equal compiles give equal bytes, and nothing broken is ever used."""

import json
import zipfile
from dataclasses import replace
from pathlib import Path

import pytest

from rdukit.errors import PefCorrupt, PefError, PefNotFound, PefVersionMismatch
from rdukit.pef import read_pef, write_pef
from rdukit.pef.file import BOX_KEY, COMMENT, FORMAT_VERSION, INDEX, Answers, PefSummary, check_bound, read_summary
from rdukit.pef.model import SectionType, pef_from_dict, pef_to_dict
from support import shows
from support.pefs.examples import example_kernels, example_pef, write_example_pef

pytestmark = shows("security", "inference")


def rewrite(path: Path, change: dict[str, bytes | None]) -> None:
    """Replace or drop entries, leaving the digests as they are."""
    with zipfile.ZipFile(path) as archive:
        entries = {name: archive.read(name) for name in archive.namelist()}
    entries |= {name: data for name, data in change.items() if data is not None}
    with zipfile.ZipFile(path, "w") as archive:
        for name, data in entries.items():
            if change.get(name, b"") is not None:
                archive.writestr(name, data)


def test_a_pef_is_read_as_it_was_written(tmp_path: Path) -> None:
    loaded = read_pef(write_example_pef(tmp_path / "out" / "e.pef", natives=True))
    assert loaded.pef == example_pef()
    assert loaded.kernels == example_kernels()
    assert set(loaded.natives) == {next(iter(example_kernels()))}


def test_the_index_alone_says_tiles_and_whether_gradients_are_averaged(tmp_path: Path) -> None:
    one, several = tmp_path / "one.pef", tmp_path / "several.pef"
    pef = example_pef()
    write_pef(one, pef, example_kernels(), {})
    reduces = tuple(replace(section, type=SectionType.REDUCE) for section in pef.sections)
    write_pef(several, replace(pef, sections=reduces, num_tiles=4), example_kernels(), {})
    assert read_summary(one) == PefSummary(1, False)
    assert read_summary(several) == PefSummary(4, True)
    one.write_bytes(one.read_bytes()[:400])
    with pytest.raises(PefCorrupt):
        read_summary(one)


@pytest.mark.parametrize(
    ("shape", "answers"),
    [
        ('{"outputs": ["loss"]}', Answers.NOTHING), ('{"outputs": ["loss", "logits"]}', Answers.ROWS),
        ('{"outputs": ["logits"], "text": [128, 64, 512, 4]}', Answers.TEXTS), ("{}", Answers.ROWS),
        ("[]", None), ("{", None), ('{"outputs": 1}', None),
    ],
)  # fmt: skip
def test_the_shape_that_a_box_kept_says_what_is_answered(tmp_path: Path, shape: str, answers: Answers | None) -> None:
    pef = replace(example_pef(), metadata={BOX_KEY: shape})
    write_pef(tmp_path / "one.pef", pef, example_kernels(), {})
    assert read_summary(tmp_path / "one.pef").answers is answers


def test_the_index_alone_says_which_parameters_an_inference_pef_reads(tmp_path: Path) -> None:
    graphs = {name: {"parameters": {f"{name}__weight": "float32[2]"}} for name in ("one", "two")}
    write_pef(tmp_path / "one.pef", replace(example_pef(), signature=graphs, inference=True), example_kernels(), {})
    summary = read_summary(tmp_path / "one.pef")
    assert summary.inference and summary.parameters == {"one__weight", "two__weight"}


def test_equal_compiles_give_equal_bytes(tmp_path: Path) -> None:
    first = write_example_pef(tmp_path / "a.pef", natives=True).read_bytes()
    assert write_example_pef(tmp_path / "b.pef", natives=True).read_bytes() == first
    kernels = example_kernels()
    write_pef(tmp_path / "c.pef", example_pef(), dict(reversed(kernels.items())), {})
    write_pef(tmp_path / "d.pef", example_pef(), kernels, {})
    assert (tmp_path / "c.pef").read_bytes() == (tmp_path / "d.pef").read_bytes()


def test_the_json_form_has_no_tuples_left_and_comes_back_equal() -> None:
    assert pef_from_dict(json.loads(json.dumps(pef_to_dict(example_pef())))) == example_pef()


def test_regions_are_counted_once() -> None:
    pef = example_pef()
    assert pef.region_bytes == sum(s.bytes for s in pef.symbols.values()) - pef.symbols["weight.next"].bytes


def test_a_missing_pef_says_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(PefNotFound, match=r"no PEF file at .*none.pef.*compile the program first"):
        read_pef(tmp_path / "none.pef")


def test_a_folder_is_not_a_pef(tmp_path: Path) -> None:
    with pytest.raises(PefCorrupt, match="not a file"):
        read_pef(tmp_path)


@pytest.mark.parametrize("twentieth", range(20))
def test_a_pef_cut_short_at_any_place_is_corrupt(tmp_path: Path, twentieth: int) -> None:
    path = write_example_pef(tmp_path / "e.pef", natives=True)
    data = path.read_bytes()
    path.write_bytes(data[: len(data) * twentieth // 20])
    with pytest.raises(PefCorrupt, match=r"e\.pef"):
        read_pef(path)


def test_every_flipped_byte_is_noticed_or_changes_nothing(tmp_path: Path) -> None:
    """Each byte of the contents is under a digest; flips in the zip's own directory may be harmless, never wrong."""
    path = write_example_pef(tmp_path / "e.pef", natives=True)
    data = bytearray(path.read_bytes())
    noticed = 0
    for place in range(0, len(data), 7):
        data[place] ^= 0x10
        path.write_bytes(data)
        try:
            assert read_pef(path).pef == example_pef()
        except PefError:
            noticed += 1
        data[place] ^= 0x10
    assert noticed > len(data) / 7 * 0.7


def test_a_flipped_byte_in_a_kernel_or_library_is_corrupt(tmp_path: Path) -> None:
    path = write_example_pef(tmp_path / "e.pef", natives=True)
    data = path.read_bytes()
    for needle in (b"aten.addmm", b"ELF not really", b"SAFE_GEMM"):
        place = data.index(needle)
        path.write_bytes(data[:place] + bytes([data[place] ^ 1]) + data[place + 1 :])
        with pytest.raises(PefCorrupt):
            read_pef(path)


@pytest.mark.parametrize("version", [[FORMAT_VERSION[0] + 1, 0], [FORMAT_VERSION[0], FORMAT_VERSION[1] + 1], [0, 9]])
def test_another_version_is_refused_with_the_readable_ones(tmp_path: Path, version: list[int]) -> None:
    path = write_example_pef(tmp_path / "e.pef")
    with zipfile.ZipFile(path) as archive:
        index = json.loads(archive.read(INDEX))
    rewrite(path, {INDEX: json.dumps(index | {"format": version}).encode()})
    with pytest.raises(
        PefVersionMismatch, match=rf"has format {version[0]}.{version[1]}.*reads 1.0 to 1.{FORMAT_VERSION[1]}"
    ):
        read_pef(path)


@pytest.mark.parametrize("version", ["1.0", [1], None, [1, "0"]])
def test_a_version_that_is_none_is_corrupt(tmp_path: Path, version: object) -> None:
    path = write_example_pef(tmp_path / "e.pef")
    with zipfile.ZipFile(path) as archive:
        index = json.loads(archive.read(INDEX))
    rewrite(path, {INDEX: json.dumps(index | {"format": version}).encode()})
    with pytest.raises(PefCorrupt, match=r"is not \[major, minor\]"):
        read_pef(path)


def test_entries_that_are_missing_added_or_swapped_are_corrupt(tmp_path: Path) -> None:
    forward, step = (f"ir/{digest}" for digest in example_kernels())
    for change in (
        {forward: None},
        {"ir/extra": b"{}"},
        {forward: example_kernels()[step.removeprefix("ir/")].to_json()},
    ):
        path = write_example_pef(tmp_path / "e.pef")
        rewrite(path, change)
        with pytest.raises(PefCorrupt, match="compile again"):
            read_pef(path)


def test_a_zip_without_a_table_of_contents_and_a_text_file_are_no_pefs(tmp_path: Path) -> None:
    path = tmp_path / "e.pef"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("readme", "hello")
    with pytest.raises(PefCorrupt, match=r"it has no pef\.json"):
        read_pef(path)
    path.write_text("hello")
    with pytest.raises(PefCorrupt, match="not a readable PEF"):
        read_pef(path)


def test_names_that_nothing_defines_are_corrupt() -> None:
    pef = example_pef()
    section = pef.sections[0]
    for broken in (
        replace(pef, symbols={k: v for k, v in pef.symbols.items() if k != "x"}),
        replace(pef, sections=(replace(section, id=3), pef.sections[1])),
        replace(pef, graphs={"main": replace(pef.graphs["main"], schedule=(0, 7))}),
        replace(pef, symbols=pef.symbols | {"x": replace(pef.symbols["x"], dtype="float4")}),
        replace(pef, graphs=pef.graphs | {"e": replace(pef.graphs["main"], name="e", evaluates="gone")}),
        replace(pef, graphs=pef.graphs | {"e": replace(pef.graphs["main"], name="e", evaluates="e")}),
        replace(
            pef, graphs=pef.graphs | {"e": replace(pef.graphs["main"], name="e", evaluates="main", outputs=("y",))}
        ),
    ):
        with pytest.raises(PefCorrupt):
            pef_from_dict(json.loads(json.dumps(pef_to_dict(broken))))


def test_an_evaluation_graph_is_found_by_the_graph_that_it_evaluates() -> None:
    pef = example_pef()
    evaluation = replace(pef.graphs["main"], name="e", evaluates="main")
    read = pef_from_dict(json.loads(json.dumps(pef_to_dict(replace(pef, graphs=pef.graphs | {"e": evaluation})))))
    assert read.evaluation_of("main") == evaluation
    assert [graph.name for graph in read.main_graphs()] == ["main"]
    assert pef.evaluation_of("main") is None


def test_a_section_whose_kernel_has_other_inputs_is_corrupt(tmp_path: Path) -> None:
    pef = example_pef()
    broken = replace(pef, sections=(replace(pef.sections[0], inputs=("x",)), pef.sections[1]))
    write_pef(tmp_path / "e.pef", broken, example_kernels(), {})
    with pytest.raises(PefCorrupt, match="section 0 binds 1 inputs and 2 outputs, but its kernel has 3 and 2"):
        read_pef(tmp_path / "e.pef")


@pytest.mark.parametrize("count", [0, 1, 3])
def test_a_section_whose_kernel_has_other_outputs_is_corrupt(count: int) -> None:
    pef, kernels = example_pef(), example_kernels()
    section = pef.sections[0]
    check_bound(pef, section, kernels[section.kernel])
    broken = replace(section, outputs=(*section.outputs, section.outputs[0])[:count])
    with pytest.raises(PefCorrupt, match=f"section 0 binds 3 inputs and {count} outputs, but its kernel has 3 and 2"):
        check_bound(pef, broken, kernels[section.kernel])


def test_the_file_says_what_it_is(tmp_path: Path) -> None:
    with zipfile.ZipFile(write_example_pef(tmp_path / "e.pef")) as archive:
        assert archive.comment == COMMENT
        assert archive.namelist()[0] == INDEX
