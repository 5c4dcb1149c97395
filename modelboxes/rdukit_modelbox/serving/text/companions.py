"""Files that lie beside a text model's parameters: its tokenizer, how a text ends, how a chat is written."""

from pathlib import Path
from typing import Final

#: The tokenizer; and which tokens end a text and how many the tokenizer has.
TOKENIZER_FILE: Final = "tokenizer.json"
GENERATION_FILE: Final = "generation_config.json"
#: As the tokenizers' own libraries name it; its key ``chat_template`` is a Jinja template.
CONFIGURATION_FILE: Final = "tokenizer_config.json"


def companion(checkpoint: Path, name: str) -> Path:
    """Where the file ``name`` lies for a checkpoint: in the folder that it is, or beside the file. May not exist."""
    return (checkpoint if checkpoint.is_dir() else checkpoint.parent) / name
