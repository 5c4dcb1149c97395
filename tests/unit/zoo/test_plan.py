"""Plans of sizes that fit nowhere: compiled without values, placed by memory, refused where they would run."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from rdukit.errors import OutOfDeviceMemory
from rdukit.hardware import CHIPS
from rdukit.pef import read_pef
from rdukit_runtime.application import open_application
from rdukit_zoo.cli import zoo
from rdukit_zoo.planning.placement import place_over_rdus
from support import shows

pytestmark = shows("zoo", "llama")


@pytest.fixture(autouse=True)
def own_home(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("RDUKIT_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("RDUKIT_NODE", "private")


def plan(folder: Path, *options: str) -> dict[str, object]:
    result = CliRunner().invoke(zoo, ["plan", *options, "--out", str(folder), "--json"], catch_exceptions=False)
    found: dict[str, object] = json.loads(result.output)
    return found


@pytest.mark.long
def test_seventy_billion_parameters_are_planned_and_refuse_to_run_without_the_memory(tmp_path: Path) -> None:
    found = plan(tmp_path, "llama", "--variant", "llama-2-70b", "--mode", "o3")
    assert found["parameter_bytes"] == 2 * 68_976_648_192
    assert found["rdus"] == 1
    with pytest.raises(OutOfDeviceMemory, match=r"needs 128 GiB but the host has .* of memory available"):
        open_application(Path(str(found["pef"])), "big")


@pytest.mark.long
def test_a_training_that_no_rdu_holds_is_placed_over_several(tmp_path: Path) -> None:
    found = plan(tmp_path, "bloom", "--variant", "176b", "--purpose", "train", "--size", "context_length=256")
    stages = found["stages"]
    assert isinstance(stages, list) and len(stages) == found["rdus"] == 3
    assert all(stage["memory_bytes"] <= CHIPS["sn30"].ddr_bytes for stage in stages)
    assert sum(stage["parameter_bytes"] for stage in stages) == found["parameter_bytes"]
    assert [stage["rdu"] for stage in stages] == [0, 1, 2]
    pef = read_pef(Path(str(found["pef"]))).pef
    on_sn40l = place_over_rdus(pef, pef.main_graphs()[0], CHIPS["sn40l"])
    assert len(on_sn40l) <= len(stages)


def test_sizes_are_read_by_the_type_of_their_default(tmp_path: Path) -> None:
    found = plan(tmp_path, "llama", "--size", "is_tied=false", "--size", "vocabulary=96", "--size", "rotary_base=500.0")
    tied = plan(tmp_path, "llama", "--size", "vocabulary=96", "--batch-size", "2")
    assert found["parameter_bytes"] == tied["parameter_bytes"] + 2 * 96 * 64  # type: ignore[operator]
    refused = CliRunner().invoke(zoo, ["plan", "llama", "--size", "width=wide"])
    assert "width is 'wide'; expected a value such as 64" in str(refused.exception)
