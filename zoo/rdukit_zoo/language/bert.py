"""BERT and its family: encoders for masked words, for classes of texts, and for vectors.

Source: Devlin et al., BERT: Pre-training of Deep Bidirectional Transformers (2019); ``encoder_sizes`` names the others.
Parameters are named as Hugging Face writes them to disk.

Axes: B batch, T tokens of a text, C width of the model, V vocabulary, K classes.
"""

from dataclasses import asdict
from typing import Final

import torch
import torch.nn.functional as F
from torch import nn

import sambaflow.samba as samba
from rdukit.errors import InvalidArgument
from rdukit_zoo.datasets.passages import draw_masked, draw_plain, draw_topics
from rdukit_zoo.language.decoder import init_normal
from rdukit_zoo.language.encoder_configs import BODY, CLASSIFIER, MASKED, format_of
from rdukit_zoo.language.encoder_sizes import BertSizes
from rdukit_zoo.language.encoders import BertBody, FirstTokenHead, ModernHead, build_body, pool_states
from rdukit_zoo.registry import IGNORED, SizeValue, TextServing, Variant, model


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
        if known.family != "bert":
            raise InvalidArgument(f"family is {known.family!r}; the head for masked words is that of 'bert' only")
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
        self.bert = build_body(known, has_pooler=known.family == "bert")
        self.takes_mean = known.classifier_pooling == "mean"
        if known.of.is_modern:
            self.head = ModernHead(known)
        if known.family == "bert" or known.of.is_modern:
            self.dropout = nn.Dropout(known.dropout)
            self.classifier: nn.Module = nn.Linear(known.width, known.num_classes)
        else:
            self.classifier = FirstTokenHead(known)
        init_normal(self)

    def forward(
        self, tokens: torch.Tensor, types: torch.Tensor, mask: torch.Tensor, classes: torch.Tensor | None = None
    ) -> torch.Tensor | tuple[torch.Tensor, torch.Tensor]:
        logits_BK = self._logits(self.bert(tokens, types, mask), mask)
        return logits_BK if classes is None else (F.cross_entropy(logits_BK, classes), logits_BK)

    def _logits(self, states_BTC: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        if isinstance(self.classifier, FirstTokenHead):
            found: torch.Tensor = self.classifier(states_BTC)
        elif isinstance(self.bert, BertBody):
            found = self.classifier(self.dropout(self.bert.pool(states_BTC)))
        else:
            pooled_BC = states_BTC[:, 0]
            if self.takes_mean:
                pooled_BC = (states_BTC * shares_of(mask).unsqueeze(-1)).sum(1)
            found = self.classifier(self.dropout(self.head(pooled_BC)))
        return found


def shares_of(mask: torch.Tensor) -> torch.Tensor:
    """Return the share [B, T] that each token has of its text: 1 / count, and 0 of padding."""
    shares_BT: torch.Tensor = mask.float() / mask.sum(1, keepdim=True).clamp(min=1)
    return shares_BT


class BertEmbedder(nn.Module):
    """(tokens, types, mask, each [B, T]) → the vector [B, C] of each text: its last states, pooled as sizes say."""

    def __init__(self, **sizes: SizeValue) -> None:
        super().__init__()
        self.known = BertSizes(**sizes)  # type: ignore[arg-type]
        self.bert = build_body(self.known, has_pooler=False)
        init_normal(self)

    def forward(self, tokens: torch.Tensor, types: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        return pool_states(self.known, self.bert(tokens, types, mask), shares_of(mask))


class BertOfText(BertEmbedder):
    """(text [1, T], shares [1, T] float) → the vector [1, C] of the text.

    A token without a share is padding.
    """

    def forward(self, text: torch.Tensor, shares: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
        states_BTC = self.bert(text, torch.zeros_like(text), shares > 0)
        return pool_states(self.known, states_BTC, shares)


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


#: Published sizes; the parameters are those of the head for masked words, without a pooler.
_BASE: dict[str, SizeValue] = {
    "width": 768, "layers": 12, "heads": 12, "feed_forward": 3072, "vocabulary": 30522, "positions": 512,
    "dropout": 0.1,
}  # fmt: skip
_LARGE = _BASE | {"width": 1024, "layers": 24, "heads": 16, "feed_forward": 4096}
#: Arrays of texts choose from these tables.
_TABLES: dict[str, str | int] = {"tokens": "vocabulary", "types": "token_types"}
#: Sizes that only a model of vectors uses: its checkpoints may be of the others.
_OF_VECTORS: Final = frozenset({"pooling", "normalizes"})
_SOURCE = "Devlin et al., BERT: Pre-training of Deep Bidirectional Transformers (2019)"

model(
    name="bert",
    family="bert",
    free_sizes=frozenset({"num_classes", *_OF_VECTORS}),
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
    hub=format_of(MASKED),
)(MaskedBert)

model(
    name="bert_classifier",
    family="bert",
    free_sizes=_OF_VECTORS,
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
    hub=format_of(CLASSIFIER),
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
    hub=format_of(BODY),
)(BertEmbedder)
