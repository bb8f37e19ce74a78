"""Searches over storage whose shapes and addresses never change, for steps that are captured."""

import torch
from torch import Tensor

from saccade.data.tokenizers import BOS, EOS
from saccade.devices import runs_triton
from saccade.generation.search import Beam, BeamRun, Ended, Hypothesis, top


class Rows:
    """Where the rows of a capture stand: what a step reads, and leaves for the next."""

    def __init__(self, limits: Tensor, size: int, vocabulary: int, forbidden: tuple[int, ...]) -> None:
        N, device = limits.numel(), limits.device
        self.limits = limits  # (N,)
        # Each sentence has its own, though all stand alike: so a kernel can count on its own.
        self.positions = torch.zeros(N, dtype=torch.long, device=device)
        self.position = self.positions[0]
        self.tokens = torch.full((N * size, 1), BOS, device=device)
        self.forbidden = torch.tensor(forbidden, dtype=torch.long, device=device)
        self.allowed = torch.ones(vocabulary, dtype=torch.uint8, device=device).index_fill_(0, self.forbidden, 0)

    def changing(self) -> list[Tensor]:
        return [self.positions, self.tokens]

    def reset(self) -> None:
        self.positions.zero_()
        self.tokens.fill_(BOS)

    def log_probs(self, logits: Tensor) -> Tensor:
        """(R, V), in single precision at least; what is never written at -∞."""
        log_probs = logits.log_softmax(-1, dtype=torch.promote_types(logits.dtype, torch.float32))
        return log_probs.index_fill_(1, self.forbidden, -float("inf"))

    def full(self) -> Tensor:
        """(N,): has room for one more token, and ends. To say so once the best is known is cheaper than to forbid the
        rest of a vocabulary."""
        return self.limits <= self.position + 1

    def go_on(self, tokens: Tensor) -> None:
        """One position further, each row with its token."""
        self.positions.add_(1)
        self.tokens.copy_(tokens.view(-1, 1))


class FixedGreedy:
    """Greedy search over fixed storage."""

    def __init__(self, rows: Rows, capacity: int, dtype: torch.dtype, cells: Tensor | None = None) -> None:
        """`cells` (1, 1, 1, capacity): what the decoder may look at, as numbers (`transformer_state.Seen`)."""
        N, device = rows.limits.numel(), rows.limits.device
        self.rows, self.cells = rows, cells
        self.log_prob = torch.zeros(N, device=device, dtype=dtype)
        self.done = torch.zeros(N, device=device, dtype=torch.bool)
        self.written = torch.full((N, capacity), EOS, device=device)

    def changing(self) -> list[Tensor]:
        cells = [] if self.cells is None else [self.cells]
        return [self.log_prob, self.done, self.written, *cells]

    def reset(self) -> None:
        self.log_prob.zero_()
        self.done.fill_(False)
        self.written.fill_(EOS)
        if self.cells is not None:
            self.cells.fill_(-float("inf"))
            self.cells[..., 0] = 0.0

    def advance(self, logits: Tensor) -> None:
        """From the logits (N, V) of a step to what the next one reads."""
        if runs_triton(logits.device, logits.dtype) and self.log_prob.dtype is torch.float32:
            from saccade.generation import greedy_kernel

            greedy_kernel.advance(logits, self)
            return
        log_probs, full = self.rows.log_probs(logits), self.rows.full()
        best, tokens = log_probs.max(-1)
        best, tokens = torch.where(full, log_probs[:, EOS], best), tokens.masked_fill(full, EOS)
        self.log_prob.add_(best.masked_fill(self.done, 0.0))
        self.written.index_copy_(1, self.rows.position.view(1), tokens.unsqueeze(1))
        self.done.logical_or_(tokens == EOS)
        self.rows.go_on(tokens)
        if self.cells is not None:  # what will now be written; after the last there is none
            self.cells.index_fill_(3, self.rows.positions[:1].clamp(max=self.cells.size(3) - 1), 0.0)

    def results(self) -> list[list[Hypothesis]]:
        return [
            [Hypothesis(ids[: ids.index(EOS)] if EOS in ids else ids, log_prob, log_prob)]
            for ids, log_prob in zip(self.written.tolist(), self.log_prob.tolist(), strict=True)
        ]


class FixedBeam(BeamRun):
    """Beam search over fixed storage: `BeamRun` whose sentences never leave, and which asks nothing of its numbers.

    `path` (N, K, capacity) and `cells` are the decoder's (`multihead.Step`, `transformer_state.Seen`): whose cell is a
    row's own at each position and, as numbers, what it may look at. They follow the beams.
    """

    length: Tensor  # type: ignore[assignment]

    def __init__(
        self,
        search: Beam,
        rows: Rows,
        capacity: int,
        mask: Tensor,
        dtype: torch.dtype,
        path: Tensor,
        cells: Tensor | None = None,  # (N, 1, K, capacity · K)
    ) -> None:
        super().__init__(search, torch.full_like(rows.limits, capacity), mask, dtype)
        self.fixed = rows
        self.limits = rows.limits
        self.length = rows.position
        self.path, self.cells = path, cells
        self.done = torch.zeros(self.limits.numel(), device=self.limits.device, dtype=torch.bool)
        self.numbers = torch.arange(search.size, device=path.device).view(1, -1, 1)  # of the rows of a sentence
        choices = min(2 * search.size, rows.allowed.numel())
        self.first = self.log_prob.new_full((1, choices), -float("inf"))  # one of its choices is left to a row
        self.first[:, 0] = 0.0

    def changing(self) -> list[Tensor]:
        ended = [self.ended_score, self.ended_log_prob, self.ended_tokens, self.ended_count]
        cells = [] if self.cells is None else [self.cells]
        return [self.tokens, self.log_prob, self.done, *ended, self.path, *cells]

    def reset(self) -> None:
        for part in (self.log_prob, self.ended_score, self.ended_log_prob):
            part.fill_(-float("inf"))
        self.log_prob[:, 0] = 0.0
        for part in (self.tokens, self.ended_tokens):
            part.fill_(EOS)
        self.ended_count.zero_()
        self.done.fill_(False)
        self.path.copy_(self.numbers)
        self._look()

    def advance(self, logits: Tensor) -> None:  # type: ignore[override]
        """From the logits (R, V) of a step to what the next one reads."""
        if runs_triton(logits.device, logits.dtype) and self.log_prob.dtype is torch.float32:
            from saccade.generation import beam_kernel

            if beam_kernel.suits(self.search.size, logits.size(1)):
                beam_kernel.advance(logits, self)
                return
        log_probs = self.fixed.log_probs(logits)
        K, V = self.search.size, log_probs.size(-1)
        found, tokens = top(log_probs, min(2 * K, V))
        rows = self.fixed.full().unsqueeze(1).expand(-1, K).reshape(-1, 1)  # (R, 1)
        found = torch.where(rows, log_probs[:, EOS : EOS + 1] + self.first, found)
        log_prob, beams, tokens = self._best_of(found, tokens.masked_fill(rows, EOS), min(2 * K, K * V))
        ends = tokens == EOS
        self._collect(log_prob[:, :K], beams[:, :K], ends[:, :K])
        going = ends.to(torch.int8).sort(dim=1, stable=True).indices[:, :K]
        ends, beams, tokens = ends.gather(1, going), beams.gather(1, going), tokens.gather(1, going)
        self.log_prob.copy_(log_prob.gather(1, going).masked_fill(ends, -float("inf")))
        self.tokens.copy_(self._of(self.tokens, beams))
        self.tokens.index_copy_(2, self.length.view(1), tokens.unsqueeze(2))
        self.done.logical_or_(self._done())
        self.log_prob.masked_fill_(self.done.unsqueeze(1), -float("inf"))
        self.fixed.go_on(tokens)
        self._follow(beams)

    def _follow(self, beams: Tensor) -> None:
        """The rows go on behind beams (N, K), the position counted on already."""
        N, _, capacity = self.path.shape
        self.path.copy_(self._of(self.path, beams))
        # The next cells are each row's own; those beyond are set when they are next. After the last there is none.
        self.path.index_copy_(2, self.length.clamp(max=capacity - 1).view(1), self.numbers.expand(N, -1, 1))
        self._look()

    def _look(self) -> None:
        """What each row may look at, the cell that it will now write among it."""
        if self.cells is not None:
            own = self.path.unsqueeze(-1) == self.numbers.view(1, 1, 1, -1)  # (N, K, capacity, K)
            filled = torch.arange(self.path.size(2), device=self.path.device) <= self.length
            own = own & filled.view(1, 1, -1, 1)
            self.cells.copy_(own.flatten(2).unsqueeze(1).to(self.cells.dtype).log_())

    def _collect(self, log_prob: Tensor, beams: Tensor, ends: Tensor) -> None:
        before = Ended(self.ended_score, self.ended_log_prob, self.ended_tokens)
        score = self.search.divide(log_prob, self.length + 1)
        after, ended = self._with(before, Ended(score, log_prob, self._of(self.tokens, beams)), ends)
        for storage, part in zip(before, after, strict=True):
            storage.copy_(part)
        self.ended_count.add_(ended)

    def _done(self) -> Tensor:
        return self._no_more(self.ended_score[:, self.search.n_best - 1], self.ended_count)
