"""The tree's shape: source roots hold packages only, of bounded size, with names and docstrings of their own."""

import ast
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

import rdukit
from support import shows

pytestmark = shows("project")

TREE = Path(__file__).parents[2]
PROJECT = tomllib.loads((TREE / "pyproject.toml").read_text())
ROOTS = PROJECT["tool"]["hatch"]["build"]["dev-mode-dirs"]
#: Words that begin no docstring: what they stand for is elsewhere.
PRONOUNS = set(
    "All He How If It Its None Nothing One Ones She Some Such That Their These They This Those What When Where Whether "
    "Which Who Whose".split()
)


def test_the_eight_source_roots_are_there() -> None:
    assert ROOTS == ["core", "sdk", "compiler", "runtime", "modelboxes", "platform", "zoo", "benchmarks"]
    assert all((TREE / root).is_dir() for root in ROOTS)


@pytest.mark.parametrize("root", ROOTS)
def test_a_source_root_holds_no_python_file_of_its_own(root: str) -> None:
    assert [path.name for path in (TREE / root).glob("*.py")] == []


def test_a_folder_of_tests_is_no_package() -> None:
    assert [path for path in (TREE / "tests").rglob("__init__.py") if list(path.parent.glob("test_*.py"))] == []


def test_test_files_have_names_of_their_own() -> None:
    names = [path.name for path in (TREE / "tests").rglob("test_*.py")]
    assert len(names) == len(set(names)), sorted(n for n in names if names.count(n) > 1)


def test_every_package_is_in_the_wheel_and_typed() -> None:
    packages = PROJECT["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"]
    assert sorted(packages) == sorted(
        str(path.parent.relative_to(TREE)) for root in ROOTS for path in (TREE / root).glob("*/__init__.py")
    )
    for package in packages:
        assert (TREE / package / "__init__.py").is_file()
        assert (TREE / package / "py.typed").is_file()


def test_the_distribution_is_not_called_sambaflow() -> None:
    assert PROJECT["project"]["name"] == "rdukit"
    assert rdukit.__version__


def python_files() -> Iterator[Path]:
    """The modules of all source roots and of what tests share, without generated ones."""
    return (
        path
        for root in [*ROOTS, "tests/support", "tests/fuzzing", "tests/opdb"]
        for path in (TREE / root).rglob("*.py")
        if "_pb2" not in path.name and "_downloads" not in path.parts  # which the built site has
    )


def test_no_module_is_longer_than_the_limit() -> None:
    assert {str(path): count for path in python_files() if (count := len(path.read_text().splitlines())) > 500} == {}


def test_few_modules_lie_loose_at_a_packages_root() -> None:
    roots = {path.parent for root in ROOTS for path in (TREE / root).glob("*/__init__.py")}
    loose = {root.name: [path.name for path in root.glob("*.py") if path.name != "__init__.py"] for root in roots}
    assert {name: files for name, files in loose.items() if len(files) > 8} == {}


def test_docstrings_stand_alone() -> None:
    # Ruff's D401 has verbs for functions; this is for classes and properties as well: begin with a verb or a noun.
    found, begins = [], re.compile(rf"(?:\"\"\"|')\s*(?:{'|'.join(PRONOUNS)})\b")  # parsing all takes seconds
    for path in python_files():
        text = path.read_text()
        if {"support", "fuzzing", "opdb"} & set(path.parts) or not begins.search(text):
            continue
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                first = (ast.get_docstring(node) or " ").split(" ")[0]
                if first in PRONOUNS:
                    found.append(f"{path.relative_to(TREE)}:{node.lineno} {first}")
    assert found == []


def test_a_public_class_name_means_one_thing() -> None:
    # The SDK's names are the vendor's, and the platform's client has the same things from outside; programs and test
    # tools are read on their own.
    where: dict[str, list[str]] = {}
    for path in python_files():
        if not {"sambaflow", "client", "programs", "programs.py", "fuzzing", "opdb"} & set(path.parts):
            for name in re.findall(r"^class ([A-Za-z]\w*)", path.read_text(), re.MULTILINE):
                where.setdefault(name, []).append(str(path.relative_to(TREE)))
    assert {name: paths for name, paths in where.items() if len(paths) > 1} == {}
