"""A head trained to align, on top of a model that stays as it is.

    e_ts = f(q_t) · g(m_s) / √D,   q_t = [h_t; h_t+1; w(y_t)]

h_t is the decoder's state that wrote y_t, h_t+1 the one that has read it, w(y_t) its row of the output matrix, m_s the
memory; f and g are small networks. As in Shift-AET (Chen et al. 2020, 4) the step after the word is seen, links of the
attention itself, made one from two directions, are what is learned, and the model is frozen. Other than there, one set
of scores is normalised both ways, over the source and over the target, each with a place for *no link*:

    p_ts = ½ (softmax_s e_ts + softmax_t e_ts)
"""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from saccade.alignment.looks import Pairs, in_batches, nothing
from saccade.alignment.symmetry import Links
from saccade.alignment.words import to_words
from saccade.data.batching import Batch
from saccade.data.tokenizers import PAD
from saccade.files import read_json, write_text
from saccade.models.protocol import EncoderDecoder
from saccade.training.checkpoint import fill, load_tensors, save_weights, weights_of
from saccade.translator import Translator

Floats = npt.NDArray[np.float32]

WEIGHTS, FACTS = "aligner.safetensors", "aligner.json"
WIDTH = 256


class States(NamedTuple):
    """What the head reads of a frozen model."""

    queries: Tensor  # (B, T, ·): one a target piece, the end not counted
    keys: Tensor  # (B, S, ·)
    real_queries: Tensor  # (B, T)
    real_keys: Tensor  # (B, S): the end of the source is a place like another


@torch.no_grad()
def states_of(model: EncoderDecoder, batch: Batch) -> States:
    """By teacher forcing."""
    memory = model.encode(batch.source, batch.source_mask)
    hidden = model.decode(batch.inputs, model.init_state(memory)).hidden
    pieces = batch.inputs[:, 1:]
    queries = torch.cat([hidden[:, :-1], hidden[:, 1:], model.output_matrix[pieces]], dim=-1)
    return States(queries, memory.states, batch.gold[:, 1:] != PAD, memory.mask)


class AlignmentHead(nn.Module):
    """Scores of target pieces against source pieces, with a place on either side for what has no link."""

    def __init__(self, query_width: int, key_width: int, width: int = WIDTH) -> None:
        super().__init__()
        self.sizes = (query_width, key_width, width)
        self.query = nn.Sequential(
            nn.LayerNorm(query_width), nn.Linear(query_width, width), nn.GELU(), nn.Linear(width, width)
        )
        self.key = nn.Sequential(
            nn.LayerNorm(key_width), nn.Linear(key_width, width), nn.GELU(), nn.Linear(width, width)
        )
        self.no_query = nn.Parameter(torch.zeros(width))
        self.no_key = nn.Parameter(torch.zeros(width))

    def forward(self, states: States) -> tuple[Tensor, Tensor]:
        """Log-probabilities over the source (B, T, 1 + S) and over the target (B, 1 + T, S); place 0 is no link."""
        q, k = self.query(states.queries), self.key(states.keys)
        scale = q.size(-1) ** -0.5
        scores = q @ k.mT * scale  # (B, T, S)
        low = torch.finfo(scores.dtype).min
        nothing = (q @ self.no_key * scale).unsqueeze(2)
        over_source = torch.cat([nothing, scores.masked_fill(~states.real_keys.unsqueeze(1), low)], dim=2)
        nobody = (k @ self.no_query * scale).unsqueeze(1)
        over_target = torch.cat([nobody, scores.masked_fill(~states.real_queries.unsqueeze(2), low)], dim=1)
        return over_source.log_softmax(2), over_target.log_softmax(1)


def word_probabilities(head: AlignmentHead, states: States, pairs: Pairs) -> Tensor:
    """(B, target words, source words): pieces of the side that is chosen from add up, the others are averaged."""
    over_source, over_target = head(states)
    there = to_words(over_source[:, :, 1:].exp(), pairs.target, pairs.source)
    back = to_words(over_target[:, 1:].exp().mT, pairs.source, pairs.target).mT
    return (there + back) / 2


def loss_of(head: AlignmentHead, states: States, links: Tensor) -> Tensor:
    """Cross-entropy of links between pieces (B, T, S) in both directions, a mean over pieces.

    A piece with several links wants them all alike; one with none wants place 0.
    """
    over_source, over_target = head(states)
    there = _cross_entropy(over_source, links, 2)[states.real_queries]
    back = _cross_entropy(over_target, links, 1)[states.real_keys]
    return there.mean() + back.mean()


def _cross_entropy(log_probabilities: Tensor, links: Tensor, dim: int) -> Tensor:
    count = links.sum(dim, keepdim=True)
    wanted = torch.cat([(count == 0).to(links.dtype), links / count.clamp(min=1)], dim=dim)
    return -(wanted * log_probabilities.clamp(min=-1e4)).sum(dim)


class HeadReader:
    """A trained head at work: what is likelier than `threshold` is a link."""

    def __init__(self, translator: Translator, head: AlignmentHead, threshold: float) -> None:
        self.translator, self.head, self.threshold = translator, head.to(translator.device).eval(), threshold

    @torch.inference_mode()
    def read(self, sources: Sequence[str], targets: Sequence[str], first: int = 1) -> list[Floats]:
        model = self.translator.model.eval()
        found = nothing(sources, targets)
        for pairs in in_batches(self.translator, sources, targets, first):
            words = word_probabilities(self.head, states_of(model, pairs.batch), pairs).cpu().numpy()
            for row, (i, (T, S)) in enumerate(zip(pairs.indices, pairs.sizes, strict=True)):
                found[i] = words[row, :T, :S]
        return found

    def links(self, probabilities: Floats) -> Links:
        return np.asarray(probabilities > self.threshold)

    def save(self, folder: Path, facts: dict[str, object]) -> None:
        """Beside the model."""
        save_weights({name: weight.cpu() for name, weight in weights_of(self.head).items()}, folder / WEIGHTS)
        kept = {"sizes": list(self.head.sizes), "threshold": self.threshold, **facts}
        write_text(folder / FACTS, json.dumps(kept, indent=1) + "\n")

    @classmethod
    def load(cls, translator: Translator, folder: Path) -> "HeadReader | None":
        """What `save` left; None: nothing."""
        if not (folder / FACTS).exists():
            return None
        facts = read_json(folder / FACTS, "train the head again with saccade train-aligner")
        head = AlignmentHead(*facts["sizes"])
        fill(head, load_tensors(folder / WEIGHTS), folder / WEIGHTS)
        return cls(translator, head, float(facts["threshold"]))


def piece_links(links: Tensor, pairs: Pairs) -> Tensor:
    """Links between words (B, target words, source words) as links between their pieces (B, T, S)."""
    return F.threshold(pairs.target @ links @ pairs.source.mT, 0.5, 0.0)
