"""Ensembles: several models with one vocabulary that write one translation together."""

from collections.abc import Sequence
from typing import Literal, NamedTuple, get_args

import torch
from torch import Tensor, nn

from saccade.errors import SaccadeError
from saccade.models.protocol import DecoderOutput, EncoderDecoder, Memory, State

Mean = Literal["probabilities", "log-probabilities"]


class Memories(NamedTuple):
    """What each model has made of the source."""

    each: tuple[Memory, ...]

    @property
    def states(self) -> Tensor:
        return self.each[0].states

    @property
    def mask(self) -> Tensor:
        return self.each[0].mask

    @property
    def penalty(self) -> Tensor | None:
        return None

    def select(self, indices: Tensor) -> "Memories":
        return Memories(tuple(memory.select(indices) for memory in self.each))

    @staticmethod
    def together(memories: "Sequence[Memories]") -> "Memories":
        """The sentences of several as one."""
        return Memories(tuple(Memory.together(parts) for parts in zip(*(m.each for m in memories), strict=True)))


class States(NamedTuple):
    """What each decoder knows between two calls."""

    each: tuple[State, ...]

    def select(self, indices: Tensor) -> "States":
        return States(tuple(state.select(indices) for state in self.each))


class Ensemble(EncoderDecoder):
    """Models of any families, as one of the protocol.

    p(y) = 1/M Σ_m p_m(y)    or, of log-probabilities,    p(y) ∝ Π_m p_m(y)^(1/M)

    Each model reads what all of them have written. `hidden` is log p itself, (B, T, V), and `logits` adds nothing.
    """

    has_top_state = False  # there is one of each model, of any width

    def __init__(self, models: Sequence[EncoderDecoder], mean: Mean = "probabilities") -> None:
        nn.Module.__init__(self)
        if mean not in get_args(Mean):
            raise SaccadeError(f"mean={mean!r} of an ensemble is not known; use {' or '.join(get_args(Mean))}")
        self.models = nn.ModuleList(models)
        self.mean = mean

    def encode(self, source: Tensor, mask: Tensor) -> Memories:  # type: ignore[override]
        return Memories(tuple(model.encode(source, mask) for model in self.members))

    def init_state(self, memory: Memories, capacity: int | None = None) -> States:  # type: ignore[override]
        each = zip(self.members, memory.each, strict=True)
        return States(tuple(model.init_state(part, capacity) for model, part in each))

    def decode(self, tokens: Tensor, state: States, need_weights: bool = False) -> DecoderOutput:  # type: ignore[override]
        each = zip(self.members, state.each, strict=True)
        outputs = [model.decode(tokens, part, need_weights) for model, part in each]
        logits = [model.logits(output.hidden) for model, output in zip(self.members, outputs, strict=True)]
        log_probs = torch.stack([x.to(torch.promote_types(x.dtype, torch.float32)).log_softmax(-1) for x in logits])
        attentions = tuple(weights for output in outputs for weights in output.attentions or ())
        return DecoderOutput(self._mean(log_probs), States(tuple(o.state for o in outputs)), attentions or None)

    def _mean(self, log_probs: Tensor) -> Tensor:
        """Of (M, B, T, V) over the models."""
        if self.mean == "probabilities":
            return log_probs.logsumexp(0).log_softmax(-1)
        return log_probs.mean(0).log_softmax(-1)

    def logits(self, hidden: Tensor) -> Tensor:
        return hidden

    @property
    def members(self) -> list[EncoderDecoder]:
        return list(self.models)  # type: ignore[arg-type]

    @property
    def attends(self) -> bool:
        return any(model.attends for model in self.members)
