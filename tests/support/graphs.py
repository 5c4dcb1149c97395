"""Small traced graphs by hand, and a stand-in for a compile that uses the kernel cache: for tests."""

import queue
import random
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from rdukit.pef.kernel import Argument, Ref
from rdukit.pef.model import Dtype
from rdukit_compiler.backend.kernel_cache import KernelCache
from rdukit_compiler.ir import ModelGraph, Operator, Value, ValueKind, check_graph

LIBRARY_BYTES: Final = 200_000


class GraphBuilder:
    """Builds a ``ModelGraph`` operator by operator. Names are those given, else ``<op_type>_<count>``."""

    def __init__(self, name: str = "model", dtype: Dtype = "float32") -> None:
        self.name = name
        self.dtype = dtype
        self.values: dict[str, Value] = {}
        self.operators: list[Operator] = []

    def input(self, name: str, *shape: int, dtype: Dtype | None = None) -> str:
        return self._value(name, ValueKind.INPUT, shape or (4, 8), dtype or self.dtype)

    def parameter(self, name: str, *shape: int) -> str:
        return self._value(name, ValueKind.PARAMETER, shape, self.dtype, requires_grad=True)

    def op(
        self,
        op_type: str,
        *args: Argument,
        shape: tuple[int, ...] | None = None,
        name: str | None = None,
        outputs: int = 1,
        dtype: Dtype | None = None,
        module: str = "",
        labels: Mapping[str, str] | None = None,
    ) -> str:
        """Add an operator. String arguments that name values become references. The shape is the first input's
        unless given. Returns the name of its (first) output; further ones end in ``.1``, ``.2`` …
        """
        name = name or self._free_name(op_type)
        refs: list[Argument] = [Ref(a) if isinstance(a, str) and a in self.values else a for a in args]
        made = [name if index == 0 else f"{name}.{index}" for index in range(outputs)]
        first = next((self.values[a.name] for a in refs if isinstance(a, Ref)), None)
        given = shape if shape is not None else first.shape if first else (1,)
        for output in made:
            self._value(output, ValueKind.OPERATOR, given, dtype or (first.dtype if first else self.dtype))
        operator = Operator(
            name, f"aten.{op_type}.default", op_type, tuple(refs), {}, tuple(made), module, dict(labels or {})
        )
        self.operators.append(operator)
        return made[0]

    def linear(self, x: str, features: int, name: str | None = None, *, bias: bool = True) -> str:
        """Add ``aten.linear`` with its own weight and bias parameters."""
        name = name or self._free_name("linear")
        before = self.values[x].shape
        weight = self.parameter(f"{name}.weight", features, before[-1])
        extra = (self.parameter(f"{name}.bias", features),) if bias else ()
        return self.op("linear", x, weight, *extra, shape=(*before[:-1], features), name=name)

    def build(self, *outputs: str) -> ModelGraph:
        """Return the graph, checked. Without ``outputs``: whatever nobody reads."""
        read = {name for operator in self.operators for name in operator.inputs}
        last = outputs or tuple(v for o in self.operators for v in o.outputs if v not in read)
        graph = ModelGraph(self.name, dict(self.values), tuple(self.operators), last)
        check_graph(graph, "testing.GraphBuilder")
        return graph

    def _free_name(self, op_type: str) -> str:
        index = sum(o.op_type == op_type for o in self.operators)
        while f"{op_type}_{index}" in self.values:
            index += 1
        return f"{op_type}_{index}"

    def _value(
        self, name: str, kind: ValueKind, shape: tuple[int, ...], dtype: Dtype, requires_grad: bool = False
    ) -> str:
        if name in self.values:
            raise ValueError(f"a value is called {name!r} already")
        self.values[name] = Value(name, kind, dtype, shape, requires_grad)
        return name


def graph_of(text: str, shape: tuple[int, ...] = (4, 8)) -> ModelGraph:
    """Build a graph from lines ``out = op_type a b``, split by ``;``, too. Unknown names become inputs.

    A chain may be written ``x -> linear -> gelu``: each operator reads the one before it.
    """
    build = GraphBuilder()

    def known(name: str) -> str:
        return name if name in build.values else build.input(name, *shape)

    for line in text.replace(";", "\n").splitlines():
        if "->" in line:
            first, *op_types = (word.strip() for word in line.split("->"))
            value = known(first)
            for op_type in op_types:
                value = build.op(op_type, value, shape=shape)
        elif line.strip():
            name, call = (part.strip() for part in line.split("="))
            op_type, *args = call.split()
            build.op(op_type, *(known(a) for a in args), shape=shape, name=name)
    return build.build()


def gpt_graph(
    layers: int = 2,
    width: int = 64,
    heads: int = 4,
    batch: int = 2,
    length: int = 16,
    vocabulary: int = 96,
    *,
    packed: bool = False,
) -> ModelGraph:
    """Build a decoder with layer norms, attention written out, GELU and a head. ``packed``: one QKV projection."""
    b = GraphBuilder("gpt")
    shape = (batch, length, width)
    split_heads, head = (batch, length, heads, width // heads), (batch, heads, length, width // heads)
    x = b.op(
        "embedding", b.parameter("wte", vocabulary, width), b.input("tokens", batch, length, dtype="int64"), shape=shape
    )
    for i in range(layers):
        n = f"h{i}."
        gammas = [b.parameter(f"{n}ln{j}.weight", width) for j in (1, 2)]
        norm = b.op("layer_norm", x, gammas[0], name=f"{n}ln1")
        if packed:
            qkv = b.linear(norm, 3 * width, f"{n}qkv")
            b.op("split", qkv, shape=shape, name=f"{n}split", outputs=3)
            parts = [f"{n}split", f"{n}split.1", f"{n}split.2"]
        else:
            parts = [b.linear(norm, width, f"{n}{p}") for p in "qkv"]
        q, k, v = (
            b.op(
                "transpose",
                b.op("view", p, shape=split_heads, name=f"{n}{w}_view"),
                1,
                2,
                shape=head,
                name=f"{n}{w}_heads",
            )
            for w, p in zip("qkv", parts, strict=True)
        )
        turned = b.op("transpose", k, -2, -1, shape=(batch, heads, width // heads, length), name=f"{n}k_turn")
        scores = b.op("matmul", q, turned, shape=(batch, heads, length, length), name=f"{n}scores")
        probs = b.op("softmax", b.op("div", scores, 4.0, name=f"{n}scale"), name=f"{n}probs")
        mixed = b.op("matmul", probs, v, shape=head, name=f"{n}mix")
        back = b.op("transpose", mixed, 1, 2, shape=split_heads, name=f"{n}back")
        merged = b.op("reshape", back, shape=shape, name=f"{n}merge")
        x = b.op("add", b.linear(merged, width, f"{n}proj"), x, name=f"{n}resid1")
        norm2 = b.op("layer_norm", x, gammas[1], name=f"{n}ln2")
        hidden = b.op("gelu", b.linear(norm2, 4 * width, f"{n}fc1"), name=f"{n}gelu")
        x = b.op("add", b.linear(hidden, width, f"{n}fc2"), x, name=f"{n}resid2")
    b.linear(x, vocabulary, "lm_head", bias=False)
    return b.build()


def llama_graph(
    layers: int = 2,
    width: int = 64,
    heads: int = 4,
    batch: int = 2,
    length: int = 16,
    vocabulary: int = 96,
    *,
    sdpa: bool = True,
) -> ModelGraph:
    """Build a decoder with RMSNorm written out, rotary embedding by ``getitem``, gated feed-forward and a head."""
    b = GraphBuilder("llama")
    shape = (batch, length, width)
    split_heads, head = (batch, length, heads, width // heads), (batch, heads, length, width // heads)
    cos, sin = b.input("cos", length, width // heads), b.input("sin", length, width // heads)
    x = b.op(
        "embedding",
        b.parameter("embed", vocabulary, width),
        b.input("tokens", batch, length, dtype="int64"),
        shape=shape,
    )

    def rms_norm(x: str, n: str) -> str:
        one = (batch, length, 1)
        mean = b.op("mean", b.op("pow", x, 2, name=f"{n}pow"), shape=one, name=f"{n}mean")
        inverse = b.op("rsqrt", b.op("add", mean, 1e-5, name=f"{n}eps"), name=f"{n}rsqrt")
        scaled = b.op("mul", x, inverse, name=f"{n}scaled")
        return b.op("mul", scaled, b.parameter(f"{n}weight", width), name=f"{n}gamma")

    def rotate(x: str, n: str) -> str:
        half = (*head[:-1], head[-1] // 2)
        low = b.op("getitem", x, shape=half, name=f"{n}low")
        minus = b.op("neg", b.op("getitem", x, shape=half, name=f"{n}high"), name=f"{n}neg")
        turned = b.op("cat", [Ref(minus), Ref(low)], shape=head, name=f"{n}cat")
        left = b.op("mul", x, cos, name=f"{n}cos")
        return b.op("add", left, b.op("mul", turned, sin, name=f"{n}sin"), name=f"{n}rotated")

    for i in range(layers):
        n = f"l{i}."
        norm = rms_norm(x, f"{n}n1.")
        q, k, v = (
            b.op(
                "transpose",
                b.op("view", b.linear(norm, width, f"{n}{w}", bias=False), shape=split_heads, name=f"{n}{w}_view"),
                1, 2, shape=head, name=f"{n}{w}_heads",
            )
            for w in "qkv"
        )  # fmt: skip
        q, k = rotate(q, f"{n}q_"), rotate(k, f"{n}k_")
        if sdpa:
            mixed = b.op("scaled_dot_product_attention", q, k, v, name=f"{n}sdpa")
        else:
            turned = b.op("transpose", k, -2, -1, shape=(batch, heads, width // heads, length), name=f"{n}k_turn")
            scores = b.op("matmul", q, turned, shape=(batch, heads, length, length), name=f"{n}scores")
            probs = b.op("softmax", b.op("div", scores, 4.0, name=f"{n}scale"), name=f"{n}probs")
            mixed = b.op("matmul", probs, v, shape=head, name=f"{n}mix")
        back = b.op("transpose", mixed, 1, 2, shape=split_heads, name=f"{n}back")
        merged = b.op("reshape", back, shape=shape, name=f"{n}merge")
        x = b.op("add", x, b.linear(merged, width, f"{n}o", bias=False), name=f"{n}resid1")
        norm2 = rms_norm(x, f"{n}n2.")
        gate = b.op("silu", b.linear(norm2, 3 * width, f"{n}gate", bias=False), name=f"{n}silu")
        product = b.op("mul", gate, b.linear(norm2, 3 * width, f"{n}up", bias=False), name=f"{n}prod")
        x = b.op("add", x, b.linear(product, width, f"{n}down", bias=False), name=f"{n}resid2")
    b.linear(rms_norm(x, "final."), vocabulary, "lm_head", bias=False)
    return b.build()


def library_of(digest: str) -> bytes:
    """Return the bytes that stand for the library of a kernel, the same for the same digest."""
    return random.Random(digest).randbytes(LIBRARY_BYTES)


def fill(root: Path, digests: str, max_bytes: int, build_s: float, log: Path) -> None:
    """Use the cache as a compile does, with a pause for the builder; a line in ``log`` for each build."""
    cache = KernelCache(root, "v", max_bytes)
    pending: queue.SimpleQueue[str] = queue.SimpleQueue()
    for digest in digests:
        pending.put(digest)
    libraries: dict[str, bytes] = {}
    with cache.building() as place:
        assert place is not None
        for (digest,) in cache.unbuilt_batches(pending, 1, libraries.__setitem__):
            with log.open("a") as stream:
                stream.write(digest + "\n")
            (place.scratch / digest).write_bytes(library_of(digest)[: LIBRARY_BYTES // 2])
            time.sleep(build_s)
            libraries[digest] = library_of(digest)
            cache.keep(digest, libraries[digest])
    assert libraries == {digest: library_of(digest) for digest in digests}
