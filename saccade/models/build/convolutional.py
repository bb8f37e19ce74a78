"""Convolutional models from their settings."""

from saccade.config import ConvConfig, known
from saccade.errors import SaccadeError
from saccade.models import conv
from saccade.models.build.tables import Vocabularies, make_tables
from saccade.models.protocol import EncoderDecoder


def make_conv(model: ConvConfig, vocabularies: Vocabularies) -> EncoderDecoder:
    """ConvS2S or ByteNet."""
    embedding, width, dropout = known(model.embedding), known(model.width), known(model.dropout)
    layers = (known(model.encoder_layers), known(model.decoder_layers))
    if model.kernel % 2 == 0:
        raise SaccadeError(f"model.kernel={model.kernel}: a window around a word is odd; use {model.kernel + 1}")
    if model.wiring == "bytenet":
        if embedding % 2:
            raise SaccadeError(f"model.embedding={embedding}: ByteNet halves its width; make it even")
        tables = make_tables(vocabularies, embedding, model.tied, std=embedding**-0.5)
        dilations = [[2 ** (i % model.dilation_cycle) for i in range(n)] for n in layers]
        return EncoderDecoder(
            conv.ByteNetEncoder(tables.source, model.kernel, dilations[0], dropout),
            conv.ByteNetDecoder(tables.target, tables.output, model.kernel, dilations[1], dropout),
        )
    tables = make_tables(vocabularies, embedding, model.tied, std=0.1)
    source, target = (
        conv.PlacedEmbedding(table, model.max_positions, dropout) for table in (tables.source, tables.target)
    )
    return EncoderDecoder(
        conv.ConvEncoder(source, width, model.kernel, layers[0], dropout, attentions=layers[1]),
        conv.ConvDecoder(target, tables.output, width, model.kernel, layers[1], dropout),
    )
