"""Runs of ``sambatune`` as they lie below an artifact root, with few reports, written by hand."""

import json
from pathlib import Path


def write_run(root: Path, name: str, batch: int, throughput: float, section: str = "gemm") -> Path:
    """Write a run that measured one section; returns its folder."""
    folder = root / "sambatune_gen" / name
    texts = {
        "configuration.json": json.dumps({"app": "a.py", "model-args": ["-b", str(batch)]}),
        "reports/analysis/summary.json": json.dumps({"Overview": {"verdict": "RDU bound"}, "Host": [1], "RDU": "x"}),
        "reports/runtime_perf_info.json": json.dumps({"throughput_samples_s": throughput}),
        "reports/snprof/summary.csv": "Breakdown,Time,Percentage\nTOTAL,10,100.0\nRUN HW,9,90.0\n",
        "reports/section_report.csv": f"section_id,section_name,host_latency_s\n0,{section},{1 / throughput}\n",
        "reports/report.html": "<p>the page</p>",
        "logs/failures_debug.log": "",
    }
    for path, text in texts.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(text)
    return folder
