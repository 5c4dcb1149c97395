"""The command that describes boxes: those of the catalog, and folders of tenants."""

import os
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from rdukit.errors import InvalidArgument, Overloaded, Unavailable
from rdukit.fence.probe import what_holds
from rdukit_platform.catalog.catalog import Catalog, describe_folder, read_catalog
from rdukit_platform.catalog.fenced_reader import MAX_READERS, MAX_READERS_OF_TENANT, READERS
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
        (("mode: o3", "mode: o9"), r"^modelbox.yaml:7:1: mode: 'o9' is not valid"),
        (("module: model.py:make_model", "module: gone.py:make"), "there is no file 'gone.py' in its folder"),
        (('"0.1"', '"7.1"'), "compilerVersion: box mine is for compiler 7.1"),
        (("default: 8", "default: 0"), "expected 1 <= x"),
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
    with pytest.raises(InvalidArgument, match=r"a folder with a modelbox.yaml, but this one has: model.py"):
        describe_folder(tmp_path, MODELBOX)
    (tmp_path / "modelbox.yaml").write_text(YAML)
    with pytest.raises(Unavailable, match="gave no description"):
        describe_folder(tmp_path, ["/no/such/program"])


def test_a_flood_of_folders_is_refused_before_it_takes_every_thread(tmp_path: Path) -> None:
    (tmp_path / "modelbox.yaml").write_text("{}")
    hold = tmp_path / "hold"
    hold.touch()
    program = (
        "import pathlib, time\n"
        f"hold = pathlib.Path({str(hold)!r})\n"
        "while hold.exists(): time.sleep(0.01)\n"
        'print(\'{"name": "mine"}\')\n'
    )
    catalog = Catalog([sys.executable, "-c", program])
    with ThreadPoolExecutor(MAX_READERS) as pool:
        own = [pool.submit(catalog.describe_folder, tmp_path, "mallory") for _ in range(MAX_READERS_OF_TENANT)]
        wait_until(lambda: READERS.total == MAX_READERS_OF_TENANT, 60)
        with pytest.raises(Overloaded, match="2 of your files or folders and 2 in all are being read"):
            catalog.describe_folder(tmp_path, "mallory")
        others = [
            pool.submit(catalog.describe_folder, tmp_path, str(n)) for n in range(MAX_READERS - MAX_READERS_OF_TENANT)
        ]
        wait_until(lambda: READERS.total == MAX_READERS, 60)
        with pytest.raises(Overloaded, match="again in a few seconds"):
            catalog.describe_folder(tmp_path, "alice")
        hold.unlink()
        assert [done.result() for done in own + others] == [{"name": "mine"}] * MAX_READERS
    assert catalog.describe_folder(tmp_path, "alice") == {"name": "mine"}


def _reader(tmp_path: Path, program: str) -> Catalog:
    (tmp_path / "modelbox.yaml").write_text("{}")
    return Catalog([sys.executable, "-c", program])


def test_reading_a_folder_takes_so_much_memory_at_most(tmp_path: Path) -> None:
    catalog = _reader(tmp_path, "print(len(bytearray(3 << 30)))")
    with pytest.raises(InvalidArgument, match="more than 1024 MiB of memory"):
        catalog.describe_folder(tmp_path, "mallory")


def test_a_reader_that_is_taken_over_gets_no_further(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if what_holds().way is None:
        pytest.skip(f"no fence holds on this machine: {what_holds().why}")
    home = tmp_path / "home"
    home.mkdir()
    (home / "token").write_text("secret")
    monkeypatch.setenv("RDUKIT_HOME", str(home))
    folder = tmp_path / "folder"
    folder.mkdir()
    program = f"""
import json, os, pathlib, socket
found = {{"sees": os.path.exists({str(home / "token")!r}), "uid": os.getuid(), "secret": "RDUKIT_SECRET" in os.environ}}
try:
    pathlib.Path({str(folder / "new")!r}).touch()
    found["writes"] = True
except OSError:
    found["writes"] = False
found["interfaces"] = [name for _, name in socket.if_nameindex()]
print(json.dumps(found))
"""
    monkeypatch.setenv("RDUKIT_SECRET", "x")
    found = _reader(folder, program).describe_folder(folder, "mallory")
    assert found["uid"] != 0 or os.getuid() != 0
    expected = {"sees": False, "secret": False, "writes": False, "interfaces": ["lo"]}
    assert {name: found[name] for name in expected} == expected


def test_an_answer_in_the_place_of_which_lies_a_link_is_not_read(tmp_path: Path) -> None:
    program = "import os; os.remove('answer'); os.symlink('/etc/hostname', 'answer')"
    with pytest.raises((Unavailable, InvalidArgument)):
        _reader(tmp_path, program).describe_folder(tmp_path, "mallory")


def test_the_catalog_is_read_from_the_command(tmp_path: Path) -> None:
    program = tmp_path / "boxes.py"
    program.write_text(f"import json\nprint(json.dumps([{COUNTER!r}]))\n")
    assert set(read_catalog([sys.executable, str(program)]).boxes) == {"counter"}


def test_a_command_that_fails_says_why(tmp_path: Path) -> None:
    program = tmp_path / "boxes.py"
    program.write_text("raise SystemExit('no boxes here')\n")
    with pytest.raises(Unavailable, match="no boxes here"):
        read_catalog([sys.executable, str(program)])
