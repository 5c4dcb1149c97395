"""Which files a preprocess takes."""

import gzip
import os
from pathlib import Path

import pytest

from rdukit.errors import IllegalValue, InvalidArgument, NotFound
from rdukit_modelbox.preprocessing.progress import WorkFolder
from rdukit_modelbox.preprocessing.sources import (
    LONGEST_LINE,
    Format,
    RowErrors,
    SourceFile,
    find_sources,
    read_line_blocks,
)
from support import shows

pytestmark = shows("preprocess")

TEXT = (Format.TXT, Format.JSONL)


def source_of(path: Path) -> SourceFile:
    return find_sources(path, "**/*", "txt", TEXT)[0]


def test_a_folder_gives_its_files_in_order_without_hidden_ones_and_links_outside(tmp_path: Path) -> None:
    folder = tmp_path / "in"
    for name in ("b.txt", "a/x.TXT.gz", ".hidden.txt", ".git/c.txt", "a/y.bin", "a/notes.md"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text("x\n")
    (tmp_path / "secret.txt").write_text("secret\n")
    os.symlink(tmp_path / "secret.txt", folder / "z.txt")
    os.symlink(folder / "b.txt", folder / "inside.txt")
    found = find_sources(folder, "**/*", "auto", TEXT)
    assert [(s.name, s.is_gzip) for s in found] == [("a/x.TXT.gz", True), ("b.txt", False), ("inside.txt", False)]
    assert [s.name for s in find_sources(folder, "*.txt", "auto", TEXT)] == ["b.txt", "inside.txt"]
    assert [s.format for s in find_sources(folder, "a/*.bin", "jsonl", TEXT)] == [Format.JSONL]
    with pytest.raises(IllegalValue, match="no \\.\\."):
        find_sources(folder, "../*", "auto", TEXT)
    with pytest.raises(NotFound, match="matches"):
        find_sources(folder, "*.csv", "auto", TEXT)
    (tmp_path / "empty.txt").touch()
    with pytest.raises(InvalidArgument, match="every file is empty"):
        find_sources(tmp_path / "empty.txt", "**/*", "auto", TEXT)


@pytest.mark.parametrize("block", [1, 3, 1000])
def test_blocks_hold_whole_lines_however_they_are_read(block: int, tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes(b"one\n\ntwo three\nfour")
    (tmp_path / "b.txt.gz").write_bytes(gzip.compress(b"one\n\ntwo three\nfour"))
    for name in ("a.txt", "b.txt.gz"):
        blocks = list(read_line_blocks(source_of(tmp_path / name), block))
        assert b"".join(b.data for b in blocks) == b"one\n\ntwo three\nfour\n"
        line = 1
        for found in blocks:
            assert found.line == line
            assert found.data.endswith(b"\n")
            line += found.data.count(b"\n")


def test_a_line_without_end_is_refused_before_it_fills_the_memory(tmp_path: Path) -> None:
    with (tmp_path / "a.txt.gz").open("wb") as raw, gzip.GzipFile(fileobj=raw, mode="wb", compresslevel=1) as stream:
        stream.write(b"ok\n")
        for _ in range(LONGEST_LINE // (1 << 20) + 4):
            stream.write(bytes(1 << 20))
    with pytest.raises(InvalidArgument, match=r"a\.txt\.gz:2: the line is longer than 16 MB"):
        list(read_line_blocks(source_of(tmp_path / "a.txt.gz")))


def test_skipped_rows_are_counted_and_a_few_are_told() -> None:
    bad = RowErrors(skips=True)
    for line in range(20):
        bad.add("a.csv", line, "broken", "whole", "x")
    assert (bad.count, len(bad.examples), bad.examples[0]) == (20, 10, "a.csv:0, column 'x': broken")


def test_a_work_folder_of_another_request_is_thrown_away(tmp_path: Path) -> None:
    folder = tmp_path / "work"
    WorkFolder(folder, {"a": 1}).finish("step", {"rows": 3})
    assert WorkFolder(folder, {"a": 1}).find("step") == {"rows": 3}
    (folder / "step.json").write_text('{"rows"')
    assert WorkFolder(folder, {"a": 1}).find("step") is None
    other = WorkFolder(folder, {"a": 2})
    assert other.find("step") is None
    assert list(folder.iterdir()) == [folder / "identity.json"]
    (other.fresh("made")).mkdir()
    (tmp_path / "target").mkdir()
    other.hand_over("made", tmp_path / "target")
    assert not folder.exists()
    assert (tmp_path / "target").is_dir()
