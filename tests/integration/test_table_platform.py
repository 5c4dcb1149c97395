"""A table on a platform: its jobs, a batch prediction, an endpoint that is asked by column name, and the console."""

import csv
import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from rdukit.errors import InvalidArgument
from rdukit_platform.client import Platform
from support import shows, wait_until
from support.pages import read_page
from support.platform.processes import platform_under_test, run_rdukit, short_folder

pytestmark = [shows("tables", "endpoint", "python-client"), pytest.mark.long]


def pipeline_of(page: str, table: str) -> tuple[str, list[dict[str, Any]]]:
    """Name and steps of the page's pipeline, with the id of the table."""
    (text,) = re.findall(r"```yaml\n(.*?)```", page, re.DOTALL)
    found = yaml.safe_load(text.replace("art-…", table))
    return found["name"], found["steps"]


def test_a_table_becomes_an_endpoint_and_a_file_of_predictions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = read_page("tables.md")
    (program,) = re.findall(r"```python\n# make\.py\n(.*?)```", page, re.DOTALL)
    (tmp_path / "make.py").write_text(program)
    subprocess.run([sys.executable, "make.py"], cwd=tmp_path, check=True)
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    with short_folder() as home, platform_under_test(home, None, {"RDUKIT_KERNELS": "portable"}):
        monkeypatch.setenv("RDUKIT_HOME", str(home))
        with Platform() as platform:
            table = platform.artifacts.add(tmp_path / "customers.csv", "file")
            name, steps = pipeline_of(page, table.id)
            jobs = platform.pipelines.submit(name, steps).wait(timeout_s=900).jobs
            serving = {**steps[1]["parameters"], "purpose": "serve"}
            serve = platform.jobs.submit("mlp", "compile", parameters=serving).wait(timeout_s=600).outputs["pef"]
            checkpoint = jobs["train"].outputs["checkpoint"]
            batch = platform.jobs.submit(
                "mlp", "infer", inputs={"pef": serve, "checkpoint": checkpoint, "table": table}
            ).wait(timeout_s=600)
            batch.outputs["predictions"].download(tmp_path / "predictions.csv")
            with (tmp_path / "predictions.csv").open(newline="") as file:
                lines = list(csv.DictReader(file))
            assert len(lines) == 2000

            endpoint = platform.endpoints.create("churn", box="mlp", pef=serve.id, checkpoint=checkpoint.id)
            endpoint.wait(timeout_s=600)
            columns = ("since", "city", "plan", "fee", "calls")
            rows = [{name: line[name] or None for name in columns} for line in lines[:20]]
            answers = endpoint.predict(rows)
            assert [each["label"] for each in answers] == [line["predicted_churned"] for line in lines[:20]]
            for answer, line in zip(answers, lines, strict=False):
                assert answer["probability"] == pytest.approx(float(line["predicted_churned_probability"]), abs=2e-6)
            with pytest.raises(InvalidArgument, match="row 0, column 'city': 'Bern' is a category"):
                endpoint.predict([{**rows[0], "city": "Bern"}])
            (tmp_path / "rows.json").write_text(json.dumps(rows[:2]))
            said = run_rdukit("endpoint", "call", "churn", "--rows", str(tmp_path / "rows.json"))
            assert [line.split()[0] for line in said.splitlines()[1:]] == [each["label"] for each in answers[:2]]
            wait_until(lambda: endpoint.refresh().info.usage["rows"] >= 20)  # counted a moment after the answer
            endpoint.delete()
