"""To ONNX: an encoder and a decoder with its cache, as two graphs that any runtime can step through.

    encoder.onnx   source (B, S), mask (B, S)  →  memory_keys, memory_values (layers, B, H, S, D)
    decoder.onnx   tokens (B, 1), mask, memory_keys, memory_values, past_keys, past_values (layers, B, H, t, D)
                   →  logits (B, V), keys, values (layers, B, H, t + 1, D): the past of the next step

The past starts empty, t = 0, with the token <bos>; every source ends with <eos>.
"""

import copy
import logging
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from saccade.attention.core import attend
from saccade.attention.masks import over_keys
from saccade.attention.multihead import KeyValue
from saccade.attention.positions import Learned
from saccade.config import SearchConfig
from saccade.data.tokenizers import BOS, EOS, PAD, UNK
from saccade.engines.pytorch import by_tokens, longest_first
from saccade.errors import SaccadeError
from saccade.export.verify import Ids
from saccade.generation.orders import Job
from saccade.models.protocol import EncoderDecoder
from saccade.models.transformer import DecoderLayer

POSITIONS = 2048  # the longest sequence, where positions are not learned
ENCODER, DECODER = "encoder.onnx", "decoder.onnx"
PAST = ("past_keys", "past_values")
MEMORY = ("memory_keys", "memory_values")


class Places(nn.Module):
    """Positions looked up in a table, for graphs in which lengths are not known."""

    table: Tensor

    def __init__(self, table: Tensor) -> None:
        super().__init__()
        self.register_buffer("table", table)

    def forward(self, start: int, length: int) -> Tensor:
        return F.embedding(start + torch.arange(length), self.table)


class EncoderGraph(nn.Module):
    """From source ids to the keys and values that every decoder layer reads."""

    def __init__(self, model: EncoderDecoder) -> None:
        super().__init__()
        self.model = model

    def forward(self, source: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        states = self.model.encode(source, mask).states
        read = [layer.cross.project(states) for layer in self.model.decoder.layers]  # type: ignore[union-attr]
        return torch.stack([each.keys for each in read]), torch.stack([each.values for each in read])


class DecoderGraph(nn.Module):
    """One token of each row: what `TransformerDecoder` does, with a past that grows by concatenation."""

    def __init__(self, model: EncoderDecoder) -> None:
        super().__init__()
        self.decoder = model.decoder

    def forward(
        self,
        tokens: Tensor,
        mask: Tensor,
        memory_keys: Tensor,
        memory_values: Tensor,
        past_keys: Tensor,
        past_values: Tensor,
    ) -> tuple[Tensor, Tensor, Tensor]:
        position = past_keys.size(3)
        y = self.decoder.embedding(tokens, position)  # type: ignore[operator]
        caches = []
        for i, layer in enumerate(self.decoder.layers):  # type: ignore[arg-type]
            past, memory = KeyValue(past_keys[i], past_values[i]), KeyValue(memory_keys[i], memory_values[i])
            y, cache = _step(layer, y, past, memory, over_keys(mask), position)
            caches.append(cache)
        logits = self.decoder.project(self.decoder.norm(y[:, 0]))  # type: ignore[operator]
        return logits, torch.stack([cache.keys for cache in caches]), torch.stack([cache.values for cache in caches])


def _step(
    layer: DecoderLayer, y: Tensor, past: KeyValue, memory: KeyValue, mask: Tensor, position: int
) -> tuple[Tensor, KeyValue]:
    itself, relative = layer.attention, layer.attention.relative
    H, K = itself.shape.heads, itself.shape.key_heads
    q, k, v = itself.split(itself.query_key_value(layer.around_attention.enter(y)), H, K, K)
    q, k = relative.rotate(q, position), relative.rotate(k, position)
    cache = KeyValue(torch.cat([past.keys, k], dim=2), torch.cat([past.values, v], dim=2))
    keys, values = itself.spread(cache.keys), itself.spread(cache.values)
    bias = relative.bias(q, position, position + 1)
    found = attend(q, keys, values, score=itself.score, bias=bias, need_weights=relative.needs_weights)
    context = found.context
    if found.weights is not None:
        added = relative.values(found.weights, position)
        context = context if added is None else context + added
    y = layer.around_attention.leave(y, itself.merge(context))
    y = layer.around_cross.leave(y, layer.cross(layer.around_cross.enter(y), memory, mask).context)
    return layer.around_feed_forward.leave(y, layer.feed_forward(layer.around_feed_forward.enter(y))), cache


def write(model: EncoderDecoder, place: Path) -> None:
    """Write the two graphs into the folder `place`."""
    _require("onnx", "onnxscript", "onnxruntime")
    model = copy.deepcopy(model).cpu().float().eval()
    for stack in (model.encoder, model.decoder):
        embedding: Any = stack.embedding
        if isinstance(embedding.positions, Learned):
            embedding.positions = Places(embedding.positions.table.detach())
        else:
            embedding.positions = Places(embedding.positions(0, POSITIONS))
    shape = model.decoder.layers[0].attention.shape  # type: ignore[index, union-attr]
    B, S, t, L = 3, 7, 5, len(model.decoder.layers)  # type: ignore[arg-type]
    source, mask = torch.full((B, S), UNK), torch.ones(B, S, dtype=torch.bool)
    memory = torch.zeros(L, B, shape.key_heads, S, shape.head_width)
    past = torch.zeros(L, B, shape.key_heads, t, shape.head_width)
    batch, length, written = (torch.export.Dim(name) for name in ("batch", "source", "past"))
    of_source, of_memory, of_past = {0: batch, 1: length}, {1: batch, 3: length}, {1: batch, 3: written}
    place.mkdir()
    _export(
        EncoderGraph(model),
        (source, mask),
        {"source": of_source, "mask": of_source},
        MEMORY,
        place / ENCODER,
    )
    _export(
        DecoderGraph(model),
        # Not one tensor twice: it would become one input.
        (source[:, :1], mask, memory, memory.clone(), past, past.clone()),
        {"tokens": {0: batch}, "mask": of_source} | dict.fromkeys(MEMORY, of_memory) | dict.fromkeys(PAST, of_past),
        ("logits", "keys", "values"),
        place / DECODER,
    )


def _export(
    graph: nn.Module, arguments: tuple[Tensor, ...], shapes: dict[str, Any], outputs: Sequence[str], path: Path
) -> None:
    logger = logging.getLogger("torch.onnx")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings(), torch.inference_mode():
            warnings.simplefilter("ignore")
            torch.onnx.export(
                graph,
                arguments,
                str(path),
                dynamo=True,
                dynamic_shapes=shapes,
                input_names=list(shapes),
                output_names=list(outputs),
                external_data=False,
                verbose=False,
            )
    finally:
        logger.setLevel(level)


def greedy(place: Path, jobs: Sequence[Job], settings: SearchConfig, never: Sequence[int]) -> list[Ids]:
    """What onnxruntime writes, a token at a time, in numpy."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = torch.get_num_threads()
    encoder, decoder = (
        onnxruntime.InferenceSession(str(place / name), options, providers=["CPUExecutionProvider"])
        for name in (ENCODER, DECODER)
    )
    sources = [job.source for job in jobs]
    found: list[Ids] = [[] for _ in jobs]
    for batch in by_tokens(longest_first(sources), sources, settings.batch_tokens):
        rows = np.full((len(batch), len(sources[batch[0]]) + 1), PAD)
        for row, i in zip(rows, batch, strict=True):
            row[: len(sources[i]) + 1] = [*sources[i], EOS]
        given: dict[str, Any] = {"mask": rows != PAD}
        given |= dict(zip(MEMORY, encoder.run(None, {"source": rows} | given), strict=True))
        layers, size, heads, _, width = given[MEMORY[0]].shape
        past: list[Any] = [np.zeros((layers, size, heads, 0, width), np.float32)] * 2
        tokens, ended = np.full(size, BOS), np.zeros(size, bool)
        for _ in range(max(jobs[i].limit for i in batch)):
            step = {"tokens": tokens[:, None]} | given | dict(zip(PAST, past, strict=True))
            logits, *past = decoder.run(None, step)
            logits[:, [PAD, BOS, UNK, *never]] = -np.inf
            tokens = logits.argmax(-1)
            ended |= tokens == EOS
            if ended.all():
                break
            for place_in_batch, i in enumerate(batch):
                if not ended[place_in_batch]:
                    found[i].append(int(tokens[place_in_batch]))
    return found


def _require(*packages: str) -> None:
    import importlib.util

    for package in packages:
        if importlib.util.find_spec(package) is None:
            raise SaccadeError(f"{package} is not installed; install it with: pip install 'saccade[export]'")
