"""Transformers from their settings."""

from dataclasses import replace

from torch import nn

from saccade.attention.positions import Absent, Learned, Sinusoidal
from saccade.attention.relative import RELATIVE, Relative, Unaware
from saccade.config import TransformerConfig, known
from saccade.errors import SaccadeError
from saccade.models import decoder_only, transformer
from saccade.models.build.shapes import in_one_sequence
from saccade.models.build.tables import Vocabularies, make_tables
from saccade.models.heads import leave_heads
from saccade.models.protocol import EncoderDecoder


def make_transformer(model: TransformerConfig, vocabularies: Vocabularies) -> EncoderDecoder:
    """A Transformer of two stacks, or of one."""
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
    tables = make_tables(vocabularies, width, model.tied, std=width**-0.5)
    source, target = (_embedding(model, table, dropout) for table in (tables.source, tables.target))
    encoder = transformer.TransformerEncoder(source, encoder_shape, _relatives(model, N, causal=False))
    decoder = transformer.TransformerDecoder(target, tables.output, decoder_shape, _relatives(model, M, causal=True))
    if model.norm == "deep":
        transformer.shrink(encoder, 0.87 * (N**4 * M) ** (-1 / 16))
        transformer.shrink(decoder, (12 * M) ** (-1 / 4))
    whole = EncoderDecoder(encoder, decoder)
    if model.heads_left is not None:
        leave_heads(whole, model.heads_left)
    return whole


def _decoder_only(model: TransformerConfig, vocabularies: Vocabularies, shape: transformer.Shape) -> EncoderDecoder:
    if model.encoder_layers is not None:
        raise SaccadeError(
            f"model.encoder_layers={model.encoder_layers}: model.wiring={model.wiring} has one stack; leave it out and "
            "set model.decoder_layers"
        )
    M = known(model.decoder_layers)
    if model.norm == "deep":  # Wang et al. 2022, table 1, for a single stack
        shape = replace(shape, residual_scale=(2 * M) ** (1 / 4))
    tables = make_tables(vocabularies, shape.width, model.tied, std=shape.width**-0.5)
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
