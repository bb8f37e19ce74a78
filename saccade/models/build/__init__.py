"""From settings to layers: the only rooms that see both."""

from torch import nn

from saccade.config import ClassifierConfig, Config, ConvConfig, LMConfig, TransformerConfig
from saccade.models.build.convolutional import make_conv
from saccade.models.build.recurrent import make_classifier, make_lm, make_lstmn, make_rnn
from saccade.models.build.shapes import (
    attends,
    default_learning_rate,
    goes_without_source,
    in_one_sequence,
    longest_sequence,
    measures,
    with_shape,
    without_use,
)
from saccade.models.build.tables import Vocabularies
from saccade.models.build.transformers import make_transformer
from saccade.models.protocol import EncoderDecoder

__all__ = [
    "attends",
    "build_model",
    "count_parameters",
    "default_learning_rate",
    "goes_without_source",
    "in_one_sequence",
    "longest_sequence",
    "measures",
    "with_shape",
    "without_use",
]


def build_model(config: Config, source_vocabulary: int, target_vocabulary: int) -> EncoderDecoder:
    """The model that resolved settings describe, with weights drawn from torch's global generator."""
    vocabularies = Vocabularies(source_vocabulary, target_vocabulary)
    if isinstance(config.model, TransformerConfig):
        return make_transformer(config.model, vocabularies)
    if isinstance(config.model, ConvConfig):
        return make_conv(config.model, vocabularies)
    if isinstance(config.model, LMConfig):
        return make_lm(config.model, vocabularies)
    if isinstance(config.model, ClassifierConfig):
        return make_classifier(config.model, vocabularies)
    if config.model.wiring == "lstmn":
        return make_lstmn(config.model, vocabularies)
    return make_rnn(config.model, vocabularies)


def count_parameters(model: nn.Module) -> int:
    """How many numbers are learned, shared ones once."""
    return sum(parameter.numel() for parameter in model.parameters())
