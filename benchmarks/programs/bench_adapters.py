"""A token of each of several texts by a PEF with room for adapters over one without, in turn in one process and thread.

OMP_NUM_THREADS=1 python benchmarks/programs/bench_adapters.py --adapters 8 --rank 8
"""

import argparse
import shutil
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path

import torch
from bench_text_serving import SIZES, VOCABULARY
from safetensors.torch import save_file

from rdukit_modelbox.verbs.compile import TextExtras, compile_text_serving
from rdukit_serving.shape import Shape
from rdukit_serving.text.program import TextProgram
from rdukit_zoo.language.llama import Llama, LlamaSizes
from rdukit_zoo.registry import get_model

TEXTS, POSITION = 8, 100


def main() -> None:
    """Print the best of each."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--size", choices=SIZES, default="15m")
    parser.add_argument("--adapters", type=int, default=8)
    parser.add_argument("--rank", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=100)
    options = parser.parse_args()
    torch.set_num_threads(1)
    sizes = {**get_model("llama").sizes, **SIZES[options.size], "vocabulary": VOCABULARY, "context_length": 256}
    folder = Path(tempfile.mkdtemp(prefix="adapters-"))
    try:
        torch.manual_seed(0)
        state = Llama(LlamaSizes(**sizes), texts=0).state_dict()
        checkpoint = folder / "model.safetensors"
        save_file({name: value.clone() for name, value in state.items()}, checkpoint)
        shape = Shape("llama", sizes, TEXTS, "f32", task="language-modelling", purpose="serve")
        kinds = {"without": TextExtras(), "with room": TextExtras(0, options.adapters, options.rank)}
        with ExitStack() as stack:
            programs: dict[str, TextProgram] = {}
            for kind, extras in kinds.items():
                pef = compile_text_serving(get_model("llama"), shape, "llama", folder / kind, "o3", "sn30", 1, extras)
                programs[kind] = stack.enter_context(TextProgram(pef, checkpoint, is_raw=True))
                programs[kind].warm_up()
            for width in (1, TEXTS):
                best = dict.fromkeys(programs, float("inf"))
                for _ in range(options.rounds):
                    for kind, program in programs.items():
                        took = time_run(program, width)
                        best[kind] = min(best[kind], took)
                figures = ", ".join(f"{kind} {1e3 * took:.2f} ms" for kind, took in best.items())
                print(f"{width} texts: {figures}, ratio {best['with room'] / best['without']:.2f}")
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def time_run(program: TextProgram, width: int) -> float:
    """Return the seconds of a run that makes a token of each of ``width`` texts."""
    began = time.perf_counter()
    program.advance(list(range(width)), [1] * width, [POSITION] * width)
    return time.perf_counter() - began


if __name__ == "__main__":
    main()
