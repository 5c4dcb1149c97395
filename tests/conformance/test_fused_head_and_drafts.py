"""Language models whose head runs with the sampling, and that check several drafted tokens at once (SDK reference 12).

The programs join graphs as public ones do: by regions, and by giving operators that read one traced tensor another.
"""

from typing import Any

import pytest
import torch
from torch import nn

from rdukit.pef import read_pef
from sambaflow import samba
from sambaflow.samba.functional.stir import sn_imm, sn_iteridx, sn_select, sn_zipmapreduce
from sambaflow.samba.graph import FwdGraph
from sambaflow.samba.sambatensor import SambaTensor
from sambaflow.samba.sn_private import sn_gather, sn_scatter
from sambaflow.samba.utils import SNType, trace_multigraph
from support import shows

pytestmark = shows("surface")

LENGTH, WIDTH, WORDS, PROMPT = 12, 16, 23, 4
F32 = {"precision": "f32", "log_level": "error"}


class Decoder(nn.Module):
    """Attention over a static cache [1, LENGTH, WIDTH], then a head; ``last`` are the places of the tokens."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(WORDS, WIDTH)
        self.q, self.k, self.v = (nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(3))
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, WORDS)

    def forward(self, input_ids: Any, last: Any, past: Any = None) -> dict[str, Any]:
        x = self.embed(input_ids)
        k, v = self.k(x), self.v(x)
        at = last.long().unsqueeze(-1).expand(-1, -1, WIDTH)
        if past is None:
            x = x.gather(1, at)
        else:
            k, v = past[0].scatter(1, at, k), past[1].scatter(1, at, v)
        scores = self.q(x) @ k.transpose(1, 2)
        unseen = torch.arange(LENGTH).reshape(1, 1, LENGTH) > last.unsqueeze(-1)
        hidden = x + scores.masked_fill(unseen, -1e9).softmax(-1) @ v
        return {"logits": self.head(self.norm(hidden)), "past": (k, v), "hidden": hidden}

    def next_words(self, words: list[int]) -> list[int]:
        """Return the likeliest word after each one of a text, on the host."""
        padded = torch.tensor([words + [0] * (LENGTH - len(words))])
        made = self(padded, torch.arange(len(words)).unsqueeze(0))
        return [int(word) for word in samba.to_torch(made["logits"]).argmax(-1)[0]]


class DecoderWithSampling(nn.Module):
    """The decoder and greedy sampling, of which a program runs the part after the hidden values."""

    def __init__(self, decoder: Decoder) -> None:
        super().__init__()
        self.decoder = decoder

    def forward(self, inputs: dict[str, Any], last: Any, generated: Any, count: Any) -> tuple[Any, ...]:
        made = self.decoder(**inputs)
        words = made["logits"].argmax(-1).int()
        generated = generated.scatter(1, count.long(), words)
        return words, last + 1, generated, count + 1, made["hidden"]


class Verification(nn.Module):
    """Compares drafted words with the likeliest ones, and goes on behind those that agree."""

    def forward(self, logits: Any, drafts: Any, last: Any, generated: Any, count: Any) -> tuple[Any, ...]:
        words = logits.argmax(-1).int()
        several = words.shape[1]
        places = torch.arange(several, dtype=torch.int32)
        following = torch.clamp(places + 1, max=several - 1).reshape(1, several, 1)
        drafted = sn_gather(drafts, following, [0], [1], batched_dims=1).squeeze(-1)

        def agreed(attrs: Any, drafted: Any, words: Any) -> Any:
            here = sn_iteridx(attrs=attrs, dim=1, dtype=SNType.INT32) + sn_imm(1, dtype=SNType.INT32)
            return sn_select(drafted == words, sn_imm(several, dtype=SNType.INT32), here)

        taken = sn_zipmapreduce(agreed, [drafted, words], reduce_func="MIN", reduce_dim=[1])
        generated = sn_scatter(
            generated, words.unsqueeze(-1), (count + places).unsqueeze(-1), scatter_dims=[0], batched_dims=1
        )
        return words, last + taken, generated, count + taken


def of_ints(name: str, *shape: int) -> SambaTensor:
    return samba.from_torch_tensor(torch.zeros(shape, dtype=torch.int32), name=name)


def cached(decoder: Decoder, several: int) -> tuple[dict[str, Any], dict[str, Any], tuple[Any, ...], tuple[Any, ...]]:
    """Trace the prompt's graph and the one that reads the cache: inputs and outputs of both, regions joined."""
    prompt = {"input_ids": of_ints("prompt", 1, LENGTH), "last": of_ints("last", 1, several)}
    of_prompt = trace_multigraph(decoder, prompt, "prompt")
    past = tuple(
        SambaTensor(shape=t.shape, dtype=t.dtype, name=f"{t.sn_name}_kept", region_name=t.sn_region_name)
        for t in of_prompt[1:3]
    )
    step = {"input_ids": of_ints("words", 1, several), "last": prompt["last"], "past": past}
    of_step = trace_multigraph(decoder, step, "step")
    for output, home in zip(of_step[1:3], past, strict=True):
        output.sn_region_name = home.sn_region_name
    of_prompt[0].sn_region_name = of_step[0].sn_region_name = "logits"
    return prompt, step, of_prompt, of_step


def swap(old: SambaTensor, new: SambaTensor) -> None:
    """Let everything that reads ``old`` read ``new``."""
    new.dsts = new.dsts + old.dsts
    for reader in old.dsts:
        for place, tensor in enumerate(reader.inputs):
            if tensor is old:
                reader.inputs[place] = new


def add_fused() -> Decoder:
    """Add graphs for the prompt and a step up to the hidden values, the head, and the head with sampling."""
    torch.manual_seed(3)
    decoder = Decoder()
    samba.from_torch_model_(decoder)
    prompt, step, of_prompt, of_step = cached(decoder, 1)
    generated, count = of_ints("generated", 1, LENGTH), of_ints("count", 1, 1)
    sampling = DecoderWithSampling(decoder)
    samba.from_torch_model_(sampling)
    rest = {"last": step["last"], "generated": generated, "count": count}
    *sampled, sampled_hidden = trace_multigraph(sampling, {"inputs": step, **rest}, "sample")
    hidden = of_step[-1]
    for output, region in zip(sampled, ("words", "last", "generated", "count"), strict=True):
        output.sn_region_name = region
    of_prompt[-1].sn_region_name = hidden.sn_region_name = sampled_hidden.sn_region_name = "hidden"
    swap(sampled_hidden, hidden)
    for start, stop, name in (
        (prompt, (of_prompt[-1], of_prompt[1:3]), "prompt"), (step, (hidden, of_step[1:3]), "step"),
        (hidden, of_step[0], "head"), ((hidden, rest), tuple(sampled), "sample"),
    ):  # fmt: skip
        samba.session.add_graph(FwdGraph(start, stop, name))
    return decoder


def add_drafts(several: int) -> Decoder:
    """Add graphs for the prompt, a step of several words and their verification, and one that has nothing to do."""
    torch.manual_seed(3)
    decoder = Decoder()
    samba.from_torch_model_(decoder)
    prompt, step, of_prompt, of_step = cached(decoder, several)
    checked = {
        "logits": samba.randn(1, several, WORDS, name="logits"), "drafts": step["input_ids"], "last": step["last"],
        "generated": of_ints("generated", 1, LENGTH), "count": of_ints("count", 1, 1),
    }  # fmt: skip
    outputs = trace_multigraph(Verification(), checked, "verify")
    for output, region in zip(outputs, ("words", "last", "generated", "count"), strict=True):
        output.sn_region_name = region
    for start, stop, name in (
        (prompt, (of_prompt[0], of_prompt[1:3]), "prompt"), (step, (of_step[0], of_step[1:3]), "step"),
        (checked, outputs, "verify"), ({}, None, "nothing"),
    ):  # fmt: skip
        samba.session.add_graph(FwdGraph(start, stop, name))
    return decoder


def run(graph: str, **tensors: torch.Tensor) -> None:
    samba.session.run(samba.from_named_dict(tensors), graph_name=graph)


def value(name: str) -> torch.Tensor:
    found: torch.Tensor = samba.session.get_tensors_by_name([name])[0].data
    return found


def ints(*values: int) -> torch.Tensor:
    return torch.tensor([values], dtype=torch.int32)


def load(add: Any) -> tuple[Decoder, str]:
    """Compile in one session and load in another one, as two processes of a program do."""
    add()
    pef = samba.session.compile_multigraph(name="decoder", config_dict=F32)
    samba.session.reset()
    decoder = add()
    samba.session.init_multigraph_runtime(pef)
    return decoder, pef


def test_a_head_that_is_fused_with_sampling_generates_what_the_host_does() -> None:
    decoder, _ = load(add_fused)
    text = [5, 17, 2, 11]
    run("prompt", prompt=ints(*text, *[0] * (LENGTH - PROMPT)), last=ints(PROMPT - 1))
    run("head")
    assert int(value("logits").argmax()) == decoder.next_words(text)[-1]
    run("sample", generated=ints(*[0] * LENGTH), count=ints(0))
    for _ in range(LENGTH - PROMPT - 1):
        text.append(decoder.next_words(text)[-1])
        run("step")
        run("sample")
    text.append(decoder.next_words(text)[-1])
    assert value("generated")[0, : LENGTH - PROMPT].tolist() == text[PROMPT:]
    assert len(set(text[PROMPT:])) > 2


@pytest.mark.parametrize("wrong", [None, 1, 2, 3])
def test_drafts_are_taken_as_far_as_they_are_the_likeliest_words(wrong: int | None) -> None:
    several = 4
    decoder, pef = load(lambda: add_drafts(several))
    assert "nothing" not in read_pef(pef).pef.graphs
    text = [5, 17, 2, 11]
    run("prompt", prompt=ints(*text, *[0] * (LENGTH - PROMPT)), last=ints(*range(PROMPT)))
    assert value("logits").argmax(-1)[0].tolist() == decoder.next_words(text)
    drafts = [decoder.next_words(text)[-1]]
    while len(drafts) < several:
        drafts.append(decoder.next_words(text + drafts)[-1])
    if wrong is not None:
        drafts[wrong] = (drafts[wrong] + 1) % WORDS
    places = range(PROMPT, PROMPT + several)
    run("step", words=ints(*drafts), last=ints(*places))
    words = decoder.next_words(text + drafts)[PROMPT:]
    assert value("logits").argmax(-1)[0].tolist() == words
    run("verify", generated=ints(*[0] * LENGTH), count=ints(0))
    taken = several if wrong is None else wrong
    assert value("count").tolist() == [[taken]]
    assert value("last").tolist() == [[place + taken for place in places]]
    assert value("generated")[0, :several].tolist() == words
