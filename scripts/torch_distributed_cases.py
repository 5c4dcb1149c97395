"""Run torch's own distributed CPU cases (in its wheel) on gloo and on the backend ``rdu``, and compare.

    python scripts/torch_distributed_cases.py                      # all cases, 3 ranks
    python scripts/torch_distributed_cases.py --cases 'all_reduce' # those whose name matches the expression

Ranks are processes that run case after case, each in a new process group; a case that ends or hangs a rank costs new
processes. The exit status is 1 if a case that passes on gloo does not on ``rdu``.
"""

import argparse
import json
import os
import re
import selectors
import subprocess
import sys
import tempfile
import time
import unittest
from collections import Counter
from datetime import timedelta
from pathlib import Path
from typing import Any, Final

GLOO, RDU = "gloo", "rdu"
#: Seconds that ranks may take to start, that a process group of a case waits, and that a case may take.
START_S, GROUP_S, CASE_S = 900, 60, 180
#: First line of a rank that is ready.
READY: Final = '{"result": "ready", "why": ""}'
PASSED, SKIPPED, FAILED = "passed", "skipped", "failed"
#: torch's seed of a new process: cases count on equal random numbers of all ranks.
SEED: Final = 67280421310721
#: Exit statuses by which torch's cases skip themselves.
_SKIPS: Final = range(70, 95)


def main() -> int:
    """Compare the backends, or be a rank."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", default="", help="regular expression of names (default: all)")
    parser.add_argument("--ranks", type=int, default=3, help="processes of a group")
    parser.add_argument("--json", type=Path, help="write every result to this file")
    parser.add_argument("--rank", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--backend", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.rank is not None:
        return serve_cases(args.backend, args.rank, args.ranks)
    names = [name for name in list_cases(args.ranks) if re.search(args.cases, name)]
    results: dict[str, dict[str, tuple[str, str]]] = {GLOO: run_all(GLOO, args.ranks, names)}
    passing = [name for name, (result, _) in results[GLOO].items() if result == PASSED]
    results[RDU] = run_all(RDU, args.ranks, passing)
    if args.json:
        args.json.write_text(json.dumps(results, indent=1))
    print(f"gloo: {dict(Counter(result for result, _ in results[GLOO].values()))} of {len(names)} cases")
    worse = {name: found for name, found in results[RDU].items() if found[0] != PASSED}
    print(f"rdu: {len(passing) - len(worse)} of the {len(passing)} cases that gloo passes")
    for name, (result, why) in worse.items():
        print(f"  {name}: {result}: {why}")
    return 1 if worse else 0


# -- the driver --------------------------------------------------------------------------------------------------------


class Ranks:
    """Group of processes that run cases together."""

    def __init__(self, backend: str, size: int) -> None:
        command = [sys.executable, __file__, "--backend", backend, "--ranks", str(size)]
        self._processes = [
            subprocess.Popen([*command, "--rank", str(rank)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
                             stderr=subprocess.DEVNULL, env=environment(backend, size))
            for rank in range(size)
        ]  # fmt: skip
        for process in self._processes:
            result, why = self._answer(process, START_S)
            if result != "ready":
                raise RuntimeError(f"a rank did not start: {why}")

    def run(self, name: str) -> tuple[str, str]:
        """Return how a case ended, and why if it did not pass; the processes are of no use after ``failed``."""
        with tempfile.TemporaryDirectory() as folder:
            for process in self._processes:
                assert process.stdin is not None
                print(json.dumps({"case": name, "folder": folder}), file=process.stdin, flush=True)
            found = [self._answer(process, CASE_S) for process in self._processes]
        worst = min(found, key=lambda each: (FAILED, SKIPPED, PASSED).index(each[0]))
        return worst

    def close(self) -> None:
        """End the processes."""
        for process in self._processes:
            process.kill()
            process.communicate()

    @staticmethod
    def _answer(process: "subprocess.Popen[str]", limit_s: float) -> tuple[str, str]:
        assert process.stdout is not None
        end = time.monotonic() + limit_s
        with selectors.DefaultSelector() as selector:
            selector.register(process.stdout, selectors.EVENT_READ)
            while selector.select(max(0.0, end - time.monotonic())):
                line = process.stdout.readline()
                if line.startswith("{"):
                    answer = json.loads(line)
                    return answer["result"], answer["why"]
                if not line:
                    return FAILED, f"a rank ended with status {process.wait()}"
        return FAILED, f"no answer in {limit_s} s"


def environment(backend: str, size: int) -> dict[str, str]:
    """Return variables that torch's cases read when they are imported."""
    return {
        **os.environ, "BACKEND": GLOO, "WORLD_SIZE": str(size), "GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1",
        "CUDA_VISIBLE_DEVICES": "", "TEMP_DIR": tempfile.gettempdir(), "RDUKIT_CASES": backend,
    }  # fmt: skip


def list_cases(size: int) -> list[str]:
    """Return the names of all cases."""
    os.environ.update(environment(GLOO, size))
    from torch.testing._internal.distributed.distributed_test import DistributedTest

    names = unittest.TestLoader().getTestCaseNames(DistributedTest._DistTestBase)  # type: ignore[arg-type]
    return list(names)


def run_all(backend: str, size: int, names: list[str]) -> dict[str, tuple[str, str]]:
    """Return each case's result and its reason."""
    found: dict[str, tuple[str, str]] = {}
    ranks = Ranks(backend, size)
    try:
        for name in names:
            found[name] = ranks.run(name)
            print(f"{backend} {name}: {found[name][0]} {found[name][1]}"[:200], file=sys.stderr, flush=True)
            if found[name][0] == FAILED:
                ranks.close()
                ranks = Ranks(backend, size)
    finally:
        ranks.close()
    return found


# -- a rank ------------------------------------------------------------------------------------------------------------


class LikeGloo(str):
    """A backend's name that is also equal to ``gloo``: bodies of cases choose by names that torch knows."""

    __slots__ = ()

    def __eq__(self, other: object) -> bool:
        return other in (GLOO, str(self))

    def __ne__(self, other: object) -> bool:
        return not self == other

    def __hash__(self) -> int:
        return hash(GLOO)


def serve_cases(backend: str, rank: int, size: int) -> int:
    """Run cases that come by standard input, and answer each with a line of JSON."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what cases print
    import torch
    import torch.distributed as dist
    import torch.testing._internal.distributed.distributed_test as cases

    if backend == RDU:
        import sambaflow  # noqa: F401  registers it

    cases.BACKEND = LikeGloo(backend)  # decorators have chosen by gloo; bodies make groups of this one

    class Cases(cases.TestDistBackend, cases.DistributedTest._DistTestBase):
        """Cases of this rank."""

    print(READY, file=answers, flush=True)
    for line in sys.stdin:
        order = json.loads(line)
        torch.manual_seed(SEED)
        result, why = run_case(dist, Cases, order["case"], Path(order["folder"]), backend, rank, size)
        print(json.dumps({"result": result, "why": why}), file=answers, flush=True)
    return 0


def run_case(
    dist: Any, case_class: Any, name: str, folder: Path, backend: str, rank: int, size: int
) -> tuple[str, str]:  # fmt: skip
    """Run a case in a new group."""
    for part in ("barrier", "test_dir", "init_dir"):
        (folder / part).mkdir(exist_ok=True)
    os.environ["TEMP_DIR"] = str(folder)
    os.environ["INIT_METHOD"] = f"file://{folder}/init_dir/shared"
    sys.modules[case_class.__mro__[1].__module__].Barrier.barrier_id = 0
    case = case_class(name)
    case.rank, case.file_name = rank, str(folder / "store")
    try:
        dist.init_process_group(
            backend, init_method=f"file://{case.file_name}", rank=rank, world_size=size,
            timeout=timedelta(seconds=GROUP_S),
        )  # fmt: skip
        case._barrier()
        getattr(case, name)()
        case._barrier()
        if dist.is_initialized():
            dist.destroy_process_group()
    except unittest.SkipTest as skipped:
        return end_group(dist), str(skipped)
    except SystemExit as ended:
        if ended.code in _SKIPS:
            return end_group(dist), f"status {ended.code}"
        return FAILED, f"status {ended.code}"
    except Exception as error:  # noqa: BLE001  a case may raise anything
        return FAILED, f"{type(error).__name__}: {(str(error).strip().splitlines() or [''])[0]}"
    return PASSED, ""


def end_group(dist: Any) -> str:
    """Leave the group of a case that was skipped on all ranks; returns the result."""
    if dist.is_initialized():
        dist.destroy_process_group()
    return SKIPPED


if __name__ == "__main__":
    sys.exit(main())
