"""Variables of its worker that a box gets, in a fence, without one and as a fork: those that are named, no other."""

from pathlib import Path

import pytest

from rdukit.fence.spec import Way
from rdukit_platform.backends.box_variables import UNFENCED, server_variables, unfenced_variables
from rdukit_platform.backends.contract import BoxFence, BoxSpec
from rdukit_platform.backends.fenced import fence_of
from rdukit_platform.settings import BOX_ENVIRONMENT
from support import shows

pytestmark = shows("job-boxes", "security", "settings")

SECRETS = {
    "AWS_ACCESS_KEY_ID": "AKIA", "AWS_SECRET_ACCESS_KEY": "s3cret", "AWS_SESSION_TOKEN": "t", "AWS_ENDPOINT_URL": "u",
    "RDUKIT_DATABASE_URL": "postgresql://u:p@db/rdukit", "RDUKIT_BROKER_URL": "redis://:p@mq/0", "PGPASSWORD": "p",
    "RDUKIT_BROKER_PASSWORD_FILE": "/run/p", "RDUKIT_TOKEN": "rdk_1", "SLURM_JWT": "j", "HF_TOKEN": "h",
    "OTEL_EXPORTER_OTLP_HEADERS": "authorization=b", "HTTPS_PROXY": "http://u:p@proxy", "SOMETHING_NEW": "x",
}  # fmt: skip
#: What a box is to have all the same.
WANTED = {"PATH": "/opt/bin", "OMP_NUM_THREADS": "3", "RDUKIT_LOG_LEVEL": "DEBUG"}
JOBS = {"RDUKIT_LEASE": "1:t"}


@pytest.fixture
def spec(tmp_path: Path) -> BoxSpec:
    return BoxSpec("logreg", tmp_path / "state", environment={**JOBS, "RDUKIT_LOG_LEVEL": "DEBUG"}, has_sockets=True)


def test_a_fenced_an_unfenced_and_a_forked_box_get_none_of_the_workers_secrets(spec: BoxSpec, tmp_path: Path) -> None:
    worker = {**SECRETS, **WANTED, "HOME": "/root", "RDUKIT_HOME": "/srv/rdukit", "PYTHONPATH": "/opt/py"}
    fence = BoxFence(Way.USER, "tenant:lab", tmp_path / "lab", None)
    fenced = dict(fence_of(spec, fence, ["/bin/true"], [], worker).environment)
    unfenced = unfenced_variables(worker, spec.environment)
    server = server_variables(worker, {})
    for got in (fenced, unfenced, server):
        assert not got.keys() & SECRETS.keys()
    for got in (fenced, unfenced):
        assert got.items() >= {**WANTED, **JOBS}.items()
    assert fenced["HOME"] == fenced["RDUKIT_HOME"] == str(tmp_path / "lab") and "PYTHONPATH" not in fenced
    assert (unfenced["HOME"], unfenced["RDUKIT_HOME"]) == ("/root", "/srv/rdukit"), "without a fence it is the worker's"
    assert server.keys() <= {"PATH", "PYTHONPATH", "OMP_NUM_THREADS", "LANG", "TMPDIR", "PYTHONUNBUFFERED"}


def test_a_worker_may_name_more_for_its_boxes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(BOX_ENVIRONMENT.variable, "HTTPS_PROXY, RDUKIT_KERNELS")
    got = unfenced_variables({**SECRETS, "RDUKIT_KERNELS": "portable"}, {})
    assert got == {"HTTPS_PROXY": "http://u:p@proxy", "RDUKIT_KERNELS": "portable"}


def test_what_is_passed_by_default_names_no_secret() -> None:
    named = {*UNFENCED, *BOX_ENVIRONMENT.default.split(",")}
    assert not [
        name for name in named if any(word in name for word in ("TOKEN", "PASS", "KEY", "SECRET", "URL", "JWT"))
    ]
