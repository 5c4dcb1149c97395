"""Take the manual's picture of the console from a platform that runs: ``docs/pictures/console.png``.

``python scripts/console_pictures.py`` starts a platform in a new home, preprocesses, compiles, trains and infers on
real digits, and takes a picture of the training's page. It needs Chromium and the test extra, and some minutes.
``--home FOLDER`` keeps the platform's folder.
"""

import argparse
import io
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any

from PIL import Image
from playwright.sync_api import Page, sync_playwright

from rdukit_platform.cli.demo_run import follow_pipeline, started_platform
from rdukit_platform.cli.local import demo_steps
from rdukit_platform.client.http import ApiClient

PICTURES = Path(__file__).resolve().parents[1] / "docs/pictures"
WINDOW = {"width": 1280, "height": 800}
#: Colours that a picture keeps: a page has few.
COLOURS = 128


def run_jobs(client: ApiClient) -> str:
    """Run the demo's pipeline to its end. Returns the page of its training."""
    pipeline = follow_pipeline(
        client, client.submit("/v1/pipelines", {"name": "handwritten digits", "steps": demo_steps("logreg")})["id"]
    )
    jobs: dict[str, dict[str, Any]] = {job["step"]: job for job in pipeline["jobs"]}
    failed = {step: job["error"] for step, job in jobs.items() if job["state"] != "succeeded"}
    if failed:
        raise SystemExit(f"no pictures: steps of the pipeline failed: {failed}")
    return f"/console/jobs/{jobs['train']['id']}"


def take_picture(page: Page, name: str) -> None:
    """Write the window as a PNG of few colours."""
    image = Image.open(io.BytesIO(page.screenshot()))
    image.convert("RGB").quantize(COLOURS).save(PICTURES / f"{name}.png", optimize=True)


def main() -> None:
    """Run the jobs and take the picture."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--home", type=Path, help="home folder of the platform (default: one that is removed)")
    asked = options.parse_args()
    chromium = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    if chromium is None:
        sys.exit("no Chromium is installed (Debian: apt-get install chromium)")
    home = asked.home or Path(tempfile.mkdtemp(prefix="rdk", dir="/tmp"))
    try:
        with started_platform(home) as (client, running), sync_playwright() as started:
            trained = run_jobs(client)
            browser = started.chromium.launch(executable_path=chromium, args=["--no-sandbox", "--disable-gpu"])
            page = browser.new_page(viewport=WINDOW)  # type: ignore[arg-type]
            page.goto(f"{running['url']}/console")
            page.fill("#token", Path(running["token_file"]).read_text().strip())
            page.click("button.primary")
            page.wait_for_selector("#overview")
            page.goto(running["url"] + trained)
            page.wait_for_selector("svg.curve")
            take_picture(page, "console")
            browser.close()
    finally:
        if asked.home is None:
            shutil.rmtree(home, ignore_errors=True)


if __name__ == "__main__":
    main()
