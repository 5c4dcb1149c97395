"""Features of the product, the test files that show each, and their tiers.

A test file names what it shows: ``pytestmark = shows("pipelines")``. All is read from source as text: nothing is
imported, so that ``make check`` and the choice of tests for a change take no time.
"""

import ast
import re
import tomllib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path

TREE = Path(__file__).resolve().parents[2]
#: Modes of a compile; kernels are named by the setting ``kernels``.
MODES = ("o0", "o1", "o3")
#: The name of a group of routes, in a module that has a router.
ROUTE_GROUP = re.compile(r'^router = APIRouter\(.*tags=\["([^"]+)"\]', re.MULTILINE)
#: Pages that describe the project, not what it does.
OTHER_PAGES = frozenset({"README", "glossary", "tests"})
#: What tests of the project itself show: its structure, packages, scripts and licences.
PROJECT = "project"
#: In a file's line, the names of all boxes.
EVERY_BOX = "every box"


@dataclass(frozen=True, slots=True)
class Shown:
    """Features that one test file shows."""

    file: str
    names: tuple[str, ...]
    #: Whether any of its cases is in the short tier.
    is_short: bool


def find_features(tree: Path = TREE) -> dict[str, list[str]]:
    """Return each feature's name and what it is: command, tool, routes, box, mode, kernels, page."""
    kinds = {
        "command": _commands(tree), "tool": _tools(tree), "routes": _route_groups(tree), "box": _boxes(tree),
        "mode": MODES, "kernels": _kernels(tree), "page": _pages(tree), "the project itself": [PROJECT],
    }  # fmt: skip
    found: dict[str, list[str]] = {}
    for kind, names in kinds.items():
        for name in names:
            found.setdefault(name, [])
            if kind not in found[name]:
                found[name].append(kind)
    return dict(sorted(found.items()))


def read_project(tree: Path) -> dict[str, dict[str, dict[str, str]]]:
    """Return the table ``project`` of ``pyproject.toml``."""
    project: dict[str, dict[str, dict[str, str]]] = tomllib.loads((tree / "pyproject.toml").read_text())["project"]
    return project


def _commands(tree: Path) -> Iterable[str]:
    return read_project(tree)["entry-points"]["rdukit.commands"]


def _tools(tree: Path) -> Iterable[str]:
    return [name for name in read_project(tree)["scripts"] if name != "rdukit"]


def _route_groups(tree: Path) -> Iterable[str]:
    """Groups of the gateway's routes, as its OpenAPI tags name them; all pages of the console are one."""
    yield "console"
    for part in ("api", "gateway"):
        for path in sorted((tree / "platform/rdukit_platform" / part).glob("*.py")):
            yield from ROUTE_GROUP.findall(path.read_text())


def _boxes(tree: Path) -> Iterable[str]:
    return [path.parent.name for path in (tree / "modelboxes/rdukit_modelbox/boxes").glob("*/modelbox.yaml")]


def _kernels(tree: Path) -> Iterable[str]:
    text = (tree / "core/rdukit/settings.py").read_text()
    values = re.search(r"KERNELS: Final = Setting\(.*?\(([^()]*)\),\n\)", text, re.DOTALL)
    assert values is not None, "the setting `kernels` lists its values in core/rdukit/settings.py"
    return [value for value in re.findall(r'"(\w+)"', values[1]) if value != "auto"]


def _pages(tree: Path) -> Iterable[str]:
    pages = [*(tree / "docs").glob("*.md"), *(tree / "docs/design").glob("*.md")]
    return [path.stem for path in pages if path.stem not in OTHER_PAGES]


def read_shown(tree: Path = TREE) -> list[Shown]:
    """Return what each test file shows, in the order of their paths."""
    files = sorted((tree / "tests").rglob("test_*.py"))
    boxes = sorted(_boxes(tree))
    return [_read_file(path, str(path.relative_to(tree)), boxes) for path in files]


def _read_file(path: Path, name: str, boxes: Iterable[str]) -> Shown:
    text = path.read_text()
    mark = re.search(r"^pytestmark = \[?\s*shows\(([^)]*)\)", text, re.MULTILINE)
    named = re.findall(r'"([^"]+)"', mark[1]) if mark else ()
    names = tuple(one for each in named for one in (boxes if each == EVERY_BOX else (each,)))
    return Shown(name, names, "mark.long" not in text or has_short_case(ast.parse(text)))


def has_short_case(module: ast.Module) -> bool:
    """Return whether any test of a module has no mark ``long``, by itself, its class or the module."""
    return not any(map(_marks_all, module.body)) and any(map(_is_short, _cases(module)))


def _marks_all(node: ast.stmt) -> bool:
    if not (isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "pytestmark"):
        return False
    return any(map(_is_long, node.value.elts if isinstance(node.value, ast.List | ast.Tuple) else [node.value]))


def _cases(module: ast.Module) -> Iterator[tuple[ast.stmt, ...]]:
    """Yield each test function, with the class it is in; a class may inherit all of its tests."""
    for node in module.body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith("test"):
            yield (node,)
        elif isinstance(node, ast.ClassDef) and node.name.startswith("Test"):
            methods = [each for each in node.body if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef)]
            tests: list[tuple[ast.stmt, ...]] = [(node, each) for each in methods if each.name.startswith("test")]
            yield from tests or [(node,)]


def _is_short(nodes: tuple[ast.stmt, ...]) -> bool:
    decorators = [each for node in nodes for each in getattr(node, "decorator_list", [])]
    return not any(_is_long(each) for each in decorators)


def _is_long(mark: ast.expr) -> bool:
    return ast.unparse(mark) == "pytest.mark.long"


def find_faults(features: dict[str, list[str]], shown: list[Shown]) -> list[str]:
    """Return what is missing: files that name nothing or what there is not, features without a short case."""
    faults = [f"{each.file}: name what it shows: pytestmark = shows(…)" for each in shown if not each.names]
    for each in shown:
        for name in each.names:
            if name not in features:
                near = get_close_matches(name, features, 3, 0.5)
                faults.append(
                    f"{each.file}: no feature is named {name!r}" + (f"; near: {', '.join(near)}" if near else "")
                )
    short = {name for each in shown if each.is_short for name in each.names}
    return faults + [
        f"{name} ({', '.join(kinds)}): no short case shows it" for name, kinds in features.items() if name not in short
    ]


def features_table(features: dict[str, list[str]], shown: list[Shown]) -> list[str]:
    """Return the rows of the table that maps features to files, in Markdown."""
    rows = ["| feature | what it is | shown by `make test` | and by `make test-all` |", "| --- | --- | --- | --- |"]
    for name, kinds in features.items():
        files = {is_short: [each.file.removeprefix("tests/").replace("test_", "").removesuffix(".py")
                            for each in shown if name in each.names and each.is_short is is_short]
                 for is_short in (True, False)}  # fmt: skip
        rows.append(f"| {name} | {', '.join(kinds)} | {' '.join(files[True])} | {' '.join(files[False])} |")
    return rows
