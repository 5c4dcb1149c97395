"""Try torch's operators, and write docs/operators.md: ``scripts/operators.py sweep --out FILE``, then ``page FILE…``.

``sweep`` judges cases of torch's table ``op_db`` against eager torch and writes each as a line of a file; a crash costs
one case. ``page`` sums files up, puts the outcome into docs/operators.json, in place of what stands there of the same
operators in the same modes, dtypes and kernels, and writes the page from it; without files it writes the page alone.
``natives`` prints the operators that native kernels computed right in every case of files that has them.
``blame DIGEST model.pef`` tells for which operators the kernel check refuses a section: one of its kernels' digests
begins with DIGEST. Each operator is built natively alone; if all are right alone, ever shorter beginnings are.
Exit status 1 if a case was wrong, or ended in an error that is none of rdukit's; if an operator is to blame; or with
``--check`` if the page is stale.
"""

import argparse
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

from opdb import page
from opdb.blame import blame, find_unit
from opdb.sweep import Plan, prepare_environment, read_records, run_in_children, run_plan
from rdukit.errors import RdukitError
from rdukit.pef.file import read_pef

DOCS = Path(__file__).resolve().parents[1] / "docs"


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["sweep", "child", "page", "natives", "blame"])
    parser.add_argument(
        "files", nargs="*", type=Path, help="result files, for page and natives; digest and PEF, for blame"
    )
    parser.add_argument("--out", type=Path, default=Path("operators.jsonl"), help="result file")
    parser.add_argument("--slice", default="1/1", help="every so many-th operator, such as 3/20")
    parser.add_argument("--only", default="", help="operators, separated by commas")
    parser.add_argument("--count", type=int, default=0, help="as many operators, drawn by --seed (default all)")
    parser.add_argument("--seed", type=int, default=None, help="default: today's date, so that the part rotates")
    parser.add_argument("--samples", type=int, default=4, help="samples of each operator at most (default 4)")
    parser.add_argument("--modes", default="o0,o1,o3")
    parser.add_argument("--dtypes", default="f32,bf16")
    parser.add_argument("--kernels", choices=["portable", "native"], default="portable")
    parser.add_argument("--host-fallback", action="store_true")
    parser.add_argument("--refused", action="store_true", help="only what docs/operators.json has as refused or host")
    parser.add_argument("--resume", action="store_true", help="keep the result file; do what it lacks")
    parser.add_argument("--show", action="store_true", help="print each case that is not right")
    parser.add_argument("--check", action="store_true", help="write nothing: is the page the one that the data gives?")
    return parser.parse_args()


def plan_of(arguments: argparse.Namespace) -> Plan:
    part, _, parts = arguments.slice.partition("/")
    seed = int(time.strftime("%Y%m%d")) if arguments.seed is None else arguments.seed
    only = tuple(filter(None, arguments.only.split(",")))
    if arguments.refused:
        entries = page.load((DOCS / "operators.json").read_text()).operators
        only = tuple(name for name, entry in entries.items() if entry.worst in {"refused", "host"})
    return Plan(
        only, int(part), int(parts), arguments.samples,
        tuple(arguments.modes.split(",")), tuple(arguments.dtypes.split(",")),
        host_fallback=arguments.host_fallback, count=arguments.count, seed=seed, kernels=arguments.kernels,
    )  # fmt: skip


def judge_cases(arguments: argparse.Namespace) -> int:
    prepare_environment(arguments.kernels)
    for record in run_plan(plan_of(arguments), arguments.out):
        if arguments.show and record["state"] not in {"right", "skipped"}:
            print(record, flush=True)
    return 0


def sweep(arguments: argparse.Namespace) -> int:
    if not arguments.resume:
        arguments.out.unlink(missing_ok=True)
    arguments.out.touch()
    run_in_children([sys.executable, __file__, "child", *sys.argv[2:]], arguments.out)
    records = read_records([arguments.out])
    states = [record["state"] for record in records]
    counted = {state: states.count(state) for state in sorted(set(states))}
    print(f"operators: {len(states)} cases,", ", ".join(f"{number} {state}" for state, number in counted.items()))
    bad = [record for record in records if record["state"] in {"wrong", "bare"}]
    for record in bad[:40]:
        print(record)
    return int(bool(bad))


def write_page(arguments: argparse.Namespace) -> int:
    data, target = DOCS / "operators.json", DOCS / "operators.md"
    if arguments.files:
        found = page.summarise(read_records(arguments.files))
        data.write_text(page.dump(page.merge(page.load(data.read_text()), found)))
    text = page.write(page.load(data.read_text()))
    if arguments.check:
        return int(target.read_text() != text)
    target.write_text(text)
    return 0


def print_natives(arguments: argparse.Namespace) -> int:
    print("\n".join(page.find_right_natives(read_records(arguments.files))))
    return 0


def print_blame(arguments: argparse.Namespace) -> int:
    if len(arguments.files) != 2:
        print("blame takes a digest and a PEF: scripts/operators.py blame 3f2a model.pef", file=sys.stderr)
        return 2
    digest, pef = arguments.files
    try:
        with tempfile.TemporaryDirectory() as folder:
            blamed = blame(find_unit(read_pef(pef), str(digest)), Path(folder))
    except RdukitError as refusal:
        print(refusal, file=sys.stderr)
        return refusal.exit_status
    print("\n".join(map(str, blamed)) or "right: no native operator of this section differs")
    return int(bool(blamed))


def main() -> int:
    arguments = parse()
    return {
        "sweep": sweep, "child": judge_cases, "page": write_page, "natives": print_natives, "blame": print_blame,
    }[arguments.what](arguments)  # fmt: skip


if __name__ == "__main__":
    sys.exit(main())
