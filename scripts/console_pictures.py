"""Take the manual's pictures of the console from a platform that runs: ``docs/pictures/*.png``.

``python scripts/console_pictures.py`` starts a platform in a new home, runs the manual's pipelines, and takes all
pictures; ``console_pictures.py training predictions`` takes two. It needs Chromium and the test extra, and some
twenty minutes on two cores. ``--home FOLDER`` keeps the platform's folder: the next run there compiles nothing again.
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
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import yaml
from PIL import Image
from playwright.sync_api import Page, sync_playwright

from rdukit_platform.cli.demo_run import started_platform
from rdukit_platform.client import Platform
from rdukit_platform.client.jobs import Job

MANUAL: Final = Path(__file__).resolve().parents[1] / "docs"
WINDOW: Final = (1280, 800)
#: Colours that a picture keeps: a page has few.
COLOURS: Final = 128
#: Seconds for a pipeline, and for a page, on a busy machine.
PATIENCE_S: Final = 3600.0
PAGE_S: Final = 180.0
#: A training with a long curve, whose checkpoints fill the log that the picture shows.
LONG: Final = {"epochs": 24, "lr": 0.01, "checkpoint_every": 125}
#: Sizes of the chat's model; the tokens are bytes.
SIZES: Final = {"width": 128, "layers": 2, "vocabulary": 257}
#: Longest answer of a question, in characters.
ANSWER: Final = 75


@dataclass(frozen=True, slots=True)
class Camera:
    """Client of the platform, a browser window that is logged in, and the names of the requested pictures."""

    platform: Platform
    page: Page
    asked: frozenset[str]

    def run(self, name: str, steps: list[dict[str, Any]]) -> dict[str, Job]:
        """Run a pipeline to its end. Returns its jobs by step; only data and PEFs of an earlier run are used again."""
        print(f"pipeline {name!r} runs", flush=True)
        shown = [{**step, "cache": step["verb"] in {"preprocess", "compile"}} for step in steps]
        return dict(self.platform.pipelines.submit(name, shown).wait(timeout_s=PATIENCE_S).jobs)

    def open(self, path: str, awaited: str, height: int = WINDOW[1]) -> None:
        """Open a page of the console with its images in a window of this height, and wait for an element."""
        self.page.set_viewport_size({"width": WINDOW[0], "height": height})
        self.page.goto(f"{self.platform.api.url}/console{path}")
        self.page.wait_for_selector(awaited)

    def take(self, name: str) -> None:
        """Write the window as a PNG of few colours, if the picture is asked for."""
        if name in self.asked:
            image = Image.open(io.BytesIO(self.page.screenshot()))
            image.convert("RGB").quantize(COLOURS).save(MANUAL / f"pictures/{name}.png", optimize=True)
            print(MANUAL / f"pictures/{name}.png", flush=True)


def steps_of(page: str) -> tuple[str, list[dict[str, Any]]]:
    """Return name and steps of the first pipeline on a page of the manual."""
    text = (MANUAL / f"{page}.md").read_text()
    written = yaml.safe_load(text.partition("```yaml\n")[2].partition("```")[0])
    return written["name"], written["steps"]


def take_digits(camera: Camera) -> None:
    """Take the page of a training, and that of the two experts of docs/experts.md."""
    name, steps = steps_of("experts")
    jobs = camera.run(name, [*steps, {**steps[2], "name": "digits", "parameters": LONG}])
    if not any(expert.name == "digits" for expert in camera.platform.experts.list()):
        for step, passes in (("train", "one pass over 4000 images"), ("longer", "six passes")):
            camera.platform.experts.promote(jobs[step], "digits", description=f"Reads handwritten digits; {passes}.")
    camera.open(f"/jobs/{jobs['digits'].id}", "svg.curve")
    camera.take("console")
    camera.open("/experts", ".cards", height=560)
    camera.take("experts")


def take_segments(camera: Camera) -> None:
    """Take the pages of the training and of the results of docs/train-from-catalog.md."""
    jobs = camera.run(*steps_of("train-from-catalog"))
    camera.open(f"/jobs/{jobs['train'].id}", "svg.curve")
    camera.take("training")
    camera.open(f"/jobs/{jobs['results'].id}", "main img")
    camera.take("predictions")


def take_chat(camera: Camera) -> None:
    """Take the playground with two experts of one endpoint: an early checkpoint of a training, and its last."""
    with tempfile.TemporaryDirectory() as folder:
        questions, bundle = Path(folder) / "questions.jsonl", Path(folder) / "bundle.yaml"
        questions.write_text("".join(f"{json.dumps(pair)}\n" for pair in ask_of_functions()))
        jobs = camera.run("a GPT-2 that answers", chat_steps(camera.platform.artifacts.add(questions, "data").id))
        described = {"apiVersion": "rdukit.dev/v1", "kind": "Bundle", "name": "answers", "memory": {"host": "64MiB"}}
        served = {"name": "small", "pef": f"artifact://{jobs['serve'].outputs['pef'].id}"}
        experts = [
            {"name": name, "configuration": "small", "pinned": True,
             "checkpoint": f"artifact://{jobs[step].outputs['checkpoint'].id}"}
            for name, step in (("tuned", "tune"), ("early", "early"))
        ]  # fmt: skip
        bundle.write_text(yaml.safe_dump({**described, "configurations": [served], "experts": experts}))
        endpoint = camera.platform.endpoints.create("chat", bundle=camera.platform.artifacts.add(bundle, "bundle"))
    try:
        endpoint.wait(timeout_s=PATIENCE_S)
        camera.open("/endpoints/chat/playground?form=chat", "#prompt", height=900)
        page = camera.page
        page.fill("#prompt", "What does abs do?")
        page.fill("#temperature", "0")
        page.fill("#max_tokens", "48")
        page.select_option("#model", "tuned")
        page.select_option("#beside", label="chat/early")
        page.click("button[value=call]")
        page.locator(".assistant .figures").nth(1).wait_for()
        page.evaluate("document.activeElement.blur(); scrollTo(0, 0)")
        camera.take("playground")
    finally:
        endpoint.delete()


def chat_steps(data: str) -> list[dict[str, Any]]:
    """Return a pipeline that trains a small GPT-2 on questions, a short and a longer time, and compiles it to serve."""
    packed = {"input_packing_config": "single::drop", "dev_ratio": 0}
    built = {"pef": "@compile.pef", "dataset": "@questions.dataset"}
    further = {"continue_as": "weights", "epochs": 100, "lr": 0.003}
    return [
        {"name": "questions", "box": "gpt2", "verb": "preprocess", "inputs": {"data": data}, "parameters": packed},
        {"name": "compile", "box": "gpt2", "verb": "compile", "parameters": {**SIZES, "batch_size": 8}},
        {"name": "serve", "box": "gpt2", "verb": "compile",
         "parameters": {**SIZES, "batch_size": 4, "purpose": "serve"}},
        {"name": "early", "box": "gpt2", "verb": "train", "inputs": built,
         "parameters": {"epochs": 20, "lr": 0.003}},
        {"name": "tune", "box": "gpt2", "verb": "train", "inputs": {**built, "checkpoint": "@early.checkpoint"},
         "parameters": further},
    ]  # fmt: skip


def ask_of_functions() -> Iterator[dict[str, str]]:
    """Yield a question about each of Python's own functions, with the first line of its help as the answer."""
    for name, function in vars(builtins).items():
        answer = (inspect.getdoc(function) or "").partition("\n")[0]
        if inspect.isroutine(function) and answer.endswith(".") and len(answer) < ANSWER:
            yield {"prompt": f"user: What does {name} do?\nassistant:", "completion": answer}


#: What takes pictures → the pictures.
SCENES: Final[dict[Callable[[Camera], None], tuple[str, ...]]] = {
    take_digits: ("console", "experts"),
    take_segments: ("training", "predictions"),
    take_chat: ("playground",),
}
NAMES: Final = tuple(name for names in SCENES.values() for name in names)


@contextmanager
def opened_console(home: Path, chromium: str, asked: frozenset[str]) -> Iterator[Camera]:
    """Yield a camera in a browser that is logged in to a platform of this home folder."""
    with started_platform(home) as (_, running), sync_playwright() as started:
        token = Path(running["token_file"]).read_text().strip()
        browser = started.chromium.launch(executable_path=chromium, args=["--no-sandbox", "--disable-gpu"])
        page = browser.new_page()
        page.set_default_timeout(PAGE_S * 1000)
        page.goto(f"{running['url']}/console")
        page.fill("#token", token)
        page.click("button.primary")
        page.wait_for_selector("#overview")
        yield Camera(Platform(running["url"], token=token), page, asked)
        browser.close()


def main() -> None:
    """Run the jobs and take the pictures."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("names", nargs="*", metavar="NAME", help=f"pictures: {', '.join(NAMES)} (default: all)")
    options.add_argument("--home", type=Path, help="home folder of the platform (default: one that is removed)")
    given = options.parse_args()
    if unknown := sorted(set(given.names) - set(NAMES)):
        options.error(f"unknown pictures {', '.join(unknown)}; expected some of {', '.join(NAMES)}")
    chromium = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    if chromium is None:
        sys.exit("no Chromium is installed (Debian: apt-get install chromium)")
    asked = frozenset(given.names or NAMES)
    home = given.home or Path(tempfile.mkdtemp(prefix="rdk", dir="/tmp"))
    try:
        with opened_console(home, chromium, asked) as camera:
            for scene, names in SCENES.items():
                if asked.intersection(names):
                    scene(camera)
    finally:
        if given.home is None:
            shutil.rmtree(home, ignore_errors=True)


if __name__ == "__main__":
    main()
