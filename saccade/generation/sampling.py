"""Sampling: tokens are drawn, each as often as the model says, or nearly so.

From log-probabilities to a token, always in this order, each step on what is left as if it summed to 1:

1. the rules of the loop (length, what is forbidden);
2. temperature;
3. top-k, top-p, min-p, typical: the `truncations`, rules themselves;
4. the draw.

A draw is a race (Gumbel 1954; Yellott 1977): with noise E_v from the exponential distribution, the token with the
largest log p_v - log E_v is token v with probability p_v. The noise depends on the seed, the sentence, the draw and the
step alone (see `noise`), so a sentence samples the same in any batch.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from saccade.data.tokenizers import EOS
from saccade.errors import SaccadeError
from saccade.generation.noise import exponential, split
from saccade.generation.rules import Prefixes, Rule
from saccade.generation.search import Hypothesis, Said, Step, all_but


def top_k(k: int) -> Rule:
    """The k likeliest tokens (Fan et al. 2018)."""

    def rule(log_probs: Tensor, prefixes: Prefixes) -> Tensor:
        likeliest = log_probs.topk(min(k, log_probs.size(-1)), dim=-1).indices
        return _only(log_probs, torch.zeros_like(log_probs, dtype=torch.bool).scatter_(-1, likeliest, True))

    return rule


def top_p(p: float) -> Rule:
    """The fewest tokens that make up the probability p, the likeliest first: the nucleus (Holtzman et al. 2020)."""

    def rule(log_probs: Tensor, prefixes: Prefixes) -> Tensor:
        return _only(log_probs, _making_up(p, log_probs.softmax(-1), -log_probs))

    return rule


def min_p(p: float) -> Rule:
    """Tokens at least p times as likely as the likeliest (Nguyen et al. 2024)."""

    def rule(log_probs: Tensor, prefixes: Prefixes) -> Tensor:
        return _only(log_probs, log_probs >= log_probs.amax(-1, keepdim=True) + math.log(p))

    return rule


def typical(p: float) -> Rule:
    """The fewest tokens that make up the probability p, those first whose surprisal is nearest to what is expected:

    |H + log p_v|,    H = -Σ_v p_v log p_v    (Meister et al. 2022)
    """

    def rule(log_probs: Tensor, prefixes: Prefixes) -> Tensor:
        normal = log_probs.log_softmax(-1)
        probs = normal.exp()
        entropy = -(probs * normal).masked_fill(probs == 0, 0.0).sum(-1, keepdim=True)
        return _only(log_probs, _making_up(p, probs, (entropy + normal).abs()))

    return rule


def truncations(k: int, p: float, minimum: float, typically: float) -> tuple[Rule, ...]:
    """What leaves the tail out, in the order of this page; 0 or 1 stands for none."""
    chosen = [(k > 0, top_k(k)), (p < 1, top_p(p)), (minimum > 0, min_p(minimum)), (typically < 1, typical(typically))]
    return tuple(rule for wanted, rule in chosen if wanted)


@dataclass(frozen=True, eq=False)
class Sample:
    """`draws` translations of each sentence, in the order in which they are drawn.

    `streams` (B,) are where the noise of each sentence starts (`noise.sentence_streams`). Draw i is the same however
    many there are. A hypothesis has the model's own log-probability, whatever the temperature.
    """

    streams: Tensor
    draws: int = 1
    temperature: float = 1.0
    truncations: Sequence[Rule] = ()

    needs_attention = False

    def part(self, first: int, last: int) -> "Sample":
        return replace(self, streams=self.streams[first:last])

    def start(self, limits: Tensor, source_mask: Tensor, dtype: torch.dtype = torch.float32) -> "SampleRun":
        if limits.numel() != self.streams.numel():
            raise SaccadeError(f"{self.streams.numel()} streams for {limits.numel()} sentences; give one to each")
        return SampleRun(self, limits, dtype)


class SampleRun:
    """A row for each draw of each sentence, until its end."""

    def __init__(self, search: Sample, limits: Tensor, dtype: torch.dtype) -> None:
        B, n = limits.numel(), search.draws
        self.search = search
        self.rows = torch.arange(B, device=limits.device).repeat_interleave(n)
        self.sentences = self.rows
        self.draws = torch.arange(n, device=limits.device).repeat(B)
        self.streams = split(search.streams[self.rows], self.draws)
        self.limits = limits[self.rows]
        self.tokens = limits.new_empty(B * n, 0)
        # Of each token; a draw may be so unlikely that float32 would round the sum of them.
        self.log_probs = torch.zeros(B * n, 0, device=limits.device, dtype=dtype)
        self.done: list[dict[int, Hypothesis]] = [{} for _ in range(B)]

    def prefixes(self) -> Prefixes:
        return Prefixes(self.tokens, self.sentences, self.limits)

    def advance(self, said: Said) -> Step:
        # Less than that is greedy search already, and the quotients would be infinite: nothing to choose by.
        weighed = said.log_probs / max(self.search.temperature, 1e-6)
        for rule in self.search.truncations:
            weighed = rule(weighed, self.prefixes())
        step = torch.full_like(self.streams, self.tokens.size(1))
        noise = exponential(split(self.streams, step), weighed.size(-1))
        tokens = (weighed - noise.log().to(weighed.dtype)).argmax(-1)
        self.log_probs = torch.cat([self.log_probs, said.log_probs.gather(1, tokens.unsqueeze(1))], dim=1)

        ended = tokens == EOS
        for row in ended.nonzero().flatten().tolist():
            log_prob = math.fsum(self.log_probs[row].tolist())
            drawn = Hypothesis(self.tokens[row].tolist(), log_prob, log_prob)
            self.done[int(self.sentences[row])][int(self.draws[row])] = drawn
        self.tokens = torch.cat([self.tokens, tokens.unsqueeze(1)], dim=1)
        if not ended.any():
            return Step(tokens, None)
        alive = (~ended).nonzero().flatten()
        self.keep(alive)
        return Step(tokens[alive], alive)

    def keep(self, rows: Tensor) -> None:
        self.tokens, self.sentences, self.draws = self.tokens[rows], self.sentences[rows], self.draws[rows]
        self.streams, self.limits, self.log_probs = self.streams[rows], self.limits[rows], self.log_probs[rows]

    def results(self) -> list[list[Hypothesis]]:
        """In the order of the draws: the first of them is a sample too, and not the likeliest of several."""
        return [self.result(sentence) for sentence in range(len(self.done))]

    def result(self, sentence: int) -> list[Hypothesis]:
        drawn = self.done[sentence]
        return [drawn[i] for i in sorted(drawn)]

    def over(self) -> Tensor:
        return all_but(len(self.done), self.sentences)


def _only(log_probs: Tensor, kept: Tensor) -> Tensor:
    return log_probs.masked_fill(~kept, -float("inf"))


def _making_up(p: float, probs: Tensor, order: Tensor) -> Tensor:
    """The fewest entries of `probs` that make up p, by rising `order`; one at least."""
    places = order.sort(dim=-1, stable=True).indices
    ranked = probs.gather(-1, places)
    before = ranked.cumsum(-1) - ranked
    kept = before < p
    kept[..., 0] = True
    return torch.zeros_like(kept).scatter_(-1, places, kept)
