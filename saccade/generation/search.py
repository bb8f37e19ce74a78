"""Search: which tokens to follow.

A search starts a *run* for a batch of sentences. The run's rows are the hypotheses it keeps alive; `advance` takes
what the model says of them, chooses, and says for each row of the next step which token it wrote and which row it came
from. Rows of sentences that are done leave the batch.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol, runtime_checkable

import torch
from torch import Tensor

from saccade.data.tokenizers import EOS
from saccade.generation.rules import Prefixes


class Hypothesis(NamedTuple):
    """A translation in ids, without its end token."""

    tokens: list[int]
    log_prob: float  # the model's own, its end counted
    score: float  # what the search ranked by


class Said(NamedTuple):
    """What the model says of each row."""

    log_probs: Tensor  # (R, V): of what comes next
    looked: Tensor | None = None  # (R, S): where the row looked, for searches that need attention
    hidden: Tensor | None = None  # (R, E): the decoder's top state; None: the model has not one but several

    def select(self, rows: Tensor) -> "Said":
        return Said(*(None if part is None else part.index_select(0, rows) for part in self))  # type: ignore[arg-type]

    def split(self, sizes: list[int]) -> "Sequence[Said]":
        """The rows of each of several runs."""
        parts = [[None] * len(sizes) if part is None else part.split(sizes) for part in self]
        return [Said(*of_run) for of_run in zip(*parts, strict=True)]


class Step(NamedTuple):
    """The rows of the next step: the token each has just written, and the row it continues (None: all the same).

    A run whose rows are in beams of `size` each, side by side, which never exchange them may say so; then rows of
    models that can (`SharedState`) are reordered without copying.
    """

    tokens: Tensor  # (R,)
    parents: Tensor | None  # (R,)
    size: int | None = None
    kept: Tensor | None = None  # (N',): the beams that are left, as places among those before; None: all


class Run(Protocol):
    """A search at work on one batch."""

    rows: Tensor  # (R,): which sentence each row of the first step belongs to

    def prefixes(self) -> Prefixes: ...

    def advance(self, said: Said) -> Step: ...

    def results(self) -> list[list[Hypothesis]]:
        """The hypotheses of each sentence, the best first."""

    def keep(self, rows: Tensor) -> None:
        """Go on with these rows alone, which are those of whole sentences: the others have left."""

    def over(self) -> Tensor:
        """(B,): which sentences need no further step; their results are what they will be."""

    def result(self, sentence: int) -> list[Hypothesis]:
        """What `results` says of one sentence."""


class Search(Protocol):
    """A way to search, with its settings."""

    @property
    def needs_attention(self) -> bool: ...

    def start(self, limits: Tensor, source_mask: Tensor, dtype: torch.dtype = torch.float32) -> Run:
        """A run for sentences that may write `limits` (B,) tokens, their end counted; scores add up in `dtype`."""


@runtime_checkable
class OfSentences(Protocol):
    """A search that holds something for each sentence of its batch."""

    def part(self, first: int, last: int) -> Search:
        """The search of the sentences from `first` to before `last` alone."""


def part_of(search: Search, first: int, last: int) -> Search:
    """The search of some of the sentences."""
    return search.part(first, last) if isinstance(search, OfSentences) else search


@dataclass(frozen=True)
class Greedy:
    """The likeliest token, every time."""

    needs_attention = False

    def start(self, limits: Tensor, source_mask: Tensor, dtype: torch.dtype = torch.float32) -> "GreedyRun":
        return GreedyRun(limits, dtype)


BLOCK = 64


def top(x: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """`x.topk(count)` of rows (R, V), by blocks: the best are in the blocks that have the best maxima.

    To find where a row is largest takes many times longer than to find how large it is.
    """
    R, V = x.shape
    if R == count == 1:
        best = x.max(1, keepdim=True)
        return best.values, best.indices
    blocks = V // BLOCK
    if blocks <= 2 * count:
        return x.topk(count, dim=1)
    whole = x[:, : blocks * BLOCK].view(R, blocks, BLOCK)
    places = whole.amax(2).topk(count, dim=1).indices  # (R, count)
    found = whole.gather(1, places.unsqueeze(2).expand(-1, -1, BLOCK)).flatten(1)
    ids = (places.unsqueeze(2) * BLOCK + torch.arange(BLOCK, device=x.device)).flatten(1)
    if V % BLOCK:
        found = torch.cat([found, x[:, blocks * BLOCK :]], dim=1)
        ids = torch.cat([ids, torch.arange(blocks * BLOCK, V, device=x.device).expand(R, -1)], dim=1)
    values, where = found.topk(count, dim=1)
    return values, ids.gather(1, where)


def few(alive: int, rows: int) -> bool:
    """Whether so many have ended that it pays to copy those that are alive closer together."""
    return alive <= rows - max(1, rows // 8)


def all_but(sentences: int, alive: Tensor) -> Tensor:
    """(sentences,): True but for those that are alive."""
    over = torch.ones(sentences, dtype=torch.bool, device=alive.device)
    over[alive] = False
    return over


class GreedyRun:
    """One row a sentence, until its end; rows that have ended leave a few at a time."""

    def __init__(self, limits: Tensor, dtype: torch.dtype) -> None:
        B = limits.numel()
        self.rows = torch.arange(B, device=limits.device)
        self.limits = limits
        self.sentences = self.rows
        self.length = 0
        self.tokens = limits.new_empty(B, int(limits.max()) if B else 0)
        self.log_prob = torch.zeros(B, device=limits.device, dtype=dtype)
        self.ended = torch.zeros(B, device=limits.device, dtype=torch.bool)
        self.all_alive = True
        self.done: list[list[Hypothesis]] = [[] for _ in range(B)]

    def prefixes(self) -> Prefixes:
        return Prefixes(self.tokens[:, : self.length], self.sentences, self.limits)

    def advance(self, said: Said) -> Step:
        best, tokens = top(said.log_probs, 1)
        best, tokens = best.squeeze(1), tokens.squeeze(1)
        self.tokens[:, self.length] = tokens
        self.length += 1
        ended = tokens == EOS
        N = alive = ended.numel()
        if self.all_alive:
            self.log_prob = self.log_prob + best
        else:
            self.log_prob = torch.where(self.ended, self.log_prob, self.log_prob + best)
            ended |= self.ended
        gone = int(ended.count_nonzero())
        if gone:
            alive, self.all_alive = N - gone, False
            self._take(ended & ~self.ended)
            self.ended = ended
        if not few(alive, N):
            return Step(tokens, None, 1)
        left = (~ended).nonzero().flatten()
        self.all_alive = True
        self.keep(left)
        return Step(tokens[left], left, 1, left)

    def keep(self, rows: Tensor) -> None:
        self.tokens, self.ended = self.tokens[rows], self.ended[rows]
        self.limits, self.sentences, self.log_prob = self.limits[rows], self.sentences[rows], self.log_prob[rows]

    def _take(self, ended: Tensor) -> None:
        """Take in the rows that have just ended."""
        rows = ended.nonzero().flatten()
        for sentence, tokens, log_prob in zip(
            self.sentences[rows].tolist(),
            self.tokens[rows, : self.length - 1].tolist(),
            self.log_prob[rows].tolist(),
            strict=True,
        ):
            self.done[sentence] = [Hypothesis(tokens, log_prob, log_prob)]

    def results(self) -> list[list[Hypothesis]]:
        return self.done

    def over(self) -> Tensor:
        return all_but(len(self.done), self.sentences[~self.ended])

    def result(self, sentence: int) -> list[Hypothesis]:
        return self.done[sentence]


@dataclass(frozen=True)
class Beam:
    """Beam search, ranked as Wu et al. 2016, eq. 14:

    s(Y, X) = log P(Y | X) / lp(Y) + cp(X, Y)
    lp(Y) = ((5 + |Y|) / 6)^α,    cp(X, Y) = β Σ_i log min(Σ_j p_ij, 1)

    with p_ij the attention of target token j on source token i. A sentence is done when none that is alive can still
    overtake the `n_best` that have ended: log P only falls, lp is largest at the length limit and cp is at most 0, so
    log P / lp(limit) bounds every continuation from above. With `stop_at_size` it is also done when `size` hypotheses
    have ended, as most toolkits do it: quicker, and now and then the best is lost. A beam of one is greedy search, and
    its first ending is its answer.
    """

    size: int = 5
    length_penalty: float = 1.0  # α
    coverage_penalty: float = 0.0  # β
    n_best: int = 1
    stop_at_size: bool = False

    @property
    def needs_attention(self) -> bool:
        return self.coverage_penalty > 0

    def start(self, limits: Tensor, source_mask: Tensor, dtype: torch.dtype = torch.float32) -> "BeamRun":
        return BeamRun(self, limits, source_mask, dtype)

    def divide(self, log_prob: Tensor, length: Tensor | int) -> Tensor:
        """log P / lp."""
        if isinstance(length, Tensor):
            length = length.to(log_prob.dtype)
        return log_prob / ((5.0 + length) / 6.0) ** self.length_penalty

    def coverage(self, attention: Tensor, source_mask: Tensor) -> Tensor:
        """cp of attention summed over the target, (…, S)."""
        summed = attention.clamp(min=torch.finfo(attention.dtype).tiny, max=1.0).log()
        return self.coverage_penalty * summed.masked_fill(~source_mask, 0.0).sum(-1)


class Ended(NamedTuple):
    """Hypotheses that have ended, the best first; an empty place has the score -inf."""

    score: Tensor  # (N, K)
    log_prob: Tensor  # (N, K)
    tokens: Tensor  # (N, K, L)


class BeamRun:
    """`size` rows for each of the N sentences that are not done, those of a sentence side by side.

    Sentences that are done leave a few at a time; until then their rows have no chance.
    """

    def __init__(self, search: Beam, limits: Tensor, source_mask: Tensor, dtype: torch.dtype) -> None:
        B, K = limits.numel(), search.size
        self.search = search
        self.longest = int(limits.max()) if B else 0
        self.sentences = torch.arange(B, device=limits.device)  # (N,)
        self.rows = self.sentences.repeat_interleave(K)
        self.limits = limits  # (N,)
        self.source_mask = source_mask  # (N, S)
        self.length = 0
        self.tokens = limits.new_full((B, K, self.longest), EOS)
        # All K rows start alike, so only the first may compete in the first step.
        self.log_prob = torch.full((B, K), -float("inf"), device=limits.device, dtype=dtype)
        self.log_prob[:, 0] = 0.0
        self.attention = self.log_prob.new_zeros(B, K, source_mask.size(1)) if search.needs_attention else None
        # What has ended, for all B sentences, the best first; an empty place has the score -inf.
        self.any_ended = False
        self.ended_score = torch.full((B, K), -float("inf"), device=limits.device, dtype=dtype)
        self.ended_log_prob = self.ended_score.clone()
        self.ended_tokens = limits.new_full((B, K, self.longest), EOS)
        self.ended_count = torch.zeros_like(limits)
        self._number()

    def _number(self) -> None:
        """What follows from the sentences that are left, once for many steps."""
        K = self.search.size
        self.first_rows = torch.arange(self.sentences.numel(), device=self.sentences.device).unsqueeze(1) * K
        self.row_sentences = self.sentences.repeat_interleave(K)
        self.row_limits = self.limits.repeat_interleave(K)

    def prefixes(self) -> Prefixes:
        return Prefixes(self.tokens[:, :, : self.length].flatten(0, 1), self.row_sentences, self.row_limits)

    def advance(self, said: Said) -> Step:
        K, V = self.search.size, said.log_probs.size(-1)
        N = self.sentences.numel()
        if self.attention is not None and said.looked is not None:
            self.attention = self.attention + said.looked.view(N, K, -1)

        log_prob, beams, tokens = self._best(said.log_probs, min(2 * K, K * V))
        ends = tokens == EOS
        if ends.any():
            self._collect(log_prob[:, :K], beams[:, :K], ends[:, :K])
            going = ends.to(torch.int8).sort(dim=1, stable=True).indices[:, :K]
            ends, beams, tokens = ends.gather(1, going), beams.gather(1, going), tokens.gather(1, going)
            self.log_prob = log_prob.gather(1, going).masked_fill(ends, -float("inf"))
        else:
            beams, tokens, self.log_prob = beams[:, :K], tokens[:, :K], log_prob[:, :K]
        self.tokens = self._of(self.tokens, beams)
        self.tokens[:, :, self.length] = tokens
        self.length += 1
        if self.attention is not None:
            self.attention = self._of(self.attention, beams)
        return self._next(tokens, self.first_rows + beams)

    def _best(self, log_probs: Tensor, count: int) -> tuple[Tensor, Tensor, Tensor]:
        """The best continuations of each sentence, (N, count): log P, row of the beam, token. At most K of the best
        2K end, so at least K of them go on."""
        return self._best_of(*top(log_probs, min(count, log_probs.size(-1))), count)

    def _best_of(self, found: Tensor, tokens: Tensor, count: int) -> tuple[Tensor, Tensor, Tensor]:
        """`_best` of the best `count` of each row, (R, count): none of a sentence's best is beyond."""
        K = self.search.size
        continued = (self.log_prob.unsqueeze(-1) + found.view(-1, K, found.size(1))).flatten(1)
        log_prob, places = continued.topk(count, dim=1)
        return log_prob, places // found.size(1), tokens.view(-1, K * found.size(1)).gather(1, places)

    def _next(self, tokens: Tensor, rows: Tensor) -> Step:
        """The step (N, K) without the sentences that are done, where enough are."""
        K, N = self.search.size, rows.size(0)
        if not self.any_ended and self.length < self.longest:
            return Step(tokens.flatten(), rows.flatten(), K)
        done = self._done()
        alive = N - int(done.sum())
        if alive == N:
            return Step(tokens.flatten(), rows.flatten(), K)
        if not few(alive, N):
            self.log_prob = self.log_prob.masked_fill(done.unsqueeze(1), -float("inf"))
            return Step(tokens.flatten(), rows.flatten(), K)
        left = (~done).nonzero().flatten()
        self._keep(left)
        return Step(tokens[left].flatten(), rows[left].flatten(), K, left)

    def _collect(self, log_prob: Tensor, beams: Tensor, ends: Tensor) -> None:
        """Take in the hypotheses that have just ended, (N, K) each, and keep the best K of each sentence."""
        score = self.search.divide(log_prob, self.length + 1)
        if self.attention is not None:
            score = score + self.search.coverage(self._of(self.attention, beams), self.source_mask.unsqueeze(1))
        here = self.sentences
        before = Ended(self.ended_score[here], self.ended_log_prob[here], self.ended_tokens[here])
        after, ended = self._with(before, Ended(score, log_prob, self._of(self.tokens, beams)), ends)
        self.ended_score[here], self.ended_log_prob[here], self.ended_tokens[here] = after
        self.ended_count[here] += ended
        self.any_ended = True

    def _with(self, before: "Ended", now: "Ended", ends: Tensor) -> tuple["Ended", Tensor]:
        """The best K of what had ended and of that which `ends` now, and how many these are."""
        K = self.search.size
        ends = ends & (now.log_prob > -float("inf"))
        scores = torch.cat([before.score, now.score.masked_fill(~ends, -float("inf"))], dim=1)
        scores, order = scores.sort(dim=1, descending=True, stable=True)
        order = order[:, :K]
        log_prob = torch.cat([before.log_prob, now.log_prob], dim=1).gather(1, order)
        tokens = self._of(torch.cat([before.tokens, now.tokens], dim=1), order)
        return Ended(scores[:, :K], log_prob, tokens), ends.sum(1)

    def _done(self) -> Tensor:
        """Which of the N sentences need no further step."""
        here = self.sentences
        return self._no_more(self.ended_score[here, self.search.n_best - 1], self.ended_count[here])

    def _no_more(self, worst_wanted: Tensor, count: Tensor) -> Tensor:
        bound = self.search.divide(self.log_prob.amax(1), self.limits)
        done = worst_wanted >= bound
        if self.search.stop_at_size or self.search.size == 1:
            done = done | (count >= self.search.size)
        return done

    def _keep(self, left: Tensor) -> None:
        self.sentences, self.limits, self.source_mask = (
            self.sentences[left],
            self.limits[left],
            self.source_mask[left],
        )
        self.tokens, self.log_prob = self.tokens[left], self.log_prob[left]
        if self.attention is not None:
            self.attention = self.attention[left]
        self._number()

    def keep(self, rows: Tensor) -> None:
        self._keep(rows[:: self.search.size] // self.search.size)

    def over(self) -> Tensor:
        if not self.any_ended and self.length < self.longest:
            return all_but(self.ended_count.numel(), self.sentences)
        return all_but(self.ended_count.numel(), self.sentences[~self._done()])

    @staticmethod
    def _of(per_beam: Tensor, beams: Tensor) -> Tensor:
        """Rows of (N, K, ·) that `beams` (N, M) names: (N, M, ·)."""
        return per_beam.gather(1, beams.unsqueeze(-1).expand(-1, -1, per_beam.size(-1)))

    def results(self) -> list[list[Hypothesis]]:
        ended = (part[:, : self.search.n_best].tolist() for part in self._ended)
        return [self._hypotheses(*of_sentence) for of_sentence in zip(*ended, strict=True)]

    def result(self, sentence: int) -> list[Hypothesis]:
        return self._hypotheses(*(part[sentence, : self.search.n_best].tolist() for part in self._ended))

    @property
    def _ended(self) -> tuple[Tensor, Tensor, Tensor]:
        return self.ended_tokens, self.ended_log_prob, self.ended_score

    @staticmethod
    def _hypotheses(tokens: list[list[int]], log_probs: list[float], scores: list[float]) -> list[Hypothesis]:
        return [
            Hypothesis(ids[: ids.index(EOS)] if EOS in ids else ids, log_prob, score)
            for ids, log_prob, score in zip(tokens, log_probs, scores, strict=True)
            if score > -float("inf")
        ]
