"""Recurrent models from their settings: encoder–decoders, language models, the sentence classifier."""

import difflib
from collections.abc import Callable, Mapping
from typing import TypeVar

from torch import nn

from saccade.attention.scores import SCORES
from saccade.attention.windows import WINDOWS
from saccade.config import ClassifierConfig, LMConfig, RNNConfig, known
from saccade.errors import SaccadeError
from saccade.models import classifier, gnmt, lm, lstmn, rctm, rnn
from saccade.models.build.shapes import ATTENDING, CELLS, lm_parts
from saccade.models.build.tables import Vocabularies, make_tables
from saccade.models.protocol import EncoderDecoder
from saccade.models.recurrence import RecurrentEncoder, RecurrentLayer, RecurrentStack, SentenceVector
from saccade.models.words import WordTable

Part = TypeVar("Part")


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


def make_rnn(model: RNNConfig, vocabularies: Vocabularies) -> EncoderDecoder:
    """An encoder–decoder of recurrent layers, wired as its paper has it."""
    _refuse_unpublished(model)
    embedding, width, dropout = known(model.embedding), known(model.width), known(model.dropout)
    cell, layers = known(model.cell), known(model.layers)
    tables = make_tables(vocabularies, embedding, model.tied, std=embedding**-0.5)

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


def make_lstmn(model: RNNConfig, vocabularies: Vocabularies) -> EncoderDecoder:
    """LSTMN on both sides, joined by shallow or deep fusion."""
    _refuse_unpublished(model)
    embedding, width, dropout = known(model.embedding), known(model.width), known(model.dropout)
    tables = make_tables(vocabularies, embedding, model.tied, std=embedding**-0.5)

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


def make_lm(model: LMConfig, vocabularies: Vocabularies) -> EncoderDecoder:
    """One recurrent stack that reads the source and goes on with the target."""
    embedding, width, dropout = known(model.embedding), known(model.width), known(model.dropout)
    parts = lm_parts(model)
    if width % parts:
        raise SaccadeError(
            f"model.width={width}: model.wiring={model.wiring} cuts it into {parts} parts; "
            f"use {width + parts - width % parts}"
        )
    tables = make_tables(vocabularies, embedding, model.tied, std=embedding**-0.5)
    stack = RecurrentStack(model.cell, embedding, width, model.layers, dropout)
    if model.wiring == "ngram":
        look_back: lm.Attentive | lm.Ngram = lm.Ngram(width, model.order, embedding)
    else:
        look_back = lm.Attentive(width, parts, model.window, embedding)
    return EncoderDecoder(
        lm.LMEncoder(tables.source, stack, dropout),
        lm.LMDecoder(tables.target, tables.output, stack, look_back, dropout),
    )


def make_classifier(model: ClassifierConfig, vocabularies: Vocabularies) -> EncoderDecoder:
    """A structured self-attentive embedding and the decoder of its label."""
    embedding, dropout = known(model.embedding), known(model.dropout)
    # Nothing is tied: what is written is not what is read.
    source, target = (WordTable(size, embedding) for size in vocabularies)
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
