"""The starter kits against a box with a small model of random weights: that they run, not what such a model says."""

import json
import re
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import click
import jsonschema
import pytest
from click.testing import CliRunner, Result

from rdukit_platform.backends.process import ProcessBox
from rdukit_zoo.kits import chat, evaluation, extraction, retrieval, tools
from support import shows
from support.text_boxes import make_tiny_llama, start_text_box

pytestmark = shows("kits")

SIZES = {
    "width": 16, "layers": 1, "heads": 2, "key_value_heads": 1, "feed_forward": 16, "vocabulary": 257,
    "context_length": 2048, "prompt_length": 256,
}  # fmt: skip
TEMPLATE = (
    "{% for tool in tools or [] %}{{ tool.function.name }} {% endfor %}{% for m in messages %}{{ m.role }}: "
    "{{ m.content or '' }}{% for call in m.tool_calls or [] %}<tool_call>{{ call.function.name }}{% endfor %}\n"
    "{% endfor %}"
)


@pytest.fixture(scope="module")
def box(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ProcessBox]:
    folder = tmp_path_factory.mktemp("kits")
    started = start_text_box(folder, make_tiny_llama(SIZES), SIZES, texts=4)
    (folder / "checkpoint" / "chat_template.jinja").write_text(TEMPLATE)
    yield started
    started.stop()


def run(command: click.Command, box: ProcessBox, *arguments: object, lines: str = "") -> Result:
    asked = [*map(str, arguments), "--url", f"{box.rest_url}/v1"]
    done = CliRunner().invoke(command, asked, input=lines, catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return done


def test_chat_answers_line_by_line_with_its_figures_and_knows_the_turn_before(box: ProcessBox) -> None:
    done = run(chat.main, box, "--system", "Be brief.", "--most", 12, lines="hello\nand again\n" + "x" * 3000 + "\n\n")
    figures = re.findall(
        r"llama: first token after \d+ ms, then [\d.]+ tokens/s; (\d+) tokens read, (\d+) of", done.stderr
    )
    assert len(figures) == 2 and int(figures[1][0]) > int(figures[0][0])
    assert int(figures[1][1]) >= int(figures[0][0])  # the whole turn before was in the caches
    assert "expected 1 to 2047; forgetting the first turn" in done.stderr


def test_retrieval_cites_passages_that_it_was_shown(box: ProcessBox, tmp_path: Path) -> None:
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "bees.md").write_text("Bees live in hives.\n\n" + "They make honey of nectar. " * 12)
    (tmp_path / "docs" / "cats.md").write_text("Cats sleep most of the day.\nThey hunt at night.")
    index = tmp_path / "index.npz"
    told = run(retrieval.main, box, "index", tmp_path / "docs", "--to", index, "--size", 120)
    assert re.match(r"[4-6] passages of 2 files", told.output)
    answer = run(retrieval.main, box, "ask", "Where do bees live?", "--index", index, "--most", 900)
    cited = re.findall(r"^\[[123]\] (.*):(\d+)$", answer.output, re.M)
    assert cited
    for file, line in cited:
        assert 1 <= int(line) <= len(Path(file).read_text().splitlines())


def test_passages_are_whole_lines_where_these_are_short_enough() -> None:
    assert list(retrieval.cut("a\nb\n\n" + "c" * 25 + "\nd", 10)) == [
        (1, "a\nb\n"), (4, "c" * 10), (4, "c" * 10), (4, "ccccc\nd"),
    ]  # fmt: skip


def test_extraction_gives_a_line_of_legal_json_for_each_file(box: ProcessBox, tmp_path: Path) -> None:
    files = [tmp_path / f"{number}.txt" for number in range(5)]
    for file in files:
        file.write_text(f"Letter {file.stem} of Ada Lovelace, London 1843.")
    lines = [json.loads(line) for line in run(extraction.main, box, *files, "--most", 700).output.splitlines()]
    assert [line["file"] for line in lines] == [str(file) for file in files]
    for line in lines:
        jsonschema.validate(line["facts"], extraction.SCHEMA)
    schema = tmp_path / "schema.json"
    schema.write_text('{"enum": ["a letter", "a bill"]}')
    (line,) = run(extraction.main, box, files[0], "--schema", schema).output.splitlines()
    assert json.loads(line)["facts"] in {"a letter", "a bill"}
    (cut,) = run(extraction.main, box, files[0], "--most", 1).output.splitlines()
    assert "incomplete after 1 tokens" in json.loads(cut)["error"]


def test_a_tool_that_the_model_calls_is_run_and_its_result_goes_back(box: ProcessBox, tmp_path: Path) -> None:
    with sqlite3.connect(tmp_path / "shop.db") as database:
        database.execute("CREATE TABLE orders (id INTEGER)")
    done = run(tools.main, box, "What is 2 + 3?", "--must-call", "--database", tmp_path / "shop.db", "--rounds", 2,
               "--most", 400)  # fmt: skip
    assert re.match(r"(calculate|clock|query)\(\{.*\}\) = ", done.stderr)
    assert done.stdout.strip()  # what it says after it
    refused = CliRunner().invoke(tools.main, ["long " * 500, "--url", f"{box.rest_url}/v1"])
    assert (refused.exit_code, refused.output.count("\n")) == (1, 1) and "expected 1 to 2047" in refused.output


def test_tools_do_what_they_should_and_nothing_else(tmp_path: Path) -> None:
    assert tools.calculate("-(2 + 3) * 4 / 8") == -2.5
    for wrong in ("__import__('os').system('x')", "2 ** 99999999", "'a' * 9", "x", "[1]"):
        with pytest.raises((ValueError, SyntaxError)):
            tools.calculate(wrong)
    with sqlite3.connect(tmp_path / "shop.db") as database:
        database.execute("CREATE TABLE orders (id INTEGER)")
        database.execute("INSERT INTO orders VALUES (7)")
    query = tools.make_query(tmp_path / "shop.db")
    assert query("SELECT id FROM orders") == [(7,)]
    other = tmp_path / "other.db"
    for wrong in ("DROP TABLE orders", "INSERT INTO orders VALUES (8)", "SELECT 1; DROP TABLE orders",
                  f"VACUUM INTO '{other}'", f"ATTACH '{other}' AS other"):  # fmt: skip
        with pytest.raises(sqlite3.Error):
            query(wrong)
    assert query("SELECT count(*) FROM orders") == [(1,)] and not other.exists()
    hasty = tools.make_query(tmp_path / "shop.db", most_s=0)
    with pytest.raises(sqlite3.Error, match="interrupted"):
        hasty("WITH RECURSIVE n(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM n) SELECT max(x) FROM n")


def test_whatever_a_model_calls_is_answered(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with sqlite3.connect(tmp_path / "what?.db"):
        pass
    calls = [("rob", {}), ("query", {"sql": "SELECT x'00ff'"}), ("calculate", {}), ("clock", ["x"])]
    asked: list[Any] = []

    class OddModel:
        """A model that calls what it likes, then says what it was told."""

        def create(self, messages: list[Any], tool_choice: str, **_: Any) -> Any:
            asked.append(tool_choice)
            made = [
                SimpleNamespace(id=name, function=SimpleNamespace(name=name, arguments=json.dumps(arguments)))
                for name, arguments in calls
            ]
            told = [each["content"] for each in messages if each["role"] == "tool"]
            dumped = {"role": "assistant", "content": "calls"}
            message = SimpleNamespace(
                content=" | ".join(told), tool_calls=None if told else made, model_dump=lambda exclude_none: dumped
            )
            return SimpleNamespace(choices=[SimpleNamespace(message=message)])

    client = SimpleNamespace(chat=SimpleNamespace(completions=OddModel()))
    tools.converse(
        client, "odd", "?", {"query": tools.make_query(tmp_path / "what?.db"), "calculate": tools.calculate}, True, 3, 9
    )
    unknown, blob, lacking, other = capsys.readouterr().out.strip().split(" | ")
    assert all("error: " in each for each in (unknown, lacking, other)) and "x00" in blob
    assert asked == ["required", "auto"]


def test_evaluation_rates_a_model_by_ones_own_questions(box: ProcessBox, tmp_path: Path) -> None:
    pytest.importorskip("lm_eval", reason="needs the extra rdukit[evaluation], lm-eval and its many packages")
    questions = tmp_path / "questions.jsonl"
    asked = [{"question": f"{n} and 1 make", "choices": [str(n + 1), "none"], "answer": 0} for n in range(8)]
    questions.write_text("".join(json.dumps(line) + "\n" for line in asked))
    done = run(evaluation.main, box, questions, "--tokenizer", tmp_path, "--context", 2048, "--to", tmp_path / "report")
    accuracy = re.search(r"^acc +([01]\.\d{4}) ", done.output, re.M)
    assert accuracy is not None and float(accuracy[1]) * 8 == int(float(accuracy[1]) * 8)


def test_a_task_of_own_questions_names_what_lm_eval_reads(tmp_path: Path) -> None:
    task = evaluation.task_of(tmp_path / "q.jsonl")
    assert task["dataset_kwargs"] == {"data_files": {"test": str(tmp_path / "q.jsonl")}}
    assert (task["output_type"], task["doc_to_choice"], task["doc_to_target"]) == (
        "multiple_choice", "{{choices}}", "{{answer}}",
    )  # fmt: skip
