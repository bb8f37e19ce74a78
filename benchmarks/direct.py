"""What a practitioner would write instead: each family's network in plain PyTorch, without Saccade's parts.

Each is what good code of its kind looks like: fused `nn.GRU` and `nn.LSTM` where the wiring allows, cells in a loop
where it does not, keys projected once, `F.scaled_dot_product_attention`, logits of real positions only. Where source
and target are one text, they stand next to each other with the padding behind them, and are read in one call.
Embeddings are tied, as Saccade's are with a joint vocabulary.

A new network is a class with `forward` and `twins` in one of the rooms `direct_*.py`, and a line in `NETWORKS`.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

from benchmarks.direct_common import Direct
from benchmarks.direct_convolutional import ByteNet, ConvS2S
from benchmarks.direct_lm import AttentiveLM, NgramLM
from benchmarks.direct_lstmn import LSTMN, ShallowLSTMN
from benchmarks.direct_recurrent import GNMT, RCTM, Bahdanau, Cho, Luong, LuongFeeding, Sutskever
from benchmarks.direct_transformers import DecoderOnly, Transformer


class Network(NamedTuple):
    """A direct network, made from a model's resolved settings and a vocabulary, and the settings of its twin."""

    direct: Callable[[Any, int], Direct]
    settings: tuple[str, ...]


def _rnn(wiring: str, *more: str) -> tuple[str, ...]:
    return ("model.family=rnn", f"model.wiring={wiring}", *more)


def _lm(wiring: str) -> tuple[str, ...]:
    return ("model.family=lm", f"model.wiring={wiring}")


LUONG = _rnn("luong", "model.cell=lstm", "model.layers=2", "model.score=bilinear")

NETWORKS: dict[str, Network] = {
    "cho": Network(Cho, _rnn("cho")),
    "sutskever": Network(
        Sutskever, _rnn("sutskever", "model.cell=lstm", "model.layers=4", "model.reverse_source=true")
    ),
    "bahdanau": Network(Bahdanau, _rnn("bahdanau")),
    "luong": Network(Luong, (*LUONG, "model.input_feeding=false")),
    "luong-feeding": Network(LuongFeeding, (*LUONG, "model.input_feeding=true")),
    "gnmt": Network(GNMT, _rnn("gnmt", "model.layers=3")),  # residual connections begin at the third
    "rctm": Network(RCTM, _rnn("rctm")),
    "lstmn": Network(LSTMN, _rnn("lstmn")),
    "lstmn-shallow": Network(ShallowLSTMN, _rnn("lstmn", "model.fusion=shallow")),
    "lm-attention": Network(AttentiveLM, _lm("attention")),
    "lm-key-value": Network(AttentiveLM, _lm("key-value")),
    "lm-key-value-predict": Network(AttentiveLM, _lm("key-value-predict")),
    "lm-ngram": Network(NgramLM, _lm("ngram")),
    "convs2s": Network(ConvS2S, ("model.family=conv", "model.wiring=convs2s")),
    "bytenet": Network(ByteNet, ("model.family=conv", "model.wiring=bytenet")),
    "transformer": Network(Transformer, ("model.family=transformer",)),
    "causal": Network(DecoderOnly, ("model.family=transformer", "model.wiring=causal")),
    "prefix": Network(DecoderOnly, ("model.family=transformer", "model.wiring=prefix")),
}
