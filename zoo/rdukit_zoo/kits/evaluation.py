"""Rate models by questions of your own with several answers to choose from, by EleutherAI's lm-eval.

Each answer is rated by its probability after the question; the likeliest is the model's. lm-eval asks the server
(``local-completions``), reads the questions from a file, and needs the checkpoint's tokenizer, from a folder.
"""

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import click
import yaml

from rdukit_zoo.kits.model import KitModel, with_model

TASK = "own_questions"


def task_of(questions: Path) -> dict[str, Any]:
    """Return lm-eval's task of a file with lines of ``{"question", "choices", "answer"}``."""
    return {
        "task": TASK, "dataset_path": "json", "dataset_kwargs": {"data_files": {"test": str(questions.absolute())}},
        "test_split": "test", "output_type": "multiple_choice", "doc_to_text": "{{question}}",
        "doc_to_choice": "{{choices}}", "doc_to_target": "{{answer}}", "target_delimiter": " ",
        "metric_list": [{"metric": name, "aggregation": "mean", "higher_is_better": True}
                        for name in ("acc", "acc_norm")],
    }  # fmt: skip


@click.command()
@click.argument("questions", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@with_model
@click.option(
    "--tokenizer", type=click.Path(exists=True, file_okay=False, path_type=Path), required=True,
    help="Folder with the checkpoint's tokenizer.",
)  # fmt: skip
@click.option("--context", default=2048, show_default=True, help="Largest number of tokens that the model reads.")
@click.option("--together", default=8, show_default=True, help="Requests at once.")
@click.option("--to", "target", type=click.Path(path_type=Path), help="Folder for lm-eval's report and its answers.")
def main(questions: Path, model: KitModel, tokenizer: Path, context: int, together: int, target: Path | None) -> None:
    """Rate a model by QUESTIONS, lines of {"question", "choices", "answer"}; the answer is a choice's number, from 0.

    Example: python -m rdukit_zoo.kits.evaluation questions.jsonl --tokenizer ~/models/my-llama
    """
    arguments = {
        "model": model.name, "base_url": f"{model.client.base_url}completions", "tokenizer": str(tokenizer.absolute()),
        # A request asks for one token more than it rates.
        "max_length": context - 1, "num_concurrent": together,
    }  # fmt: skip
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, f"{TASK}.yaml").write_text(yaml.safe_dump(task_of(questions)))
        report = target or Path(folder, "report")
        command = [
            sys.executable, "-m", "lm_eval", "--model", "local-completions", "--tasks", TASK, "--include_path", folder,
            "--model_args", ",".join(f"{key}={value}" for key, value in arguments.items()),
            "--output_path", str(report), *(["--log_samples"] if target else []),
        ]  # fmt: skip
        variables = {
            **os.environ,
            "OPENAI_API_KEY": model.client.api_key,
            "HF_HUB_OFFLINE": "1",
            "HF_DATASETS_CACHE": folder,
        }
        done = subprocess.run(command, env=variables, capture_output=True, text=True, check=False)
        if done.returncode:
            raise click.ClickException(f"lm-eval failed: {done.stderr[-2000:]}; pip install 'rdukit[evaluation]'")
        (results,) = report.rglob("results_*.json")
        figures = json.loads(results.read_text())["results"][TASK]
    for name in ("acc", "acc_norm"):
        click.echo(f"{name:<9} {figures[f'{name},none']:.4f} ± {figures[f'{name}_stderr,none']:.4f}")


if __name__ == "__main__":
    main()
