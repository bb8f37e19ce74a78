"""To CTranslate2: the same Transformer as one of its specifications.

Positions are handed over as a table, because its own sinusoids are laid out otherwise. Relative biases, T5's and
ALiBi's, are handed over as a table of all distances: as many buckets as twice the distances, of which it gives the
first half one distance each.
"""

from pathlib import Path
from typing import Any

import numpy as np
import torch

from saccade.attention.relative import ALiBi, Rotary, Shaw, T5Buckets
from saccade.data.tokenizers import BOS, EOS, UNK, Tokenizers
from saccade.errors import SaccadeError
from saccade.export.weights import Array, Attention, Layer, Linear, Norm, Stack, Transformer, take_apart
from saccade.models.protocol import EncoderDecoder

POSITIONS = 2048  # the longest sequence that an export can read or write; the engine gives longer ones to torch
QUANTIZATIONS = ("float32", "int8", "int8_float32", "int16", "bfloat16", "int8_bfloat16", "float16", "int8_float16")


def library() -> Any:
    """The package, or how to get it."""
    try:
        import ctranslate2
        import ctranslate2.specs
    except ImportError:
        raise SaccadeError("CTranslate2 is not installed; install it with: pip install 'saccade[export]'") from None
    return ctranslate2


def write(model: EncoderDecoder, tokenizers: Tokenizers, place: Path, quantization: str) -> None:
    """Write the model into the folder `place`, which CTranslate2 can load."""
    if quantization not in QUANTIZATIONS:
        raise SaccadeError(f"--quantization {quantization} is not known; use {', '.join(QUANTIZATIONS)}")
    spec = specification(take_apart(model, POSITIONS))
    source, target = tokenizers.source.symbols, tokenizers.target.symbols
    spec.register_source_vocabulary(source)
    spec.register_target_vocabulary(target)
    spec.config.bos_token, spec.config.eos_token, spec.config.unk_token = target[BOS], target[EOS], target[UNK]
    spec.config.decoder_start_token = target[BOS]
    spec.config.add_source_bos, spec.config.add_source_eos = False, True
    spec.validate()
    spec.optimize(quantization=quantization)
    place.mkdir()
    spec.save(str(place))


def specification(weights: Transformer) -> Any:
    """CTranslate2's specification of a Transformer, without its vocabulary."""
    specs = library().specs
    sample = weights.encoder.layers[0]
    relative = sample.relative
    biased = isinstance(relative, T5Buckets | ALiBi)
    head_width = weights.output.shape[1] // weights.heads
    options: dict[str, Any] = {
        "pre_norm": weights.pre,
        "activation": getattr(specs.Activation, {"relu": "RELU", "gelu": "GELU", "silu": "SWISH"}[weights.activation]),
        "relative_position": isinstance(relative, Shaw),
        "relative_attention_bias": biased,
        "ffn_glu": weights.gated,
        "rms_norm": sample.itself.norm.bias is None,
        "rotary_dim": head_width if isinstance(relative, Rotary) else None,
        "rotary_interleave": True,
        "num_heads_kv": None if weights.key_heads == weights.heads else weights.key_heads,
    }
    encoder = specs.TransformerEncoderSpec(len(weights.encoder.layers), weights.heads, **options)
    decoder = specs.TransformerDecoderSpec(len(weights.decoder.layers), weights.heads, **options)
    spec = specs.TransformerSpec(encoder, decoder)
    spec.config.layer_norm_epsilon = sample.itself.norm.epsilon
    encoder.embeddings[0].weight = weights.encoder.table
    decoder.embeddings.weight = weights.decoder.table
    decoder.projection.weight = weights.output
    for made, stack in ((encoder, weights.encoder), (decoder, weights.decoder)):
        _fill(made, stack, weights)
    return spec


def _fill(spec: Any, stack: Stack, weights: Transformer) -> None:
    spec.scale_embeddings = stack.scale != 1.0
    if hasattr(spec, "position_encodings"):
        spec.position_encodings.encodings = stack.positions
    if stack.norm is not None:
        _norm(spec.layer_norm, stack.norm)
    for made, layer in zip(spec.layer, stack.layers, strict=True):
        itself = layer.itself
        _linear(made.self_attention.linear[0], _joined(itself.query, itself.key, itself.value))
        _finish(made.self_attention, itself)
        _relative(made.self_attention, layer, decoder=layer.cross is not None)
        if layer.cross is not None:
            _linear(made.attention.linear[0], layer.cross.query)
            _linear(made.attention.linear[1], _joined(layer.cross.key, layer.cross.value))
            _finish(made.attention, layer.cross)
        _norm(made.ffn.layer_norm, layer.feed_forward.norm)
        _linear(made.ffn.linear_0, layer.feed_forward.inner)
        _linear(made.ffn.linear_1, layer.feed_forward.outer)
        if layer.feed_forward.linear is not None:
            _linear(made.ffn.linear_0_noact, layer.feed_forward.linear)


def _finish(spec: Any, attention: Attention) -> None:
    _linear(spec.linear[-1], attention.output)
    _norm(spec.layer_norm, attention.norm)


def _relative(spec: Any, layer: Layer, decoder: bool) -> None:
    relative = layer.relative
    if isinstance(relative, Shaw):
        spec.relative_position_keys = _array(relative.keys)
        spec.relative_position_values = _array(relative.mixed)
    elif isinstance(relative, T5Buckets | ALiBi):
        spec.relative_attention_bias = by_distance(relative, decoder)
        spec.relative_attention_max_distance = np.dtype("int32").type(2 * POSITIONS)


def by_distance(relative: T5Buckets | ALiBi, decoder: bool) -> Array:
    """The bias of every distance below `POSITIONS`, (buckets, heads).

    A decoder's buckets are for words before; of an encoder's, the first half is for words before and the second for
    words after. In each the first half is one bucket a distance, and the rest, for what is farther, is never reached.
    """
    query = torch.zeros(1, 1, 1, 1)
    with torch.no_grad():
        after = relative.bias(query, 0, POSITIONS)  # query at 0: distance j
        before = relative.bias(query, POSITIONS - 1, POSITIONS)  # query at the end: distance -j, from the right
    forward, backward = (_array(bias).reshape(-1, POSITIONS).T for bias in (after, before) if bias is not None)
    unreached = np.zeros_like(forward)
    past = np.concatenate([backward[::-1], unreached])
    return past if decoder else np.concatenate([past, forward, unreached])


def _joined(*parts: Linear) -> Linear:
    return Linear(np.concatenate([part.weight for part in parts]), np.concatenate([part.bias for part in parts]))


def _linear(spec: Any, linear: Linear) -> None:
    spec.weight, spec.bias = linear.weight, linear.bias


def _norm(spec: Any, norm: Norm) -> None:
    spec.gamma = norm.gain
    if norm.bias is not None:
        spec.beta = norm.bias


def _array(tensor: torch.Tensor) -> Array:
    return np.array(tensor.detach().to("cpu", torch.float32).numpy())
