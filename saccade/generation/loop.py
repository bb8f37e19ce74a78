"""The one generation loop, for every model and every search."""

from collections.abc import Sequence

import torch
from torch import Tensor

from saccade.data.tokenizers import BOS
from saccade.errors import SaccadeError
from saccade.generation.rescoring import with_own_log_probs
from saccade.generation.rules import DEFAULT_RULES, Rule, Weighing, apply
from saccade.generation.search import Hypothesis, Search
from saccade.models.protocol import EncoderDecoder


@torch.inference_mode()
def generate(
    model: EncoderDecoder,
    source: Tensor,
    mask: Tensor,
    search: Search,
    limits: Tensor,
    rules: Sequence[Rule] = DEFAULT_RULES,
    weighings: Sequence[Weighing] = (),
) -> list[list[Hypothesis]]:
    """Translate source ids (B, S): for each sentence its hypotheses, the best first.

    `limits` (B,) is the most tokens each may have, its end counted: a sentence's own, so that no answer depends on
    what shares its batch. `weighings` change what the search chooses and ranks by (`Hypothesis.score`), never
    `Hypothesis.log_prob`.
    """
    if source.size(0) == 0:
        return []
    memory = model.encode(source, mask)
    run = search.start(limits, mask, torch.promote_types(memory.states.dtype, torch.float32))
    state = model.init_state(memory, capacity=int(limits.max())).select(run.rows)
    tokens = torch.full_like(run.rows, BOS)
    while tokens.numel():
        output = model.decode(tokens.unsqueeze(1), state, need_weights=search.needs_attention)
        if search.needs_attention and not output.attentions:
            raise SaccadeError(
                "search.coverage_penalty needs a model with attention, which this one has not; set it to 0"
            )
        logits = model.logits(output.hidden[:, -1])
        log_probs = logits.to(torch.promote_types(logits.dtype, torch.float32)).log_softmax(-1)
        prefixes = run.prefixes()
        log_probs = apply(rules, apply(weighings, log_probs, prefixes), prefixes)
        tokens, parents = run.advance(log_probs, looked_at(output.attentions) if search.needs_attention else None)
        state = output.state if parents is None else output.state.select(parents)
    found = run.results()
    return with_own_log_probs(model, source, mask, found) if weighings else found


def looked_at(attentions: tuple[Tensor, ...] | None) -> Tensor | None:
    """Where a step looked, over all layers and heads: (B, H, 1, S) a layer → (B, S)."""
    if not attentions:
        return None
    return torch.stack([weights[:, :, -1].mean(1) for weights in attentions]).mean(0)
