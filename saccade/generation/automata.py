"""How much of their phrases hypotheses hold, for a whole batch at once."""

from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from saccade.data.tokenizers import EOS
from saccade.generation.words import Phrase, Spelling

FAR = 1_000_000  # tokens left to write of a spelling that is not there


def room_for(phrases: Sequence[Phrase]) -> int:
    """Pieces that surely suffice for all the phrases."""
    return sum(_anywhere(phrase) for phrase in phrases)


def _anywhere(phrase: Phrase) -> int:
    return min(len(spelling.ids) for spelling in phrase if spelling.after_letters)


class Reached(NamedTuple):
    """What hypotheses hold of their phrases."""

    states: Tensor  # (…, G, P): tokens of each spelling that the hypothesis ends in
    counts: Tensor  # (…, G): times that each phrase is there, at most as often as it must be


class Automata(NamedTuple):
    """A Knuth-Morris-Pratt automaton for every spelling, over the sentence's own alphabet.

    G phrases of P spellings of at most L tokens, A different tokens, for the sentence with the most of each. The
    symbol A stands for every other token.
    """

    alphabet: Tensor  # (N, A); the end of the sentence where there is no token
    steps: Tensor  # (N, G, P, L, A + 1): the state after each symbol
    lengths: Tensor  # (N, G, P)
    bound: Tensor  # (N, G, P): spellings that may not follow letters
    sizes: Tensor  # (N, G): tokens in which the phrase can be written anywhere
    times: Tensor  # (N, G): how often it must be there

    @classmethod
    def of(cls, sentences: Sequence[Sequence[Phrase]], device: torch.device) -> "Automata":
        counted = [Counter(phrases) for phrases in sentences]
        alphabets = [sorted({id for phrase in c for spelling in phrase for id in spelling.ids}) for c in counted]
        spellings = [spelling for c in counted for phrase in c for spelling in phrase]
        N, A = len(counted), max(map(len, alphabets), default=0)
        G = max(map(len, counted), default=0)
        P = max((len(phrase) for c in counted for phrase in c), default=1)
        L = max((len(spelling.ids) for spelling in spellings), default=1)
        alphabet = torch.full((N, A), EOS)
        steps, lengths = torch.zeros(N, G, P, L, A + 1, dtype=torch.long), torch.full((N, G, P), FAR)
        bound = torch.zeros(N, G, P, dtype=torch.bool)
        sizes, times = torch.zeros(N, G, dtype=torch.long), torch.zeros(N, G, dtype=torch.long)
        for n, (counter, letters) in enumerate(zip(counted, alphabets, strict=True)):
            alphabet[n, : len(letters)] = torch.tensor(letters, dtype=torch.long)
            for g, (phrase, often) in enumerate(counter.items()):
                sizes[n, g], times[n, g] = _anywhere(phrase), often
                for p, spelling in enumerate(phrase):
                    lengths[n, g, p], bound[n, g, p] = len(spelling.ids), not spelling.after_letters
                    table = torch.tensor(_knuth_morris_pratt(spelling, letters))
                    steps[n, g, p, : table.size(0), : table.size(1)] = table
        return cls(*(part.to(device) for part in (alphabet, steps, lengths, bound, sizes, times)))

    def keep(self, alive: Tensor) -> "Automata":
        return Automata(*(part[alive] for part in self))

    def start(self, beam: int) -> Reached:
        N, G, P = self.lengths.shape
        return Reached(self.sizes.new_zeros(N, beam, G, P), self.sizes.new_zeros(N, beam, G))

    def after(self, reached: Reached, letter: Tensor) -> Reached:
        """What each of the symbols leads to, on an axis after the beam's: (N, K, A + 1, …).

        `letter` (N, K): whether the hypothesis ends in a letter.
        """
        N, K, G, P = reached.states.shape
        L, symbols = self.steps.shape[3:]
        states = reached.states[..., None, None].expand(N, K, G, P, 1, symbols)
        states = self.steps.unsqueeze(1).expand(N, K, G, P, L, symbols).gather(4, states).squeeze(4)
        begun_in_word = (states == 1) & self.bound[:, None, :, :, None] & letter[:, :, None, None, None]
        states = states.masked_fill(begun_in_word, 0)
        complete = (states == self.lengths[:, None, :, :, None]).any(3)  # (N, K, G, A + 1)
        counts = torch.minimum(reached.counts.unsqueeze(-1) + complete, self.times[:, None, :, None])
        states = states.masked_fill(complete.unsqueeze(3), 0)
        return Reached(states.movedim(-1, 2), counts.movedim(-1, 2))

    def progress(self, reached: Reached) -> tuple[Tensor, Tensor]:
        """Of (…, G): tokens of the phrases that are there, and tokens that surely suffice for the rest."""
        extra = reached.states.dim() - self.lengths.dim()
        lengths, bound, sizes, times = (
            part.reshape(part.size(0), *[1] * extra, *part.shape[1:])
            for part in (self.lengths, self.bound, self.sizes, self.times)
        )
        left = (lengths - reached.states).masked_fill(bound & (reached.states == 0), FAR).amin(-1)
        missing = times - reached.counts
        begun = (sizes - left).clamp(min=0) * (missing > 0)
        there = (reached.counts * sizes + begun).sum(-1)
        # One that is begun can be ended; then the others must be written from their beginning.
        most_begun = begun.amax(-1) if begun.size(-1) else begun.sum(-1)
        return there, (missing * sizes).sum(-1) - most_begun

    def complete(self, reached: Reached) -> Tensor:
        """(N, K)"""
        return (reached.counts == self.times.unsqueeze(1)).all(-1)


def _knuth_morris_pratt(spelling: Spelling, alphabet: Sequence[int]) -> list[list[int]]:
    """For each state (tokens that agree so far) and each symbol, and any other token, the state that follows."""
    ids, column = spelling.ids, {id: place for place, id in enumerate(alphabet)}
    table = [[0] * (len(alphabet) + 1) for _ in ids]
    border = 0  # the state in which what agrees so far would be without its first token
    for state, id in enumerate(ids):
        table[state] = list(table[border])
        table[state][column[id]] = state + 1
        if state:
            border = table[border][column[id]]
    return table
