"""Find the first token that differs between two greedy texts of one model, and whether bf16 decides it.

    python first_difference.py --model FOLDER < {"prompt": …, "theirs": …, "ours": …}

prints ``{"tokens": …, "theirs": …, "ours": …, "noise": …}``: the number of equal tokens, the f32 logits of the next
token of each, and by how much bf16 moves a logit there. It needs the libraries of ``requirements.txt``.
"""

import argparse
import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

#: How many of the best next tokens a greedy text may have taken, for another order of sums.
CANDIDATES: Final = 5
LONGEST: Final = 256


@dataclass(frozen=True, slots=True)
class Fork:
    """First difference of two texts: the logits of both tokens there, and ``noise``, by how much bf16 moves a logit."""

    tokens: int
    theirs: float
    ours: float
    noise: float

    @property
    def is_tie(self) -> bool:
        """Return whether rounding of the logits decides which token is the best."""
        return abs(self.theirs - self.ours) <= 2 * self.noise


#: Tokens after the prompt → f32 logits of the next one, and how far bf16 is from them at most.
FindLogits = Callable[[Sequence[int]], tuple[Sequence[float], float]]


def find_fork(
    theirs: str, ours: str, find_logits: FindLogits, decode: Callable[[Sequence[int]], str]
) -> Fork | None:  # fmt: skip
    """Generate the common beginning of both texts again, token by token, up to their first difference.

    The texts are printed ones, so generating finds their tokens. ``None`` if a text continues with a token that is
    not among the best.
    """
    made: list[int] = []
    while len(made) < LONGEST and len(decode(made)) < max(len(theirs), len(ours)):
        logits, noise = find_logits(made)
        best = sorted(range(len(logits)), key=lambda token: -logits[token])[:CANDIDATES]
        fitting = [_first_fitting(best, made, text, decode) for text in (theirs, ours)]
        if None in fitting:
            return None
        one, other = (token for token in fitting if token is not None)
        if one != other:
            return Fork(len(made), logits[one], logits[other], noise)
        made.append(one)
    return None


def _first_fitting(
    best: Sequence[int], made: Sequence[int], text: str, decode: Callable[[Sequence[int]], str]
) -> int | None:  # fmt: skip
    """Return the best token that continues ``text``; complete characters go before tokens that may begin one."""
    longer = {token: decode([*made, token]) for token in best}
    there = [token for token in best if text.startswith(longer[token])]
    begun = [token for token in best if text.startswith(longer[token].rstrip("\N{REPLACEMENT CHARACTER}"))]
    return next(iter([*there, *begun]), None)


def main() -> int:
    """Print the fork, or ``null`` if there is none; return 0."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, required=True, help="folder of a checkpoint")
    folder = parser.parse_args().model
    asked = json.load(sys.stdin)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    prompt = tokenizer(asked["prompt"])["input_ids"]
    wide, narrow = (
        AutoModelForCausalLM.from_pretrained(folder, torch_dtype=dtype).eval()  # type: ignore[no-untyped-call]
        for dtype in (torch.float32, torch.bfloat16)
    )

    @torch.no_grad()
    def find_logits(made: Sequence[int]) -> tuple[list[float], float]:
        tokens = torch.tensor([[*prompt, *made]])
        exact, rounded = (model(tokens).logits[0, -1].float() for model in (wide, narrow))
        return exact.tolist(), (exact - rounded).abs().max().item()

    def decode(made: Sequence[int]) -> str:
        return str(tokenizer.decode(list(made), skip_special_tokens=True))

    fork = find_fork(asked["theirs"], asked["ours"], find_logits, decode)
    print(json.dumps(None if fork is None else asdict(fork)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
