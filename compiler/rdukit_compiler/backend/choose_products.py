"""Rewrites of a traced kernel's products to the routes that are fast on this machine; no value changes its meaning.

Equal views, and equal packings of rows, are eliminated as common subexpressions. Only native kernels are rewritten; the
graph that a PEF keeps has ATen's operators.
"""

import operator
from collections.abc import Sequence
from typing import Any, Final

import torch
from torch import fx

from rdukit_compiler.backend.native_operators import operator_named, product
from rdukit_compiler.backend.routes import BATCH_ROWS, FEW_ROWS, LINEAR_ROWS, SOME_ROWS, Route, Routes, choose_route
from rdukit_compiler.operators.naming import aten_names, aten_word, dtype_name
from rdukit_compiler.operators.own_operators import own_operator
from rdukit_compiler.torch_private import OpOverload

aten = torch.ops.aten

_ATTENTION: Final = aten._scaled_dot_product_flash_attention_for_cpu.default

_ATTENTIONS: Final = ("scaled_dot_product_attention", "_scaled_dot_product_flash_attention_for_cpu")
#: Operators that may become one of our products after composite operators are decomposed.
_PRODUCTS: Final = ("linear", "matmul", "mm", "addmm", "bmm", "einsum", "baddbmm", *_ATTENTIONS)
#: Computed in f32, between casts, where bf16 products go through f32.
_WIDENED: Final = frozenset(
    {
        aten.convolution.default, aten.convolution_backward.default,
        aten._scaled_dot_product_flash_attention_for_cpu_backward.default, aten.baddbmm.default,
    }
)  # fmt: skip

#: Operators that always give a view of their first argument.
_VIEWS: Final = frozenset(
    {
        aten.view.default, aten._unsafe_view.default, aten.t.default, aten.transpose.int, aten.permute.default,
        aten.unsqueeze.default, aten.squeeze.dim, aten.select.int, aten.slice.Tensor, aten.expand.default,
    }
)  # fmt: skip


def may_change(module: fx.GraphModule, inputs: Sequence[torch.Tensor], routes: Routes) -> bool:
    """Return whether ``choose_products`` could do something, so that decomposing composite operators may pay."""
    names = aten_names(module)
    if any(node.target in _quantized() for node in module.graph.nodes):
        return True
    is_narrow = any(tensor.dtype == torch.bfloat16 for tensor in inputs)
    if is_narrow and routes.bf16 == "f32":
        wide = {aten_word(target) for target in _WIDENED} | {"scaled_dot_product_attention"}
        return bool(names & (set(_PRODUCTS) | wide) or any(name.startswith(("conv", "_conv")) for name in names))
    if not names & set(_PRODUCTS):
        return False
    if is_narrow and routes.attention == "own" and names & set(_ATTENTIONS):
        return True
    most = LINEAR_ROWS if is_narrow and routes.linear == "own" else BATCH_ROWS if routes.few == "own" else SOME_ROWS
    return routes.f32 == "onednn" or any(tensor.dim() < 2 or _rows(tensor) <= most for tensor in inputs)


def _rows(tensor: torch.Tensor) -> int:
    return tensor.numel() // max(tensor.shape[-1], 1)


def choose_products(module: fx.GraphModule, routes: Routes) -> None:
    """Rewrite ``module``, whose nodes carry their (fake) tensors in ``meta["val"]`` and are not composite, in place."""
    module.graph.eliminate_dead_code()  # an unread result, such as attention's sums, need not be computed
    eliminate_common_views(module.graph)
    quantized = _quantized()
    for node in list(module.graph.nodes):
        if node.op != "call_function":
            continue
        if node.target is aten.mm.default:
            a, b = _nodes(node)
            _rewrite_product(node, a, b, None, routes)
        elif node.target is aten.addmm.default and _is_plain_addmm(node):
            bias, a, b = _nodes(node)
            _rewrite_product(node, a, b, bias, routes)
        elif node.target in quantized:
            _flatten_quantized(node, quantized[node.target])
        elif node.target is aten.bmm.default and node.meta["val"].shape[0] == 1:
            _rewrite_single_batch(node, routes)
        elif node.target is _ATTENTION:
            _rewrite_attention(node, routes)
        elif node.target is aten.bmm.default and _is_narrow(node) and routes.bf16 == "f32":
            _replace(node, operator_named("rdukit_batch_product"), node.args)
        elif node.target in _WIDENED and _is_narrow(node) and routes.bf16 == "f32":
            _widen(node)
    module.graph.eliminate_dead_code()
    eliminate_common_calls(module.graph, operator_named("rdukit_packed_rows"))
    module.recompile()


def _rewrite_product(node: fx.Node, a: fx.Node, b: fx.Node, bias: fx.Node | None, routes: Routes) -> None:
    left, right = a.meta["val"], b.meta["val"]
    (m, k), n = left.shape, right.shape[1]
    in_rows, is_row_major = right.stride() == (1, k), right.stride() == (n, 1)
    route = choose_route(routes, dtype_name(right.dtype), m, n, k, in_rows, is_row_major)
    if left.dtype != right.dtype:
        return
    if route is not Route.FEW and bias is None and _is_few_turned(left, right, routes):
        return _rewrite_turned(node, a, b)
    if route is None:
        return
    if route is Route.LINEAR:
        return _rewrite_linear(node, a, b, bias)
    _replace(node, *product(a, b, bias, route))


def _is_few_turned(left: torch.Tensor, right: torch.Tensor, routes: Routes) -> bool:
    """Return whether [m, k] x [k, n], transposed, is our product of few rows: oneDNN would copy the left operand of a
    gradient.
    """
    (m, k), n = left.shape, right.shape[1]
    if left.stride() != (1, m) or right.stride() != (n, 1):
        return False
    dtype, rows = dtype_name(left.dtype), max(n, FEW_ROWS + 1)  # fewer rows are no slower
    return choose_route(routes, dtype, rows, m, k, False, True) is Route.FEW


def _rewrite_turned(node: fx.Node, a: fx.Node, b: fx.Node) -> None:
    """Write the transposed product, and a copy that transposes it back: a section's results are contiguous."""
    with node.graph.inserting_before(node):
        rows, columns = (node.graph.call_function(aten.t.default, (operand,)) for operand in (b, a))
        target, args = product(rows, columns, None, Route.FEW)
        made = node.graph.call_function(aten.t.default, (node.graph.call_function(target, args),))
    _replace(node, aten.clone.default, (made,), {"memory_format": torch.contiguous_format})


def _rewrite_linear(node: fx.Node, a: fx.Node, b: fx.Node, bias: fx.Node | None) -> None:
    """Write packed rows, and their product with the weight as it lies in memory, [n, k]."""
    with node.graph.inserting_before(node):
        rows = node.graph.call_function(operator_named("rdukit_packed_rows"), (a,))
        weight = node.graph.call_function(aten.t.default, (b,))
    _replace(node, operator_named("rdukit_packed_linear"), (rows, weight, bias, a.meta["val"].shape[0]))


def _quantized() -> dict[Any, Any]:
    """Return linear layers with weights of few bits by our operator → the native one, whose x is [M, K]."""
    return {own_operator(name): operator_named(f"rdukit_{name}") for name in ("int8_linear", "int4_linear")}


def _flatten_quantized(node: fx.Node, native: Any) -> None:
    """Write the operator on x [..., K] as the ``native_source`` operator on [M, K]."""
    x, w, scale, *rest = _nodes(node)
    made, k, bias = node.meta["val"], x.meta["val"].shape[-1], rest[0] if rest else None
    with node.graph.inserting_before(node):
        rows = node.graph.call_function(aten.reshape.default, (x, [-1, k]))
        flat = node.graph.call_function(native, (rows, w, scale, bias))
    _replace(node, aten.reshape.default, (flat, list(made.shape)))


def _rewrite_single_batch(node: fx.Node, routes: Routes) -> None:
    """Write a batch of one as a product: linear layers whose weight was expanded become this."""
    a, b = _nodes(node)
    with node.graph.inserting_before(node):
        flat = [node.graph.call_function(aten.select.int, (operand, 0, 0)) for operand in (a, b)]
        for made, operand in zip(flat, (a, b), strict=True):
            made.meta["val"] = operand.meta["val"].select(0, 0)
        product_node = node.graph.call_function(aten.mm.default, tuple(flat))
        product_node.meta["val"] = node.meta["val"].select(0, 0)
    _replace(node, aten.unsqueeze.default, (product_node, 0))
    _rewrite_product(product_node, flat[0], flat[1], None, routes)


def _rewrite_attention(node: fx.Node, routes: Routes) -> None:
    """Rewrite attention whose log-sum-exp output is unused; otherwise put bf16 attention between casts.

    Heads that were repeated for the queries that share them are read in place, and so are the sequences that a call
    selects from a cache.
    """
    q, *kept = (operand for operand in node.args[:3] if isinstance(operand, fx.Node))
    used = [user for user in node.users if user.target is operator.getitem]
    given = tuple(node.args[3:5])
    dropout, is_causal = given + (0.0, False)[len(given) :]
    heads, rows, width = q.meta["val"].shape[1:]
    (k, texts), (v, same) = (_taken_from(_unrepeated(operand)) for operand in kept)
    if texts is not same:
        (k, v), texts = (_unrepeated(operand) for operand in kept), None
    mask = node.kwargs.get("attn_mask")
    masks = [mask.meta["val"]] if isinstance(mask, fx.Node) else []
    query, keys, values = (operand.meta["val"] for operand in (q, k, v))
    is_own = _is_narrow(node) and routes.attention == "own"
    is_seen = texts is not None and masks != [] and not is_causal and not _is_narrow(node)
    *steps, last_step = node.meta["val"][0].stride()
    if (
        (rows <= FEW_ROWS or is_own or is_seen)
        and not dropout
        and len(used) == len(node.users)
        and all(user.args[1] == 0 for user in used)
        and keys.stride(3) == values.stride(3) == last_step == 1
        and values.shape[3] == width
        and heads % keys.shape[1] == 0
        and all(tensor.dtype in {torch.float32, torch.bfloat16} for tensor in (query, *masks))
        and (not is_seen or rows <= FEW_ROWS or all(m.dtype == query.dtype and m.stride(-1) == 1 for m in masks))
    ):
        scale = node.kwargs.get("scale")
        scale = float(scale) if isinstance(scale, int | float) else width**-0.5
        with node.graph.inserting_before(node):
            args = (q, k, v, mask, texts, scale, bool(is_causal), *steps)
            made = node.graph.call_function(operator_named("rdukit_attention"), args)
        for user in used:
            made.meta = dict(user.meta)
            user.replace_all_uses_with(made)
            node.graph.erase_node(user)
        node.graph.erase_node(node)
    elif _is_narrow(node) and routes.bf16 == "f32":
        _widen(node)


def _unrepeated(heads: fx.Node) -> fx.Node:
    """Return the keys or values [B, G, S, D] that were repeated to [B, H, S, D], else ``heads`` unchanged."""
    steps = (aten._unsafe_view.default, aten.clone.default, aten.expand.default, aten.unsqueeze.default)
    found = heads
    for step in steps:
        if found.target is not step:
            return heads
        found = _nodes(found)[0]
    batch, groups, count, width = found.meta["val"].shape
    total = heads.meta["val"].shape
    repeated = _nodes(_nodes(heads)[0])[0].meta["val"].shape
    is_repeated = repeated == (batch, groups, total[1] // groups, count, width)
    return found if is_repeated and tuple(total) == (batch, total[1], count, width) else heads


def _taken_from(texts: fx.Node) -> tuple[fx.Node, fx.Node | None]:
    """Return the cache [R, G, S, D] and the indices of the sequences that are selected from it, if it is one."""
    if texts.target is not aten.index_select.default or texts.args[1] != 0:
        return texts, None
    cache, numbers = _nodes(texts)
    is_plain = cache.meta["val"].dim() == 4 and numbers.meta["val"].dtype == torch.int64
    return (cache, numbers) if is_plain else (texts, None)


def _is_plain_addmm(node: fx.Node) -> bool:
    bias, _, right = (operand.meta["val"] for operand in _nodes(node))
    return bool(bias.shape == right.shape[1:] and all(value == 1 for value in node.kwargs.values()))


def _nodes(node: fx.Node) -> list[fx.Node]:
    """Return the arguments of a call that are values."""
    return [argument for argument in node.args if isinstance(argument, fx.Node)]


def _is_narrow(node: fx.Node) -> bool:
    value = node.meta["val"]
    first = value[0] if isinstance(value, list | tuple) else value
    return isinstance(first, torch.Tensor) and first.dtype == torch.bfloat16


def _replace(node: fx.Node, target: Any, args: tuple[Any, ...], kwargs: dict[str, Any] | None = None) -> None:
    with node.graph.inserting_before(node):
        made = node.graph.call_function(target, args, kwargs)
    made.meta = dict(node.meta)
    node.replace_all_uses_with(made)
    node.graph.erase_node(node)


def _widen(node: fx.Node) -> None:
    """Cast bf16 operands of ``node`` to f32, and its results back to bf16."""
    graph = node.graph

    def cast(value: Any, dtype: torch.dtype) -> fx.Node:
        made = graph.call_function(torch.ops.prims.convert_element_type.default, (value, dtype))
        made.meta["val"] = value.meta["val"].to(dtype)
        return made

    with graph.inserting_before(node):
        for operand in list(node.all_input_nodes):
            value = operand.meta["val"]
            if isinstance(value, torch.Tensor) and value.dtype == torch.bfloat16:
                node.replace_input_with(operand, cast(operand, torch.float32))
    made = node.meta["val"]
    if isinstance(made, torch.Tensor):
        node.meta["val"] = made.float()
        users = list(node.users)
        with graph.inserting_after(node):
            narrow = cast(node, torch.bfloat16)
        for user in users:
            user.replace_input_with(node, narrow)
        return
    node.meta["val"] = type(made)(
        value.float() if isinstance(value, torch.Tensor) and value.dtype == torch.bfloat16 else value for value in made
    )
    for item in [user for user in node.users if user.target is operator.getitem]:
        was = item.meta["val"]
        if isinstance(was, torch.Tensor) and was.dtype == torch.bfloat16:
            item.meta["val"] = was.float()
            users = list(item.users)
            with graph.inserting_after(item):
                narrow = cast(item, torch.bfloat16)
            for user in users:
                user.replace_input_with(item, narrow)


def eliminate_common_views(graph: fx.Graph) -> None:
    """Merge equal views of one tensor: they show the same memory, even after writes."""
    _merge(graph, lambda node: node.target in _VIEWS)


def eliminate_common_calls(graph: fx.Graph, target: Any) -> None:
    """Merge calls of ``target``, which computes a value from tensors, unless a call writes to those tensors."""
    written = {
        _owner(node.args[0])
        for node in graph.nodes
        if isinstance(node.target, OpOverload) and node.target._schema.is_mutable and node.args
    }
    _merge(graph, lambda node: node.target is target and not written & {_owner(a) for a in node.all_input_nodes})


def _merge(graph: fx.Graph, may_merge: Any) -> None:
    seen: dict[Any, fx.Node] = {}
    for node in list(graph.nodes):
        if node.op != "call_function" or not may_merge(node):
            continue
        earlier = seen.setdefault(repr((node.target, node.args, node.kwargs)), node)
        if earlier is not node:
            node.replace_all_uses_with(earlier)
            graph.erase_node(node)


def _owner(value: Any) -> Any:
    """Return the value whose memory ``value`` is, or is a view of."""
    while isinstance(value, fx.Node) and value.target in _VIEWS:
        value = value.args[0]
    return value
