"""Try models of transformers, timm and torchvision against eager torch, each in a process of its own.

    python scripts/models/run.py --lines FILE [--suite NAME …] [--only NAME,…] [--slice K/N] [--stage NAME …]
    python scripts/models/run.py --lines FILE --kernels native --check off --quick --together 4
    python scripts/models/run.py --lines FILE --write docs/models.md

Each result is a line of JSON in FILE; what is there already is not tried again, unless asked. The order is shuffled by
a seed, so that a sweep that was not finished is a sample. ``--write`` puts the results of FILE into the data beside the
page, docs/models.json, in place of what stands there of the same models, stages and kernels, and writes the page from
it. The libraries are those of the extra ``models``.
"""

import argparse
import contextlib
import json
import os
import random
import resource
import select
import signal
import sys
import time
import traceback
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, Final

from check import Found, describe_inputs, try_stage, warm_up
from families import Case, declare_torchvision, timm_cases, torchvision_cases, transformers_cases
from natives import NO_COMPILER, build_together, without_builds, write_quick_compiler
from page import dump, load, merge, write

LIBRARIES: Final = ("transformers", "timm", "torchvision")
STAGES: Final = ("inference", "training")
#: Of processor time, which does not depend on what else runs here.
TIMEOUT_CPU_S: Final = 100
_ORDER_SEED: Final = 18
_CASES: Final[dict[str, Callable[[], list[Case]]]] = {
    "transformers": transformers_cases, "timm": timm_cases, "torchvision": torchvision_cases,
}  # fmt: skip


def main() -> int:
    """Try the models; return 1 if a result is wrong, or an error is not one of ours."""
    args = _arguments()
    try:
        versions = {name: version(name) for name in ("torch", *args.suite)}
    except PackageNotFoundError as absent:
        print(f"models: skipped, {absent.name} is not installed; pip install 'rdukit[models]'")
        return 0
    args.lines.parent.mkdir(parents=True, exist_ok=True)
    if not args.no_run:
        _prepare()
        if args.quick:
            os.environ["CXX"] = write_quick_compiler(args.lines.parent)
        missing = _missing(args)
        for start in range(0, len(missing), args.together):
            for record in _run_batch(missing[start : start + args.together], args):
                with args.lines.open("a") as file:
                    file.write(json.dumps(record) + "\n")
                what = " ".join(record[name] for name in ("suite", "name", "stage"))
                print(f"{record['outcome']:10} {what} {record['reason'][:300]}", flush=True)
    records = _read(args.lines)
    if args.write is not None:
        declare_torchvision()
        data = args.write.with_suffix(".json")
        totals = {name: len(_CASES[name]()) for name in args.suite}
        sweeps = merge(load(data.read_text()), records, versions, totals)
        data.write_text(dump(sweeps))
        args.write.write_text(write(sweeps))
    return int(any(record["outcome"] in {"wrong", "crashed", "died"} for record in records))


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lines", type=Path, required=True, help="file of results")
    parser.add_argument("--suite", nargs="*", default=list(LIBRARIES), choices=LIBRARIES)
    parser.add_argument("--only", default="", help="names of models, with commas between")
    parser.add_argument("--slice", default="1/1", help="K/N: the K-th of N equal parts")
    parser.add_argument("--stage", nargs="*", default=list(STAGES), choices=STAGES)
    parser.add_argument("--mode", default="o3")
    parser.add_argument("--kernels", default="portable")
    parser.add_argument("--precision", default="f32")
    parser.add_argument("--check", choices=["on", "off", "full"], default="on", help="the kernel check (default on)")
    parser.add_argument("--quick", action="store_true", help="C++ is optimised little (-O1): more models in less time")
    parser.add_argument("--together", type=int, default=1, help="models whose native kernels are built together")
    parser.add_argument("--timeout", type=int, default=600, help="seconds after which a model counts as too slow")
    parser.add_argument("--again", action="store_true", help="try also what is in FILE")
    parser.add_argument("--no-run", action="store_true", help="only write the page")
    parser.add_argument("--write", type=Path, help="write the page of all results to this file")
    return parser.parse_args()


def _prepare() -> None:
    """Import in this process what all its children need."""
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    warnings.filterwarnings("ignore")
    import torch

    torch.set_num_threads(1)
    declare_torchvision()
    import transformers.modeling_utils  # noqa: F401

    warm_up()


def _missing(args: argparse.Namespace) -> list[tuple[Case, list[str]]]:
    """Return the requested cases, each with the stages that FILE lacks."""
    cases = [case for suite in args.suite for case in _CASES[suite]()]
    if args.only:
        cases = [case for case in cases if case.name in args.only.split(",")]
    random.Random(_ORDER_SEED).shuffle(cases)
    part, parts = (int(number) for number in args.slice.split("/"))
    done = set() if args.again else {(r["suite"], r["name"], r["stage"]) for r in _read(args.lines)}
    wanted = [
        (case, [stage for stage in args.stage if (case.suite, case.name, stage) not in done])
        for case in cases[part - 1 :: parts]
    ]
    return [(case, stages) for case, stages in wanted if stages]


def _read(lines: Path) -> list[dict[str, Any]]:
    """Return the latest result of each model and stage."""
    found = {}
    for line in lines.read_text().splitlines() if lines.exists() else ():
        record = json.loads(line)
        found[record["suite"], record["name"], record["stage"]] = record
    return list(found.values())


def _run_batch(batch: Sequence[tuple[Case, list[str]]], args: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Try some models; the native kernels of several are built together."""
    several = args.kernels == "native" and len(batch) > 1
    if several:
        build_together(batch, args.mode, args.precision, _limit, args.timeout)
    with without_builds() if several else contextlib.nullcontext():
        for case, stages in batch:
            yield from _run_case(case, stages, args)


def _run_case(case: Case, stages: Sequence[str], args: argparse.Namespace) -> list[dict[str, Any]]:
    """Try a model in a child process, which is killed after the timeout."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reader)
        _child(case, stages, args, writer)
    os.close(writer)
    text, is_stuck = _read_all(reader, time.monotonic() + args.timeout)
    if is_stuck:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child, signal.SIGKILL)
    _, status = os.waitpid(child, 0)
    records = [json.loads(line) for line in text.splitlines()]
    is_late = not is_stuck and os.WIFSIGNALED(status) and os.WTERMSIG(status) in {signal.SIGXCPU, signal.SIGKILL}
    for stage in stages:
        if all(record["stage"] != stage for record in records):
            outcome = "late" if is_late or is_stuck else "died"
            reason = f"over {args.timeout} s" if is_stuck else f"its process ended: {status}"
            reason = f"over {TIMEOUT_CPU_S} s of processor time" if is_late else reason
            way = (args.mode, args.kernels, args.precision)
            records.append(asdict(Found(case, stage, *way, outcome, reason, check=args.check)))
    return [{**_flat(record), "quick": args.quick} for record in records]


def _read_all(reader: int, until: float) -> tuple[str, bool]:
    """Return a child's output, and whether it took too long."""
    text = b""
    with os.fdopen(reader, "rb", buffering=0) as file:
        while True:
            ready, _, _ = select.select([file], [], [], max(until - time.monotonic(), 0))
            if not ready:
                return text.decode(), True
            if not (chunk := file.read(65536)):
                return text.decode(), False
            text += chunk


def _flat(record: dict[str, Any]) -> dict[str, Any]:
    return {**record.pop("case"), **record} if "case" in record else record


def _child(case: Case, stages: Sequence[str], args: argparse.Namespace, writer: int) -> None:
    """Try a model in this process, and end the process."""
    try:
        os.setsid()
        _limit()
        # What could not be built with the others runs portably.
        os.environ["RDUKIT_KERNELS"] = "auto" if os.environ.get("CXX") == NO_COMPILER else args.kernels
        os.environ["RDUKIT_KERNEL_CHECK"] = args.check
        os.environ.setdefault("RDUKIT_NODE", "private")
        for found in _try(case, stages, args):
            os.write(writer, (json.dumps(asdict(found)) + "\n").encode())
        os._exit(0)
    except BaseException:  # noqa: BLE001 -- what others wrote raises anything
        traceback.print_exc()
        os._exit(1)


def _limit() -> None:
    resource.setrlimit(resource.RLIMIT_CPU, (TIMEOUT_CPU_S, TIMEOUT_CPU_S))


def _try(case: Case, stages: Sequence[str], args: argparse.Namespace) -> "list[Found]":
    from build import CannotBuild, build

    settings = (args.mode, args.kernels, args.precision)
    try:
        built = build(case)
    except CannotBuild as refusal:
        return [Found(case, stage, *settings, "not-run", str(refusal), check=args.check) for stage in stages]
    found = []
    for stage in stages:
        inputs = {**built.inputs, **(built.labels if stage == "training" else {})}
        began = time.monotonic()
        outcome, reason, error, kernels = try_stage(built.make, inputs, stage, *settings)
        seconds = round(time.monotonic() - began, 1)
        found.append(
            Found(
                case,
                stage,
                *settings,
                outcome,
                reason,
                min(error, 1e300),
                seconds,
                built.parameters,
                describe_inputs(inputs),
                kernels.sections,
                kernels.natives,
                kernels.complaints,
                args.check,
            )
        )
    return found


if __name__ == "__main__":
    sys.exit(main())
