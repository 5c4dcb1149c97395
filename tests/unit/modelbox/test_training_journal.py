"""``metrics.jsonl`` and its picture: a resumed training goes on where its checkpoint was."""

import xml.etree.ElementTree as ElementTree
from pathlib import Path

from tensorboardX.proto.event_pb2 import Event

from rdukit_modelbox.training.journal import (
    POINTS,
    TrainingJournal,
    draw_loss_curve,
    nice_limits,
    read_lines,
    thin_out,
    write_csv,
    write_curves,
)
from support import shows

pytestmark = shows("training")


def test_lines_after_the_checkpoint_and_half_lines_go_when_a_training_resumes(tmp_path: Path) -> None:
    with TrainingJournal(tmp_path, 0) as journal:
        for step in range(1, 6):
            journal.record({"step": step, "loss": 1.0 / step})
        journal.record_evaluation(4, "dev", {"loss": 0.5})
    with journal.path.open("a") as stream:
        stream.write('{"step": 6, "lo')
    with TrainingJournal(tmp_path, 4) as journal:
        journal.record_evaluation(4, "dev", {"loss": 0.5})
        journal.record({"step": 5, "loss": 9.0})
    lines = list(read_lines(journal.path))
    assert [line["step"] for line in lines] == [1, 2, 3, 4, 4, 5]
    assert lines[-1]["loss"] == 9.0 and lines[-2]["split"] == "dev"
    with TrainingJournal(tmp_path, 0):
        pass
    assert list(read_lines(journal.path)) == []


def test_the_picture_is_valid_and_has_both_lines() -> None:
    steps = [{"step": step, "loss": 3.0 / step} for step in range(1, 2000)]
    held = [{"step": step, "loss": 1.0, "split": "dev"} for step in (500, 1000)]
    drawn = draw_loss_curve([*steps, *held, {"step": 3, "loss": float("nan")}], "a <box>")
    tree = ElementTree.fromstring(drawn)
    lines = tree.findall("{http://www.w3.org/2000/svg}polyline")
    assert [line.get("class") for line in lines] == ["train", "held"]
    assert 100 < len(str(lines[0].get("points")).split()) <= POINTS
    assert "loss on dev" in drawn and "a &lt;box&gt;" in drawn
    ElementTree.fromstring(draw_loss_curve([], "nothing"))
    ElementTree.fromstring(draw_loss_curve([{"step": 1, "loss": 0.0}], "one"))


def test_parts_are_means_and_limits_are_round() -> None:
    assert thin_out([(1.0, 2.0)]) == [(1.0, 2.0)]
    thin = thin_out([(float(i), 1.0) for i in range(POINTS * 2)])
    assert len(thin) == POINTS and thin[0] == (0.5, 1.0)
    assert nice_limits([0.13, 2.9]) == (0.0, 3.0, 0.5)
    low, high, gap = nice_limits([5.0, 5.0])
    assert low < high and 1 <= round((high - low) / gap) <= 10


def test_the_picture_has_the_split_that_was_watched() -> None:
    held = [{"step": step, "loss": 1.0, "split": "dev"} for step in (2, 4)]
    drawn = draw_loss_curve([*held, {"step": 4, "loss": 2.0, "split": "test"}], "run")
    assert "loss on dev" in drawn and "loss on test" not in drawn


def test_curves_are_csv_and_an_event_file(tmp_path: Path) -> None:
    with TrainingJournal(tmp_path, 0) as journal:
        journal.record({"step": 1, "loss": 2.0, "lr": 0.5})
        journal.record_evaluation(1, "dev", {"loss": 1.5, "accuracy": 0.25})
    for _ in range(2):
        folder = write_curves(journal.path, tmp_path / "curves")
    assert (folder / "metrics.csv").read_text().splitlines() == [
        "step,loss,lr,split,accuracy", "1,2.0,0.5,,", "1,1.5,,dev,0.25",
    ]  # fmt: skip
    (events,) = folder.glob("events.out.tfevents.*")
    data, at, found = events.read_bytes(), 0, []
    while at < len(data):  # a record: its length in 8 bytes, 4 of a checksum, the event, 4 of a checksum
        size = int.from_bytes(data[at : at + 8], "little")
        event = Event.FromString(data[at + 12 : at + 12 + size])
        found += [(event.step, value.tag, value.simple_value) for value in event.summary.value]
        at += size + 16
    assert found == [(1, "train/loss", 2.0), (1, "train/lr", 0.5), (1, "dev/loss", 1.5), (1, "dev/accuracy", 0.25)]


def test_a_journal_becomes_csv_with_a_column_for_each_name(tmp_path: Path) -> None:
    with TrainingJournal(tmp_path, 0) as journal:
        journal.record({"step": 1, "loss": 2.5, "lr": 0.1})
        journal.record_evaluation(1, "test", {"loss": 2.25, "accuracy": 0.5})
    write_csv(journal.path, tmp_path / "metrics.csv")
    assert (tmp_path / "metrics.csv").read_text() == "step,loss,lr,split,accuracy\n1,2.5,0.1,,\n1,2.25,,test,0.5\n"
