"""What lies beside a PEF."""

import json

from rdukit.hardware import CHIPS
from rdukit_compiler.cost import StageCost
from rdukit_compiler.reports import artifact_files
from support import shows
from support.pefs.examples import example_pef

pytestmark = shows("surface")


def test_every_section_has_its_utilization_and_all_files_are_listed() -> None:
    sections = example_pef().sections
    stages = {0: [("aten.linear.default", StageCost(0, load=600.0, pcus=12.0, memory_cycles=9.2))]}
    files = artifact_files("model", sections, CHIPS["sn10"], stages)
    assert {f"model.s{s.id}.utilization_report.txt" for s in sections} <= set(files)
    assert b"7.5%" in files["model.s0.utilization_report.txt"]
    resources = json.loads(files["mac_gen/mac_resources.json"])
    assert [s["resources"]["pcus"] for s in resources["sections"]] == [12, 1]
    (section,) = json.loads(files["mac_gen/stages.json"])["sections"]
    assert section["section_id"] == 0
    stage = {"operator": "aten.linear.default", "cycles": 50, "pcus": 12.0, "compute_cycles": 50, "memory_cycles": 10}
    assert section["stages"] == [stage]
    log = files["model.mac.log"].decode()
    assert "Compilation succeeded for partition_1_0_" in log
    assert "nothing follows that would fit" in log
    listed = files["model_artifacts_list.txt"].decode().split()
    assert "model.pef" in listed
    assert set(files) - {"model_artifacts_list.txt"} <= set(listed)
