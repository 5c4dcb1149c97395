"""Extract facts from texts as JSON of your own schema, a line of JSON for each file.

The server restricts the model to the schema, so programs can read every answer; its truth depends on the model.
``--together`` sets the number of simultaneous requests.
"""

import json
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import click
import jsonschema
import openai

from rdukit_zoo.kits.model import KitModel, given, with_model

#: Default schema.
SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "title": {"type": "string", "maxLength": 80},
        "language": {"enum": ["English", "French", "German", "Spanish", "other"]},
        "people": {"type": "array", "items": {"type": "string", "maxLength": 40}, "maxItems": 5},
        "year": {"anyOf": [{"type": "integer", "minimum": 1000, "maximum": 2999}, {"type": "null"}]},
    },
    "required": ["title", "language", "people", "year"],
    "additionalProperties": False,
}


@click.command()
@click.argument("files", nargs=-1, required=True, type=click.Path(exists=True, dir_okay=False, path_type=Path))
@with_model
@click.option("--schema", "schema_file", type=click.Path(exists=True, path_type=Path), help="JSON schema of a file.")
@click.option("--together", default=8, show_default=True, help="Number of files processed at once.")
@click.option("--most", default=300, show_default=True, help="Largest number of tokens in an answer.")
def main(files: Sequence[Path], model: KitModel, schema_file: Path | None, together: int, most: int) -> None:
    """Take facts out of FILES by a JSON schema; prints a line for each, in order.

    Example: python -m rdukit_zoo.kits.extraction letters/*.txt --schema letter.json
    """
    schema = SCHEMA if schema_file is None else json.loads(schema_file.read_text())

    def extract(path: Path) -> dict[str, Any]:
        try:
            text = path.read_text()
        except UnicodeDecodeError as error:
            return {"file": str(path), "error": f"the file is not text: {error}"}
        messages = [
            {"role": "system", "content": f"Take facts out of the text, as JSON of this schema: {json.dumps(schema)}"},
            {"role": "user", "content": text},
        ]
        asked: Any = {"messages": messages, "temperature": 0, "max_tokens": most, "response_format": given(schema)}
        try:
            answer = model.client.chat.completions.create(model=model.name, **asked)
        except openai.BadRequestError as error:  # most often the text is longer than the context
            return {"file": str(path), "error": error.message}
        choice = answer.choices[0]
        if choice.finish_reason != "stop":
            return {"file": str(path), "error": f"incomplete after {most} tokens; try a larger --most"}
        value = json.loads(choice.message.content or "")
        jsonschema.validate(value, schema)
        return {"file": str(path), "facts": value}

    with ThreadPoolExecutor(together) as pool:
        for line in pool.map(extract, files):
            click.echo(json.dumps(line, ensure_ascii=False))


if __name__ == "__main__":
    main()
