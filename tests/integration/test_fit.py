"""Whether a job fits what its PEF was compiled for, told when it is submitted."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from rdukit.pef import write_pef
from rdukit.pef.model import SectionType
from support import shows
from support.pefs.examples import example_kernels, example_pef
from support.platform.gateway import GatewayUnderTest, gateway_under_test
from support.platform.processes import short_folder

pytestmark = shows("jobs", "artifacts", "pipelines")


@pytest.fixture
def gateway(monkeypatch: pytest.MonkeyPatch) -> Iterator[GatewayUnderTest]:
    with short_folder() as folder:
        monkeypatch.setenv("RDUKIT_HOME", str(folder))
        with gateway_under_test() as running:
            yield running


def add(gateway: GatewayUnderTest, path: Path) -> str:
    sent = {"files": (path.name, path.read_bytes())}
    return str(gateway.ask("POST", "/v1/artifacts", gateway.admin, files=sent, data={"kind": "pef"}).json()["id"])


def test_members_need_a_pef_that_was_compiled_for_several(gateway: GatewayUnderTest, tmp_path: Path) -> None:
    one, several, pef = tmp_path / "one.pef", tmp_path / "several.pef", example_pef()
    write_pef(one, pef, example_kernels(), {})
    averaging = tuple(
        replace(section, type=SectionType.REDUCE) if section.type is SectionType.OPT else section
        for section in pef.sections
    )
    write_pef(several, replace(pef, sections=averaging), example_kernels(), {})
    job = {"box": "logreg", "verb": "train", "members": 2, "inputs": {"pef": add(gateway, one)}}
    why = (
        "members is 2, but the PEF was compiled for one process and does not average gradients; expected 1, or compile"
    )
    for path, body, message in (
        ("/v1/jobs", job, why),
        ("/v1/jobs/check", job, why),
        ("/v1/pipelines", {"name": "p", "steps": [{**job, "name": "learn"}]}, f"step 'learn': {why}"),
    ):
        refused = gateway.ask("POST", path, gateway.admin, json=body)
        assert refused.status_code == 400
        assert refused.json()["error"]["message"].startswith(message)
    # What is wrong with these is what comes after: the data set is missing.
    for body in ({**job, "members": 1}, {**job, "inputs": {"pef": add(gateway, several)}}):
        _, message = gateway.refused("POST", "/v1/jobs", gateway.admin, json=body)
        assert "lacks the inputs dataset" in message
