"""BERT: an encoder with a norm after each part, for masked words, for classes of texts, and for vectors.

Source: Devlin et al., BERT: Pre-training of Deep Bidirectional Transformers (2019). Parameters are named as Hugging
Face writes them to disk.

Axes: B batch, T tokens of a text, C width of the model, V vocabulary, K classes.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

import sambaflow.samba as samba
from rdukit.errors import InvalidArgument
from rdukit_zoo.checkpoints.hub_format import HubFormat, require_value
from rdukit_zoo.datasets.passages import draw_masked, draw_plain, draw_topics
from rdukit_zoo.language.attention import LayerList, split_heads
from rdukit_zoo.language.decoder import check_divides, init_normal
from rdukit_zoo.registry import IGNORED, SizeValue, TextServing, Variant, model


@dataclass(frozen=True, slots=True)
class BertSizes:
    """Sizes of a BERT; the defaults train within a minute on a processor.

    Raises:
        InvalidArgument: they do not fit together.
    """

    width: int = 64
    layers: int = 2
    heads: int = 4
    feed_forward: int = 256
    vocabulary: int = 512
    #: Tokens of a text that a program takes.
    context_length: int = 128
    #: Positions that are learned; 0 for as many as a text has tokens.
    positions: int = 0
    #: Kinds of tokens, such as first and second sentence.
    token_types: int = 2
    epsilon: float = 1e-12
    dropout: float = 0.0
    #: Classes of a text, of the classifier.
    num_classes: int = 2

    def __post_init__(self) -> None:
        check_divides(self.width, self.heads)
        if self.positions and self.positions < self.context_length:
            raise InvalidArgument(
                f"context_length is {self.context_length}; legal: up to {self.positions}, as many as are learned"
            )


class BertEmbeddings(nn.Module):
    """Words, positions and kinds of tokens, added up and normed: [B, T, C]."""

    def __init__(self, sizes: BertSizes) -> None:
        super().__init__()
        self.word_embeddings = nn.Embedding(sizes.vocabulary, sizes.width)
        self.position_embeddings = nn.Embedding(sizes.positions or sizes.context_length, sizes.width)
        self.token_type_embeddings = nn.Embedding(sizes.token_types, sizes.width)
        self.LayerNorm = nn.LayerNorm(sizes.width, sizes.epsilon)
        self.dropout = nn.Dropout(sizes.dropout)

    def forward(self, tokens: torch.Tensor, types: torch.Tensor) -> torch.Tensor:
        places = self.position_embeddings(torch.arange(tokens.shape[1]))
        x_BTC = self.word_embeddings(tokens) + self.token_type_embeddings(types) + places
        embedded: torch.Tensor = self.dropout(self.LayerNorm(x_BTC))
        return embedded


class BertSelfAttention(nn.Module):
    """Attention of all tokens to all that ``seen`` [B, 1, 1, T] marks."""

    def __init__(self, sizes: BertSizes) -> None:
        super().__init__()
        self.heads = sizes.heads
        self.query, self.key, self.value = (nn.Linear(sizes.width, sizes.width) for _ in range(3))

    def forward(self, x_BTC: torch.Tensor, seen: torch.Tensor) -> torch.Tensor:
        query, key, value = (split_heads(part(x_BTC), self.heads) for part in (self.query, self.key, self.value))
        mixed_BHTD = F.scaled_dot_product_attention(query, key, value, attn_mask=seen)
        return mixed_BHTD.transpose(1, 2).reshape(x_BTC.shape)


class BertOutput(nn.Module):
    """Projects, adds what came in, and norms."""

    def __init__(self, inner: int, sizes: BertSizes) -> None:
        super().__init__()
        self.dense, self.LayerNorm = nn.Linear(inner, sizes.width), nn.LayerNorm(sizes.width, sizes.epsilon)
        self.dropout = nn.Dropout(sizes.dropout)

    def forward(self, x: torch.Tensor, came_in_BTC: torch.Tensor) -> torch.Tensor:
        made: torch.Tensor = self.LayerNorm(self.dropout(self.dense(x)) + came_in_BTC)
        return made


class BertLayer(nn.Module):
    """Attention and feed-forward, each added to what came in and then normed."""

    def __init__(self, sizes: BertSizes) -> None:
        super().__init__()
        self.attention = nn.ModuleDict({"self": BertSelfAttention(sizes), "output": BertOutput(sizes.width, sizes)})
        self.intermediate = nn.ModuleDict({"dense": nn.Linear(sizes.width, sizes.feed_forward)})
        self.output = BertOutput(sizes.feed_forward, sizes)

    def forward(self, x_BTC: torch.Tensor, seen: torch.Tensor) -> torch.Tensor:
        x_BTC = self.attention["output"](self.attention["self"](x_BTC, seen), x_BTC)
        made: torch.Tensor = self.output(F.gelu(self.intermediate["dense"](x_BTC)), x_BTC)
        return made


class BertBody(nn.Module):
    """(tokens [B, T], types [B, T], mask [B, T], 1 for tokens and 0 for padding) → states [B, T, C]."""

    def __init__(self, sizes: BertSizes, has_pooler: bool) -> None:
        super().__init__()
        self.embeddings = BertEmbeddings(sizes)
        self.encoder = LayerList(BertLayer(sizes) for _ in range(sizes.layers))
        if has_pooler:
            self.pooler = nn.ModuleDict({"dense": nn.Linear(sizes.width, sizes.width)})

    def forward(self, tokens: torch.Tensor, types: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        x_BTC: torch.Tensor = self.embeddings(tokens, types)
        seen = mask.bool()[:, None, None, :]
        for layer in self.encoder.layer:
            x_BTC = layer(x_BTC, seen)
        return x_BTC

    def pool(self, states_BTC: torch.Tensor) -> torch.Tensor:
        """Return the vector [B, C] of each text, from its first token."""
        pooled: torch.Tensor = torch.tanh(self.pooler["dense"](states_BTC[:, 0]))
        return pooled


class BertPredictions(nn.Module):
    """The head for masked words: states [B, T, C] → logits [B, T, V]; its weight is the embedding's."""

    def __init__(self, sizes: BertSizes, words: torch.Tensor) -> None:
        super().__init__()
        self.bias = nn.Parameter(torch.zeros(sizes.vocabulary))
        self.transform = nn.ModuleDict(
            {
                "dense": nn.Linear(sizes.width, sizes.width),
                "LayerNorm": nn.LayerNorm(sizes.width, sizes.epsilon),
            }
        )
        self.decoder = nn.Linear(sizes.width, sizes.vocabulary)
        self.decoder.weight, self.decoder.bias = words, self.bias

    def forward(self, states_BTC: torch.Tensor) -> torch.Tensor:
        x_BTC = self.transform["LayerNorm"](F.gelu(self.transform["dense"](states_BTC)))
        logits_BTV: torch.Tensor = self.decoder(x_BTC)
        return logits_BTV


class MaskedBert(nn.Module):
    """(tokens, types, mask, labels, each [B, T]) → (loss [], logits [B, T, V]); without labels the logits.

    The loss is the mean over labels that are not -100.
    """

    def __init__(self, **sizes: SizeValue) -> None:
        super().__init__()
        known = BertSizes(**sizes)  # type: ignore[arg-type]
        self.bert = BertBody(known, has_pooler=False)
        self.cls = nn.ModuleDict({"predictions": BertPredictions(known, self.bert.embeddings.word_embeddings.weight)})
        init_normal(self)

    def forward(
        self, tokens: torch.Tensor, types: torch.Tensor, mask: torch.Tensor, labels: torch.Tensor | None = None
    ) -> torch.Tensor | tuple[torch.Tensor, torch.Tensor]:
        logits_BTV: torch.Tensor = self.cls["predictions"](self.bert(tokens, types, mask))
        if labels is None:
            return logits_BTV
        loss = F.cross_entropy(logits_BTV.flatten(0, 1), labels.flatten(), ignore_index=IGNORED)
        return loss, logits_BTV


class BertClassifier(nn.Module):
    """(tokens, types, mask, each [B, T], classes [B]) → (loss [], logits [B, K]); without classes the logits."""

    def __init__(self, **sizes: SizeValue) -> None:
        super().__init__()
        known = BertSizes(**sizes)  # type: ignore[arg-type]
        self.bert = BertBody(known, has_pooler=True)
        self.dropout = nn.Dropout(known.dropout)
        self.classifier = nn.Linear(known.width, known.num_classes)
        init_normal(self)

    def forward(
        self, tokens: torch.Tensor, types: torch.Tensor, mask: torch.Tensor, classes: torch.Tensor | None = None
    ) -> torch.Tensor | tuple[torch.Tensor, torch.Tensor]:
        pooled_BC = self.bert.pool(self.bert(tokens, types, mask))
        logits_BK: torch.Tensor = self.classifier(self.dropout(pooled_BC))
        return logits_BK if classes is None else (F.cross_entropy(logits_BK, classes), logits_BK)


class BertEmbedder(nn.Module):
    """(tokens, types, mask, each [B, T]) → the vector [B, C] of each text, the mean of its last states."""

    def __init__(self, **sizes: SizeValue) -> None:
        super().__init__()
        self.bert = BertBody(BertSizes(**sizes), has_pooler=False)  # type: ignore[arg-type]
        init_normal(self)

    def forward(self, tokens: torch.Tensor, types: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        shares_BT = mask.float() / mask.sum(1, keepdim=True).clamp(min=1)
        vectors_BC: torch.Tensor = (self.bert(tokens, types, mask) * shares_BT.unsqueeze(-1)).sum(1)
        return vectors_BC


class BertOfText(BertEmbedder):
    """(text [1, T], shares [1, T] float) → the vector [1, C], the last states added up by their shares.

    A token without a share is padding.
    """

    def forward(self, text: torch.Tensor, shares: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
        states_BTC = self.bert(text, torch.zeros_like(text), shares > 0)
        vector_BC: torch.Tensor = (states_BTC * shares.unsqueeze(-1)).sum(1)
        return vector_BC


def make_text_inputs(batch_size: int, **sizes: SizeValue) -> tuple[samba.SambaTensor, ...]:
    """Return dummy inputs ``tokens``, ``types`` and ``mask``, each [batch, context_length]."""
    shape = (batch_size, int(sizes["context_length"]))
    tokens = samba.randint(int(sizes["vocabulary"]), shape, name="tokens", batch_dim=0)
    types = samba.zeros(*shape, dtype=torch.int64, name="types", batch_dim=0)
    return tokens, types, samba.ones(*shape, dtype=torch.int64, name="mask", batch_dim=0)


def make_masked_inputs(batch_size: int, **sizes: SizeValue) -> tuple[samba.SambaTensor, ...]:
    """Return ``make_text_inputs`` and ``labels`` [batch, context_length]."""
    shape = (batch_size, int(sizes["context_length"]))
    labels = samba.randint(int(sizes["vocabulary"]), shape, name="labels", batch_dim=0)
    return *make_text_inputs(batch_size, **sizes), labels


def make_classifier_inputs(batch_size: int, **sizes: SizeValue) -> tuple[samba.SambaTensor, ...]:
    """Return ``make_text_inputs`` and ``label`` [batch]."""
    label = samba.randint(int(sizes["num_classes"]), (batch_size,), name="label", batch_dim=0)
    return *make_text_inputs(batch_size, **sizes), label


def sizes_of_config(config: Mapping[str, Any]) -> dict[str, SizeValue]:
    """Return the sizes that a Hugging Face ``config.json`` names.

    Raises:
        InvalidArgument: a value that this architecture does not have.
    """
    require_value(config, "hidden_act", "gelu")
    require_value(config, "position_embedding_type", "absolute")
    require_value(config, "is_decoder", False)
    positions = int(config["max_position_embeddings"])
    return asdict(
        BertSizes(
            width=int(config["hidden_size"]), layers=int(config["num_hidden_layers"]),
            heads=int(config["num_attention_heads"]), feed_forward=int(config["intermediate_size"]),
            vocabulary=int(config["vocab_size"]), context_length=min(positions, 128), positions=positions,
            token_types=int(config.get("type_vocab_size", 2)), epsilon=float(config.get("layer_norm_eps", 1e-12)),
            dropout=float(config.get("hidden_dropout_prob", 0.1)),
            num_classes=len(config.get("id2label") or ()) or int(config.get("num_labels", 2)),
        )
    )  # fmt: skip


def config_of_sizes(architecture: str, sizes: Mapping[str, SizeValue]) -> dict[str, Any]:
    """Return the ``config.json`` of a model of these sizes."""
    known = BertSizes(**sizes)  # type: ignore[arg-type]
    named = {"id2label": {str(k): f"LABEL_{k}" for k in range(known.num_classes)}}
    return {
        "architectures": [architecture], "model_type": "bert", "hidden_size": known.width,
        "num_hidden_layers": known.layers, "num_attention_heads": known.heads,
        "intermediate_size": known.feed_forward, "vocab_size": known.vocabulary,
        "max_position_embeddings": known.positions or known.context_length, "type_vocab_size": known.token_types,
        "layer_norm_eps": known.epsilon, "hidden_act": "gelu", "hidden_dropout_prob": known.dropout,
        "attention_probs_dropout_prob": 0.0, **(named if architecture == "BertForSequenceClassification" else {}),
    }  # fmt: skip


def _format(architecture: str, ignored: tuple[str, ...] = (), has_head: bool = True) -> HubFormat:
    return HubFormat(
        architectures=(architecture,), sizes_of_config=sizes_of_config,
        config_of_sizes=lambda sizes: config_of_sizes(architecture, sizes), prefix="bert.", writes_prefix=has_head,
        tied={
            "cls.predictions.decoder.weight": "bert.embeddings.word_embeddings.weight",
            "cls.predictions.decoder.bias": "cls.predictions.bias",
        },
        ignored=(r"embeddings\.position_ids$", *ignored),
        renamed=((r"LayerNorm\.gamma$", "LayerNorm.weight"), (r"LayerNorm\.beta$", "LayerNorm.bias")),
    )  # fmt: skip


#: Published sizes; the parameters are those of the head for masked words, without a pooler.
_BASE: dict[str, SizeValue] = {
    "width": 768, "layers": 12, "heads": 12, "feed_forward": 3072, "vocabulary": 30522, "positions": 512,
    "dropout": 0.1,
}  # fmt: skip
_LARGE = _BASE | {"width": 1024, "layers": 24, "heads": 16, "feed_forward": 4096}
#: Arrays of texts choose from these tables.
_TABLES: dict[str, str | int] = {"tokens": "vocabulary", "types": "token_types"}
_SOURCE = "Devlin et al., BERT: Pre-training of Deep Bidirectional Transformers (2019)"

model(
    name="bert",
    family="bert",
    free_sizes=frozenset({"num_classes"}),
    title="BERT for masked words",
    task="masked-language-modelling",
    licence="Apache-2.0",
    source=_SOURCE,
    sizes=asdict(BertSizes()),
    make_inputs=make_masked_inputs,
    limits=_TABLES | {"labels": "vocabulary"},
    generate=draw_masked,
    is_drawn_from_a_set=True,
    variants={"base": Variant(_BASE, 109_514_298), "large": Variant(_LARGE, 335_174_458)},
    # What a checkpoint of pre-training has beside: the pooler, and the head for next sentences.
    hub=_format("BertForMaskedLM", (r"^bert\.pooler\.", r"^cls\.seq_relationship\.")),
)(MaskedBert)

model(
    name="bert_classifier",
    family="bert",
    title="BERT that classifies texts",
    task="sequence-classification",
    licence="Apache-2.0",
    source=_SOURCE,
    sizes=asdict(BertSizes()),
    make_inputs=make_classifier_inputs,
    limits=_TABLES,
    generate=draw_topics,
    is_drawn_from_a_set=True,
    variants={"base": Variant(_BASE, 109_483_778), "large": Variant(_LARGE, 335_143_938)},
    hub=_format("BertForSequenceClassification"),
)(BertClassifier)

model(
    name="bert_embedder",
    family="bert",
    free_sizes=frozenset({"num_classes"}),
    title="BERT that makes vectors of texts",
    task="embedding",
    licence="Apache-2.0",
    source=_SOURCE,
    sizes=asdict(BertSizes()),
    make_inputs=make_text_inputs,
    limits=_TABLES,
    text_serving=TextServing(BertOfText, context="context_length", prompt="context_length", vocabulary="vocabulary"),
    generate=draw_plain,
    is_drawn_from_a_set=True,
    variants={"base": Variant(_BASE, 108_891_648), "large": Variant(_LARGE, 334_092_288)},
    hub=_format("BertModel", (r"^bert\.pooler\.", r"^cls\.", r"^pooler\."), has_head=False),
)(BertEmbedder)
