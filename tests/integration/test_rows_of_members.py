"""A training that goes on with another number of members: the same rows, with the same numbers as one process."""

import json
import os
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path

import pytest

from rdukit.errors import InvalidArgument
from support import FIND_SUPPORT, shows
from support.boxes import run_verb
from support.forked import fork_python

pytestmark = [shows("training", "logreg"), pytest.mark.long]

PROGRAM = (
    FIND_SUPPORT
    + """
import json, sys
from pathlib import Path
from support.boxes import run_verb

output, inputs, parameters = sys.argv[1:]
inputs = {name: Path(path) for name, path in json.loads(inputs).items()}
run_verb("logreg", "train", Path(output), inputs, **json.loads(parameters))
"""
)


def train(members: int, output: Path, inputs: Mapping[str, Path], **parameters: object) -> list[tuple[int, float]]:
    """Train with members, as the box starts them; returns step and loss of each line of the first one's journal."""
    words = ["-c", PROGRAM, str(output), json.dumps(inputs, default=str), json.dumps(parameters)]
    with ExitStack() as stack:
        programs = []
        for rank in range(members):
            told = output.parent / f"{output.name}-told{rank}"
            file = stack.enter_context(told.open("wb"))
            environment = {**os.environ, "PMI_RANK": str(rank), "PMI_SIZE": str(members), "RDUKIT_KERNELS": "portable"}
            program = fork_python(words, environment, stdout=file.fileno(), stderr=file.fileno(), kind="sambaflow")
            stack.callback(program.kill)
            programs.append((program, told))
        for program, told in programs:
            assert program.wait(120) == 0, told.read_text()
    lines = [json.loads(line) for line in (output / "metrics.jsonl").read_text().splitlines()]
    return [(line["step"], line["loss"]) for line in lines if "lr" in line]


def test_two_members_go_on_at_the_row_of_one_and_one_at_that_of_two(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RDUKIT_KERNELS", "portable")
    dataset = run_verb("logreg", "preprocess", tmp_path / "data").outputs["dataset"]
    pefs = {
        rows: run_verb(
            "logreg", "compile", tmp_path / f"pef{rows}", mode="o0", batch_size=rows, members=2, precision="f32"
        ).outputs["pef"]
        for rows in (16, 32)
    }
    small, large = ({"pef": pefs[rows], "dataset": dataset} for rows in (16, 32))
    train(1, tmp_path / "first", small, max_steps=4)
    begun = {"checkpoint": tmp_path / "first/checkpoint"}
    more = {"continue_as": "rows", "max_steps": 6}
    together = train(2, tmp_path / "two", {**small, **begun}, **more)
    alone = train(1, tmp_path / "one", {**large, **begun}, **more)
    assert [step for step, _ in together] == [step for step, _ in alone] == [3, 4, 5, 6]
    # f32: the same sums in another order
    assert [loss for _, loss in together] == pytest.approx([loss for _, loss in alone], rel=1e-5)
    back = train(
        1, tmp_path / "back", {**small, "checkpoint": tmp_path / "two/checkpoint"}, continue_as="rows", max_steps=13
    )
    assert [step for step, _ in back] == [13]
    with pytest.raises(
        InvalidArgument,
        match=r"batch_size 32 against 16.*pass continue_as=rows to continue at its "
        r"row",
    ):
        run_verb("logreg", "train", tmp_path / "no", {**small, "checkpoint": tmp_path / "two/checkpoint"})
