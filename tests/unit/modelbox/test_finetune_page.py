"""The page docs/finetune.md prints what the command prints."""

from pathlib import Path

from rdukit_modelbox.cli.finetune import result_lines
from rdukit_modelbox.finetune.run import Finetuned
from support import shows
from support.pages import code_blocks, read_page

pytestmark = shows("finetune")


def test_the_page_prints_a_result_as_the_command_does() -> None:
    (printed,) = (block for block in code_blocks(read_page("finetune.md"), "text") if block.startswith("steps"))
    folder = Path("/home/me/models/my-llama-talks")
    made = Finetuned(
        folder, None, {"held_out_loss": 4.12, "perplexity": 61.6}, {"held_out_loss": 1.87, "perplexity": 6.49},
        120, 1_235_200, folder / "curve.svg", round(4.71 * 2**20), round(36.3 * 2**20),
    )  # fmt: skip
    assert "\n".join(result_lines(made)) + "\n" == printed
