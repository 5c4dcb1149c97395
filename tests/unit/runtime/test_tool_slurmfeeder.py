"""slurmfeeder: what a PEF needs."""

import dataclasses
import json
import shlex
import zipfile
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from rdukit.cli import run_command
from rdukit.errors import InvalidArgument, PefCorrupt, PefMismatch, PefNotFound, PefVersionMismatch
from rdukit.pef.file import FORMAT_VERSION, INDEX, LoadedPef
from rdukit.pef.memory import lease_bytes
from rdukit.pef.model import Pef, SectionType
from rdukit_node.cli.slurmfeeder import env_lines, needs_lines, needs_of, sbatch_lines, slurmfeeder
from support import shows
from support.pefs.examples import example_kernels, example_pef, write_example_pef

pytestmark = shows("slurmfeeder", "tools")


def loaded(pef: Pef) -> LoadedPef:
    return LoadedPef(Path("a b.pef"), pef, example_kernels(), {})


def replicated(tiles: int = 4, world_size: str = "2") -> Pef:
    pef = example_pef()
    reduce = dataclasses.replace(pef.sections[1], type=SectionType.REDUCE)
    return dataclasses.replace(
        pef, arch="sn30", num_tiles=tiles, sections=(pef.sections[0], reduce), metadata={"world_size": world_size}
    )


def test_a_plain_pef_needs_one_replica() -> None:
    needs = needs_of(loaded(dataclasses.replace(example_pef(), arch="sn30", num_tiles=4)), "SN30-8")
    assert (needs.tiles, needs.rdus, needs.is_data_parallel, needs.min_world_size) == (4, 1, False, 1)
    assert needs.fit_per_node == 16  # runtime reference 1.3: two to an RDU of eight tiles
    assert needs.ddr_bytes == lease_bytes(example_pef())
    assert needs.huge_pages == 1
    assert [section["type"] for section in needs.sections] == ["fwd", "opt"]


def test_data_parallel_replicas_are_spread_over_the_nodes() -> None:
    pef = loaded(replicated(world_size="32"))
    needs = needs_of(pef, "SN30-8", nodes=2)
    assert (needs.min_world_size, needs.replicas_per_node) == (32, 16)
    assert sbatch_lines(needs)[:3] == [
        "#SBATCH --nodes=2", "#SBATCH --ntasks-per-node=16", "#SBATCH --gres=rdu_tile:64",
    ]  # fmt: skip
    with pytest.raises(InvalidArgument, match="--nodes"):
        needs_of(pef, "SN30-8", nodes=1)


def test_a_pef_over_several_rdus_asks_for_whole_ones() -> None:
    needs = needs_of(loaded(replicated(tiles=16)), "SN30-8")
    assert (needs.rdus, needs.fit_per_node) == (2, 4)
    assert "#SBATCH --gres=rdu:4" in sbatch_lines(needs)


@pytest.mark.parametrize("tiles", [0, -1, "4", None, 10**9])
def test_a_number_of_tiles_that_is_none_is_refused(tiles: Any) -> None:
    with pytest.raises((PefCorrupt, InvalidArgument), match="tiles"):
        needs_of(loaded(dataclasses.replace(replicated(), num_tiles=tiles)), "SN30-8")


@pytest.mark.parametrize("text", ["", "-3", "many", "9" * 40, None])
def test_a_world_size_that_is_none_counts_as_one(text: Any) -> None:
    assert needs_of(loaded(replicated(world_size=text)), "SN30-8").min_world_size == 1


def test_a_platform_with_another_chip_is_refused() -> None:
    with pytest.raises(PefMismatch, match="sn10"):
        needs_of(loaded(replicated()), "SN10-8")


def test_without_a_platform_one_with_the_chip_is_taken(
    tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RDUKIT_HOME", str(tmp_path_factory.mktemp("home")))
    monkeypatch.delenv("RDUKIT_PLATFORM", raising=False)
    assert needs_of(loaded(replicated())).platform == "SN30-8"
    assert needs_of(loaded(dataclasses.replace(replicated(), arch="sn40l"))).platform == "SN40L-8"


def test_environment_lines_survive_a_shell() -> None:
    words = shlex.split("\n".join(env_lines(needs_of(loaded(replicated()), "SN30-8"))))
    values = dict(word.split("=", 1) for word in words)
    assert values["PEF"] == "a b.pef"
    assert (values["PEF_TILES"], values["PEF_DATA_PARALLEL"], values["PEF_MIN_WORLD_SIZE"]) == ("4", "1", "2")


def test_people_see_every_section() -> None:
    lines = needs_lines(needs_of(loaded(replicated()), "SN30-8"))
    assert "tiles           : 4" in lines
    assert sum(line.rstrip().endswith("tiles=1") for line in lines) == 2


def test_json_is_one_document_and_tells_the_files_own_version(tmp_path: Path) -> None:
    path = write_example_pef(tmp_path / "x.pef")
    result = CliRunner().invoke(slurmfeeder, [str(path), "--json", "--platform", example_platform()])
    found = json.loads(result.stdout)
    assert found["pef_version"] == ".".join(map(str, FORMAT_VERSION))
    assert found["compiler_version"] == example_pef().compiler_version


def example_platform() -> str:
    return {"sn10": "SN10-8", "sn30": "SN30-8", "sn40l": "SN40L-16"}[example_pef().arch]


def exit_status(arguments: list[str], monkeypatch: pytest.MonkeyPatch) -> object:
    monkeypatch.setattr("sys.argv", ["slurmfeeder", *arguments])
    with pytest.raises(SystemExit) as stopped:
        run_command(slurmfeeder)
    return stopped.value.code


def test_what_is_not_a_pef_and_what_is_too_new_have_their_exit_statuses(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "text").write_text("no")
    newer = write_example_pef(tmp_path / "newer.pef")
    rewrite_version(newer, [FORMAT_VERSION[0], FORMAT_VERSION[1] + 1])
    assert exit_status([str(tmp_path / "absent")], monkeypatch) == PefNotFound.exit_status == 3
    assert exit_status([str(tmp_path / "text")], monkeypatch) == 3
    assert exit_status([str(tmp_path)], monkeypatch) == 3
    assert exit_status([str(newer)], monkeypatch) == PefVersionMismatch.exit_status == 4


def rewrite_version(path: Path, version: list[int]) -> None:
    with zipfile.ZipFile(path) as archive:
        entries = {name: archive.read(name) for name in archive.namelist()}
    index = json.loads(entries[INDEX])
    entries[INDEX] = json.dumps({**index, "format": version}).encode()
    with zipfile.ZipFile(path, "w") as archive:
        for name, data in entries.items():
            archive.writestr(name, data)
