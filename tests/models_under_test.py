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
DECODER_ONLY = [setting for setting in TRANSFORMER if "encoder_layers" not in setting]
CONV = ["model.family=conv", "model.embedding=12", "model.encoder_layers=3", "model.decoder_layers=3"]
CLASSIFIER = ["model.embedding=12", "model.width=6", "model.attention_width=8", "model.output_width=14"]
LM = ["model.family=lm", "model.embedding=12", "model.width=12"]
RNN = ["model.family=rnn", "model.embedding=12", "model.width=10"]

MODELS: dict[str, list[str]] = {
    "transformer pre-norm": [*TRANSFORMER, "model.norm=pre"],
    "transformer post-norm": [*TRANSFORMER, "model.norm=post"],
    "transformer learned positions": [*TRANSFORMER, "model.positions=learned", "model.max_positions=40"],
    "transformer untied": [*TRANSFORMER, "model.tied=none", "model.activation=gelu"],
    "transformer post deepnorm": [*TRANSFORMER, "model.norm=deep", "model.activation=silu"],
    "transformer rotary, rms, swiglu": [
        *TRANSFORMER,
        "model.positions=rotary",
        "model.normalisation=rms",
        "model.activation=swiglu",
    ],
    "transformer shaw, multi-query": [*TRANSFORMER, "model.positions=shaw", "model.key_heads=1"],
    "transformer t5, grouped-query, geglu": [
        *TRANSFORMER,
        "model.positions=t5",
        "model.key_heads=2",
        "model.activation=geglu",
    ],
    "transformer alibi": [*TRANSFORMER, "model.positions=alibi", "model.activation=reglu"],
    "transformer concatenated positions": [*TRANSFORMER, "model.merge_positions=concatenate"],
    "transformer causal decoder-only": [*DECODER_ONLY, "model.wiring=causal"],
    "transformer prefix decoder-only, rotary": [
        *DECODER_ONLY,
        "model.wiring=prefix",
        "model.positions=rotary",
        "model.key_heads=2",
        "model.tied=decoder",
    ],
    "transformer prefix decoder-only, learned positions": [
        *DECODER_ONLY,
        "model.wiring=prefix",
        "model.positions=learned",
        "model.max_positions=60",
        "model.tied=none",
    ],
    "convs2s": [*CONV, "model.wiring=convs2s", "model.width=10"],
    "bytenet": [*CONV, "model.wiring=bytenet", "model.dilation_cycle=2"],
    "rnn bahdanau": [*RNN, "model.wiring=bahdanau"],
    "rnn bahdanau, deep lstm": [*RNN, "model.wiring=bahdanau", "model.cell=lstm", "model.layers=3"],
    "rnn luong": [*RNN, "model.wiring=luong", "model.score=bilinear", "model.cell=lstm", "model.layers=2"],
    "rnn luong, local-p, bidirectional": [
        *RNN,
        "model.wiring=luong",
        "model.window=local-p",
        "model.window_radius=3",
        "model.bidirectional=true",
    ],
    "rnn luong, no input feeding": [*RNN, "model.wiring=luong", "model.score=dot", "model.input_feeding=false"],
    "rnn cho": [*RNN, "model.wiring=cho"],
    "rnn cho, bidirectional": [*RNN, "model.wiring=cho", "model.bidirectional=true"],
    "rnn sutskever": [
        *RNN,
        "model.wiring=sutskever",
        "model.cell=lstm",
        "model.layers=2",
        "model.reverse_source=true",
    ],
    "rnn rctm": [*RNN, "model.wiring=rctm", "model.largest_kernel=3"],
    "rnn gnmt": [*RNN, "model.wiring=gnmt", "model.layers=4"],
    "rnn lstmn, shallow": [*RNN, "model.wiring=lstmn", "model.fusion=shallow"],
    "rnn lstmn, deep": [*RNN, "model.wiring=lstmn", "model.fusion=deep"],
    "lm attention": [*LM, "model.wiring=attention"],
    "lm key-value, windowed": [*LM, "model.wiring=key-value", "model.window=4"],
    "lm key-value-predict, deep gru": [*LM, "model.wiring=key-value-predict", "model.cell=gru", "model.layers=2"],
    "lm ngram": [*LM, "model.wiring=ngram", "model.order=5"],
}

# They write labels, not sentences: every law holds for them, but they have nothing to copy with.
CLASSIFIERS: dict[str, list[str]] = {
    "classifier": ["model.family=classifier", *CLASSIFIER, "model.hops=3"],
    "classifier, deep, one hop": ["model.family=classifier", *CLASSIFIER, "model.hops=1", "model.layers=2"],
}
MODELS |= CLASSIFIERS


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
            parameter.mul_(lively).add_(torch.randn_like(parameter) * 0.4)
    return model


def sentences(lengths: list[int], vocabulary: int = 20, seed: int = 1) -> list[list[int]]:
    generator = torch.Generator().manual_seed(seed)
    return [torch.randint(4, vocabulary, (n,), generator=generator).tolist() for n in lengths]
