"""How large is ``report.html`` of a program with 10,000 sections, and how fast does it open and sort? ::

    python benchmarks/programs/bench_report_page.py [--sections 10000] [--runs 20] [--repeat 5] [--json FILE]

The recording is made up; all parts of the page are drawn from it as from a real one. Chromium opens the page from its
file. First paint and sorting are wall times, which other programs disturb; the page's main thread is also timed by its
own processor time.
"""

import argparse
import tempfile
from pathlib import Path
from shutil import which
from statistics import median
from typing import Any

from playwright.sync_api import Browser, CDPSession, sync_playwright
from rdukit_bench.comparisons.machine import write_json

from rdukit.cli.tables import print_table
from rdukit_runtime.profile.recording import ProcessRecording, TimedCall
from rdukit_runtime.profile.step import ROWS, Breakdown, BreakdownRow
from rdukit_runtime.report.make import build_page
from rdukit_runtime.report.page import render_page

#: Time of a section, ns, and of the work around a run.
SECTION_NS, AROUND_NS = 20_000, 500_000
_SORTS = 3
#: Resolves with the time of the first paint once there is one.
FIRST_PAINT = """new Promise(done => { const look = () => {
  const [first] = performance.getEntriesByType("paint");
  if (first) done(first.startTime); else setTimeout(look, 10);
}; look(); })"""
SORT = """() => {
  const button = [...document.querySelectorAll("th button")].find(each => each.textContent === "host time");
  const began = performance.now();
  button.click(); document.body.offsetHeight;
  return performance.now() - began;
}"""


def make_recording(count: int, runs: int) -> ProcessRecording:
    """Return a recording whose runs have ``count`` sections each, in turns forward, backward and optimizer."""
    types = ("fwd", "bckwd", "opt")
    sections = [
        {
            "id": n, "name": f"model.layers.{n // 40}.attention.projection_{n}", "type": types[3 * n // count],
            "graph": "train", "kernel": f"{n:064x}", "form": "native", "rule": "gemm_bias_activation",
            "operators": ["linear", "relu"], "emulated_ns": 1000, "flops": 10**6, "bytes": 10**5, "device_bytes": n,
        }
        for n in range(count)
    ]  # fmt: skip
    calls, at, stack = [], 0, (("/home/user/train.py", 7, "train"),)
    for _ in range(runs):
        ran = tuple((n, SECTION_NS + n % 997) for n in range(count))
        taken = sum(ns for _, ns in ran)
        calls.append(TimedCall(BreakdownRow.SAMBA, "run", at, at + taken + AROUND_NS, stack, 0, ()))
        calls.append(TimedCall(BreakdownRow.RUN_HW, "run", at + 1000, at + taken + 1000, None, 0, ran))
        at += taken + 2 * AROUND_NS
    spent = dict.fromkeys(ROWS, 0)
    computing = sum(call.end_ns - call.begin_ns for call in calls if call.sections)
    spent |= {BreakdownRow.TOTAL: at, BreakdownRow.RUN_HW: computing, BreakdownRow.SAMBA: at - computing}
    pef = {"name": "large", "arch": "sn30", "mode": "o0", "path": "/nowhere.pef", "threads": 1, "device": "cpu",
           "sections": sections}  # fmt: skip
    memory = tuple((n * at // 1000, 10**9 + n) for n in range(1000))
    return ProcessRecording(1, 0, 0, at, tuple(calls), (pef,), memory, 0, {}, Breakdown(spent, runs, 1))


def measure(browser: Browser, path: Path) -> dict[str, float]:
    """Return milliseconds of a page: first paint, sorting, and the main thread's processor time for opening."""
    page = browser.new_page(viewport={"width": 1280, "height": 800})
    session = page.context.new_cdp_session(page)
    session.send("Performance.enable", {"timeDomain": "threadTicks"})
    page.goto(path.as_uri())
    paint = float(page.evaluate(FIRST_PAINT))
    opened = spent_ms(session)
    sorting = [float(page.evaluate(SORT)) for _ in range(_SORTS)]
    sorted_by = spent_ms(session)
    page.close()
    return {
        "first paint": paint, "opening, processor": opened, "sort": median(sorting),
        "sort, processor": (sorted_by - opened) / _SORTS,
    }  # fmt: skip


def spent_ms(session: CDPSession) -> float:
    """Return the processor time of the page's main thread so far."""
    found = {each["name"]: each["value"] for each in session.send("Performance.getMetrics")["metrics"]}
    return 1000 * float(found["TaskDuration"])


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sections", type=int, default=10_000)
    parser.add_argument("--runs", type=int, default=20)
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--json")
    args = parser.parse_args()
    chromium = next(filter(None, map(which, ("chromium", "chromium-browser", "google-chrome"))), None)
    recording = make_recording(args.sections, args.runs)
    samples: list[dict[str, float]] = []
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as started:
        path = Path(folder) / "report.html"
        path.write_text(render_page(build_page("large", [recording], [], ["rdukit profile -- python train.py"], {})))
        size = path.stat().st_size
        browser = started.chromium.launch(executable_path=chromium, args=["--no-sandbox", "--disable-gpu"])
        samples += [measure(browser, path) for _ in range(args.repeat)]
        browser.close()
    rows = [(name, f"{min(s[name] for s in samples):.0f} ms", f"{median(s[name] for s in samples):.0f} ms")
            for name in samples[0]]  # fmt: skip
    print_table((f"{args.sections} sections, {size / 1e6:.2f} MB", "best", "median"), rows)
    if args.json:
        found: dict[str, Any] = {"bytes": size, "arguments": vars(args), "samples_ms": samples}
        write_json(args.json, found)


if __name__ == "__main__":
    main()
