"""A table on a platform: its jobs, a batch prediction, an endpoint that is asked by column name, and the console."""

import csv
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from rdukit.errors import InvalidArgument
from rdukit_platform.client import Platform
from support import shows, wait_until
from support.pages import read_page
from support.platform.processes import platform_under_test, run_rdukit, short_folder

pytestmark = [shows("tables", "endpoint", "python-client"), pytest.mark.long]


def test_a_table_becomes_an_endpoint_and_a_file_of_predictions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (program,) = re.findall(r"```python\n# make\.py\n(.*?)```", read_page("tables.md"), re.DOTALL)
    (tmp_path / "make.py").write_text(program)
    subprocess.run([sys.executable, "make.py"], cwd=tmp_path, check=True)
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    with short_folder() as home, platform_under_test(home, None, {"RDUKIT_KERNELS": "portable"}):
        monkeypatch.setenv("RDUKIT_HOME", str(home))
        with Platform() as platform:
            table = platform.artifacts.add(tmp_path / "customers.csv", "file")
            asked = {"label_column": "churned", "missing": "mean", "exclude": "customer"}
            data = platform.jobs.submit("mlp", "preprocess", parameters=asked, inputs={"data": table})
            sizes = data.wait(timeout_s=600).result["compile_parameters"]
            pefs = {
                purpose: platform.jobs.submit(
                    "mlp", "compile", parameters={"purpose": purpose, "hidden_size": 32, **sizes}
                )
                for purpose in ("train", "serve")
            }
            built = {purpose: job.wait(timeout_s=600).outputs["pef"] for purpose, job in pefs.items()}
            training = platform.jobs.submit(
                "mlp",
                "train",
                parameters={"epochs": 20},
                inputs={"pef": built["train"], "dataset": data.outputs["dataset"]},
            ).wait(timeout_s=600)
            checkpoint = training.outputs["checkpoint"]
            batch = platform.jobs.submit(
                "mlp", "infer", inputs={"pef": built["serve"], "checkpoint": checkpoint, "table": table}
            ).wait(timeout_s=600)
            batch.outputs["predictions"].download(tmp_path / "predictions.csv")
            with (tmp_path / "predictions.csv").open(newline="") as file:
                lines = list(csv.DictReader(file))
            assert len(lines) == 2000

            endpoint = platform.endpoints.create("churn", box="mlp", pef=built["serve"].id, checkpoint=checkpoint.id)
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
