"""From settings to layers: the only room that sees both."""

import difflib
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import NamedTuple, TypeVar

from torch import nn

from saccade.attention.positions import Absent, Learned, Sinusoidal
from saccade.attention.relative import RELATIVE, Relative, Unaware
from saccade.attention.scores import SCORES
from saccade.attention.windows import WINDOWS
from saccade.config import (
    ClassifierConfig,
    Config,
    ConvConfig,
    LMConfig,
    Model,
    RNNConfig,
    Size,
    TransformerConfig,
    known,
)
from saccade.errors import SaccadeError
from saccade.models import classifier, conv, decoder_only, gnmt, lm, lstmn, rctm, rnn, transformer
from saccade.models.protocol import EncoderDecoder
from saccade.models.recurrence import RecurrentEncoder, RecurrentLayer, RecurrentStack, SentenceVector

Part = TypeVar("Part")

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
# layers of GNMT's stacks; `big` has the paper's (Wu et al. 2016, 3.1)
GNMT_LAYERS: dict[Size, int] = {"tiny": 2, "small": 3, "medium": 4, "base": 6, "big": 8}
CELLS = {"gnmt": "lstm", "lstmn": "lstm", "rctm": "tanh"}  # of the wirings that have but one; the others get a GRU
ATTENDING = ("bahdanau", "luong", "lstmn", "gnmt")

# embedding, width, layers of each stack; `big` is the paper's (Gehring et al. 2017, 4.3, at its first width)
CONV_SIZES: dict[Size, tuple[int, int, int]] = {
    "tiny": (96, 128, 3),
    "small": (192, 256, 4),
    "medium": (256, 384, 6),
    "base": (384, 512, 9),
    "big": (768, 512, 15),
}
# embedding, u, d_a, hops, width before the labels; u, d_a and hops of `big` are the paper's (Lin et al. 2017, 4.1)
CLASSIFIER_SIZES: dict[Size, tuple[int, int, int, int, int]] = {
    "tiny": (64, 64, 64, 4, 128),
    "small": (96, 128, 128, 8, 256),
    "medium": (128, 192, 192, 16, 512),
    "base": (192, 256, 256, 24, 1024),
    "big": (300, 300, 350, 30, 2000),
}

# parts into which each output of a language model is cut; `ngram`: N - 1
LM_PARTS = {"attention": 1, "key-value": 2, "key-value-predict": 3}


def with_shape(model: Model, joint: bool) -> Model:
    """The same settings with every measure that the named size or the vocabulary implies written out."""
    size = model.size or "small"
    if isinstance(model, ClassifierConfig):
        names = ("embedding", "width", "attention_width", "hops", "output_width")
        implied = dict(zip(names, CLASSIFIER_SIZES[size], strict=True)) | {"size": size, "dropout": 0.1}
        return model.model_copy(update={k: v for k, v in implied.items() if getattr(model, k) is None})
    tied = model.tied or ("all" if joint else "decoder")
    if tied == "all" and not joint:
        raise SaccadeError(
            "model.tied=all needs one vocabulary for both sides; set tokenizer.joint=true or model.tied=decoder"
        )
    chosen: dict[str, object] = {"size": size, "tied": tied, "dropout": 0.1 if model.dropout is None else model.dropout}
    if isinstance(model, TransformerConfig):
        width, feed_forward, heads, layers = TRANSFORMER_SIZES[size]
        measures = {"width": width, "feed_forward": feed_forward, "heads": heads, "key_heads": model.heads or heads}
        if in_one_sequence(model):
            measures["decoder_layers"] = 2 * layers
        else:
            measures |= {"encoder_layers": layers, "decoder_layers": layers}
    elif isinstance(model, ConvConfig):
        embedding, width, layers = CONV_SIZES[size]
        measures = {"embedding": embedding, "width": width, "encoder_layers": layers, "decoder_layers": layers}
    elif isinstance(model, LMConfig):
        embedding, width = RNN_SIZES[size]
        step = 8 * _lm_parts(model)  # parts of equal width, which matrix units like
        measures = {"embedding": embedding, "width": -(-width // step) * step}
    else:
        embedding, width = RNN_SIZES[size]
        measures = {"embedding": embedding, "width": width}
        measures["layers"] = GNMT_LAYERS[size] if model.wiring == "gnmt" else 1
        chosen["cell"] = model.cell or CELLS.get(model.wiring, "gru")
        both_ways = model.wiring in ("bahdanau", "gnmt")
        chosen["bidirectional"] = both_ways if model.bidirectional is None else model.bidirectional
    for name, value in measures.items():
        given = getattr(model, name)
        chosen[name] = value if given is None else given
    return model.model_copy(update=chosen)


def measures(model: Model) -> str:
    """A resolved model's size in words."""
    if isinstance(model, TransformerConfig):
        if in_one_sequence(model):
            return (
                f"decoder-only, {model.wiring}, {model.width} wide, {model.decoder_layers} layers, {model.heads} heads"
            )
        return f"{model.width} wide, {model.encoder_layers}+{model.decoder_layers} layers, {model.heads} heads"
    if isinstance(model, ConvConfig):
        return f"{model.wiring}, {model.width} wide, {model.encoder_layers}+{model.decoder_layers} layers"
    if isinstance(model, LMConfig):
        looks = f"order {model.order}" if model.wiring == "ngram" else f"window {model.window or 'unbounded'}"
        return f"{model.wiring}, {model.cell} {model.width} wide, embeddings {model.embedding}, {looks}"
    if isinstance(model, ClassifierConfig):
        return f"lstm {model.width} wide both ways, {model.hops} hops, embeddings {model.embedding}"
    looks = f", {model.score} attention" if model.wiring in ATTENDING else ", no attention"
    unit = f"{model.fusion} fusion," if model.wiring == "lstmn" else model.cell
    return f"{model.wiring}, {unit} {model.width} wide, embeddings {model.embedding}{looks}"


def default_learning_rate(model: Model) -> float:
    """A peak rate that trains well. Transformer: 7e-4 at the paper's width of 512; narrower ones bear more."""
    if isinstance(model, TransformerConfig):
        return float(f"{0.016 / known(model.width) ** 0.5:.2g}")
    return 1e-3


def in_one_sequence(model: Model) -> bool:
    """Whether the target stands behind the source, so that positions are shared by both."""
    return isinstance(model, TransformerConfig) and model.wiring != "encoder-decoder"


def longest_sequence(model: Model) -> int | None:
    """How many pieces, ends counted, the model's positions can hold; None: any number.

    Of either side or, where they stand in one sequence, of both together.
    """
    if isinstance(model, TransformerConfig):
        return model.max_positions if model.positions == "learned" else None
    if isinstance(model, ConvConfig):
        return model.max_positions if model.wiring == "convs2s" else None
    return None


def goes_without_source(model: Model) -> bool:
    """Whether one text file is a corpus for it: a language model needs no sources."""
    return isinstance(model, LMConfig)


def build_model(config: Config, source_vocabulary: int, target_vocabulary: int) -> EncoderDecoder:
    """The model that resolved settings describe, with weights drawn from torch's global generator."""
    vocabularies = Vocabularies(source_vocabulary, target_vocabulary)
    if isinstance(config.model, TransformerConfig):
        return _transformer(config.model, vocabularies)
    if isinstance(config.model, ConvConfig):
        return _conv(config.model, vocabularies)
    if isinstance(config.model, LMConfig):
        return _lm(config.model, vocabularies)
    if isinstance(config.model, ClassifierConfig):
        return _classifier(config.model, vocabularies)
    if config.model.wiring == "lstmn":
        return _lstmn(config.model, vocabularies)
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
    width, heads, dropout = known(model.width), known(model.heads), known(model.dropout)
    key_heads, M = known(model.key_heads), known(model.decoder_layers)
    if width % heads:
        raise SaccadeError(f"model.width={width} cannot be split among model.heads={heads}; choose a width they divide")
    if heads % key_heads:
        raise SaccadeError(f"model.key_heads={key_heads} does not divide model.heads={heads}; choose one that does")
    if model.positions == "rotary" and (width // heads) % 2:
        raise SaccadeError(f"model.positions=rotary turns pairs, but heads are {width // heads} wide; make that even")
    shape = transformer.Shape(
        width=width,
        feed_forward=known(model.feed_forward),
        heads=heads,
        key_heads=key_heads,
        norm="pre" if model.norm == "pre" else "post",
        normalisation=model.normalisation,
        residual=model.residual,
        activation=model.activation,
        dropout=dropout,
        attention_dropout=model.attention_dropout,
        activation_dropout=model.activation_dropout,
    )
    if in_one_sequence(model):
        return _decoder_only(model, vocabularies, shape)
    N = known(model.encoder_layers)
    encoder_shape, decoder_shape = shape, shape
    if model.norm == "deep":  # Wang et al. 2022, table 1, for N encoder and M decoder layers
        encoder_shape = replace(shape, residual_scale=0.81 * (N**4 * M) ** (1 / 16))
        decoder_shape = replace(shape, residual_scale=(3 * M) ** (1 / 4))
    tables = _tables(vocabularies, width, model.tied, std=width**-0.5)
    source, target = (_embedding(model, table, dropout) for table in (tables.source, tables.target))
    encoder = transformer.TransformerEncoder(source, encoder_shape, _relatives(model, N, causal=False))
    decoder = transformer.TransformerDecoder(target, tables.output, decoder_shape, _relatives(model, M, causal=True))
    if model.norm == "deep":
        transformer.shrink(encoder, 0.87 * (N**4 * M) ** (-1 / 16))
        transformer.shrink(decoder, (12 * M) ** (-1 / 4))
    return EncoderDecoder(encoder, decoder)


def _decoder_only(model: TransformerConfig, vocabularies: Vocabularies, shape: transformer.Shape) -> EncoderDecoder:
    if model.encoder_layers is not None:
        raise SaccadeError(
            f"model.encoder_layers={model.encoder_layers}: model.wiring={model.wiring} has one stack; leave it out and "
            "set model.decoder_layers"
        )
    M = known(model.decoder_layers)
    if model.norm == "deep":  # Wang et al. 2022, table 1, for a single stack
        shape = replace(shape, residual_scale=(2 * M) ** (1 / 4))
    tables = _tables(vocabularies, shape.width, model.tied, std=shape.width**-0.5)
    source = _embedding(model, tables.source, shape.dropout)
    target = source if model.tied == "all" else _embedding(model, tables.target, shape.dropout, source.positions)
    relatives = _relatives(model, M, causal=model.wiring == "causal")
    decoder = decoder_only.DecoderOnly(target, tables.output, shape, relatives, prefix=model.wiring == "prefix")
    if model.norm == "deep":
        transformer.shrink(decoder, (8 * M) ** (-1 / 4))
    return EncoderDecoder(decoder_only.SourceEmbedding(source), decoder)


def _embedding(
    model: TransformerConfig, table: nn.Embedding, dropout: float, positions: nn.Module | None = None
) -> transformer.Embedding:
    """`positions`: those of another embedding, where both stand in one sequence."""
    width = table.embedding_dim
    if positions is None:
        if model.positions == "learned":
            positions = Learned(width, model.max_positions)
        else:
            positions = Sinusoidal(width) if model.positions == "sinusoidal" else Absent(width)
    return transformer.Embedding(table, positions, dropout, model.merge_positions == "concatenate")


def _relatives(model: TransformerConfig, layers: int, causal: bool) -> list[Relative]:
    """One scheme a layer; a learned T5 table is shared by all layers, as published."""
    kind = RELATIVE.get(model.positions, Unaware)
    heads, width = known(model.heads), known(model.width)
    made = [kind(heads, width // heads, causal) for _ in range(1 if model.positions == "t5" else layers)]
    return made * layers if model.positions == "t5" else made


def _refuse_unpublished(model: RNNConfig) -> None:
    """Only what a paper has is built."""
    wiring, cell, layers = model.wiring, known(model.cell), known(model.layers)
    if wiring == "bahdanau" and not model.bidirectional:
        raise SaccadeError("model.wiring=bahdanau starts from the backward reading; set model.bidirectional=true")
    if wiring == "gnmt" and not model.bidirectional:
        raise SaccadeError("model.wiring=gnmt reads both ways in its lowest layer; set model.bidirectional=true")
    if wiring in ("bahdanau", "gnmt") and model.reverse_source:
        raise SaccadeError(f"model.wiring={wiring} reads the source both ways; set model.reverse_source=false")
    if wiring == "sutskever" and model.bidirectional:
        raise SaccadeError("model.wiring=sutskever hands states over layer by layer; set model.bidirectional=false")
    if wiring == "rctm" and (model.bidirectional or model.reverse_source):
        field = "bidirectional" if model.bidirectional else "reverse_source"
        raise SaccadeError(f"model.wiring=rctm reads the source by convolutions; set model.{field}=false")
    if wiring == "lstmn" and (model.bidirectional or model.reverse_source):
        field = "bidirectional" if model.bidirectional else "reverse_source"
        raise SaccadeError(f"model.wiring=lstmn reads the source from left to right; set model.{field}=false")
    if wiring == "rctm" and layers != 1:
        raise SaccadeError(f"model.layers={layers}: the decoder of model.wiring=rctm has one; set model.layers=1")
    if wiring == "gnmt" and layers < 2:
        raise SaccadeError(f"model.layers={layers}: model.wiring=gnmt stacks layers; set model.layers=2 or more")
    if cell != CELLS.get(wiring, cell):
        raise SaccadeError(f"model.cell={cell}: model.wiring={wiring} has another; set model.cell={CELLS[wiring]}")


def _rnn(model: RNNConfig, vocabularies: Vocabularies) -> EncoderDecoder:
    _refuse_unpublished(model)
    embedding, width, dropout = known(model.embedding), known(model.width), known(model.dropout)
    cell, layers = known(model.cell), known(model.layers)
    tables = _tables(vocabularies, embedding, model.tied, std=embedding**-0.5)

    def stack(inputs: int) -> RecurrentStack:
        return RecurrentStack(cell, inputs, width, layers, dropout)

    def look(memory: int) -> rnn.Glimpse:
        return _look(model, query_width=width, key_width=memory)

    def parts(inputs: int, readout: Callable[[], nn.Module]) -> rnn.Parts:
        return rnn.Parts(tables.target, tables.output, stack(inputs), readout(), dropout)

    def narrow() -> nn.Module:
        """From a state to the output embedding."""
        return nn.Identity() if width == embedding else nn.Linear(width, embedding)

    if model.wiring == "rctm":
        sentence = rctm.SentenceConvolutions(tables.source, model.largest_kernel, dropout)
        return EncoderDecoder(sentence, rctm.RCTMDecoder(parts(2 * embedding, narrow)))
    encoder = RecurrentEncoder(
        tables.source,
        cell,
        width,
        1 if model.wiring == "gnmt" else layers,
        dropout,
        bidirectional=bool(model.bidirectional),
        reverse_source=model.reverse_source,
    )
    if model.wiring == "gnmt":
        deep = gnmt.GNMTEncoder(encoder, width, layers - 1, dropout)
        steps = [RecurrentLayer(cell, (width if i else embedding) + deep.width, width) for i in range(layers)]
        reader = gnmt.GNMTDecoder(tables.target, tables.output, steps, look(deep.width), narrow(), dropout)
        return EncoderDecoder(deep, reader)
    if model.wiring == "bahdanau":
        made = parts(embedding + encoder.width, lambda: rnn.Maxout(width + embedding + encoder.width, embedding))
        decoder: nn.Module = rnn.BahdanauDecoder(made, encoder.width, look(encoder.width))
    elif model.wiring == "luong":
        fed = embedding if model.input_feeding else 0
        made = parts(embedding + fed, lambda: nn.Linear(encoder.width + width, embedding))
        hand_over = rnn.HandOver(encoder.state_width, made.stack.first.state_width)
        decoder = rnn.LuongDecoder(made, hand_over, look(encoder.width), model.input_feeding)
    elif model.wiring == "sutskever":
        decoder = rnn.SutskeverDecoder(parts(embedding, narrow))
    else:
        made = parts(embedding + width, lambda: rnn.Maxout(width + embedding + width, embedding))
        decoder = rnn.ChoDecoder(made, encoder.state_width * layers, width)
    return EncoderDecoder(encoder if model.wiring in ATTENDING else SentenceVector(encoder), decoder)


def _look(model: RNNConfig, query_width: int, key_width: int) -> rnn.Glimpse:
    score = _named("model.score", model.score, SCORES)
    window = _named("model.window", model.window, WINDOWS)
    made = score(query_width=query_width, key_width=key_width, width=known(model.width))
    return rnn.Glimpse(made, window(query_width, model.window_radius))


def _lstmn(model: RNNConfig, vocabularies: Vocabularies) -> EncoderDecoder:
    _refuse_unpublished(model)
    embedding, width, dropout = known(model.embedding), known(model.width), known(model.dropout)
    tables = _tables(vocabularies, embedding, model.tied, std=embedding**-0.5)

    def layers(inputs: int) -> list[lstmn.LSTMNLayer]:
        return [lstmn.LSTMNLayer(width if i else inputs, width) for i in range(known(model.layers))]

    encoder = lstmn.LSTMNEncoder(tables.source, layers(embedding), dropout)
    if model.fusion == "shallow":
        fusion: lstmn.Fusion = lstmn.ShallowFusion(_look(model, query_width=width, key_width=width))
        stack = layers(embedding + width)
    else:
        fusion = lstmn.DeepFusion(_look(model, query_width=embedding + width, key_width=width), embedding, width)
        stack = layers(embedding)
    readout = rnn.Maxout(width + embedding + width, embedding)
    decoder = lstmn.LSTMNDecoder(tables.target, tables.output, stack, fusion, readout, dropout)
    return EncoderDecoder(encoder, decoder)


def _conv(model: ConvConfig, vocabularies: Vocabularies) -> EncoderDecoder:
    embedding, width, dropout = known(model.embedding), known(model.width), known(model.dropout)
    layers = (known(model.encoder_layers), known(model.decoder_layers))
    if model.kernel % 2 == 0:
        raise SaccadeError(f"model.kernel={model.kernel}: a window around a word is odd; use {model.kernel + 1}")
    if model.wiring == "bytenet":
        if embedding % 2:
            raise SaccadeError(f"model.embedding={embedding}: ByteNet halves its width; make it even")
        tables = _tables(vocabularies, embedding, model.tied, std=embedding**-0.5)
        dilations = [[2 ** (i % model.dilation_cycle) for i in range(n)] for n in layers]
        return EncoderDecoder(
            conv.ByteNetEncoder(tables.source, model.kernel, dilations[0], dropout),
            conv.ByteNetDecoder(tables.target, tables.output, model.kernel, dilations[1], dropout),
        )
    tables = _tables(vocabularies, embedding, model.tied, std=0.1)
    source, target = (
        conv.PlacedEmbedding(table, model.max_positions, dropout) for table in (tables.source, tables.target)
    )
    return EncoderDecoder(
        conv.ConvEncoder(source, width, model.kernel, layers[0], dropout, attentions=layers[1]),
        conv.ConvDecoder(target, tables.output, width, model.kernel, layers[1], dropout),
    )


def _lm_parts(model: LMConfig) -> int:
    return model.order - 1 if model.wiring == "ngram" else LM_PARTS[model.wiring]


def _lm(model: LMConfig, vocabularies: Vocabularies) -> EncoderDecoder:
    embedding, width, dropout = known(model.embedding), known(model.width), known(model.dropout)
    parts = _lm_parts(model)
    if width % parts:
        raise SaccadeError(
            f"model.width={width}: model.wiring={model.wiring} cuts it into {parts} parts; "
            f"use {width + parts - width % parts}"
        )
    tables = _tables(vocabularies, embedding, model.tied, std=embedding**-0.5)
    stack = RecurrentStack(model.cell, embedding, width, model.layers, dropout)
    if model.wiring == "ngram":
        look_back: lm.Attentive | lm.Ngram = lm.Ngram(width, model.order, embedding)
    else:
        look_back = lm.Attentive(width, parts, model.window, embedding)
    return EncoderDecoder(
        lm.LMEncoder(tables.source, stack, dropout),
        lm.LMDecoder(tables.target, tables.output, stack, look_back, dropout),
    )


def _classifier(model: ClassifierConfig, vocabularies: Vocabularies) -> EncoderDecoder:
    embedding, dropout = known(model.embedding), known(model.dropout)
    # Nothing is tied: what is written is not what is read.
    source, target = (nn.Embedding(size, embedding) for size in vocabularies)
    output = nn.Linear(known(model.output_width), vocabularies.target, bias=False)
    for table in (source, target, output):
        nn.init.normal_(table.weight, std=table.weight.size(1) ** -0.5)
    reader = RecurrentEncoder(
        source, "lstm", known(model.width), model.layers, dropout, bidirectional=True, reverse_source=False
    )
    encoder = classifier.SentenceMatrix(reader, known(model.attention_width), known(model.hops), model.penalty)
    return EncoderDecoder(encoder, classifier.LabelDecoder(target, output, encoder.width, dropout))


def _named(setting: str, name: str, parts: Mapping[str, Part]) -> Part:
    """The part of that name; an unknown one is refused with the nearest."""
    if name not in parts:
        near = difflib.get_close_matches(name, parts, n=1)
        remedy = f"did you mean {near[0]}?" if near else f"known are {', '.join(parts)}"
        raise SaccadeError(f"{setting}={name!r} is not known; {remedy}")
    return parts[name]
