"""The heads of a model by name, those that are kept, and what it takes to cut the others out of the weights."""

from collections.abc import Collection, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from saccade.attention.multihead import CrossAttention, SelfAttention
from saccade.attention.relative import ALiBi, T5Buckets
from saccade.errors import SaccadeError
from saccade.models.protocol import EncoderDecoder

MultiHead = SelfAttention | CrossAttention


class Site(NamedTuple):
    """A multi-head attention of a model."""

    stack: str  # encoder, decoder (its self-attention) or cross
    layer: int  # from 0

    def __str__(self) -> str:
        return f"{self.stack} {self.layer + 1}"


class HeadName(NamedTuple):
    """One head of a site."""

    stack: str
    layer: int
    head: int

    @property
    def site(self) -> Site:
        return Site(self.stack, self.layer)

    def __str__(self) -> str:
        return f"{self.stack} {self.layer + 1}.{self.head + 1}"


def sites(model: EncoderDecoder) -> dict[Site, MultiHead]:
    """Every multi-head attention; none in a model that has no layers of them."""
    found: dict[Site, MultiHead] = {}
    for stack, half in (("encoder", model.encoder), ("decoder", model.decoder)):
        layers = getattr(half, "layers", ())
        for number, layer in enumerate(layers if isinstance(layers, nn.ModuleList) else ()):
            itself, cross = getattr(layer, "attention", None), getattr(layer, "cross", None)
            if isinstance(itself, SelfAttention):
                found[Site(stack, number)] = itself
            if isinstance(cross, CrossAttention):
                found[Site("cross", number)] = cross
    return found


def head_names(model: EncoderDecoder) -> list[HeadName]:
    """Every head, encoder first."""
    return [HeadName(*site, head) for site, module in sites(model).items() for head in range(module.shape.heads)]


def leave_heads(model: EncoderDecoder, left: Mapping[str, Sequence[int]]) -> None:
    """Make each attention one of as many heads as `left` says, with new weights: for a pruned folder to be loaded."""
    found = sites(model)
    for stack, counts in left.items():
        layers = [site for site in found if site.stack == stack]
        if len(counts) != len(layers):
            raise SaccadeError(
                f"model.heads_left.{stack} has {len(counts)} numbers, but there are {len(layers)} such layers; "
                "give one a layer"
            )
        for site, count in zip(layers, counts, strict=True):
            module = found[site]
            if not 0 < count <= module.shape.heads:
                raise SaccadeError(
                    f"model.heads_left.{stack}: {count} in layer {site.layer + 1}, of {module.shape.heads} heads; "
                    "leave 1 or more"
                )
            _replace(model, site, count)


def refuse_to_prune(model: EncoderDecoder) -> None:
    """Say by name what keeps heads from being cut out."""
    found = sites(model)
    if not found:
        raise SaccadeError("the model has no heads to prune: only Transformers have (model.family=transformer)")
    for site, module in found.items():
        shape = module.shape
        if shape.key_heads != shape.heads:
            raise SaccadeError(
                f"model.key_heads={shape.key_heads}: heads of {site} share keys and values, so that none can be cut "
                f"out alone; prune a model with as many as model.heads={shape.heads}"
            )
        relative = getattr(module, "relative", None)
        if isinstance(relative, ALiBi | T5Buckets):
            kind = "alibi" if isinstance(relative, ALiBi) else "t5"
            raise SaccadeError(
                f"model.positions={kind}: its biases belong to numbered heads, so that none can be cut out; prune a "
                "model with other positions"
            )


def cut(model: EncoderDecoder, gone: Collection[HeadName]) -> tuple[dict[str, Tensor], dict[str, list[int]]]:
    """The weights without some heads, and `model.heads_left` for them. Every attention keeps at least one head."""
    refuse_to_prune(model)
    found = sites(model)
    names = {id(module): name for name, module in model.named_modules()}
    weights = {name: parameter.detach().cpu().clone() for name, parameter in model.named_parameters()}
    left: dict[str, list[int]] = {}
    for site, module in found.items():
        shape = module.shape
        kept = [head for head in range(shape.heads) if HeadName(*site, head) not in gone]
        if not kept:
            raise SaccadeError(f"{site}: all {shape.heads} heads would be pruned; leave one of them")
        left.setdefault(site.stack, []).append(len(kept))
        rows = torch.tensor([head * shape.head_width + i for head in kept for i in range(shape.head_width)])
        path = names[id(module)]
        parts = {"query_key_value": 3} if isinstance(module, SelfAttention) else {"query": 1, "key_value": 2}
        for part, times in parts.items():
            chosen = torch.cat([rows + i * shape.inner for i in range(times)])
            for kind in ("weight", "bias"):
                weights[f"{path}.{part}.{kind}"] = weights[f"{path}.{part}.{kind}"][chosen].contiguous()
        weights[f"{path}.output.weight"] = weights[f"{path}.output.weight"][:, rows].contiguous()
    return weights, left


def _replace(model: EncoderDecoder, site: Site, heads: int) -> None:
    half: Any = model.encoder if site.stack == "encoder" else model.decoder
    layer, part = half.layers[site.layer], "cross" if site.stack == "cross" else "attention"
    old: MultiHead = getattr(layer, part)
    shape = old.shape._replace(heads=heads, key_heads=heads, each=old.shape.head_width)
    if isinstance(old, CrossAttention):
        layer.cross = CrossAttention(shape, old.dropout)
    else:
        layer.attention = SelfAttention(shape, old.dropout, old.relative)
