"""The model's own log-probabilities of what a search has found, where it ranked by something else."""

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from saccade.data.tokenizers import BOS, EOS, PAD
from saccade.generation.search import Hypothesis
from saccade.models.protocol import EncoderDecoder

ROWS = 64  # hypotheses read at once: their logits are rows × tokens × vocabulary


def with_own_log_probs(
    model: EncoderDecoder, source: Tensor, mask: Tensor, found: Sequence[Sequence[Hypothesis]]
) -> list[list[Hypothesis]]:
    """The same hypotheses with `log_prob` as the model has it when it is made to write them (teacher forcing)."""
    rows = [(sentence, hypothesis) for sentence, several in enumerate(found) for hypothesis in several]
    scored: list[list[Hypothesis]] = [[] for _ in found]
    for start in range(0, len(rows), ROWS):
        part = rows[start : start + ROWS]
        sentences = torch.tensor([sentence for sentence, _ in part], device=source.device)
        targets = [torch.tensor([BOS, *hypothesis.tokens, EOS], device=source.device) for _, hypothesis in part]
        target = pad_sequence(targets, batch_first=True, padding_value=PAD)
        inputs, gold = target[:, :-1], target[:, 1:]
        logits = model.logits(model(source[sentences], mask[sentences], inputs).hidden)
        log_probs = logits.to(torch.promote_types(logits.dtype, torch.float32)).log_softmax(-1)
        of_gold = log_probs.gather(-1, gold.unsqueeze(-1)).squeeze(-1).masked_fill(gold == PAD, 0.0)
        for (sentence, hypothesis), log_prob in zip(part, of_gold.sum(1).tolist(), strict=True):
            scored[sentence].append(hypothesis._replace(log_prob=log_prob))
    return scored
