"""What a base made of the installation takes along."""

from pathlib import Path

import pytest

from rdukit.errors import InvalidArgument
from rdukit_modelbox.image.installed import required_distributions
from rdukit_modelbox.image.shared_objects import read_needs
from support import shows

pytestmark = shows("images")


def test_what_rdukit_requires_is_taken_and_tools_of_development_are_not() -> None:
    names = {package.metadata["Name"].lower() for package in required_distributions("rdukit")}
    assert {"rdukit", "torch", "uvicorn", "sympy"} <= names, "also what torch requires"
    assert not {"pytest", "ruff", "mypy", "playwright"} & names


def test_a_requirement_that_is_not_installed_is_told() -> None:
    with pytest.raises(InvalidArgument, match="no-such-package is required but not installed"):
        required_distributions("no-such-package")


def test_a_file_that_is_no_program_needs_nothing(tmp_path: Path) -> None:
    (tmp_path / "text").write_text("\x7fELF, says the file")
    assert read_needs(tmp_path / "text") is None
    assert read_needs(Path(__file__)) is None
