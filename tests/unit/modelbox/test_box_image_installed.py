"""What a base made of the installation takes along."""

import importlib.util
import sys
from pathlib import Path

import pytest

from rdukit.errors import InvalidArgument
from rdukit_modelbox.image.installed import required_distributions
from rdukit_modelbox.image.shared_objects import find_libraries, read_needs


def test_what_rdukit_requires_is_taken_and_tools_of_development_are_not() -> None:
    names = {package.metadata["Name"].lower() for package in required_distributions("rdukit")}
    assert {"rdukit", "torch", "uvicorn", "sympy"} <= names, "also what torch requires"
    assert not {"pytest", "ruff", "mypy", "playwright"} & names


def test_a_requirement_that_is_not_installed_is_told() -> None:
    with pytest.raises(InvalidArgument, match="no-such-package is required but not installed"):
        required_distributions("no-such-package")


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


def test_a_file_that_is_no_program_needs_nothing(tmp_path: Path) -> None:
    (tmp_path / "text").write_text("\x7fELF, says the file")
    assert read_needs(tmp_path / "text") is None
    assert read_needs(Path(__file__)) is None
