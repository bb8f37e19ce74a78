"""Phrases that must appear: beam search with dynamic beam allocation.

Hypotheses that hold more of their phrases are less likely than those that hold less, so one beam would drop them.
They are put into *banks* by how many of the phrases' tokens they hold, and each bank gets its share of the beam (Post &
Vilar 2018, section 3; over all sentences at once, as Hu et al. 2019). A hypothesis may end only when it holds all its
phrases, and may not write what would leave too little room for those that are missing: so whatever ends holds them all.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
from torch import Tensor

from saccade.data.tokenizers import EOS
from saccade.errors import SaccadeError
from saccade.generation.automata import Automata, Reached, room_for
from saccade.generation.rules import Prefixes
from saccade.generation.search import Beam, Hypothesis, Said, Step, all_but
from saccade.generation.words import Phrase


@dataclass(frozen=True, eq=False)
class ConstrainedBeam:
    """`beam`, in which the translations of sentence b hold every phrase of `phrases[b]`, one named twice two times.

    Without phrases it is `beam`. `ends_in_letter` (V,) says after which pieces no spelling begins that may not follow
    letters; None: any may follow any. One difference from the papers: the fullest bank is served first, so that a
    narrow beam always moves on, but the others by likelihood, so that it does not forget the hypotheses that wait for
    the right place.
    """

    beam: Beam
    phrases: Sequence[Sequence[Phrase]]
    ends_in_letter: Tensor | None = None

    @property
    def needs_attention(self) -> bool:
        return self.beam.needs_attention

    def part(self, first: int, last: int) -> "ConstrainedBeam":
        return replace(self, phrases=self.phrases[first:last])

    def start(self, limits: Tensor, source_mask: Tensor, dtype: torch.dtype = torch.float32) -> "ConstrainedRun":
        for sentence, (phrases, limit) in enumerate(zip(self.phrases, limits.tolist(), strict=True)):
            if room_for(phrases) >= limit:
                raise SaccadeError(
                    f"sentence {sentence + 1}: its phrases (search.must) take {room_for(phrases)} pieces, but its "
                    f"translation may have {limit - 1}; leave some out or raise search.max_length_extra"
                )
        return ConstrainedRun(self, Automata.of(self.phrases, limits.device), limits, source_mask, dtype)


class Candidates(NamedTuple):
    """Continuations of a sentence's hypotheses, (N, M) each, the best first."""

    log_prob: Tensor
    beams: Tensor
    tokens: Tensor
    symbols: Tensor
    banks: Tensor
    ends: Tensor

    @property
    def possible(self) -> Tensor:
        return self.log_prob > -float("inf")


class ConstrainedRun:
    """`size` rows for each of the N sentences that are not done, those of a sentence side by side."""

    def __init__(
        self,
        search: ConstrainedBeam,
        automata: Automata,
        limits: Tensor,
        source_mask: Tensor,
        dtype: torch.dtype,
    ) -> None:
        B, K = limits.numel(), search.beam.size
        self.beam, self.automata = search.beam, automata
        self.sentences = torch.arange(B, device=limits.device)  # (N,)
        self.rows = self.sentences.repeat_interleave(K)
        self.limits, self.source_mask = limits, source_mask
        self.tokens = limits.new_empty(B, K, 0)
        self.log_prob = torch.full((B, K), -float("inf"), device=limits.device, dtype=dtype)
        self.log_prob[:, 0] = 0.0
        self.attention = self.log_prob.new_zeros(B, K, source_mask.size(1)) if search.needs_attention else None
        self.reached = automata.start(K)
        letters = search.ends_in_letter
        self.ends_in_letter = None if letters is None else letters.to(limits.device)
        self.ended: list[list[Hypothesis]] = [[] for _ in range(B)]
        self.ended_count = torch.zeros_like(limits)
        self.worst_wanted = torch.full((B,), -float("inf"), device=limits.device, dtype=dtype)

    def prefixes(self) -> Prefixes:
        K = self.beam.size
        return Prefixes(
            self.tokens.flatten(0, 1), self.sentences.repeat_interleave(K), self.limits.repeat_interleave(K)
        )

    def advance(self, said: Said) -> Step:
        N, K = self.sentences.numel(), self.beam.size
        if self.attention is not None and said.looked is not None:
            self.attention = self.attention + said.looked.view(N, K, -1)
        after = self.automata.after(self.reached, self._letter())
        banks, needed = self.automata.progress(after)  # (N, K, A + 1)
        continued = self.log_prob.unsqueeze(-1) + self._within_reach(said.log_probs.view(N, K, -1), needed)
        candidates = self._candidates(continued, banks)

        ranks = _ranks(candidates.banks, candidates.possible)
        self._collect(candidates, candidates.ends & (ranks < K))
        going = _allocate(candidates, K)
        beams, tokens, ends = (part.gather(1, going) for part in (candidates.beams, candidates.tokens, candidates.ends))
        self.log_prob = candidates.log_prob.gather(1, going).masked_fill(ends, -float("inf"))
        self.tokens = torch.cat([_of(self.tokens, beams), tokens.unsqueeze(-1)], dim=-1)
        here, symbols = torch.arange(N, device=beams.device).unsqueeze(1), candidates.symbols.gather(1, going)
        self.reached = Reached(*(part[here, beams, symbols] for part in after))
        if self.attention is not None:
            self.attention = _of(self.attention, beams)

        rows = here * K + beams
        alive = (~self._done()).nonzero().flatten()
        if alive.numel() < N:
            self._keep(alive)
            rows, tokens = rows[alive], tokens[alive]
        return Step(tokens.flatten(), rows.flatten())

    def results(self) -> list[list[Hypothesis]]:
        return [ended[: self.beam.n_best] for ended in self.ended]

    def result(self, sentence: int) -> list[Hypothesis]:
        return self.ended[sentence][: self.beam.n_best]

    def over(self) -> Tensor:
        return all_but(len(self.ended), self.sentences)

    def keep(self, rows: Tensor) -> None:
        self._keep(rows[:: self.beam.size] // self.beam.size)

    def _letter(self) -> Tensor:
        """(N, K): which hypotheses end in a letter."""
        if self.ends_in_letter is None or not self.tokens.size(-1):
            return torch.zeros_like(self.log_prob, dtype=torch.bool)
        return self.ends_in_letter[self.tokens[..., -1]]

    def _within_reach(self, log_probs: Tensor, needed: Tensor) -> Tensor:
        """-inf for the end of what is not complete, and for what leaves too little room for the rest."""
        room = self.limits - self.tokens.size(-1) - 2  # after one more token, and with the end at last
        too_much = needed > room[:, None, None]  # (N, K, A + 1)
        alphabet = self.automata.alphabet.unsqueeze(1).expand(-1, self.beam.size, -1)
        of_phrases = log_probs.gather(-1, alphabet).masked_fill(too_much[..., :-1], -float("inf"))
        end = log_probs[..., EOS].masked_fill(~self.automata.complete(self.reached), -float("inf"))
        log_probs = log_probs.masked_fill(too_much[..., -1:], -float("inf")).scatter(-1, alphabet, of_phrases)
        log_probs[..., EOS] = end
        return log_probs

    def _candidates(self, continued: Tensor, banks: Tensor) -> Candidates:
        """The best 2K of all; of each hypothesis the tokens that its phrases want; of each its best."""
        (N, K, V), A = continued.shape, self.automata.alphabet.size(1)
        flat = continued.flatten(1)
        best = flat.topk(min(2 * K, K * V), dim=1)
        first = torch.arange(K, device=flat.device).unsqueeze(1) * V  # (K, 1)
        wanted = (first + self.automata.alphabet.unsqueeze(1)).flatten(1)  # (N, K·A)
        there, _ = self.automata.progress(self.reached)
        # Padding of the alphabet is the end of the sentence, for which nothing is in store.
        useless = (banks[..., :-1] <= there.unsqueeze(-1)).flatten(1) | (wanted % V == EOS)
        single = (first.squeeze(1) + continued.argmax(-1)).view(N, K)
        places = torch.cat([best.indices, wanted, single], dim=1)
        log_prob = torch.cat([best.values, flat.gather(1, wanted), flat.gather(1, single)], dim=1)
        log_prob[:, best.indices.size(1) :][:, : K * A].masked_fill_(useless, -float("inf"))
        # What is named twice counts where it is named first, and is possible.
        possible = log_prob > -float("inf")
        same = (places.unsqueeze(2) == places.unsqueeze(1)) & possible.unsqueeze(1)
        log_prob = log_prob.masked_fill(same.tril(-1).any(2), -float("inf"))

        log_prob, order = log_prob.sort(dim=1, descending=True, stable=True)
        places = places.gather(1, order)
        beams, tokens = places // V, places % V
        ends = tokens == EOS
        matches = tokens.unsqueeze(2) == self.automata.alphabet.unsqueeze(1)  # (N, M, A)
        none = matches.new_ones(*tokens.shape, 1)
        symbols = torch.cat([matches, none], dim=2).int().argmax(2).masked_fill(ends, A)
        here = torch.arange(N, device=flat.device).unsqueeze(1)
        full = (self.automata.sizes * self.automata.times).sum(-1, keepdim=True)  # (N, 1)
        return Candidates(log_prob, beams, tokens, symbols, torch.where(ends, full, banks[here, beams, symbols]), ends)

    def _collect(self, candidates: Candidates, ended: Tensor) -> None:
        """Take in what has just ended, and keep the best K of each sentence."""
        ended = ended & candidates.possible
        if not ended.any():
            return
        score = self.beam.divide(candidates.log_prob, self.tokens.size(-1) + 1)
        if self.attention is not None:
            covered = self.beam.coverage(self.attention, self.source_mask.unsqueeze(1))  # (N, K)
            score = score + covered.gather(1, candidates.beams)
        for n, m in ended.nonzero().tolist():
            b = int(self.sentences[n])
            tokens = self.tokens[n, candidates.beams[n, m]].tolist()
            self.ended[b].append(Hypothesis(tokens, candidates.log_prob[n, m].item(), score[n, m].item()))
            self.ended[b].sort(key=lambda hypothesis: -hypothesis.score)
            del self.ended[b][self.beam.size :]
            if len(self.ended[b]) >= self.beam.n_best:
                self.worst_wanted[b] = self.ended[b][self.beam.n_best - 1].score
        self.ended_count[self.sentences] += ended.sum(1)

    def _done(self) -> Tensor:
        """Which of the N sentences need no further step, by the bound of `Beam`."""
        done = self.worst_wanted[self.sentences] >= self.beam.divide(self.log_prob.amax(1), self.limits)
        if self.beam.stop_at_size or self.beam.size == 1:
            done = done | (self.ended_count[self.sentences] >= self.beam.size)
        return done

    def _keep(self, alive: Tensor) -> None:
        self.sentences, self.limits = self.sentences[alive], self.limits[alive]
        self.source_mask, self.automata = self.source_mask[alive], self.automata.keep(alive)
        self.tokens, self.log_prob = self.tokens[alive], self.log_prob[alive]
        self.reached = Reached(*(part[alive] for part in self.reached))
        if self.attention is not None:
            self.attention = self.attention[alive]


def _ranks(banks: Tensor, counted: Tensor) -> Tensor:
    """The place of each candidate in its bank, (N, M), from 0; candidates are sorted, the best first."""
    same = (banks.unsqueeze(2) == banks.unsqueeze(1)) & counted.unsqueeze(1)
    return same.tril(-1).sum(2)


def _allocate(candidates: Candidates, beam: int) -> Tensor:
    """The candidates that go on, (N, K): the best of each bank, then the second of each, and so on."""
    goes_on = candidates.possible & ~candidates.ends
    M = goes_on.size(1)
    ranks = _ranks(candidates.banks, goes_on)
    fullest = candidates.banks.masked_fill(~goes_on, -1).amax(1, keepdim=True)
    place = torch.arange(M, device=ranks.device)
    turn = (2 * ranks + (candidates.banks != fullest)) * M + place
    turn = torch.where(goes_on, turn, torch.where(candidates.ends, 4 * M * M, 3 * M * M) + place)
    chosen = turn.sort(dim=1).indices[:, :beam]
    # In the order of their log-probability, as a beam is.
    return chosen.sort(dim=1).values


def _of(per_beam: Tensor, beams: Tensor) -> Tensor:
    """Rows of (N, K, ·) that `beams` (N, M) names: (N, M, ·)."""
    return per_beam.gather(1, beams.unsqueeze(-1).expand(-1, -1, per_beam.size(-1)))
