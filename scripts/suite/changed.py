"""Choose the test files that a change touches: by imports, nearest first, and by the features of its files.

A file that no test reaches by imports, such as a migration, a rule or a model of the zoo, counts as part of the modules
that load files by their names and write its name or its folder's.
"""

import re
import subprocess
from collections import defaultdict, deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from suite.features import ROUTE_GROUP, TREE, Shown, read_project, read_shown

#: Folders that modules are imported from.
ROOTS = ("core", "sdk", "compiler", "runtime", "modelboxes", "platform", "zoo", "benchmarks", "scripts", "tests")
#: Core-seconds that a run of what a change touches may take on two cores: two minutes, less what parts import.
BUDGET_CORE_S = 200.0
#: What a file without a recorded time is taken to need.
UNKNOWN_CORE_S = 3.0


@dataclass(frozen=True, slots=True)
class Choice:
    """Test files to run for a change, and those that it touches through more imports."""

    chosen: list[str]
    left: list[str]


def find_changes(base: str = "") -> list[str]:
    """Return the files that differ from ``base``, tracked or not.

    Without one: from where the upstream branch was left, else from ``HEAD``, else from the commit before it.
    """
    bases = [base] if base else [_git("merge-base", "HEAD", "@{upstream}"), "HEAD", "HEAD~1"]
    new = _git("ls-files", "--others", "--exclude-standard").splitlines()
    for each in filter(None, bases):
        changed = sorted({*_git("diff", "--name-only", each).splitlines(), *new})
        if changed:
            return changed
    return []


def _git(*words: str) -> str:
    done = subprocess.run(["git", *words], cwd=TREE, capture_output=True, text=True, check=False)
    return done.stdout.strip() if done.returncode == 0 else ""


def module_of(file: str) -> str:
    """Return the dotted name that a Python file is imported by; of a test its path stands for it."""
    root, _, rest = file.partition("/")
    if root not in ROOTS or Path(file).name.startswith(("test_", "conftest")):
        return file
    return rest.removesuffix(".py").removesuffix("/__init__").replace("/", ".")


def read_imports(tree: Path = TREE) -> dict[str, set[str]]:
    """Return what each module imports, anywhere in its text, of the project's own; tests are named by their paths."""
    files = [path for root in ROOTS for path in (tree / root).rglob("*.py") if "__pycache__" not in path.parts]
    modules = {module_of(str(path.relative_to(tree))): path for path in files}
    imports = {name: {each for each in _names(path) if each in modules} for name, path in modules.items()}
    for name, path in modules.items():  # fixtures of the same folder and of those above are there without an import
        if path.name.startswith("test_"):
            found = [str((folder / "conftest.py").relative_to(tree)) for folder in path.parents if folder != tree
                     and folder.is_relative_to(tree / "tests")]  # fmt: skip
            imports[name] |= {each for each in found if each in modules}
    return imports


#: What a module imports, and what it names as the module of a program that it starts.
_IMPORT = re.compile(r"^[ \t]*(?:from ([\w.]+) import (\([^)]*\)|[^\n]*)|import ([\w., ]+))", re.MULTILINE)
_MODULE = re.compile(r'"([a-z_]+(?:\.[a-z_0-9]+)+)"')


def _names(path: Path) -> set[str]:
    text = path.read_text()
    names = set(_MODULE.findall(text))
    for module, members, modules in _IMPORT.findall(text):
        names |= {module, *(f"{module}.{each}" for each in re.findall(r"(\w+)(?: as \w+)?", members))}
        names |= set(re.findall(r"[\w.]+", modules))
    return names


def find_distances(changed: Iterable[str], imports: Mapping[str, set[str]]) -> dict[str, int]:
    """Return how many imports lie between each module and the nearest changed one."""
    importers: dict[str, set[str]] = defaultdict(set)
    for name, imported in imports.items():
        for each in imported:
            importers[each].add(name)
    distances = {name: 0 for name in changed if name in imports}
    waiting = deque(distances)
    while waiting:
        name = waiting.popleft()
        for each in importers[name]:
            if each not in distances:
                distances[each] = distances[name] + 1
                waiting.append(each)
    return distances


#: What a module does that loads other files by their names.
_LOADS = re.compile(r"__file__|\bimport_module\(|\bfiles\(|\bPackageLoader\(|\bentry_points\(")


def find_loaders(
    changed: Iterable[str], imports: Mapping[str, set[str]], shown: Iterable[Shown], tree: Path = TREE
) -> set[str]:  # fmt: skip
    """Return the modules that load changed files which no short test reaches by imports, or that load their importers.

    A loader belongs to the same root and names in quotes the file, with or without its suffix, or one of its folders.
    """
    found, short = set[str](), {each.file for each in shown if each.is_short}
    for file in changed:
        root, path = file.partition("/")[0], Path(file)
        reached = find_distances([module_of(file)], imports)
        if root not in ROOTS or root == "tests" or short & set(reached):
            continue
        parts = {path.name, path.stem, *path.parts[2:-1]}
        parts |= {part for name in reached if "/" not in name for part in name.split(".")[1:]}
        words = "|".join(map(re.escape, sorted(parts)))
        names = re.compile(rf"""["'](?:[\w.-]+[./])*(?:{words})(?:/[^"']*|:\w+)?["']""")
        for loader in (tree / root).rglob("*.py"):
            text = loader.read_text()
            if loader != tree / file and _LOADS.search(text) and names.search(text):
                found.add(module_of(str(loader.relative_to(tree))))
    return found & set(imports)


def read_entries(tree: Path = TREE) -> dict[str, set[str]]:
    """Return the commands and tools that a module is the entry of; one of ``rdukit.box.commands`` is of ``box``."""
    project = read_project(tree)
    entries: dict[str, set[str]] = defaultdict(set)
    scripts: Any = project["scripts"]  # has no groups
    groups: dict[str, dict[str, str]] = {**project["entry-points"], "scripts": scripts}
    for group, targets in groups.items():
        for name, target in targets.items():
            own = group in {"rdukit.commands", "scripts"}
            entries[target.split(":")[0]].add(name if own else group.split(".")[1])
    return dict(entries)


def find_touched_features(changed: Iterable[str], tree: Path = TREE) -> set[str]:
    """Return the features that changed files belong to: a box's YAML, a page, a route group."""
    features = set()
    for file in changed:
        path = Path(file)
        if "boxes" in path.parts:
            features.add(path.parent.name)
        if path.suffix == ".md":
            features.add(path.stem)
        if "console" in path.parts:
            features.add("console")
        if path.suffix == ".py" and (tree / path).exists():
            features |= set(ROUTE_GROUP.findall((tree / path).read_text()))
    return features


def choose(
    changed: list[str], imports: Mapping[str, set[str]], shown: Iterable[Shown], features: set[str],
    times: Mapping[str, float], budget_core_s: float = BUDGET_CORE_S,
    entries: Mapping[str, set[str]] | None = None, loaders: Iterable[str] = (),
) -> Choice:  # fmt: skip
    """Choose the short test files that a change touches: itself first, then the nearest ones, as time allows.

    Args:
        features: what the changed files belong to. A file that shows it is as near as one that imports an importer.
        entries: as from ``read_entries``; a command that is touched from further away is shown from as much further.
        loaders: as from ``find_loaders``; they are changed, too.
    """
    distances = find_distances([*map(module_of, changed), *loaders], imports)
    near = dict.fromkeys(features, 0)
    for module, names in (entries or {}).items():
        for name in names if module in distances else ():
            near[name] = min(near.get(name, distances[module]), distances[module])
    for each in shown:
        ways = [2 + near[name] for name in each.names if name in near]
        if ways:
            distances[each.file] = min(distances.get(each.file, ways[0]), *ways)
    short = {each.file for each in shown if each.is_short}
    touched = sorted(
        (file for file in distances if file in short),
        key=lambda file: (distances[file], times.get(file, UNKNOWN_CORE_S), file),
    )
    chosen, left, spent_s = list[str](), list[str](), 0.0
    for file in touched:
        needed_s = times.get(file, UNKNOWN_CORE_S)
        if distances[file] == 0 or spent_s + needed_s <= budget_core_s:
            chosen.append(file)
            spent_s += needed_s
        else:
            left.append(file)
    return Choice(chosen, left)


def choose_files(base: str, times: Mapping[str, float]) -> tuple[list[str], Choice]:
    """Return the changed files, and the test files to run for them."""
    changed = find_changes(base)
    imports, shown = read_imports(), read_shown()
    choice = choose(
        changed, imports, shown, find_touched_features(changed), times,
        entries=read_entries(), loaders=find_loaders(changed, imports, shown),
    )  # fmt: skip
    return changed, choice
