"""The table of word embeddings, which can be told to leave a word out."""

import torch.nn.functional as F
from torch import Tensor, nn

CUT = -1  # in place of a word's id, in training: a word whose embedding is zero


class WordTable(nn.Embedding):
    """x_i = W[token_i]; where words may be cut off (`cuts`), x_i = 0 for `CUT`.

    Every model reads words through such tables, so that what an objective does to words it does to their ids, and no
    model need know of it. Positions are added afterwards and stay: the word is gone, its place is not.
    """

    cuts = False

    def forward(self, tokens: Tensor) -> Tensor:
        if not (self.cuts and self.training):
            return super().forward(tokens)
        kept = tokens != CUT
        return F.embedding(tokens.clamp(min=0), self.weight) * kept.unsqueeze(-1).to(self.weight.dtype)


def allow_cuts(model: nn.Module) -> None:
    """Let every table of a model read `CUT`; a model that is never given one need not look for it."""
    for module in model.modules():
        if isinstance(module, WordTable):
            module.cuts = True
