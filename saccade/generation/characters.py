"""Characters that were begun are finished: what is written is UTF-8, though a piece may be part of a character.

What a model writes for likely is whole, for it has seen nothing else. A search that is made to leave it (phrases that
must be there, tokens drawn by chance) can stop in the middle of a character that is spelled in bytes.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from saccade.generation.rules import Prefixes, Rule

# What the bytes so far ask of the next (RFC 3629, section 4): the range it must be in, and the state after it.
WHOLE, ONE, TWO, THREE, AFTER_E0, AFTER_ED, AFTER_F0, AFTER_F4, BROKEN = range(9)
_STARTS = [
    (0x00, 0x7F, WHOLE), (0xC2, 0xDF, ONE), (0xE0, 0xE0, AFTER_E0), (0xE1, 0xEC, TWO), (0xED, 0xED, AFTER_ED),
    (0xEE, 0xEF, TWO), (0xF0, 0xF0, AFTER_F0), (0xF1, 0xF3, THREE), (0xF4, 0xF4, AFTER_F4),
]  # fmt: skip
_GOES_ON = {
    WHOLE: _STARTS,
    ONE: [(0x80, 0xBF, WHOLE)],
    TWO: [(0x80, 0xBF, ONE)],
    THREE: [(0x80, 0xBF, TWO)],
    AFTER_E0: [(0xA0, 0xBF, ONE)],
    AFTER_ED: [(0x80, 0x9F, ONE)],
    AFTER_F0: [(0x90, 0xBF, TWO)],
    AFTER_F4: [(0x80, 0x8F, TWO)],
    BROKEN: [*_STARTS, (0x80, 0xFF, BROKEN)],  # until another character begins
}
LONGEST = 4  # bytes of a character


class Characters:
    """The state after each piece, from each state: (states, V)."""

    def __init__(self, pieces: Sequence[bytes]) -> None:
        self.after = torch.full((BROKEN + 1, len(pieces)), BROKEN)
        self.after[[WHOLE, BROKEN]] = WHOLE  # as all pieces have it that are ASCII, and those that are no text
        for id, piece in enumerate(pieces):
            if not piece:
                self.after[BROKEN, id] = BROKEN
            elif not piece.isascii():
                self.after[:, id] = torch.tensor([_after(state, piece) for state in range(BROKEN + 1)])

    def finished(self, device: torch.device, sentences: Tensor | None = None) -> Rule:
        """A rule that lets nothing stand within a character but its own bytes, of all sentences or of some (B,).

        Where other rules have left none of these, it gives way.
        """
        after = self.after.to(device)
        forbidden = after == BROKEN
        forbidden[BROKEN] = False

        def rule(log_probs: Tensor, prefixes: Prefixes) -> Tensor:
            state = torch.full_like(prefixes.sentences, BROKEN if prefixes.tokens.size(1) else WHOLE)
            for token in prefixes.tokens[:, -LONGEST:].unbind(1):
                state = after[state, token]
            if sentences is not None:
                state = state.masked_fill(~sentences[prefixes.sentences], BROKEN)
            left = log_probs.masked_fill(forbidden[state], -float("inf"))
            return torch.where(left.amax(1, keepdim=True) == -float("inf"), log_probs, left)

        return rule


def _after(state: int, piece: bytes) -> int:
    for byte in piece:
        reached = [then for low, high, then in _GOES_ON[state] if low <= byte <= high]
        if not reached:
            return BROKEN
        state = reached[0]
    return state
