"""From settings to layers: the only room that sees both."""

from typing import NamedTuple, TypeVar

import torch
from torch import nn

from saccade.attention.positions import Learned, Sinusoidal
from saccade.attention.scores import Additive
from saccade.config import Config, RNNConfig, Size, TransformerConfig
from saccade.errors import SaccadeError
from saccade.models import rnn, transformer
from saccade.models.protocol import EncoderDecoder

T = TypeVar("T")

# width, feed-forward, heads, layers of each stack; `base` and `big` are the paper's (Vaswani et al. 2017, table 3)
TRANSFORMER_SIZES: dict[Size, tuple[int, int, int, int]] = {
    "tiny": (128, 512, 4, 2),
    "small": (256, 1024, 4, 3),
    "medium": (384, 1536, 6, 5),
    "base": (512, 2048, 8, 6),
    "big": (1024, 4096, 16, 6),
}
# embedding, state; `big` is the paper's (Bahdanau et al. 2015, B.1)
RNN_SIZES: dict[Size, tuple[int, int]] = {
    "tiny": (96, 128),
    "small": (192, 256),
    "medium": (256, 384),
    "base": (320, 512),
    "big": (620, 1000),
}


def with_shape(model: TransformerConfig | RNNConfig, joint: bool) -> TransformerConfig | RNNConfig:
    """The same settings with every measure that the named size or the vocabulary implies written out."""
    size = model.size or "small"
    tied = model.tied or ("all" if joint else "decoder")
    if tied == "all" and not joint:
        raise SaccadeError(
            "model.tied=all needs one vocabulary for both sides; set tokenizer.joint=true or model.tied=decoder"
        )
    chosen: dict[str, object] = {"size": size, "tied": tied, "dropout": 0.1 if model.dropout is None else model.dropout}
    if isinstance(model, TransformerConfig):
        width, feed_forward, heads, layers = TRANSFORMER_SIZES[size]
        measures = {"width": width, "feed_forward": feed_forward, "heads": heads}
        measures |= {"encoder_layers": layers, "decoder_layers": layers}
    else:
        embedding, width = RNN_SIZES[size]
        measures = {"embedding": embedding, "width": width}
        chosen["bidirectional"] = model.attention != "none" if model.bidirectional is None else model.bidirectional
    for name, value in measures.items():
        given = getattr(model, name)
        chosen[name] = value if given is None else given
    return model.model_copy(update=chosen)


def measures(model: TransformerConfig | RNNConfig) -> str:
    """A resolved model's size in words."""
    if isinstance(model, TransformerConfig):
        return f"{model.width} wide, {model.encoder_layers}+{model.decoder_layers} layers, {model.heads} heads"
    return f"{model.cell} {model.width} wide, embeddings {model.embedding}, attention {model.attention}"


def default_learning_rate(model: TransformerConfig | RNNConfig) -> float:
    """A peak rate that trains well. Transformer: 7e-4 at the paper's width of 512; narrower ones bear more."""
    if isinstance(model, TransformerConfig):
        return float(f"{0.016 / _known(model.width) ** 0.5:.2g}")
    return 1e-3


def build_model(config: Config, source_vocabulary: int, target_vocabulary: int) -> EncoderDecoder:
    """The model that resolved settings describe, with weights drawn from torch's global generator."""
    vocabularies = Vocabularies(source_vocabulary, target_vocabulary)
    if isinstance(config.model, TransformerConfig):
        return _transformer(config.model, vocabularies)
    return _rnn(config.model, vocabularies)


def count_parameters(model: nn.Module) -> int:
    """How many numbers are learned, shared ones once."""
    return sum(parameter.numel() for parameter in model.parameters())


class Vocabularies(NamedTuple):
    """How many pieces each side has."""

    source: int
    target: int


class Tables(NamedTuple):
    """The three matrices over the vocabulary, shared as `tied` says."""

    source: nn.Embedding
    target: nn.Embedding
    output: nn.Linear


def _tables(vocabularies: Vocabularies, width: int, tied: str | None, std: float) -> Tables:
    source = nn.Embedding(vocabularies.source, width)
    target = source if tied == "all" else nn.Embedding(vocabularies.target, width)
    output = nn.Linear(width, vocabularies.target, bias=False)
    for table in (source, target, output):
        nn.init.normal_(table.weight, std=std)
    if tied in ("all", "decoder"):
        output.weight = target.weight
    return Tables(source, target, output)


def _transformer(model: TransformerConfig, vocabularies: Vocabularies) -> EncoderDecoder:
    width, heads, dropout = _known(model.width), _known(model.heads), _known(model.dropout)
    if width % heads:
        raise SaccadeError(f"model.width={width} cannot be split among model.heads={heads}; choose a width they divide")
    shape = transformer.Shape(
        width=width,
        feed_forward=_known(model.feed_forward),
        heads=heads,
        norm=model.norm,
        activation=model.activation,
        dropout=dropout,
        attention_dropout=model.attention_dropout,
        activation_dropout=model.activation_dropout,
    )
    tables = _tables(vocabularies, width, model.tied, std=width**-0.5)

    def embedding(table: nn.Embedding) -> transformer.Embedding:
        learned = model.positions == "learned"
        return transformer.Embedding(
            table, Learned(width, model.max_positions) if learned else Sinusoidal(width), dropout
        )

    encoder = transformer.TransformerEncoder(embedding(tables.source), shape, _known(model.encoder_layers))
    decoder = transformer.TransformerDecoder(
        embedding(tables.target), tables.output, shape, _known(model.decoder_layers)
    )
    return EncoderDecoder(encoder, decoder)


def _rnn(model: RNNConfig, vocabularies: Vocabularies) -> EncoderDecoder:
    embedding, width, dropout = _known(model.embedding), _known(model.width), _known(model.dropout)
    attends = model.attention != "none"
    if attends and not model.bidirectional:
        raise SaccadeError("model.attention=additive starts from the backward reading; set model.bidirectional=true")
    if not attends and model.context == "initial" and model.bidirectional:
        raise SaccadeError("model.context=initial hands states over layer by layer; set model.bidirectional=false")
    tables = _tables(vocabularies, embedding, model.tied, std=embedding**-0.5)
    encoder = rnn.RecurrentEncoder(
        tables.source,
        model.cell,
        width,
        model.layers,
        dropout,
        bidirectional=bool(model.bidirectional),
        reverse_source=model.reverse_source,
    )

    def stack(inputs: int) -> rnn.RecurrentStack:
        return rnn.RecurrentStack(model.cell, inputs, width, model.layers, dropout)

    if attends:
        attentive = rnn.BahdanauDecoder(
            tables.target,
            tables.output,
            stack(embedding + encoder.width),
            rnn.Maxout(width + embedding + encoder.width, embedding),
            dropout,
            memory_width=encoder.width,
            score=Additive(query_width=width, key_width=encoder.width, width=width),
        )
        return EncoderDecoder(encoder, attentive)
    if model.context == "initial":
        readout = nn.Identity() if width == embedding else nn.Linear(width, embedding)
        plain = rnn.SutskeverDecoder(tables.target, tables.output, stack(embedding), readout, dropout)
        return EncoderDecoder(rnn.SentenceVector(encoder), plain)
    fed = rnn.ChoDecoder(
        tables.target,
        tables.output,
        stack(embedding + width),
        rnn.Maxout(width + embedding + width, embedding),
        dropout,
        vector_width=encoder.state_width * model.layers,
        context_width=width,
    )
    return EncoderDecoder(rnn.SentenceVector(encoder), fed)


def _known(value: T | None) -> T:
    """A measure that `with_shape` has written out."""
    assert value is not None, "the model's settings were not resolved; call with_shape first"
    return value


def device_for(name: str | None) -> torch.device:
    """The device that is asked for, or the best there is."""
    best = "cuda" if torch.cuda.is_available() else "mps" if torch.backends.mps.is_available() else "cpu"
    try:
        device = torch.device(name or best)
    except RuntimeError:
        raise SaccadeError(f"training.device={name!r} is not a device; use cpu, cuda, cuda:0 or mps") from None
    if device.type == "cuda" and not torch.cuda.is_available():
        raise SaccadeError(f"training.device={name}: no GPU is visible to torch; use training.device=cpu")
    return device
