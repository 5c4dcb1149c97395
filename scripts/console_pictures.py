"""Take the manual's pictures of the console from a platform that runs: ``docs/pictures/*.png``.

``python scripts/console_pictures.py`` starts a platform in a new home, runs the jobs of all pictures, and takes them.
It needs Chromium and the test extra, and half an hour on two cores; ``RDUKIT_KERNELS=portable`` compiles faster.

``console_pictures.py digits chat`` takes some: ``digits`` is console.png and experts.png, ``unet`` training.png and
predictions.png, ``chat`` playground.png. ``--here`` uses the platform that runs in the home folder (``RDUKIT_HOME``).
"""

import argparse
import builtins
import inspect
import io
import json
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import yaml
from PIL import Image
from playwright.sync_api import Page, sync_playwright

from rdukit.settings import home_folder
from rdukit_platform.cli.demo_run import started_platform
from rdukit_platform.client import Platform
from rdukit_platform.client.pipelines import Pipeline

MANUAL: Final = Path(__file__).resolve().parents[1] / "docs"
PICTURES: Final = MANUAL / "pictures"
WINDOW: Final = {"width": 1280, "height": 800}
#: Colours that a picture keeps: a page has few.
COLOURS: Final = 128
#: Seconds for a pipeline on a busy machine.
PATIENCE_S: Final = 3600.0
SIZES: Final = {"width": 128, "layers": 4, "vocabulary": 257}
TUNE: Final = {"continue_as": "weights", "epochs": 60, "lr": 0.003}
#: A training with a long curve, whose checkpoints fill the log that the picture shows.
LONG: Final = {"epochs": 24, "lr": 0.01, "checkpoint_every": 125}
#: Longest answer of a question, in characters.
ANSWER: Final = 75


def run(platform: Platform, name: str, steps: list[dict[str, Any]]) -> Pipeline:
    """Run a pipeline to its end."""
    return platform.pipelines.submit(name, steps).wait(timeout_s=PATIENCE_S)


def steps_of(page: str) -> tuple[str, list[dict[str, Any]]]:
    """Return name and steps of the first pipeline on a page of the manual."""
    text = (MANUAL / f"{page}.md").read_text()
    asked = yaml.safe_load(text.partition("```yaml\n")[2].partition("```")[0])
    return asked["name"], asked["steps"]


def open_page(page: Page, path: str, awaited: str) -> None:
    """Open a path of the console, and wait for an element."""
    page.goto(page.url.partition("/console")[0] + path)
    page.wait_for_selector(awaited)


def take_picture(page: Page, name: str) -> None:
    """Write the window as a PNG of few colours."""
    image = Image.open(io.BytesIO(page.screenshot()))
    image.convert("RGB").quantize(COLOURS).save(PICTURES / f"{name}.png", optimize=True)
    print(PICTURES / f"{name}.png", flush=True)


def take_digits(platform: Platform, page: Page) -> None:
    """Take the page of a training, and that of two experts."""
    name, steps = steps_of("experts")
    shown = {**steps[2], "name": "digits", "parameters": LONG}
    jobs = run(platform, name, [*steps, shown]).jobs
    platform.experts.promote(jobs["train"], "digits", description="Reads handwritten digits; one pass.")
    platform.experts.promote(jobs["longer"], "digits", description="Reads handwritten digits; six passes.")
    open_page(page, f"/console/jobs/{jobs['digits'].id}", "svg.curve")
    take_picture(page, "console")
    open_page(page, "/console/experts", ".cards")
    page.set_viewport_size({"width": 1280, "height": 560})
    take_picture(page, "experts")


def take_unet(platform: Platform, page: Page) -> None:
    """Take the pages of a training and of its results, with the picture of what the model made."""
    jobs = run(platform, *steps_of("train-from-catalog")).jobs
    open_page(page, f"/console/jobs/{jobs['train'].id}", "svg.curve")
    take_picture(page, "training")
    open_page(page, f"/console/jobs/{jobs['results'].id}", "main img")
    page.wait_for_function("[...document.images].every(one => one.complete)")
    take_picture(page, "predictions")


def take_chat(platform: Platform, page: Page) -> None:
    """Take the playground with two experts of one endpoint: an early checkpoint of a training, and its last."""
    with tempfile.TemporaryDirectory() as folder:
        questions, bundle = Path(folder) / "questions.jsonl", Path(folder) / "bundle.yaml"
        questions.write_text("\n".join(map(json.dumps, ask_of_functions())) + "\n")
        data = platform.artifacts.add(questions, "data")
        jobs = run(platform, "a GPT-2 that answers", chat_steps(data.id)).jobs
        experts = [
            {"name": name, "configuration": "small", "pinned": True,
             "checkpoint": f"artifact://{jobs[step].outputs['checkpoint'].id}"}
            for name, step in (("tuned", "tune"), ("early", "early"))
        ]  # fmt: skip
        served = {"name": "small", "pef": f"artifact://{jobs['serve'].outputs['pef'].id}"}
        described = {"apiVersion": "rdukit.dev/v1", "kind": "Bundle", "name": "answers", "memory": {"host": "64MiB"}}
        bundle.write_text(yaml.safe_dump({**described, "configurations": [served], "experts": experts}))
        endpoint = platform.endpoints.create("chat", bundle=platform.artifacts.add(bundle, "bundle"))
    endpoint.wait(timeout_s=PATIENCE_S)
    page.set_viewport_size({"width": 1280, "height": 940})
    open_page(page, "/console/endpoints/chat/playground?form=chat", "#prompt")
    page.fill("#prompt", "What does abs do?")
    page.fill("#temperature", "0")
    page.fill("#max_tokens", "48")
    page.select_option("#model", "tuned")
    page.select_option("#beside", label="chat/early")
    page.click("button[value=call]")
    page.wait_for_function("document.querySelectorAll('.assistant .figures').length == 2")
    page.evaluate("document.activeElement.blur(); scrollTo(0, 0)")
    take_picture(page, "playground")


def chat_steps(data: str) -> list[dict[str, Any]]:
    """Return a pipeline that trains a small GPT-2 on questions, a short and a longer time, and compiles it to serve."""
    packed = {"input_packing_config": "single::drop", "dev_ratio": 0}
    built = {"pef": "@compile.pef", "dataset": "@questions.dataset"}
    return [
        {"name": "questions", "box": "gpt2", "verb": "preprocess", "inputs": {"data": data}, "parameters": packed},
        {"name": "compile", "box": "gpt2", "verb": "compile", "parameters": {**SIZES, "batch_size": 16}},
        {"name": "serve", "box": "gpt2", "verb": "compile",
         "parameters": {**SIZES, "batch_size": 4, "purpose": "serve"}},
        {"name": "early", "box": "gpt2", "verb": "train", "inputs": built,
         "parameters": {"epochs": 20, "lr": 0.003}},
        {"name": "tune", "box": "gpt2", "verb": "train", "inputs": {**built, "checkpoint": "@early.checkpoint"},
         "parameters": TUNE},
    ]  # fmt: skip


def ask_of_functions() -> Iterator[dict[str, str]]:
    """Yield a question about each of Python's own functions, with the first line of its help as the answer."""
    for name, function in vars(builtins).items():
        answer = (inspect.getdoc(function) or "").partition("\n")[0]
        if inspect.isroutine(function) and answer.endswith(".") and len(answer) < ANSWER:
            yield {"prompt": f"user: What does {name} do?\nassistant:", "completion": answer}


SETS: Final[dict[str, Callable[[Platform, Page], None]]] = {"digits": take_digits, "unet": take_unet, "chat": take_chat}


@contextmanager
def chosen_platform(is_here: bool) -> Iterator[tuple[Platform, str]]:
    """Yield a client of the platform that runs here, or of one in a new home, with its token."""
    if is_here:
        yield Platform(), (home_folder() / "token").read_text().strip()
        return
    home = Path(tempfile.mkdtemp(prefix="rdk", dir="/tmp"))
    try:
        with started_platform(home) as (_, running):
            token = Path(running["token_file"]).read_text().strip()
            yield Platform(running["url"], token=token), token
    finally:
        shutil.rmtree(home, ignore_errors=True)


def main() -> None:
    """Run the jobs and take the pictures."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("sets", nargs="*", help=f"which pictures: {', '.join(SETS)} (default: all)")
    options.add_argument("--here", action="store_true", help="take them of the platform that runs in the home folder")
    asked = options.parse_args()
    if unknown := [name for name in asked.sets if name not in SETS]:
        options.error(f"unknown pictures {', '.join(unknown)}; expected {', '.join(SETS)}")
    chromium = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    if chromium is None:
        sys.exit("no Chromium is installed (Debian: apt-get install chromium)")
    with chosen_platform(asked.here) as (platform, token), sync_playwright() as started:
        browser = started.chromium.launch(executable_path=chromium, args=["--no-sandbox", "--disable-gpu"])
        page = browser.new_page(viewport=WINDOW)  # type: ignore[arg-type]
        page.set_default_timeout(PATIENCE_S * 1000 / 20)
        page.goto(f"{platform.api.url}/console")
        page.fill("#token", token)
        page.click("button.primary")
        page.wait_for_selector("#overview")
        for name in asked.sets or SETS:
            page.set_viewport_size(WINDOW)  # type: ignore[arg-type]
            SETS[name](platform, page)
        browser.close()


if __name__ == "__main__":
    main()
