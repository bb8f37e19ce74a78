"""Which parts of a model can have their weights brought together by themselves, and put away after use."""

from collections import Counter

from torch import nn

from saccade.attention.multihead import CrossAttention
from saccade.models import decoder_only, transformer


def units(model: nn.Module) -> list[tuple[nn.Module, tuple[str, ...]]]:
    """Inner before outer, each with the methods beside `forward` that use its weights.

    A layer of a Transformer is called as a whole, but for its cross-attention, which projects the memory beforehand.
    Models without such layers have none: their weights are brought together all at once, and so are those that layers
    share.
    """
    layers = (transformer.EncoderLayer, transformer.DecoderLayer, decoder_only.Layer)
    owners = Counter(parameter for _, parameter in model.named_parameters(remove_duplicate=False))
    found: list[tuple[nn.Module, tuple[str, ...]]] = []
    for layer in model.modules():
        if isinstance(layer, layers) and all(owners[parameter] == 1 for parameter in layer.parameters()):
            found += [(part, ("project",)) for part in layer.modules() if isinstance(part, CrossAttention)]
            found.append((layer, ()))
    return found
