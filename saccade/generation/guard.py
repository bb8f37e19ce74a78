"""The degeneration guard: notices output that repeats itself or runs on, and says under which rules to try again.

It reads ids only. What it takes for degenerate is set so that sound output is never touched: a repetition counts only
where the source has none like it, and a length only far beyond what the training pairs had.
"""

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

from saccade.config import SearchConfig
from saccade.generation.orders import Job
from saccade.generation.search import Hypothesis

NGRAM = 3  # no n-gram of this size twice, the second time
LOOP_TOKENS, LOOP_ROUNDS = 16, 4  # a cycle: so many tokens at least, in so many rounds at least
SHORT_TOKENS, SHORT_ROUNDS = 8, 6  # … or fewer tokens in more rounds: of 71,600 references, none
# Of a cycle's 4-grams all but those of the first round have been there before. Fewer are no cycle, and less than the
# share below of so many tokens.
LOOP_AGAIN = SHORT_TOKENS - SHORT_TOKENS // SHORT_ROUNDS - 3
REPEATED_FROM, REPEATED_SHARE = 24, 0.5  # of so many tokens or more, this share of 4-grams has been there before
REPEATED_MORE = 0.3  # … and so much more than in the source
NAMED = 5  # lines that the summary names
SAYS = "guard: "  # how its notes begin


class Finding(NamedTuple):
    """What is wrong with an output, in words, and how many tokens it may have the second time."""

    what: str
    limit: int


def examine(
    source: Sequence[int], output: Sequence[int], limit: int, ratio: float | None, room: int = 0
) -> Finding | None:
    """What is wrong with `output`, which could have `limit` tokens with its end; None for what is sound.

    `ratio`: target tokens to a source token in the training pairs, if known. `room`: tokens that the output was told to
    have (a prefix, phrases), which are beside that ratio.
    """
    strict = math.ceil(1.5 * (ratio or 1.0) * len(source)) + 8 + room
    most = limit if ratio is None else 4 * ratio * len(source) + 16 + room
    if _again(output) >= LOOP_AGAIN:  # which most output is far from
        for rounds, tokens in ((LOOP_ROUNDS, LOOP_TOKENS), (SHORT_ROUNDS, SHORT_TOKENS)):
            cycle = longest_cycle(output, rounds)
            if cycle.tokens >= tokens and cycle.tokens > 2 * longest_cycle(source, 2).tokens:
                pieces = "a piece" if cycle.period == 1 else f"{cycle.period} pieces"
                return Finding(f"repeated {pieces} {cycle.rounds} times", strict)
        share = repeated(output)
        if len(output) >= REPEATED_FROM and share > max(REPEATED_SHARE, repeated(source) + REPEATED_MORE):
            return Finding(f"said {share:.0%} of it before", strict)
    if len(output) + 1 >= limit > strict or len(output) > most:
        return Finding(f"ran on for {len(output)} pieces from {len(source)}", strict)
    return None


class Guarded(NamedTuple):
    """The hypotheses of a sentence, and what the guard did about them."""

    hypotheses: list[Hypothesis]
    notes: tuple[str, ...] = ()

    @property
    def holds(self) -> bool:
        """Whether there is one that keeps to its rules."""
        return bool(self.hypotheses) and self.hypotheses[0].log_prob > -float("inf")


def suspect(job: Job, answer: Guarded, settings: SearchConfig) -> Finding | None:
    """What is wrong with the best of an answer; None for what is sound, and for what keeps to no rules at all."""
    if not answer.holds:
        return None
    return examine(job.source, answer.hypotheses[0].tokens, job.limit, settings.length_ratio, job.order.room)


def stricter(settings: SearchConfig) -> SearchConfig:
    """The settings of the second time."""
    ngram = min(settings.no_repeat_ngram or NGRAM, NGRAM)
    return settings.model_copy(update={"no_repeat_ngram": ngram})


def shorter(job: Job, finding: Finding, settings: SearchConfig) -> Job:
    """The sentence of the second time."""
    return job._replace(limit=min(job.limit, max(finding.limit, settings.min_length) + 1))


def settled(answer: Guarded, finding: Finding, job: Job, hypotheses: list[Hypothesis], ngram: int) -> Guarded:
    """The first answer, or the second (`hypotheses`, of `job`) if it keeps to what it was told."""
    second = Guarded(hypotheses)
    if not second.holds:
        return answer._replace(notes=(SAYS + finding.what, "kept: stricter rules forbid what it was told"))
    cut = f", cut at {job.limit - 1}" if len(hypotheses[0].tokens) + 1 >= job.limit else ""
    return second._replace(notes=(SAYS + finding.what, f"decoded again without repeated {ngram}-grams{cut}"))


def decode_again(
    jobs: Sequence[Job],
    answers: Sequence[Guarded],
    settings: SearchConfig,
    decode: Callable[[Sequence[Job], SearchConfig], list[list[Hypothesis]]],
) -> list[Guarded]:
    """The answers, with those that are degenerate replaced by what stricter rules give."""
    guarded, findings = list(answers), {}
    for i, (job, answer) in enumerate(zip(jobs, answers, strict=True)):
        if (finding := suspect(job, answer, settings)) is not None:
            findings[i] = finding
    if not findings:
        return guarded
    strict = stricter(settings)
    again = [shorter(jobs[i], finding, settings) for i, finding in findings.items()]
    for (i, finding), job, hypotheses in zip(findings.items(), again, decode(again, strict), strict=True):
        guarded[i] = settled(answers[i], finding, job, hypotheses, strict.no_repeat_ngram)
    return guarded


class Tally:
    """Which lines of a file the guard took up."""

    def __init__(self) -> None:
        self.lines: list[int] = []  # the first few
        self.total = 0

    def count(self, line: int, notes: Sequence[str]) -> None:
        """Take in what was noted of a line."""
        taken_up = any(note.startswith(SAYS) for note in notes)
        self.total += taken_up
        if taken_up and len(self.lines) < NAMED:
            self.lines.append(line)

    def summary(self, lines: int) -> str | None:
        """One sentence for all; None if nothing was noted."""
        if not self.total:
            return None
        named = ", ".join(f"{line:,}" for line in self.lines) + (" …" if self.total > len(self.lines) else "")
        return (
            f"guard: {self.total:,} of {lines:,} lines repeated themselves or ran on and were decoded again under "
            f"stricter rules (line {named}); --no-guard leaves them as they were"
        )


class Cycle(NamedTuple):
    """The same tokens over and over."""

    period: int
    rounds: int
    tokens: int


def longest_cycle(tokens: Sequence[int], rounds: int) -> Cycle:
    """The most tokens in a row that go round in a cycle, `rounds` times or more; of such, the shortest cycle."""
    longest = Cycle(0, 0, 0)
    for period in range(1, len(tokens) // rounds + 1):
        run = period
        for place in range(period, len(tokens)):
            run = run + 1 if tokens[place] == tokens[place - period] else period
            if run > longest.tokens and run >= rounds * period:
                longest = Cycle(period, run // period, run)
    return longest


def repeated(tokens: Sequence[int], n: int = 4) -> float:
    """The share of n-grams that have been there before."""
    return _again(tokens, n) / (len(tokens) - n + 1) if len(tokens) >= n else 0.0


def _again(tokens: Sequence[int], n: int = 4) -> int:
    """How many n-grams have been there before."""
    ngrams = list(zip(*(tokens[i:] for i in range(n)), strict=False))
    return len(ngrams) - len(set(ngrams))
