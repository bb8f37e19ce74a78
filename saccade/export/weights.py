"""The weights of a Transformer taken apart, for programs that put them together again.

Everything here is a copy in float32 on the CPU: what an exporter does to it never reaches the model. Two things that
other programs have no word for are folded into the weights on the way: DeepNorm's Norm(αx + f(x)) is Norm(x + f(x)/α),
which is a smaller output matrix; positions that are concatenated, M[√E·W; P], are a table of their own, M₁√E·W, and
positions of their own, M₂P.
"""

from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from saccade.attention.multihead import CrossAttention, SelfAttention
from saccade.attention.positions import Learned
from saccade.models import transformer
from saccade.models.protocol import EncoderDecoder

Array = npt.NDArray[np.float32]


class Linear(NamedTuple):
    """y = W x + b."""

    weight: Array  # (out, in)
    bias: Array


class Norm(NamedTuple):
    """LayerNorm, or RMSNorm where there is no bias."""

    gain: Array
    bias: Array | None
    epsilon: float


class Attention(NamedTuple):
    """The projections of multi-head attention; keys and values of `key_heads` heads."""

    query: Linear
    key: Linear
    value: Linear
    output: Linear
    norm: Norm


class FeedForward(NamedTuple):
    """The feed-forward layer; `linear` is the half that the other gates, where it is gated."""

    inner: Linear
    linear: Linear | None
    outer: Linear
    norm: Norm


class Layer(NamedTuple):
    """A layer of either stack."""

    itself: Attention
    cross: Attention | None
    feed_forward: FeedForward
    relative: nn.Module  # what it knows of distances


class Stack(NamedTuple):
    """The encoder or the decoder."""

    table: Array  # (V, E)
    scale: float  # of the table
    positions: Array  # (as many as asked for, or as were learned, E)
    layers: list[Layer]
    norm: Norm | None  # that closes a pre-norm stack


class Transformer(NamedTuple):
    """The whole model."""

    encoder: Stack
    decoder: Stack
    output: Array  # (V, E)
    heads: int
    key_heads: int
    pre: bool
    activation: str  # relu, gelu or silu
    gated: bool


def take_apart(model: EncoderDecoder, positions: int) -> Transformer:
    """The weights of a model that is a Transformer encoder–decoder, with `positions` rows of positions."""
    first: transformer.EncoderLayer = model.encoder.layers[0]  # type: ignore[index, assignment]
    names = {function: name for name, function in transformer.ACTIVATIONS.items()}
    return Transformer(
        _stack(model.encoder, positions),
        _stack(model.decoder, positions),
        _array(model.output_matrix),
        first.attention.shape.heads,
        first.attention.shape.key_heads,
        first.around_attention.pre,
        names[first.feed_forward.activation],
        first.feed_forward.gated,
    )


def as_full_heads(attention: Attention, heads: int, key_heads: int) -> Attention:
    """The same attention with a head of keys and values for each head of queries."""

    def spread(linear: Linear) -> Linear:
        def repeated(x: Array) -> Array:
            by_head = x.reshape(key_heads, -1, *x.shape[1:])
            return by_head.repeat(heads // key_heads, axis=0).reshape(-1, *x.shape[1:])

        return Linear(repeated(linear.weight), repeated(linear.bias))

    return attention._replace(key=spread(attention.key), value=spread(attention.value))


def _stack(stack: nn.Module, positions: int) -> Stack:
    embedding: transformer.Embedding = stack.embedding  # type: ignore[assignment]
    table, scale = embedding.table.weight, embedding.scale
    if isinstance(embedding.positions, Learned):
        positions = embedding.positions.table.size(0)
    with torch.no_grad():
        places = embedding.positions(0, positions).to(table)
        if embedding.merge is not None:
            of_words, of_places = embedding.merge.weight.chunk(2, dim=1)
            table, scale, places = scale * table @ of_words.T, 1.0, places @ of_places.T
    layers = [_layer(layer) for layer in stack.layers]  # type: ignore[union-attr]
    norm = None if isinstance(stack.norm, nn.Identity) else _norm(stack.norm)  # type: ignore[arg-type]
    return Stack(_array(table), scale, _array(places), layers, norm)


def _layer(layer: nn.Module) -> Layer:
    cross = _attention(layer.cross, layer.around_cross) if hasattr(layer, "cross") else None  # type: ignore[arg-type]
    feed_forward: transformer.FeedForward = layer.feed_forward  # type: ignore[assignment]
    inner, linear = _linear(feed_forward.inner), None
    if feed_forward.gated:
        inner, linear = _split(inner, 2)
    around: transformer.Residual = layer.around_feed_forward  # type: ignore[assignment]
    outer = _shrunk(_linear(feed_forward.outer), around.scale)
    itself = _attention(layer.attention, layer.around_attention)  # type: ignore[arg-type]
    relative: nn.Module = layer.attention.relative  # type: ignore[assignment, union-attr]
    return Layer(itself, cross, FeedForward(inner, linear, outer, _norm(around.norm)), relative)


def _attention(attention: SelfAttention | CrossAttention, around: transformer.Residual) -> Attention:
    E, K = attention.shape.width, attention.shape.key_width
    if isinstance(attention, SelfAttention):
        query, key, value = _split(_linear(attention.query_key_value), E, K, K)
    else:
        query = _linear(attention.query)
        key, value = _split(_linear(attention.key_value), K, K)
    return Attention(query, key, value, _shrunk(_linear(attention.output), around.scale), _norm(around.norm))


def _split(linear: Linear, *sizes: int) -> list[Linear]:
    """One linear map cut into several, of so many rows each; a single number: into so many of equal size."""
    cuts = sizes[0] if len(sizes) == 1 else np.cumsum(sizes)[:-1]
    parts = zip(np.split(linear.weight, cuts), np.split(linear.bias, cuts), strict=True)
    return [Linear(weight, bias) for weight, bias in parts]


def _shrunk(linear: Linear, scale: float) -> Linear:
    return linear if scale == 1.0 else Linear(linear.weight / np.float32(scale), linear.bias / np.float32(scale))


def _linear(linear: nn.Linear) -> Linear:
    return Linear(_array(linear.weight), _array(linear.bias))


def _norm(norm: nn.Module) -> Norm:
    weight: Tensor = norm.weight  # type: ignore[assignment]
    epsilon = norm.eps if isinstance(norm.eps, float) else torch.finfo(torch.float32).eps
    return Norm(_array(weight), None if isinstance(norm, nn.RMSNorm) else _array(norm.bias), epsilon)  # type: ignore[arg-type]


def _array(tensor: Tensor) -> Array:
    return np.array(tensor.detach().to("cpu", torch.float32).numpy())
