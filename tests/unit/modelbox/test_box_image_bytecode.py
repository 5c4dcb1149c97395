"""Bytecode in images: valid whatever the dates are, and only of what a box imports."""

import importlib.util
import os
import sys
from pathlib import Path

from rdukit_modelbox.image.bytecode import START_MODULES, bytecode_entries, compile_source
from rdukit_modelbox.image.layer import LayerEntry
from support import shows

pytestmark = shows("images")

SOURCE = b"def ask(word):\n    return word in {'yes', 'no', 'maybe'}, 1.5, 'ask'\n"


def test_every_module_that_a_box_starts_with_is_there() -> None:
    for name in START_MODULES:
        assert importlib.util.find_spec(name) is not None, name


def test_only_sources_that_a_box_imports_get_bytecode(tmp_path: Path) -> None:
    for name in ("used.py", "unused.py", "data.txt"):
        (tmp_path / name).write_bytes(SOURCE)
    linked = tmp_path / "linked"
    linked.symlink_to(tmp_path)
    entries = [LayerEntry(f"/opt/{name}", source=linked / name) for name in ("used.py", "unused.py", "data.txt")]
    entries += [LayerEntry("/opt/folder"), LayerEntry("/opt/given.py", data=SOURCE)]
    (made,) = bytecode_entries(entries, {os.path.realpath(tmp_path / "used.py")})
    assert made.path == f"/opt/__pycache__/used.{sys.implementation.cache_tag}.pyc"
    assert made.data == compile_source(SOURCE, "/opt/used.py")


def test_python_takes_the_bytecode_without_looking_at_the_source(tmp_path: Path) -> None:
    cached = Path(importlib.util.cache_from_source(str(tmp_path / "asked.py")))
    cached.parent.mkdir()
    cached.write_bytes(compile_source(SOURCE, "/opt/rdukit/asked.py"))
    (tmp_path / "asked.py").write_text("ask = None  # another date, another content\n")
    spec = importlib.util.spec_from_file_location("asked", tmp_path / "asked.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    assert module.ask("no") == (True, 1.5, "ask")
    assert module.ask.__code__.co_filename == str(tmp_path / "asked.py"), "tracebacks name the file that is there"
