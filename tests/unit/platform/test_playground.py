"""What the playground sends, and what it shows of answers, which are a box's and not trusted."""

import json

import pytest

from rdukit.errors import InvalidArgument
from rdukit_platform.console.playground import (
    MAX_MESSAGES,
    ChatOptions,
    ShownAnswer,
    chat_body,
    example_rows,
    infer_body,
    read_chat,
    read_history,
    read_outputs,
    rows_body,
)
from support import shows

pytestmark = shows("console", "endpoints")

METADATA = json.dumps({"inputs": [{"name": "x", "datatype": "FP32", "shape": [-1, 2, 2]}]}).encode()


def test_a_chat_is_sent_with_all_that_was_said() -> None:
    messages = [{"role": "user", "content": "Hello"}]
    body = json.loads(chat_body("gpt2", messages, ChatOptions(8, 0.5, 0.9, " 7 ", "Be brief."), logprobs=True))
    assert body == {
        "model": "gpt2", "messages": [{"role": "system", "content": "Be brief."}, *messages], "max_tokens": 8,
        "temperature": 0.5, "top_p": 0.9, "seed": 7, "logprobs": True, "top_logprobs": 4,
    }  # fmt: skip
    plain = json.loads(chat_body("gpt2", messages, ChatOptions(), logprobs=False))
    assert plain == {"model": "gpt2", "messages": messages, "max_tokens": 64, "temperature": 0.0, "top_p": 1.0}
    with pytest.raises(InvalidArgument, match="expected one, or an empty field"):
        chat_body("gpt2", messages, ChatOptions(seed="x"), logprobs=False)
    assert read_history(json.dumps(messages)) == messages
    assert read_history("") == []


@pytest.mark.parametrize(
    "history",
    ["{", "{}", '[{"role": "user"}]', '[{"role": "user", "content": 1}]', json.dumps([{}] * (MAX_MESSAGES + 1))],
)
def test_a_chat_that_the_playground_did_not_write_is_refused(history: str) -> None:
    with pytest.raises(InvalidArgument, match="begin a new chat"):
        read_history(history)


def test_tokens_are_shaded_by_their_probability_and_name_the_others() -> None:
    top = [{"token": "a", "logprob": -0.0}, {"token": "b", "logprob": -3.0}]
    content = [{"token": "a", "logprob": 0.0, "top_logprobs": top}, {"token": "b", "logprob": -3.0}, {"token": "c"}]
    choice = {"message": {"content": "abc"}, "logprobs": {"content": content}, "finish_reason": "length"}
    answer = read_chat(
        json.dumps({"choices": [choice], "usage": {"prompt_tokens": 2, "completion_tokens": 3}}).encode()
    )
    assert [(each.text, each.shade) for each in answer.tokens] == [("a", 0), ("b", 4), ("c", None)]
    assert answer.tokens[0].words == '100.0 %; likeliest: "a" 100.0 %, "b" 5.0 %'
    assert (answer.text, answer.prompt_tokens, answer.completion_tokens, answer.finish) == ("abc", 2, 3, "length")


def test_the_boxs_own_times_are_shown_where_they_are_times() -> None:
    def answer(**usage: object) -> ShownAnswer:
        return read_chat(json.dumps({"choices": [{"message": {"content": "a"}}], "usage": usage}).encode())

    found = answer(
        time_to_first_token=0.02, completion_tokens_after_first_per_sec=50.5, prompt_tokens_details={"cached_tokens": 9}
    )
    assert (found.first_s, found.rate, found.cached_tokens) == (0.02, 50.5, 9)
    for wrong in ("x", -1, 0, True, None, [1]):
        strange = answer(time_to_first_token=wrong, completion_tokens_after_first_per_sec=wrong)
        assert (strange.first_s, strange.rate, strange.cached_tokens) == (None, None, 0)


@pytest.mark.parametrize("answer", [b"no", b"[]", b"{}", b'{"choices": [1]}', b'{"choices": [{"message": null}]}'])
def test_an_answer_that_is_no_chat_is_said_to_be_none(answer: bytes) -> None:
    with pytest.raises(InvalidArgument, match="endpoint's answer"):
        read_chat(answer)


def test_rows_become_the_models_first_input() -> None:
    (tensor,) = json.loads(infer_body(METADATA, "[[1, 2, 3, 4], [5, 6, 7, 8.5]]"))["inputs"]
    assert tensor == {"name": "x", "datatype": "FP32", "shape": [2, 2, 2], "data": [1, 2, 3, 4, 5, 6, 7, 8.5]}
    assert example_rows(METADATA) == "[[0, 0, 0, 0]]"
    assert example_rows(b"{}") == ""


def test_a_model_of_a_table_has_a_row_to_fill_in_and_answers_labels() -> None:
    columns = [
        {"name": "fee", "kind": "number"}, {"name": "since", "kind": "date"},
        {"name": "city", "kind": "category", "categories": ["Oslo", "Rome"]},
    ]  # fmt: skip
    table = json.dumps({**json.loads(METADATA), "table": {"columns": columns}}).encode()
    row = example_rows(table)
    assert json.loads(row) == [{"fee": 0, "since": "2025-01-01", "city": "Oslo"}]
    assert json.loads(rows_body(table, row) or b"") == {"rows": json.loads(row)}
    assert rows_body(METADATA, row) is None
    assert rows_body(table, "[[1, 2, 3, 4]]") is None
    assert rows_body(table, "x") is None
    (output,) = read_outputs(b'{"predictions": [{"label": "yes", "probability": 0.75, "probabilities": {}}]}')
    assert output.rows[0].values == ("yes", "0.75")
    with pytest.raises(InvalidArgument, match="no displayable predictions"):
        read_outputs(b'{"predictions": [3]}')


@pytest.mark.parametrize(
    ("rows", "words"),
    [("x", "not JSON"), ("[]", "a list of rows"), ("[1]", "a list of rows"), ("[[1]]", "row 1 has 1 numbers"),
     ('[[1, 2, 3, "4"]]', "not a number"), ("[[1, 2, 3, true]]", "not a number")],
)  # fmt: skip
def test_rows_that_are_not_legal_are_refused(rows: str, words: str) -> None:
    with pytest.raises(InvalidArgument, match=words):
        infer_body(METADATA, rows)


def test_outputs_are_shown_by_their_first_rows_with_the_largest_value_marked() -> None:
    data = [0.1, 0.7, 0.2] * 30
    answer = {"outputs": [{"name": "y", "datatype": "FP32", "shape": [30, 3], "data": data}]}
    (output,) = read_outputs(json.dumps(answer).encode())
    assert (len(output.rows), output.more, output.kind) == (20, 10, "FP32 [30, 3]")
    assert (output.rows[0].values, output.rows[0].largest, output.rows[0].more) == (("0.1", "0.7", "0.2"), 1, 0)
    for strange in ({}, {"outputs": []}, {"outputs": [{"name": "y"}]}, {"outputs": 3}):
        with pytest.raises(InvalidArgument, match="endpoint's answer"):
            read_outputs(json.dumps(strange).encode())
