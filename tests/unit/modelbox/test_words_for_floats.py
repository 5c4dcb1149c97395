"""Floats that JSON lacks, on their ways out of a box: words everywhere, and numbers again where a box reads them."""

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rdukit.box.sse import frame_event
from rdukit.errors import RuntimeFault
from rdukit_modelbox.contract.box import Verb
from rdukit_modelbox.operations.supervisor import ChildLimits, Watch, judge
from rdukit_modelbox.operations.values import Operation, OperationEvent, OperationState
from rdukit_modelbox.server.grpc_messages import operation_message, progress_message
from rdukit_modelbox.training.journal import TrainingJournal
from rdukit_modelbox.verbs.context import Progress
from rdukit_serving.rest.web import JsonAnswer
from rdukit_serving.text.sampling import UNLIKELY, check_numbers, log_probabilities
from support import shows

pytestmark = shows("wire", "operations", "inference")

WRONG = Progress("train", 1, 2, loss=math.nan, throughput=math.inf, eta_s=-math.inf)
TOLD = {"stage": "train", "step": 1, "total": 2, "loss": "NaN", "throughput": "Infinity", "eta_s": "-Infinity"}


def loads(text: str | bytes) -> Any:
    """As a reader that knows no more than JSON."""

    def refuse(word: str) -> None:
        raise AssertionError(f"{word} is no JSON")

    return json.loads(text, parse_constant=refuse)


def diverged() -> Operation:
    """A training whose figures are no numbers, as its child tells them."""
    last = {"kind": "result", "result": {"held_out_loss": math.nan, "curve": [math.inf]}, "outputs": {}}
    outcome = judge(last, 0, Watch(), ChildLimits(), "", was_short_of_memory=False)
    assert outcome.succeeded is not None
    return Operation(
        "op-1", Verb.TRAIN, OperationState.SUCCEEDED, 1.0, result=outcome.succeeded[0], outputs={}, progress=WRONG
    )


def test_progress_is_told_in_words_and_read_as_numbers() -> None:
    assert WRONG.to_json() == TOLD
    read = Progress.from_json(loads(json.dumps(WRONG.to_json())))
    assert (read.throughput, read.eta_s) == (math.inf, -math.inf)
    assert read.loss is not None
    assert math.isnan(read.loss)


def test_every_json_that_tells_of_an_operation_has_words() -> None:
    operation = diverged()
    event = OperationEvent(3, "result", 2.0, operation=operation, progress=WRONG)
    frame = frame_event("result", 3, event.to_json()).decode()
    assert loads(frame.split("data: ")[1])["progress"] == TOLD
    answered = loads(JsonAnswer(operation.to_json()).body)
    assert answered["result"] == {"held_out_loss": "NaN", "curve": ["Infinity"]}
    assert answered["progress"] == TOLD


def test_protobuf_has_such_doubles_and_words_where_it_stands_for_json() -> None:
    message = operation_message(diverged())
    assert math.isnan(progress_message(WRONG).loss)
    assert message.progress.throughput == math.inf
    assert message.result["held_out_loss"] == "NaN"


def test_a_trainings_lines_are_json(tmp_path: Path) -> None:
    with TrainingJournal(tmp_path, 0) as journal:
        journal.record_evaluation(1, "test", {"loss": math.nan})
    assert loads(journal.path.read_text()) == {"step": 1, "split": "test", "loss": "NaN"}


def test_rows_that_are_no_numbers_are_words() -> None:
    assert loads(JsonAnswer({"outputs": [[math.nan, math.inf, 1.0]]}).body) == {"outputs": [["NaN", "Infinity", 1.0]]}


@pytest.mark.parametrize("logits", [[math.nan, 1.0], [1.0, math.inf], [-math.inf, -math.inf]])
def test_no_text_is_made_of_what_is_no_number(logits: list[float]) -> None:
    with pytest.raises(RuntimeFault, match="graph 'decode' computed NaN or infinite values"):
        check_numbers("decode", np.array(logits, np.float32))


def test_a_token_that_cannot_come_is_unlikely_but_an_embedding_has_numbers_only() -> None:
    values = np.array([0.0, -math.inf], np.float32)
    check_numbers("prefill", values)
    assert log_probabilities(values).tolist() == [0.0, UNLIKELY]
    with pytest.raises(RuntimeFault):
        check_numbers("embed", values)
