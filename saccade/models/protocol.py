"""What every model is made of: an encoder that returns a memory, a decoder that reads it.

Training calls `decode` with the whole target, generation with one token at a time. It is one method, so the two cannot
drift apart.
"""

from collections.abc import Sequence
from typing import NamedTuple, Protocol, TypeVar, runtime_checkable

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class Memory(NamedTuple):
    """What an encoder made of a source: one state a position, and which positions are real."""

    states: Tensor  # (B, S, E)
    mask: Tensor  # (B, S), True where real
    final: Tensor | None = None  # (B, layers, ·): where a recurrent encoder ended, for a decoder that starts there
    attention: Tensor | None = None  # (B, states, source positions): of what an encoder that attends mixed each state
    penalty: Tensor | None = None  # (B,): what an encoder in training wants added to each sentence's loss

    def select(self, indices: Tensor) -> "Memory":
        return Memory(*(None if part is None else part.index_select(0, indices) for part in self))  # type: ignore[arg-type]

    @staticmethod
    def together(memories: "Sequence[Memory]") -> "Memory":
        """The sentences of several memories as one, padded to the widest."""
        if len(memories) == 1:
            return memories[0]
        return Memory(*(None if parts[0] is None else _stacked(parts) for parts in zip(*memories, strict=True)))  # type: ignore[arg-type]


def _stacked(parts: Sequence[Tensor]) -> Tensor:
    """One behind the other along axis 0, zeros behind each along the others."""
    sizes = [max(sizes) for sizes in zip(*(part.shape[1:] for part in parts), strict=True)]
    return torch.cat(
        [
            F.pad(part, [n for size, own in zip(sizes[::-1], part.shape[:0:-1], strict=True) for n in (0, size - own)])
            for part in parts
        ]
    )


StateT = TypeVar("StateT", bound="State")


class State(Protocol):
    """All that a decoder knows between two calls: an explicit record with the batch on axis 0."""

    def select(self: StateT, indices: Tensor) -> StateT:
        """The rows at `indices`, in that order, as often as they are named: how a beam is reordered."""


SharedT = TypeVar("SharedT", bound="SharedState")


@runtime_checkable
class SharedState(State, Protocol):
    """A state that holds what belongs to a sentence once for all rows of its beam, and sentences at any position.

    A search that keeps several rows for each sentence, side by side, copies nothing when it reorders them. Not every
    model has it: without it, rows are copied by `select`, and a batch starts and goes on together.
    """

    def beams(self: SharedT, size: int) -> SharedT:
        """Each row becomes the `size` rows of a beam."""

    def follow(self: SharedT, parents: Tensor) -> SharedT:
        """The rows of each beam reordered: `parents` (R,), each a row of the same beam."""

    def keep(self: SharedT, sentences: Tensor) -> SharedT:
        """The beams of some sentences (N',) alone."""

    def join(self: SharedT, other: SharedT) -> SharedT:
        """The beams of another state, which may stand elsewhere in their sentences, behind these."""


class DecoderOutput(NamedTuple):
    """What a decoder says of each target position, before the output matrix, and where it looked."""

    hidden: Tensor  # (B, T, E)
    state: State
    attentions: tuple[Tensor, ...] | None  # cross-attention weights, one (B, H, T, S) a layer that attends
    penalty: Tensor | None = None  # (B,): the memory's, on its way from the encoder to the objective


class EncoderDecoder(nn.Module):
    """An encoder and a decoder of the protocol, as one model.

    The vocabulary projection is apart (`logits`), so that training projects only the positions that carry a loss and
    generation only the last one.
    """

    has_top_state = True  # whether `DecoderOutput.hidden` is a state, which positions can be compared by

    def __init__(self, encoder: nn.Module, decoder: nn.Module) -> None:
        super().__init__()
        self.encoder = encoder
        self.decoder = decoder

    def encode(self, source: Tensor, mask: Tensor) -> Memory:
        """Source ids (B, S) and which of them are real."""
        return self.encoder(source, mask)

    def init_state(self, memory: Memory, capacity: int | None = None) -> State:
        """The state before the first token. `capacity`: room for so many positions, one call each; None: the whole
        target comes in a single call and nothing need be kept."""
        return self.decoder.init_state(memory, capacity)  # type: ignore[operator]

    def decode(self, tokens: Tensor, state: State, need_weights: bool = False) -> DecoderOutput:
        """Read target ids (B, T), which follow those that `state` has seen."""
        return self.decoder(tokens, state, need_weights)

    @property
    def attends(self) -> bool:
        """Whether the decoder looks back at the source while it writes."""
        return bool(self.decoder.attends)

    @property
    def output_matrix(self) -> Tensor:
        """(V, E)"""
        return self.decoder.output.weight  # type: ignore[union-attr, return-value]

    def logits(self, hidden: Tensor) -> Tensor:
        """(…, E) → (…, V)."""
        return self.decoder.project(hidden)  # type: ignore[operator]

    def forward(self, source: Tensor, mask: Tensor, inputs: Tensor, need_weights: bool = False) -> DecoderOutput:
        """Teacher forcing: read the source, then the whole target at once."""
        memory = self.encode(source, mask)
        return self.decode(inputs, self.init_state(memory), need_weights)._replace(penalty=memory.penalty)
