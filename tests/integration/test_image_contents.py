"""What an image takes from this machine and lists: libraries as its loader finds them, and packages."""

import importlib.util
import json
import re
import subprocess
import sys
from pathlib import Path

from rdukit_modelbox.image.shared_objects import find_libraries, read_needs
from support import shows

pytestmark = shows("images")


def test_the_libraries_of_a_program_and_theirs_are_found() -> None:
    executable = Path(sys.executable).resolve()
    needs = read_needs(executable)
    assert needs is not None and needs.interpreter is not None and "libc.so.6" in needs.names
    found = dict(find_libraries([executable], {}))
    assert needs.interpreter in found
    assert {"libc.so.6", "libm.so.6"} <= {path.rpartition("/")[2] for path in found}
    assert all(file.is_file() and not file.is_symlink() for file in found.values())


def test_a_given_library_is_preferred_and_lies_beside_the_c_library(tmp_path: Path) -> None:
    given = {"libm.so.6": tmp_path / "libm.so.6"}
    given["libm.so.6"].write_bytes(b"not a program")
    math = importlib.util.find_spec("math")
    assert math is not None
    found = dict(find_libraries([Path(str(math.origin))], given))
    (place,) = [path for path, file in found.items() if file == given["libm.so.6"]]
    assert place.rpartition("/")[0] == next(p for p in found if p.endswith("/libc.so.6")).rpartition("/")[0]


def test_the_bill_of_materials_lists_all_that_is_in_the_environment(tmp_path: Path) -> None:
    path = tmp_path / "sbom.json"
    command = [sys.executable, "-m", "rdukit_modelbox.image.sbom", "--system", "--output", str(path)]
    subprocess.run(command, check=True, timeout=120)
    document = json.loads(path.read_text())
    listed = {(each["name"], each["version"]) for each in document["components"]}
    # pip's own process: in this one, what setuptools brings for itself may lie on the path.
    told = subprocess.run([sys.executable, "-m", "pip", "list", "--format", "json"], check=True, capture_output=True)
    installed = {(re.sub(r"[-_.]+", "-", each["name"]).lower(), each["version"]) for each in json.loads(told.stdout)}
    assert {name for name, _ in installed} >= {"torch", "click", "rdukit"}
    assert installed <= {(re.sub(r"[-_.]+", "-", name).lower(), version) for name, version in listed}
    assert len({each for each in listed if each[0] == "rdukit"}) == 1
    assert all(each["purl"].startswith("pkg:") for each in document["components"])
