"""A box with a tiny language model of random parameters: any text will do, and the same request gives the same."""

import json
import os
import secrets
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import openai
import torch

from rdukit_modelbox.preprocessing.token_dataset import write_tokenizer
from rdukit_modelbox.preprocessing.tokenizer import byte_level_tokenizer
from rdukit_modelbox.training.checkpoints import Checkpoint, Identity, TrainingTotals, save_checkpoint
from rdukit_platform.backends.contract import BoxSpec
from rdukit_platform.backends.process import ProcessBox
from rdukit_zoo.language.llama import Llama, LlamaSizes
from support.boxes import run_verb
from support.platform.warm import start_box

CONTEXT: Final = 256
#: The token that ends a text; the others are bytes.
END: Final = 256


TINY: Final[Mapping[str, Any]] = {
    "width": 16, "layers": 1, "heads": 2, "key_value_heads": 1, "feed_forward": 16, "vocabulary": 257,
    "context_length": CONTEXT, "prompt_length": 16,
}  # fmt: skip


def make_tiny_llama(sizes: Mapping[str, Any] = TINY) -> Llama:
    """Return the model."""
    torch.manual_seed(0)
    return Llama(LlamaSizes(**sizes), texts=0)


def start_text_box(
    folder: Path, model: Llama, sizes: Mapping[str, Any] = TINY, texts: int = 1, **environment: str
) -> ProcessBox:  # fmt: skip
    """Compile, save and serve the model as ``llama``, which makes as many ``texts`` at once; its checkpoint is
    ``folder / "checkpoint"``.
    """
    pef, checkpoint = make_text_model(folder, model, sizes, texts)
    return serve_text_model(folder, pef, checkpoint, **environment)


def make_text_model(
    folder: Path, model: Llama, sizes: Mapping[str, Any] = TINY, texts: int = 1
) -> tuple[Path, Path]:  # fmt: skip
    """Compile and save the model; returns PEF and checkpoint."""
    os.environ["RDUKIT_KERNELS"] = "portable"
    pef = run_verb("llama", "compile", folder, purpose="serve", batch_size=texts, **sizes).outputs["pef"]
    checkpoint = folder / "checkpoint"
    identity = Identity("llama", {}, 1, "none", 0)
    optimizer: dict[str, Any] = {"state": {}, "param_groups": []}
    save_checkpoint(
        checkpoint, Checkpoint(1, model.state_dict(), optimizer, torch.get_rng_state(), identity, TrainingTotals())
    )
    write_tokenizer(folder, byte_level_tokenizer())
    shutil.copy(folder / "tokenizer" / "tokenizer.json", checkpoint)
    shutil.copy(folder / "tokenizer" / "tokenizer_config.json", checkpoint)
    (checkpoint / "generation_config.json").write_text(json.dumps({"eos_token_id": END}))
    return pef, checkpoint


def serve_text_model(folder: Path, pef: Path, checkpoint: Path, **environment: str) -> ProcessBox:
    """Serve a PEF and a checkpoint of ``folder`` as ``llama``."""
    values = {
        "RDUKIT_BOX_PEF": str(pef), "RDUKIT_BOX_CHECKPOINT": str(checkpoint), "RDUKIT_HOME": str(folder / "home"),
        "OMP_NUM_THREADS": "1", **environment,
    }  # fmt: skip
    return start_box(BoxSpec("llama", folder / f"state-{secrets.token_hex(4)}", [folder], values))


def connect(box: ProcessBox) -> openai.OpenAI:
    """Return a client of the box that tries nothing again."""
    http = openai.DefaultHttpxClient(trust_env=False)
    return openai.OpenAI(base_url=f"{box.rest_url}/v1", api_key="none", max_retries=0, http_client=http)
