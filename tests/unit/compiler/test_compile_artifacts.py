"""What lies beside a PEF."""

import json

from rdukit.hardware import CHIPS
from rdukit_compiler.reports import artifact_files
from support import shows
from support.pefs.examples import example_pef

pytestmark = shows("surface")


def test_every_section_has_its_utilization_and_all_files_are_listed() -> None:
    sections = example_pef().sections
    files = artifact_files("model", sections, CHIPS["sn10"])
    assert {f"model.s{s.id}.utilization_report.txt" for s in sections} <= set(files)
    assert b"7.5%" in files["model.s0.utilization_report.txt"]
    resources = json.loads(files["mac_gen/mac_resources.json"])
    assert [s["resources"]["pcus"] for s in resources["sections"]] == [12, 1]
    log = files["model.mac.log"].decode()
    assert "Compilation succeeded for partition_1_0_" in log
    assert "nothing follows that would fit" in log
    listed = files["model_artifacts_list.txt"].decode().split()
    assert "model.pef" in listed
    assert set(files) - {"model_artifacts_list.txt"} <= set(listed)
