"""Contrastive search (Su et al. 2022, "A contrastive framework for neural text generation"): likely, and new.

x_t = argmax_{v ∈ V(k)} (1 - α) · p(v | x_<t) - α · max_{j < t} cos(h_v, h_{x_j})

V(k) are the k likeliest tokens, h_v is the decoder's top state after v is appended, and the second term, the
*degeneration penalty*, is how like the likest token so far it is. Nothing is drawn: the same source gives the same
answer. α = 0, and k = 1, are greedy search.

Here x_j are the tokens that were written: neither the start token nor a source that the decoder reads first is among
them, for a translation may well say what the source says. So the first token is the likeliest. p and V(k) are those
that the rules leave, and the score is the model's own log-probability.

The k candidates are k rows side by side, each of which has read one of them: a beam, of which each step keeps one row,
that all k candidates of the next step follow. So every decoder that can search by beam can search so.
"""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from saccade.config import SearchConfig
from saccade.data.tokenizers import EOS
from saccade.errors import SaccadeError
from saccade.generation.rules import Prefixes
from saccade.generation.search import Hypothesis, Said, Step, all_but, top

CANDIDATES = 5  # where `search.top_k` leaves it open
MOST_CANDIDATES = 64  # each is a row of the model


@dataclass(frozen=True)
class Contrastive:
    """`candidates` is k, `penalty` α."""

    candidates: int = CANDIDATES
    penalty: float = 0.6

    needs_attention = False

    @classmethod
    def of(cls, settings: SearchConfig) -> "Contrastive":
        """The search that the settings describe; those that it has no use for are refused."""
        for name in ("n_best", "mbr"):
            if (asked := getattr(settings, name)) > 1:
                raise SaccadeError(
                    f"search.{name}={asked} with search.method=contrastive, which finds one translation; "
                    f"leave search.{name} out, or set search.method=sample"
                )
        if settings.top_k > MOST_CANDIDATES:
            raise SaccadeError(
                f"search.top_k={settings.top_k} with search.method=contrastive: each of them is a row of the model; "
                f"choose among {MOST_CANDIDATES} at most, or set it to 0 for {CANDIDATES}"
            )
        return cls(settings.top_k or CANDIDATES, settings.degeneration_penalty)

    def start(self, limits: Tensor, source_mask: Tensor, dtype: torch.dtype = torch.float32) -> "ContrastiveRun":
        return ContrastiveRun(self, limits, dtype)

    def score(self, log_prob: Tensor, hidden: Tensor, written: Tensor) -> Tensor:
        """The equation above, for candidates (N, K) with states (N, K, E) after (N, t, E), all of length 1."""
        if not written.size(1):
            return (1 - self.penalty) * log_prob.exp()
        cosines = hidden @ written.transpose(1, 2)  # (N, K, t)
        return (1 - self.penalty) * log_prob.exp() - self.penalty * cosines.amax(-1)


class ContrastiveRun:
    """K rows for each of the N sentences that are not done: what is written, and one candidate each."""

    def __init__(self, search: Contrastive, limits: Tensor, dtype: torch.dtype) -> None:
        B, K = limits.numel(), search.candidates
        self.search, self.dtype = search, dtype
        self.sentences = torch.arange(B, device=limits.device)  # (N,)
        self.rows = self.sentences.repeat_interleave(K)
        self.limits = limits  # (N,)
        self.written = limits.new_empty(B, 0)  # (N, t)
        self.states: Tensor | None = None  # (N, t, E), each of length 1
        self.log_prob = torch.zeros(B, device=limits.device, dtype=dtype)
        self.tokens: Tensor | None = None  # (N, K): the candidates; None before the first step
        self.chances = self.log_prob.new_empty(B, K)  # log p of them
        self.done: list[list[Hypothesis]] = [[] for _ in range(B)]

    def prefixes(self) -> Prefixes:
        K = self.search.candidates
        tokens = self.written.repeat_interleave(K, dim=0)
        if self.tokens is not None:
            tokens = torch.cat([tokens, self.tokens.view(-1, 1)], dim=1)
        return Prefixes(tokens, self.sentences.repeat_interleave(K), self.limits.repeat_interleave(K))

    def advance(self, said: Said) -> Step:
        N, K = self.sentences.numel(), self.search.candidates
        rows = torch.arange(N, device=self.sentences.device) * K + self._write(said.hidden)  # (N,)
        ended = self.written[:, -1] == EOS if self.written.size(1) else torch.zeros_like(rows, dtype=torch.bool)
        self._take(ended, self.written[:, :-1], self.log_prob)

        chances, tokens = self._likeliest(said.log_probs.index_select(0, rows))
        # What can only end has ended: its end need not be read, and a model may have no position for it.
        sure = (tokens[:, 0] == EOS) & (chances[:, 1:] == -float("inf")).all(1)
        sure = (sure | (self.limits <= self.written.size(1) + 1)) & ~ended
        self._take(sure, self.written, self.log_prob + chances[:, 0])

        self.chances, self.tokens = chances, tokens
        alive = (~(ended | sure)).nonzero().flatten()
        kept = alive if alive.numel() < N else None
        if kept is not None:
            self._keep(alive)
            tokens, rows = tokens[alive], rows[alive]
        return Step(tokens.flatten(), rows.repeat_interleave(K), K, kept)

    def _write(self, hidden: Tensor | None) -> Tensor:
        """Choose a candidate of each sentence, (N,), and write it; at first there is none, and any row will do."""
        if hidden is None:
            raise SaccadeError(
                "search.method=contrastive compares the states of one decoder, and an ensemble has several; "
                "translate with one folder, or set search.method=beam"
            )
        N, K = self.sentences.numel(), self.search.candidates
        states = F.normalize(hidden.to(self.dtype).view(N, K, -1), dim=-1)
        if self.states is None or self.tokens is None:
            self.states = states[:, :0]
            return torch.zeros_like(self.sentences)
        impossible = self.chances == -float("inf")
        score = self.search.score(self.chances, states, self.states).masked_fill(impossible, -float("inf"))
        best = score.argmax(1, keepdim=True)  # (N, 1); of equals, the likeliest
        self.written = torch.cat([self.written, self.tokens.gather(1, best)], dim=1)
        self.log_prob = self.log_prob + self.chances.gather(1, best).squeeze(1)
        chosen = states.gather(1, best.unsqueeze(-1).expand(-1, -1, states.size(-1)))
        self.states = torch.cat([self.states, chosen], dim=1)
        return best.squeeze(1)

    def _likeliest(self, log_probs: Tensor) -> tuple[Tensor, Tensor]:
        """The K likeliest of (N, V), the best first; where there are fewer, ends that are impossible fill up."""
        K = self.search.candidates
        chances, tokens = top(log_probs, min(K, log_probs.size(1)))
        missing = K - tokens.size(1)
        return F.pad(chances, (0, missing), value=-float("inf")), F.pad(tokens, (0, missing), value=EOS)

    def _take(self, ended: Tensor, tokens: Tensor, log_prob: Tensor) -> None:
        """Take in the sentences that have just ended."""
        here = ended.nonzero().flatten()
        for sentence, ids, value in zip(
            self.sentences[here].tolist(), tokens[here].tolist(), log_prob[here].tolist(), strict=True
        ):
            self.done[sentence] = [Hypothesis(ids, value, value)]

    def _keep(self, left: Tensor) -> None:
        self.sentences, self.limits = self.sentences[left], self.limits[left]
        self.written, self.log_prob, self.chances = self.written[left], self.log_prob[left], self.chances[left]
        self.states = None if self.states is None else self.states[left]
        self.tokens = None if self.tokens is None else self.tokens[left]

    def keep(self, rows: Tensor) -> None:
        self._keep(rows[:: self.search.candidates] // self.search.candidates)

    def results(self) -> list[list[Hypothesis]]:
        return self.done

    def result(self, sentence: int) -> list[Hypothesis]:
        return self.done[sentence]

    def over(self) -> Tensor:
        return all_but(len(self.done), self.sentences)
