"""The command that describes boxes: those of the catalog, and folders of tenants."""

import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from rdukit.errors import InvalidArgument, Overloaded, Unavailable
from rdukit_platform.catalog.catalog import MAX_READ, Catalog, describe_folder, read_catalog
from rdukit_platform.catalog.model import read_box
from support import shows, wait_until
from support.platform.processes import COUNTER

pytestmark = shows("catalog", "box", "modelbox-own-model")

MODELBOX = [sys.executable, "-m", "rdukit_modelbox"]


YAML = """\
apiVersion: rdukit.dev/v1
name: mine
title: Mine
description: A box of my own.
module: model.py:make_model
compilerVersion: "0.1"
mode: o3
target: sn30
verbs: [compile]
parameters:
  - {name: batch, type: int, default: 8, legal: {minimum: 1}, verbs: [compile], help: Rows.}
artifacts:
  compile: {outputs: [{name: pef, kind: file, help: The model.}]}
"""


def test_a_folder_is_described_and_none_of_its_code_runs(tmp_path: Path) -> None:
    (tmp_path / "modelbox.yaml").write_text(YAML)
    for name in ("model.py", "yaml.py", "json.py", "sitecustomize.py"):
        (tmp_path / name).write_text(f"open({str(tmp_path / 'ran')!r}, 'w')\nraise SystemExit(9)\n")
    described = describe_folder(tmp_path, MODELBOX)
    assert read_box(described, 1).verb("compile").parameters[0].default == 8
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (("mode: o3", "mode: o9"), r"^modelbox.yaml:7:1: mode: 'o9' is not legal"),
        (("module: model.py:make_model", "module: gone.py:make"), "there is no file 'gone.py' in its folder"),
        (('"0.1"', '"7.1"'), "compilerVersion: box mine is for compiler 7.1"),
        (("default: 8", "default: 0"), "legal: 1 <= x"),
        (("name: mine\n", ""), "name: missing"),
    ],
)
def test_a_folder_that_is_no_box_is_refused_with_its_lines(tmp_path: Path, change: tuple[str, str], words: str) -> None:
    (tmp_path / "modelbox.yaml").write_text(YAML.replace(*change))
    (tmp_path / "model.py").write_text("")
    with pytest.raises(InvalidArgument, match=words) as refused:
        describe_folder(tmp_path, MODELBOX)
    assert str(tmp_path) not in f"{refused.value.message} {refused.value.detail}"


def test_a_folder_without_a_yaml_and_a_broken_command_are_told_apart(tmp_path: Path) -> None:
    (tmp_path / "model.py").write_text("")
    with pytest.raises(InvalidArgument, match=r"a folder with a modelbox.yaml, here there is: model.py"):
        describe_folder(tmp_path, MODELBOX)
    (tmp_path / "modelbox.yaml").write_text(YAML)
    with pytest.raises(Unavailable, match="gave no description"):
        describe_folder(tmp_path, ["/no/such/program"])


def test_a_flood_of_folders_is_refused_before_it_takes_every_thread(tmp_path: Path) -> None:
    (tmp_path / "modelbox.yaml").write_text("{}")
    hold = tmp_path / "hold"
    hold.touch()
    program = (
        "import os, pathlib, time\n"
        f"hold = pathlib.Path({str(hold)!r})\n"
        "hold.with_name(f'seen-{os.getpid()}').touch()\n"
        "while hold.exists(): time.sleep(0.01)\n"
        'print(\'{"name": "mine"}\')\n'
    )
    catalog = Catalog([sys.executable, "-c", program])
    with ThreadPoolExecutor(MAX_READ) as pool:
        reading = [pool.submit(catalog.describe_folder, tmp_path) for _ in range(MAX_READ)]
        wait_until(lambda: len(list(tmp_path.glob("seen-*"))) == MAX_READ, 60)
        with pytest.raises(Overloaded, match="again in a few seconds"):
            catalog.describe_folder(tmp_path)
        hold.unlink()
        assert [done.result() for done in reading] == [{"name": "mine"}] * MAX_READ
    assert catalog.describe_folder(tmp_path) == {"name": "mine"}


def test_the_catalog_is_read_from_the_command(tmp_path: Path) -> None:
    program = tmp_path / "boxes.py"
    program.write_text(f"import json\nprint(json.dumps([{COUNTER!r}]))\n")
    assert set(read_catalog([sys.executable, str(program)]).boxes) == {"counter"}


def test_a_command_that_fails_says_why(tmp_path: Path) -> None:
    program = tmp_path / "boxes.py"
    program.write_text("raise SystemExit('no boxes here')\n")
    with pytest.raises(Unavailable, match="no boxes here"):
        read_catalog([sys.executable, str(program)])
