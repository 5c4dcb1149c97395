"""Programs of client libraries against a served text model; only their URLs and the model's name are ours.

A library may be in another environment than the tests: ``RDUKIT_CLIENTS_PYTHON`` names its interpreter, or several.
Libraries in JavaScript are installed by npm, in the versions of ``clients/package.json``.
"""

import contextlib
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from rdukit_platform.backends.process import ProcessBox
from support import shows
from support.terse_llama import SIZES, make_terse_llama
from support.text_boxes import start_text_box

pytestmark = shows("text-models", "text-fields")

PROGRAMS = Path(__file__).parent / "clients"


@pytest.fixture(scope="module")
def served_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("clients")


@pytest.fixture(scope="module")
def box(served_folder: Path) -> Iterator[ProcessBox]:
    started = start_text_box(served_folder, make_terse_llama(), SIZES, texts=4)
    yield started
    started.stop()


#: A template whose model begins with its thoughts.
THINKING = """{% for message in messages %}{{ message.role }}: {{ message.content }}
{% endfor %}{% if add_generation_prompt %}assistant: <think>
{% if enable_thinking is defined and not enable_thinking %}

</think>
{% endif %}{% endif %}"""


@contextlib.contextmanager
def thinking(folder: Path) -> Iterator[None]:
    """Let the model of a served folder think."""
    file = folder / "checkpoint" / "chat_template.jinja"
    file.write_text(THINKING)
    try:
        yield
    finally:
        file.unlink()


@cache
def find_python(*modules: str) -> str:
    """Return the interpreter that has all modules; empty if none has."""
    pythons = [*os.environ.get("RDUKIT_CLIENTS_PYTHON", "").split(os.pathsep), sys.executable]
    code = f"import importlib.util as u, sys; sys.exit(not all(map(u.find_spec, {modules!r})))"
    found = (
        python for python in pythons if python and not subprocess.run([python, "-c", code], check=False).returncode
    )
    return next(found, "")


def environment(box: ProcessBox, folder: Path) -> dict[str, str]:
    return {
        "PATH": os.environ["PATH"], "HOME": str(folder), "CLIENT_MODEL": "llama", "NO_PROXY": "127.0.0.1,localhost",
        "OPENAI_BASE_URL": f"{box.rest_url}/v1", "OPENAI_API_BASE": f"{box.rest_url}/v1", "OPENAI_API_KEY": "none",
        "ANTHROPIC_BASE_URL": box.rest_url, "ANTHROPIC_API_BASE": box.rest_url, "ANTHROPIC_API_KEY": "none",
        "LITELLM_LOCAL_MODEL_COST_MAP": "True", "HF_HUB_OFFLINE": "1", "PYTHONWARNINGS": "ignore",
    }  # fmt: skip


def run(command: list[str], box: ProcessBox, folder: Path) -> str:
    """Run a program to its end; returns what it printed."""
    done = subprocess.run(
        command, env=environment(box, folder), cwd=folder, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, f"{done.stdout[-2000:]}\n{done.stderr[-4000:]}"
    return done.stdout


@pytest.mark.parametrize(
    ("program", "modules"),
    [
        ("uses_openai", ("openai",)),
        ("uses_anthropic", ("anthropic",)),
        pytest.param("uses_instructor", ("instructor",), marks=pytest.mark.long),
        pytest.param("uses_pydantic_ai", ("pydantic_ai", "openai"), marks=pytest.mark.long),
        pytest.param("uses_langchain", ("langchain_openai", "langchain_anthropic"), marks=pytest.mark.long),
        pytest.param("uses_llama_index", ("llama_index",), marks=pytest.mark.long),
        pytest.param("uses_litellm", ("litellm",), marks=pytest.mark.long),
    ],
)
def test_a_program_of_a_client_library_runs(
    program: str, modules: tuple[str, ...], box: ProcessBox, tmp_path: Path
) -> None:
    python = find_python(*modules)
    if not python:
        pytest.skip(
            f"{' and '.join(modules)}: missing; install rdukit[clients], RDUKIT_CLIENTS_PYTHON names its python"
        )
    assert run([python, str(PROGRAMS / f"{program}.py")], box, tmp_path).rstrip().endswith("done")


@pytest.fixture(scope="module")
def javascript(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with the packages in JavaScript and the programs that use them."""
    if shutil.which("node") is None or shutil.which("npm") is None:
        pytest.skip("Node.js with npm is not installed")
    folder = tmp_path_factory.mktemp("javascript")
    for file in (PROGRAMS / "package.json", *PROGRAMS.glob("*.mjs")):
        shutil.copy(file, folder)
    command = ["npm", "install", "--no-audit", "--no-fund", "--no-package-lock", "--ignore-scripts", "--loglevel=error"]
    try:
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=180, check=False)
    except subprocess.TimeoutExpired:
        pytest.skip("npm cannot reach its registry: no answer within 180 s")
    if done.returncode:
        pytest.skip(f"npm cannot install the client libraries: {done.stderr.strip().splitlines()[-1:]}")
    return folder


@pytest.mark.long
@pytest.mark.parametrize("program", ["uses_openai.mjs", "uses_anthropic.mjs"])
def test_a_program_of_a_client_library_in_javascript_runs(
    program: str, javascript: Path, box: ProcessBox, tmp_path: Path
) -> None:
    assert run(["node", str(javascript / program)], box, tmp_path).rstrip().endswith("done")


@pytest.mark.long
def test_the_packages_in_javascript_read_thoughts(
    javascript: Path, box: ProcessBox, served_folder: Path, tmp_path: Path
) -> None:
    with thinking(served_folder):
        assert run(["node", str(javascript / "uses_thinking.mjs")], box, tmp_path).rstrip().endswith("done")


#: Examples in the libraries' own repositories that any model can answer, without files, networks and other services.
EXAMPLES = {
    "openai-node/examples": (
        "chat-completions/demo", "chat-completions/logprobs", "chat-completions/parsing",
        "chat-completions/parsing-run-tools", "chat-completions/parsing-stream",
        "chat-completions/parsing-tools-stream", "chat-completions/stream", "chat-completions/tool-call-helpers",
        "chat-completions/tool-call-helpers-zod", "chat-completions/ui-generation", "client/raw-response",
        "responses/manual-conversation-state", "responses/stream", "responses/streaming-tools",
        "responses/structured-outputs",
    ),
    "anthropic-sdk-typescript/examples": (
        "cancellation", "count-tokens", "demo", "raw-streaming", "streaming", "structured-outputs-json-schema",
        "structured-outputs-raw", "structured-outputs-zod", "thinking", "thinking-stream",
        "tools-helpers-json-schema", "tools-helpers-zod", "tools-streaming",
    ),
}  # fmt: skip


@pytest.mark.long
@pytest.mark.parametrize("example", [f"{folder}/{name}" for folder, names in EXAMPLES.items() for name in names])
def test_an_example_of_a_librarys_repository_runs(
    example: str, javascript: Path, box: ProcessBox, served_folder: Path, tmp_path: Path
) -> None:
    """Only the model's name is changed; URLs come from the environment."""
    checkouts = os.environ.get("RDUKIT_CLIENT_EXAMPLES", "").split(os.pathsep)
    source = next((file for folder in checkouts if (file := Path(folder) / f"{example}.ts").is_file()), None)
    if not any(checkouts) or source is None:
        pytest.skip(
            f"{example}.ts: missing; RDUKIT_CLIENT_EXAMPLES names a folder with checkouts of openai-node and "
            "anthropic-sdk-typescript"
        )
    place = javascript / "examples"
    place.mkdir(exist_ok=True)
    (place / "package.json").write_text('{"type": "commonjs"}')
    program = place / f"{example.replace('/', '-')}.ts"
    program.write_text(re.sub(r"(model: )(['\"])[^'\"]+\2", r"\1'llama'", source.read_text()))
    with thinking(served_folder) if "thinking" in example else contextlib.nullcontext():
        done = subprocess.run(
            ["node", "-r", "sucrase/register", str(program)], env=environment(box, tmp_path), cwd=javascript,
            capture_output=True, text=True, timeout=120, check=False,
        )  # fmt: skip
    # Some examples print an error and end well.
    assert done.returncode == 0 and "Error" not in done.stderr, f"{done.stdout[-2000:]}\n{done.stderr[-4000:]}"


TASK = """task: of_our_own
dataset_path: json
dataset_kwargs: {data_files: {test: QUESTIONS}}
test_split: test
output_type: generate_until
doc_to_text: "{{question}}"
doc_to_target: "{{answer}}"
generation_kwargs: {until: ["\\n\\n", "Question:", "Q:", "</s>", "<|im_end|>", "z"], max_gen_toks: 24, do_sample: false}
metric_list: [{metric: exact_match, aggregation: mean, higher_is_better: true}]
"""


@pytest.mark.long
def test_lm_eval_rates_generated_answers_with_more_than_four_stops(box: ProcessBox, tmp_path: Path) -> None:
    python = find_python("lm_eval", "datasets")
    if not python:
        pytest.skip("lm_eval: missing; install rdukit[evaluation], RDUKIT_CLIENTS_PYTHON names its python")
    questions = tmp_path / "questions.jsonl"
    questions.write_text("".join(json.dumps({"question": f"{n} + 1 =", "answer": str(n + 1)}) + "\n" for n in range(4)))
    (tmp_path / "task.yaml").write_text(TASK.replace("QUESTIONS", str(questions)))
    command = [
        python, "-m", "lm_eval", "--model", "local-chat-completions", "--tasks", "of_our_own", "--include_path",
        str(tmp_path), "--apply_chat_template", "--output_path", str(tmp_path / "report"), "--model_args",
        f"model=llama,base_url={box.rest_url}/v1/chat/completions,num_concurrent=1,max_retries=1",
    ]  # fmt: skip
    run(command, box, tmp_path)
    (report,) = (tmp_path / "report").rglob("results_*.json")
    assert 0 <= json.loads(report.read_text())["results"]["of_our_own"]["exact_match,none"] <= 1
