"""Do heads of the encoder follow dependencies? Against the best fixed distance (Voita et al. 2019, 5.2)."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from saccade.alignment.words import WordNumbers, membership, to_words
from saccade.analysis.capture import encoder_weights
from saccade.analysis.conllu import Sentence
from saccade.data.batching import collate
from saccade.engines.pytorch import by_tokens, longest_first
from saccade.models.heads import HeadName
from saccade.translator import Translator

TOKENS = 2048
LEAST = 20  # times that a relation must come up
MARGIN = 0.1  # by which a head must be better than any fixed distance

Integers = npt.NDArray[np.int64]


class Relation(NamedTuple):
    """How well a head finds one relation: from dependant to head (`nsubj`) or from head to dependant (`nsubj⁻¹`)."""

    name: str
    accuracy: float  # of the strongest weight
    baseline: float  # of the distance that is right most often
    arcs: int

    @property
    def tells(self) -> bool:
        return self.accuracy >= self.baseline + MARGIN


@torch.inference_mode()
def follow(translator: Translator, sentences: Sequence[Sentence]) -> dict[HeadName, Relation]:
    """For each head of the encoder, the relation at which it beats the baseline by most."""
    tokenizer, device = translator.tokenizers.source, translator.device
    texts = [" ".join(sentence.words) for sentence in sentences]
    ids = tokenizer.encode_batch(texts)
    numbers = WordNumbers(tokenizer)
    looks: dict[HeadName, list[tuple[int, Integers]]] = {}  # of each head: sentence, and where each word looks
    for chosen in by_tokens(longest_first(ids), ids, TOKENS):
        batch = collate([(ids[i], []) for i in chosen], list(chosen)).to(device)
        member = membership([numbers(texts[i], ids[i]) for i in chosen], batch.source.size(1), device)
        for site, weights in encoder_weights(translator.model.eval(), batch.source, batch.source_mask).items():
            best = to_words(weights.float(), member, member).argmax(-1).cpu().numpy()  # (B, H, words)
            for head in range(best.shape[1]):
                rows = looks.setdefault(HeadName(*site, head), [])
                rows += [(i, best[row, head, : len(sentences[i].words)]) for row, i in enumerate(chosen)]
    arcs = _arcs(sentences)
    judged = {name: _best(dict(rows), arcs) for name, rows in looks.items()}
    return {name: relation for name, relation in judged.items() if relation is not None}


def _arcs(sentences: Sequence[Sentence]) -> dict[str, Integers]:
    """(arcs, 3) of each relation: sentence, where from, where to."""
    found: dict[str, list[tuple[int, int, int]]] = {}
    for number, sentence in enumerate(sentences):
        for word, (head, relation) in enumerate(zip(sentence.heads, sentence.relations, strict=True)):
            if head is not None:
                found.setdefault(relation, []).append((number, word, head))
                found.setdefault(f"{relation}⁻¹", []).append((number, head, word))
    return {name: np.array(arcs, np.int64) for name, arcs in found.items() if len(arcs) >= LEAST}


def _best(looks: dict[int, Integers], arcs: dict[str, Integers]) -> Relation | None:
    relations = []
    for name, rows in arcs.items():
        hits = np.mean([looks[i][start] == end for i, start, end in rows.tolist()])
        _, common = np.unique(rows[:, 2] - rows[:, 1], return_counts=True)
        relations.append(Relation(name, float(hits), float(common.max() / len(rows)), len(rows)))
    return max(relations, key=lambda found: found.accuracy - found.baseline, default=None)
