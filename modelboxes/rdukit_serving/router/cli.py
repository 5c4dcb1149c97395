"""``rdukit router``: train a router, try it, and serve experts behind it."""

import asyncio
import json
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Final

import click
import httpx
import numpy as np
from numpy.typing import NDArray

from rdukit.cli.tables import print_fields, print_table
from rdukit.errors import InvalidArgument
from rdukit_serving.router.decision import NamedRouter, load_router
from rdukit_serving.router.training import Score, hold_out, judge, learn, read_examples
from rdukit_serving.router.word_vectors import word_vector

_PATH: Final = click.Path(path_type=Path)
#: Texts of one request for vectors.
_TOGETHER: Final = 32

_embeddings = click.option(
    "--embeddings", metavar="URL", help="Base URL of an embedding model, with /v1 [default: count words, no model]."
)
_token = click.option("--token", envvar="RDUKIT_TOKEN", help="Token for the embedding model's server.")
_json = click.option("--json", "as_json", is_flag=True, help="Machine-readable.")


@click.group()
def router() -> None:
    """Train and serve routers, which choose an expert for each prompt.

    Example: rdukit router train prompts.jsonl --to router.safetensors

    Example: rdukit router train prompts.jsonl --to router.safetensors --hold-out 0.2
    """


@router.command()
@click.argument("examples", type=_PATH)
@click.option("--to", "target", type=_PATH, required=True, help="File for the router.")
@click.option(
    "--neighbours", type=click.IntRange(0, 99), default=0, show_default=True,
    help="Number of nearest labelled prompts that vote; 0: logistic regression.",
)  # fmt: skip
@click.option(
    "--hold-out",
    type=click.FloatRange(0, 0.9),
    default=0.2,
    show_default=True,
    help="Fraction of the prompts held out to evaluate.",
)
@click.option("--seed", default=1, show_default=True, help="Chooses the part.")
@click.option("--words", type=click.IntRange(64, 65536), default=4096, show_default=True, help="Places of words.")
@_embeddings
@click.option("--model", default="", help="Embedding model's name.")
@_token
@_json
def train(
    examples: Path, target: Path, neighbours: int, hold_out: float, seed: int, words: int, embeddings: str | None,
    model: str, token: str | None, as_json: bool,
) -> None:  # fmt: skip
    """Learn from labelled prompts.

    EXAMPLES has lines of {"prompt", "expert"}. A part is held out and judged by a router that has not seen it; then the
    router learns from all.

    Example: rdukit router train prompts.jsonl --to router.safetensors

    Example: rdukit router train prompts.jsonl --to router.safetensors --hold-out 0.2
    """
    if bool(embeddings) != bool(model):
        raise InvalidArgument("--embeddings and --model are valid only together")
    found = read_examples(examples)
    vectors = _vectors([each.prompt for each in found], words, embeddings or "", model, token)
    experts = [each.expert for each in found]
    known, held = _hold_out(found, hold_out, seed)
    trial = learn([vectors[at] for at in known], [experts[at] for at in known], neighbours, model)
    score = judge(trial, [vectors[at] for at in held], [experts[at] for at in held])
    version = learn(vectors, experts, neighbours, model).save(target)
    _print(score, as_json, router=str(target), version=version, examples=len(found))


_hold_out = hold_out


@router.command()
@click.argument("file", metavar="ROUTER", type=_PATH)
@click.argument("examples", type=_PATH)
@_embeddings
@_token
@_json
def test(file: Path, examples: Path, embeddings: str | None, token: str | None, as_json: bool) -> None:
    """Judge ROUTER by other labelled prompts.

    EXAMPLES has lines of {"prompt", "expert"} that were not used for learning.

    Example: rdukit router test router.safetensors others.jsonl

    Example: rdukit router test router.safetensors others.jsonl --json
    """
    found, (judged, version) = read_examples(examples), load_router(file)
    vectors = _vectors([each.prompt for each in found], len(judged.scale), embeddings or "", judged.model, token)
    score = judge(judged, vectors, [each.expert for each in found])
    _print(score, as_json, router=str(file), version=version, examples=len(found))


@router.command()
@click.argument("file", metavar="ROUTER", type=_PATH)
@click.argument("text")
@_embeddings
@_token
@_json
def choose(file: Path, text: str, embeddings: str | None, token: str | None, as_json: bool) -> None:
    """Print which expert ROUTER chooses for TEXT.

    Example: rdukit router choose router.safetensors "Why does my loop never end?"

    Example: rdukit router choose router.safetensors "Write a sonnet." --json
    """
    found, _ = load_router(file)
    (vector,) = _vectors([text], len(found.scale), embeddings or "", found.model, token)
    choice = found.decide(vector)
    if as_json:
        click.echo(json.dumps({"expert": choice.expert, "confidence": choice.confidence}))
    else:
        click.echo(f"{choice.expert}  {choice.confidence:.3f}")


@router.command()
@click.argument("file", metavar="ROUTER", type=_PATH)
@click.option(
    "--expert", "experts", multiple=True, required=True, metavar="NAME=URL[#MODEL]",
    help="Expert's base URL with /v1, and its model there [default: the first].",
)  # fmt: skip
@click.option("--name", default="router", show_default=True, help="Model name behind which experts are chosen.")
@click.option("--default", "fallback", metavar="NAME", default="", help="Expert for choices with low confidence.")
@click.option("--least", type=click.FloatRange(0, 1), default=0.0, show_default=True, help="Confidence below which.")
@_embeddings
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to bind.")
@click.option("--port", type=click.IntRange(0, 65535), default=9010, show_default=True, help="0 takes a free one.")
def serve(
    file: Path, experts: Sequence[str], name: str, fallback: str, least: float, embeddings: str | None, host: str,
    port: int,
) -> None:  # fmt: skip
    """Serve several experts behind one model name.

    It has OpenAI's and Anthropic's routes; Ctrl-C stops it.

    Example: rdukit router serve router.safetensors --expert code=http://127.0.0.1:9000/v1 --expert
    talk=http://127.0.0.1:9002/v1

    Example: rdukit router serve router.safetensors --expert code=http://127.0.0.1:9000/v1#coder --port 9003
    """
    from rdukit_serving.router.proxy import RouterDoor, ServedExpert
    from rdukit_serving.router.server import serve_router

    served = []
    for text in experts:
        expert, separator, place = text.partition("=")
        url, _, model = place.partition("#")
        if not separator or not url.startswith(("http://", "https://")):
            raise InvalidArgument(
                f"--expert {text!r} is not valid; expected NAME=http://HOST:PORT/v1, with #MODEL after it"
            )
        served.append(ServedExpert(expert, url.rstrip("/"), model))
    found, version = load_router(file)
    make = partial(RouterDoor, NamedRouter(name, found, fallback, least), served, (embeddings or "").rstrip("/"))

    def announce(url: str) -> None:
        click.echo(f"router {name} {version} of {', '.join(found.experts)}: {url}/v1; Ctrl-C stops it", err=True)

    serve_router(make, host, port, announce)


def _vectors(texts: Sequence[str], size: int, url: str, model: str, token: str | None) -> list[NDArray[np.float32]]:
    """Return a vector of each text: the model's, or of its words."""
    if not model:
        return [word_vector(text, size) for text in texts]
    if not url:
        raise InvalidArgument(f"this router chooses by vectors of {model!r}; give that model's URL (--embeddings)")
    return asyncio.run(_fetch(texts, url.rstrip("/"), model, {"authorization": f"Bearer {token}"} if token else {}))


async def _fetch(texts: Sequence[str], url: str, model: str, headers: dict[str, str]) -> list[NDArray[np.float32]]:
    from rdukit_serving.router.proxy import TIMEOUT, fetch_vectors

    async with httpx.AsyncClient(trust_env=False, timeout=TIMEOUT) as client:
        found: list[NDArray[np.float32]] = []
        for at in range(0, len(texts), _TOGETHER):
            found += await fetch_vectors(client, url, model, texts[at : at + _TOGETHER], headers)
    return found


def _print(score: Score, as_json: bool, **fields: object) -> None:
    if as_json:
        judged = {"texts": score.texts, "right": score.right, "accuracy": score.accuracy, "wrong": score.confusions}
        click.echo(json.dumps({**fields, "judged": judged}))
        return
    print_fields([*fields.items(), ("judged by", f"{score.texts} prompts"), ("right", f"{100 * score.accuracy:.1f} %")])
    if score.confusions:
        print_table(("SHOULD GO TO", "WENT TO", "PROMPTS"), score.confusions)
