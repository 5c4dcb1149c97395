"""Answer questions from your own documents, and say where each answer comes from.

``index`` cuts text files into passages and keeps a vector of each in one file; ``ask`` finds the passages that are
nearest to a question, and lets a model answer from them. The answer is JSON of a schema, so its sources are always
passages that the model was shown; whether they support the answer depends on the model.
"""

import json
import zipfile
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import click
import numpy as np
import openai
from numpy.typing import NDArray

from rdukit_zoo.kits.model import KitModel, connect, given, with_model

#: Passages of one request for vectors.
TOGETHER = 16
INSTRUCTIONS = "Answer from these passages only, as JSON: the answer, and the numbers of its sources."


@click.group()
def main() -> None:
    """Answer questions from documents.

    Example: python -m rdukit_zoo.kits.retrieval index docs --to docs.npz
    """


@main.command()
@click.argument("folder", type=click.Path(exists=True, path_type=Path))
@with_model
@click.option("--to", "target", type=click.Path(path_type=Path), required=True, help="File of the index, .npz.")
@click.option("--pattern", default="*.md", show_default=True, help="Pattern of files to read below FOLDER.")
@click.option("--size", default=400, show_default=True, help="Largest number of characters in a passage.")
def index(folder: Path, model: KitModel, target: Path, pattern: str, size: int) -> None:
    """Keep a vector of each passage of the files of FOLDER.

    Example: python -m rdukit_zoo.kits.retrieval index docs --to docs.npz
    """
    files = sorted(folder.rglob(pattern))
    passages = [(f"{path}:{line}", text) for path in files for line, text in cut(path.read_text(), size)]
    if not passages:
        raise click.ClickException(f"no text in the {len(files)} files {pattern} of {folder}")
    rows = []
    for at in range(0, len(passages), TOGETHER):
        rows += embed(model, passages[at : at + TOGETHER])
    places, texts, found = zip(*rows, strict=True)
    np.savez(target, vectors=np.stack(found), places=np.array(places), texts=np.array(texts))
    click.echo(f"{len(rows)} passages of {len(files)} files in {target}")


@main.command()
@click.argument("question")
@with_model
@click.option("--index", "file", type=click.Path(exists=True, path_type=Path), required=True, help="What index wrote.")
@click.option("--embeddings", default="", help="Base URL of the model that made the index [default: --url].")
@click.option("--passages", default=3, show_default=True, help="Number of passages shown to the model.")
@click.option("--most", default=300, show_default=True, help="Largest number of tokens in the answer.")
def ask(question: str, model: KitModel, file: Path, embeddings: str, passages: int, most: int) -> None:
    """Answer QUESTION from the nearest passages.

    Example: python -m rdukit_zoo.kits.retrieval ask "How long is a lease?" --index docs.npz
    """
    try:
        kept = np.load(file, allow_pickle=False)
        vectors, texts = kept["vectors"], kept["texts"]
    except (ValueError, OSError, EOFError, KeyError, IndexError, zipfile.BadZipFile) as cause:
        raise click.ClickException(
            f"{file} is not an index of passages; expected a file written by the command index"
        ) from cause
    other = connect(embeddings, model.client.api_key) if embeddings else nullcontext(model)
    with other as embedder:
        ((_, _, vector),) = embed(embedder, [("", question)])
    nearest = np.argsort(-(vectors @ vector), kind="stable")[:passages]
    shown = [f"[{number}] {texts[at]}" for number, at in enumerate(nearest, 1)]
    schema = {
        "type": "object", "required": ["answer", "sources"], "additionalProperties": False,
        "properties": {"answer": {"type": "string", "maxLength": 600}, "sources": {
            "type": "array", "minItems": 1, "maxItems": len(shown), "items": {"enum": list(range(1, len(shown) + 1))}}},
    }  # fmt: skip
    messages = [
        {"role": "system", "content": INSTRUCTIONS},
        {"role": "user", "content": "\n\n".join([*shown, f"Question: {question}"])},
    ]
    text = model.ask(messages, max_tokens=most, temperature=0, response_format=given(schema))
    try:
        said: Any = json.loads(text)
    except ValueError as cause:
        raise click.ClickException(f"the answer is incomplete after {most} tokens; try a larger --most") from cause
    click.echo(said["answer"])
    for number in sorted(set(said["sources"])):
        click.echo(f"[{number}] {kept['places'][nearest[number - 1]]}")


def cut(text: str, size: int) -> Iterator[tuple[int, str]]:
    """Yield passages of whole lines, of about ``size`` characters at most, with the line that each begins at."""
    begin, passage = 1, ""
    for number, line in enumerate(text.splitlines(), 1):
        for at in range(0, max(len(line), 1), size):
            part = line[at : at + size]
            if passage and len(passage) + len(part) > size:
                yield begin, passage
                passage = ""
            begin, passage = (begin, f"{passage}\n{part}") if passage else (number, part.strip())
    if passage:
        yield begin, passage


def embed(model: KitModel, passages: Sequence[tuple[str, str]]) -> list[tuple[str, str, NDArray[np.float32]]]:
    """Return place, text and vector of each passage; one that is too long for the model is divided in two.

    Vectors have length 1, so that their product is the similarity.
    """
    try:
        texts = [text for _, text in passages]
        found = model.client.embeddings.create(model=model.name, input=texts, encoding_format="float").data
    except openai.BadRequestError:
        if len(passages) == 1:
            ((place, text),) = passages
            if len(text) < 2:
                raise
            passages = [(place, text[: len(text) // 2]), (place, text[len(text) // 2 :])]
        half = len(passages) // 2
        return [*embed(model, passages[:half]), *embed(model, passages[half:])]
    rows = [np.asarray(each.embedding, np.float32) for each in found]
    units = [row / max(float(np.linalg.norm(row)), 1e-12) for row in rows]
    return [(*passage, row) for passage, row in zip(passages, units, strict=True)]


if __name__ == "__main__":
    main()
