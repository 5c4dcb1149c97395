"""A tenant's PEF that reaches for what no PEF may, as a job of the real platform with a box that comes with rdukit."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from rdukit.fence.probe import what_holds
from rdukit_platform.client.http import ApiClient
from support import shows
from support.pefs.examples import forge_pef, write_example_pef
from support.platform.processes import PlatformUnderTest, platform_under_test, short_folder

pytestmark = [
    shows("security", "audit", "jobs", "mlp"),
    shows("security", "audit", "jobs", "mlp"),
    pytest.mark.skipif(not what_holds().holds, reason=f"no fence holds here: {what_holds().why}"),
]


@pytest.fixture(scope="module")
def platform() -> Iterator[PlatformUnderTest]:
    with short_folder() as home, platform_under_test(home, None, {"RDUKIT_JOB_BACKOFF_S": "0.1"}) as running:
        yield running


def reads_the_token(index: dict[str, Any], kernels: dict[str, Any], entries: dict[str, bytes]) -> None:
    """Put a file's bytes into a parameter, which the job's checkpoint would have."""
    (kernel,) = (kernel for kernel in kernels.values() if kernel["outputs"] == ["new"])
    kernel["nodes"] = [["new", "aten.from_file.default", ["../../token", False, 6], {"dtype": {"dtype": "uint8"}}]]


def test_a_pef_that_reads_a_file_ends_its_job_with_the_reason_and_is_in_the_audit_log(
    platform: PlatformUnderTest, tmp_path: Path
) -> None:
    made = platform.client.post("/v1/tenants", {"name": "mallory"})
    token = platform.client.post(f"/v1/tenants/{made['id']}/tokens", {"scopes": ["read", "write"]})["token"]
    path = forge_pef(write_example_pef(tmp_path / "e.pef"), reads_the_token)
    rows = tmp_path / "rows.csv"
    rows.write_text("a,b,c,label\n" + "0.1,0.2,0.3,1\n" * 8)
    with ApiClient(platform.running["url"], token) as mallory:
        given = {}
        for slot, file, is_folder in (("pef", path, "false"), ("dataset", rows, "true")):
            with file.open("rb") as stream:
                form = {"kind": slot, "name": slot, "folder": is_folder}
                given[slot] = mallory.upload([(file.name, stream)], form)["id"]
        submitted = mallory.submit("/v1/jobs", {"box": "mlp", "verb": "train", "inputs": given})
        done = PlatformUnderTest(mallory, platform.home, platform.running).wait_end(submitted["id"])
        assert (done["state"], done["error"]["code"]) == ("failed", "pef-not-allowed"), done
        assert "aten.from_file.default" in done["error"]["message"] and len(done["attempts"]) == 1
        entries = mallory.get("/v1/audit?action=attempt")["entries"]
    assert any(entry["reason"] == "pef-not-allowed" and done["id"] in entry["target"] for entry in entries), entries
