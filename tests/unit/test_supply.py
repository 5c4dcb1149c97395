"""What is installed is pinned by hashes, listed, and looked at for known vulnerabilities."""

import importlib.util
import re
import tomllib
from pathlib import Path
from types import ModuleType

import pytest

from rdukit_modelbox.image.sbom import system_components
from support import shows

pytestmark = shows("security", "images", "project")

ROOT = Path(__file__).parents[2]
LOCK = (ROOT / "requirements.lock").read_text()
STATUS = """Package: tini
Status: install ok installed
Version: 0.19.0-1+b3

Package: gone
Status: deinstall ok config-files
Version: 1.0
"""


def load(path: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(Path(path).stem, ROOT / path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_lock_has_every_requirement_of_the_distribution_but_torch() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    names = {re.split(r"[^A-Za-z0-9._-]", text)[0] for text in project["dependencies"]}
    normal = load("docker/requirements.py").normal
    locked = {normal(name) for name in re.findall(r"^([\w.-]+)==", LOCK, re.M)}
    assert {normal(name) for name in names} - locked == {"torch"}


def test_the_lock_has_hashes_and_nothing_of_the_machine_that_made_it() -> None:
    blocks = load("scripts/lock.py").kept_blocks(LOCK)
    assert len(blocks) == len(re.findall(r"^[\w.-]+==", LOCK, re.M)) > 100
    assert not re.search(r"://|file:|/opt|/home|/work|find-links|index-url", LOCK)


@pytest.mark.parametrize(
    "line", ["x @ file:///opt/x.whl", "--index-url https://elsewhere/simple", "x==1 # via /work/pyproject.toml", "x==1"]
)
def test_a_line_with_a_path_an_address_or_without_a_hash_is_no_line_of_the_lock(line: str) -> None:
    with pytest.raises(ValueError):
        load("scripts/lock.py").kept_blocks(f"{line}\n")


def test_torch_and_its_builds_for_gpus_are_left_to_the_index() -> None:
    text = "".join(
        f"{name} \\\n    --hash=sha256:0\n" for name in ("torch==2.0", "nvidia-nvtx==1", "triton==3", "tritonclient==2")
    )
    assert [block.split("==")[0] for block in load("scripts/lock.py").kept_blocks(text)] == ["tritonclient"]


def test_a_package_that_the_lock_does_not_know_ends_the_build_of_an_image() -> None:
    strangers = load("docker/requirements.py").strangers
    lock = "click==8.1.7 \\\n    --hash=sha256:0\n"
    installed = [("Click", "8.1.7"), ("torch", "2.0+cpu"), ("nvidia-nvtx", "1"), ("rdukit", "0")]
    assert strangers(installed, lock) == []
    assert strangers([*installed, ("left_pad", "1.0")], lock) == ["left-pad 1.0"]
    assert strangers([("click", "8.1.8")], lock) == ["click 8.1.8"]
    assert strangers([("click", "8.1.7")], lock + "click==9.0 ; python_full_version >= '3.12' \\\n") == []
    assert strangers([("left-pad", "1.0")], "") == [], "an empty lock asks for nothing"


def test_an_image_has_the_extras_that_it_is_built_with_and_no_others() -> None:
    added = load("docker/requirements.py").added
    assert added(ROOT / "pyproject.toml", "") == []
    names = [re.split(r"[^A-Za-z0-9._-]", text)[0] for text in added(ROOT / "pyproject.toml", "s3,otlp")]
    assert names[0] == "boto3" and "opentelemetry-sdk" in names
    with pytest.raises(SystemExit, match="no extra s4; expected"):
        added(ROOT / "pyproject.toml", "s3,s4")


def test_an_image_installs_by_the_lock_and_lists_what_is_in_it() -> None:
    for part in ("platform", "runtime", "modelboxes"):
        text = (ROOT / part / "Dockerfile").read_text()
        installs = [line for line in text.splitlines() if "uv pip install" in line and "--no-deps /src" not in line]
        assert installs and all('--verify-hashes -c "${LOCK}"' in line for line in installs), part
        assert '--installed "${LOCK}"' in text
        assert "image.sbom --system" in text.rpartition("\nFROM")[2]
        assert "org.opencontainers.image.base.name" in text


def test_the_systems_packages_are_listed_unless_they_were_removed() -> None:
    (tini,) = system_components(STATUS)
    assert (tini.name, tini.url) == ("tini", "pkg:deb/debian/tini@0.19.0-1%2Bb3")


@pytest.mark.parametrize(
    ("status", "said", "judged", "word"),
    [
        (0, "No known vulnerabilities found", 0, "no known vulnerability"),
        (1, "Found 2 known vulnerabilities in 1 package", 1, "make lock"),
        (1, "requests.exceptions.ConnectionError: Max retries exceeded", 2, "NOTHING WAS CHECKED: its database"),
        (2, "usage: pip-audit", 2, "NOTHING WAS CHECKED: pip-audit failed"),
    ],
)
def test_an_audit_that_could_not_ask_does_not_say_that_all_is_well(
    status: int, said: str, judged: int, word: str
) -> None:
    code, last = load("scripts/audit.py").judge(status, said)
    assert (code, word in last) == (judged, True)
