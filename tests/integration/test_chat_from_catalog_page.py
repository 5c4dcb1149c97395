"""``docs/chat-from-catalog.md``: the platform takes its pipeline, with the real box's parameters."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from support import shows
from support.platform.gateway import GatewayUnderTest, gateway_under_test
from support.platform.processes import run_rdukit, short_folder

pytestmark = shows("chat-from-catalog", "gpt2", "pipelines")

PAGE = Path(__file__).parents[2] / "docs/chat-from-catalog.md"


@pytest.fixture
def gateway() -> Iterator[GatewayUnderTest]:
    with pytest.MonkeyPatch.context() as patch, short_folder() as folder:
        patch.setenv("RDUKIT_HOME", str(folder))
        with gateway_under_test() as running:
            patch.setenv("RDUKIT_GATEWAY_URL", running.url)
            yield running


def test_the_pages_questions_and_pipeline_are_taken(
    gateway: GatewayUnderTest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    text = PAGE.read_text()
    exec(re.search(r"```python\n(# questions.py\n.*?)```", text, re.DOTALL)[1], {})  # type: ignore[index]
    questions = run_rdukit("artifact", "add", "questions.jsonl", "--kind", "data").split()[0]
    (written,) = set(re.findall(r"inputs: {data: (art-\w+)}", text))
    file = tmp_path / "gpt2.yaml"
    file.write_text(re.search(r"```yaml\n(# gpt2.yaml\n.*?)```", text, re.DOTALL)[1].replace(written, questions))  # type: ignore[index]
    jobs = run_rdukit("job", "submit", "--pipeline", str(file)).split()
    steps = [gateway.ask("GET", f"/v1/jobs/{job}", gateway.admin).json()["step"] for job in jobs]
    assert steps == ["texts", "questions", "compile", "serve", "base", "tune"]
