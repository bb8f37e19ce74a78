"""The models that every law of the suite is tried on, tiny and with weights that make them look around."""

import torch

from saccade.config import Config
from saccade.models.build import build_model, with_shape
from saccade.models.protocol import EncoderDecoder

TRANSFORMER = [
    "model.width=16",
    "model.feed_forward=32",
    "model.heads=4",
    "model.encoder_layers=2",
    "model.decoder_layers=2",
]
RNN = ["model.family=rnn", "model.embedding=12", "model.width=10"]

MODELS: dict[str, list[str]] = {
    "transformer pre-norm": [*TRANSFORMER, "model.norm=pre"],
    "transformer post-norm": [*TRANSFORMER, "model.norm=post"],
    "transformer learned positions": [*TRANSFORMER, "model.positions=learned", "model.max_positions=40"],
    "transformer untied": [*TRANSFORMER, "model.tied=none", "model.activation=gelu"],
    "rnn additive attention": [*RNN, "model.attention=additive"],
    "rnn additive attention, deep lstm": [*RNN, "model.attention=additive", "model.cell=lstm", "model.layers=3"],
    "rnn vector at every step": [*RNN, "model.attention=none"],
    "rnn vector at every step, bidirectional": [*RNN, "model.attention=none", "model.bidirectional=true"],
    "rnn vector as initial state": [
        *RNN,
        "model.attention=none",
        "model.context=initial",
        "model.cell=lstm",
        "model.layers=2",
        "model.reverse_source=true",
    ],
}
ATTENTIVE = [name for name in MODELS if "vector" not in name]


def settings_of(name: str, *more: str) -> Config:
    config = Config.load(None, [*MODELS[name], *more])
    return config.model_copy(update={"model": with_shape(config.model, joint=True)})


def make(name: str, vocabulary: int = 20, seed: int = 0, lively: float = 2.0) -> EncoderDecoder:
    """A float64 model in evaluation mode.

    A fresh one is nearly blind: louder weights make its answers depend on what it reads, so that a broken law shows.
    """
    torch.manual_seed(seed)
    model = build_model(settings_of(name), vocabulary, vocabulary).double().eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(lively).add_(torch.randn_like(parameter) * 0.1)
    return model


def sentences(lengths: list[int], vocabulary: int = 20, seed: int = 1) -> list[list[int]]:
    generator = torch.Generator().manual_seed(seed)
    return [torch.randint(4, vocabulary, (n,), generator=generator).tolist() for n in lengths]
