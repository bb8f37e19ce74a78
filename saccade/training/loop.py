"""The one training loop.

A step takes `accumulate` batches, adds up their gradients as if they were one, and updates the weights. Everything that
the next step depends on (weights, moments, generators, place in the data, best score) is in the checkpoint, so a run
that is stopped and resumed is the run that was not. Of each batch, a rank has its share, and takes that in pieces if
memory is short: the sum over all of them, divided by the tokens of all of them, is the same gradient.
"""

import math
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import asdict, dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple

import torch
from pydantic import ConfigDict, TypeAdapter, ValidationError

from saccade.config import TrainingConfig, known
from saccade.data.batching import Batch, Position, prefetch
from saccade.data.unpadded import UnpaddedBatch, UnpaddedBatcher
from saccade.data.windows import Batches
from saccade.devices import autocast
from saccade.display import Display
from saccade.distributed.world import More, World
from saccade.errors import SaccadeError
from saccade.models.protocol import EncoderDecoder
from saccade.planning import Estimate, free_memory
from saccade.training import checkpoint
from saccade.training.captured import CapturedSteps
from saccade.training.ema import MovingAverage
from saccade.training.logs import Log
from saccade.training.memory import MicroBatches
from saccade.training.objectives import make_objective
from saccade.training.optim import clip_gradients, learning_rate, make_optimizer, set_learning_rate
from saccade.training.stages import stage_of, staged
from saccade.training.trial import try_longest
from saccade.training.watch import first_bad_tensor


class Validation(NamedTuple):
    """How good the model is on held-out pairs."""

    loss: float  # negative log-likelihood a token
    bleu: float | None

    def quality(self, by: str) -> float:
        """The measure that decides, higher is better."""
        return self.bleu if by == "bleu" and self.bleu is not None else -self.loss


@dataclass
class Progress:
    """Where a run is: what a checkpoint keeps beside tensors."""

    __pydantic_config__ = ConfigDict(extra="forbid")  # what this version does not know may matter

    step: int = 0
    epoch: int = 0
    batch: int = 0
    place: dict[str, Any] | None = None  # of a stream
    pieces: int = 1  # that batches without padding go in: where they are cut, dropout falls otherwise
    tokens: int = 0
    seconds: float = 0.0
    best: float | None = None  # higher is better
    best_step: int = 0
    stale: int = 0  # validations since the best
    validations: list[dict[str, Any]] = field(default_factory=list)


@dataclass(frozen=True)
class Outcome:
    """Why a run ended."""

    progress: Progress
    reason: str
    interrupted: bool


class Trainer:
    """Trains a model in a folder, from its last checkpoint if there is one."""

    def __init__(
        self,
        settings: TrainingConfig,
        model: EncoderDecoder,
        batcher: Batches | UnpaddedBatcher,
        validate: Callable[[], Validation],
        folder: Path,
        display: Display,
        both_ways: Batches | UnpaddedBatcher | None = None,
        world: World | None = None,
        device: torch.device | None = None,
    ) -> None:
        """`both_ways`: batches of both directions, for the steps that train both."""
        self.settings = settings
        self.world = world or World()
        self.device = device or next(model.parameters()).device
        self.shown = model  # what validations see, and folders hold
        self.model = self.world.own(model, self.device)  # what learns
        self.objective = make_objective(self.model, settings)
        self.world.share_out(self.objective)
        self.learner: Callable[[Batch], Any] = self.objective
        self.optimizer = make_optimizer(self.model, settings)
        self.average = MovingAverage(self.model, settings.ema) if settings.ema else None
        self.captured: CapturedSteps | None = None  # before the first step
        self.batcher = batcher
        self.both_ways = both_ways
        self.validate = validate
        self.folder = folder
        self.resume = folder / "resume"
        self.display = display
        self.micro = MicroBatches(self.resume, display, alone=self.world.size == 1)
        self.progress = Progress()
        self.status = ""

    def restore(self) -> bool:
        """Go to the last checkpoint, if there is one."""
        last = checkpoint.latest(self.resume)
        if last is None:
            return False
        known = self.world.load(last, self.model, self.optimizer, self._more())
        known.pop("extra", None)
        try:
            self.progress = TypeAdapter(Progress).validate_python(known)
        except ValidationError as error:
            first = error.errors()[0]
            name = ".".join(map(str, first["loc"]))
            raise SaccadeError(
                f"{last / 'state.json'}: {name}={first['input']!r}: {first['msg'].lower()}; remove {last} to go one "
                "back, or go on with the version of Saccade that wrote it"
            ) from None
        self.micro.pieces = max(self.micro.pieces, self.progress.pieces)
        if self.progress.pieces > 1:
            self.display.say(f"memory: a batch goes in {self.micro.pieces} pieces, as before the run was stopped")
        return True

    def fit(self) -> Outcome:
        """Train until the steps or the minutes are spent, validation stops improving, or somebody interrupts."""
        settings, progress = self.settings, self.progress
        max_steps = known(settings.max_steps)
        stream = prefetch(self._batches(Position(progress.epoch, progress.batch, progress.place)))
        log = Log(self.folder, settings, progress.step, self.world)
        if isinstance(self.batcher, UnpaddedBatcher):
            self.captured = CapturedSteps(self.model, settings, self.optimizer, self.display, self.micro)
        else:
            self._try_longest(self.batcher)
        with (
            _interruptible() as interrupted,
            self.display.training(max_steps, progress.step) as bar,
            log,
        ):
            try:
                reason = self.ended()
                while reason is None:
                    self._step(stream, log, bar)
                    stop = self._agreed(interrupted)
                    if progress.step % known(settings.validate_every) == 0 or self.ended() is not None:
                        self._validate(log)
                        self._checkpoint()
                        stop = self._agreed(interrupted)
                    elif progress.step % known(settings.checkpoint_every) == 0:
                        self._checkpoint()
                    reason = self.ended()
                    if stop and reason is None:
                        self._checkpoint(extra=True)
                        reason = "interrupted"
            finally:
                stream.close()
        return Outcome(progress, reason, reason == "interrupted")

    def _agreed(self, interrupted: Callable[[], bool]) -> bool:
        """Whether to stop, which all ranks do together, by one clock."""
        self.world.at(f"step {self.progress.step:,}: agreeing whether to go on")
        stop, self.progress.seconds = self.world.agree(interrupted(), self.progress.seconds)
        return stop

    def _try_longest(self, batcher: Batches) -> None:
        """Find out in how many pieces batches go, and let gradients meet those of other ranks from here on."""
        self.world.at("trying the longest batch")
        complete = try_longest(
            self.objective,
            self.optimizer,
            batcher.longest(),
            self.micro,
            precision=self.settings.precision,
            device=self.device,
            sharded=self.world.sharded,
        )
        self.micro.pieces = self.world.most(self.micro.pieces)
        self.learner = self.world.learner(self.objective, unused=not complete)

    def _batches(self, start: Position) -> Iterator[tuple[Position, Any]]:
        """The batches from `start` on, in memory that a GPU can read while it works."""
        # Counted now, not by whoever asks for the first batch: its step has been counted by then.
        left = (self.settings.bidirectional_steps - self.progress.step) * self.settings.accumulate
        placed = staged(self.both_ways, self.batcher, left, start)
        pinned = self.device.type == "cuda"
        return ((position, batch.pin_memory() if pinned else batch) for position, batch in placed)

    def ended(self) -> str | None:
        """Why there is nothing more to do; None if there is."""
        settings, progress = self.settings, self.progress
        if progress.step >= known(settings.max_steps):
            return f"all {progress.step:,} steps are done"
        if settings.max_minutes is not None and progress.seconds >= 60 * settings.max_minutes:
            return f"{settings.max_minutes:g} minutes are over"
        if settings.patience and progress.stale >= settings.patience:
            return f"no new best in {progress.stale} validations"
        return None

    def _step(self, stream: Iterator[tuple[Position, Any]], log: Log, bar: Callable[[int, str], None]) -> None:
        started = time.perf_counter()
        settings, progress = self.settings, self.progress
        progress.step += 1
        stage = stage_of(progress.step, settings)
        if stage.step == 1 and settings.bidirectional_steps:
            what = "both directions" if stage.directions == 2 else "one direction, the learning rate from its start"
            self.display.say(f"step {progress.step:>6,}  {what}, for {stage.steps:,} steps")
        rate = learning_rate(
            stage.step,
            schedule=settings.schedule,
            peak=known(settings.learning_rate),
            warmup=known(settings.warmup_steps),
            total=stage.steps,
        )
        self.model.train()
        self.world.at(f"step {progress.step:,}: waiting for its batches")
        asked = time.perf_counter()
        taken = [next(stream) for _ in range(settings.accumulate)]
        waited = time.perf_counter() - asked
        self.world.at(f"step {progress.step:,}: counting its tokens")
        # Divided by the tokens of all of them: accumulated batches weigh as one large batch would.
        tokens = self.world.sum(sum(batch.target_tokens for _, batch in taken))
        self.world.at(f"step {progress.step:,}: forward, backward and the sum of gradients")
        self.world.seed(settings.seed, progress.step)
        batches = [batch for _, batch in taken]
        if self.captured is not None:
            loss, norm = self.captured.take(batches, tokens, rate)
            progress.pieces = self.micro.pieces
            self._foretell(self.captured, batches)
        else:
            loss, norm = self._plain_step(batches, tokens, rate)
        if self.average is not None:
            self.average.update(progress.step)
        log.add(loss, norm, tokens, waited)
        after, last = taken[-1]
        progress.epoch, progress.batch, progress.place = after.epoch, after.batch, after.place
        progress.tokens += tokens
        if self.device.type == "cpu" or progress.step % settings.log_every == 0:
            self._watch(log.largest_norm(), last)
        progress.seconds += time.perf_counter() - started
        if progress.step % settings.log_every == 0:
            row = log.flush(progress, rate, {"directions": stage.directions} if self.both_ways else None)
            self.status = f"loss {row['loss']:.3f} · {row['tokens_per_second']:,.0f} tokens/s"
        bar(progress.step, self.status)

    def _foretell(self, steps: CapturedSteps, batches: list[UnpaddedBatch]) -> None:
        """Say what the rest will take, once the first step has been timed."""
        if steps.foreseen is None:
            return
        seconds, memory = steps.foreseen
        steps.foreseen = None
        left = known(self.settings.max_steps) - self.progress.step
        found = Estimate(
            tokens_per_second=sum(batch.target_tokens for batch in batches) / seconds,
            seconds=left * seconds,
            memory=memory,
            available=memory + free_memory(self.device),
        )
        for line in found.lines():
            self.display.say(line)

    def _plain_step(self, batches: list[Batch], tokens: int, rate: float) -> tuple[torch.Tensor, torch.Tensor]:
        """Gradients, and the update by them; returns this rank's part of the loss a token, and their norm."""
        set_learning_rate(self.optimizer, rate)
        rows = max(len(batch.indices) for batch in batches)
        forget = self.optimizer.zero_grad
        loss = self.micro.spared(lambda pieces: self._gradients(batches, tokens, pieces), rows, forget)
        norm = self.world.plain(clip_gradients(self.model.parameters(), self.settings.clip_norm))
        if self.optimizer.defaults["fused"] and not self.world.sharded:
            # The fused update leaves all weights alone when this is set, so a bad step is seen before it does harm,
            # and on a GPU without waiting for it.
            self.optimizer.found_inf = (~torch.isfinite(norm)).float()  # type: ignore[attr-defined]
        else:
            self._watch(norm, batches[-1])
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        return loss, norm

    def _gradients(self, batches: list[Batch], tokens: int, number: int) -> torch.Tensor:
        """Add up the gradients of batches, each in a number of pieces; returns this rank's part of the loss a token."""
        losses = []
        pieces = [piece for batch in batches for piece in batch.pieces(number, exactly=self.world.sharded)]
        for left, piece in zip(reversed(range(len(pieces))), pieces, strict=True):
            placed = piece.to(self.device, non_blocking=True)
            with self.world.learning(self.learner, last=left == 0):
                with autocast(self.device, self.settings.precision):
                    loss = self.learner(placed)
                # Gradients are averaged over ranks, and a piece that holds nothing weighs nothing.
                (loss.total / (tokens / self.world.size if piece.target_tokens else math.inf)).backward()
            losses.append(loss.nll.detach() / tokens)
        return torch.stack(losses).sum()

    def _watch(self, norm: torch.Tensor, batch: Batch | UnpaddedBatch) -> None:
        if math.isfinite(norm.item()):
            return
        with autocast(self.device, self.settings.precision):
            # No rank sees all of a weight that is shared out.
            found = "a gradient has NaN or infinite values"
            if not self.world.sharded and isinstance(batch, Batch):
                # Each rank has seen its own share alone.
                again = self.world.any_word(first_bad_tensor(self.objective, batch.to(self.device)))
                found = again or f"{found}, which did not come back when the batch was run again"
        raise SaccadeError(
            f"training broke at step {self.progress.step:,}: {found}; lower training.learning_rate "
            f"(now {self.settings.learning_rate:g}), raise training.warmup_steps, or set training.precision=fp32; "
            "the same command then goes on from the last checkpoint"
        )

    def _validate(self, log: Log) -> None:
        settings, progress = self.settings, self.progress
        started = time.perf_counter()
        with nullcontext() if self.average is None else self.average.in_place():
            self.world.publish(self.model, self.shown)
            if not self.world.is_first:
                self._hear()
                return
            with self.world.alone(f"step {progress.step:,}: validating"):
                result = self.validate()
            progress.seconds += time.perf_counter() - started
            quality = result.quality(settings.validate_by)
            is_best = progress.best is None or quality > progress.best
            if is_best:
                progress.best, progress.best_step, progress.stale = quality, progress.step, 0
                checkpoint.save_weights(checkpoint.weights_of(self.shown), self.resume / checkpoint.BEST)
                checkpoint.save_weights(checkpoint.weights_of(self.shown), self.folder / "model.safetensors")
            elif progress.step > settings.bidirectional_steps:  # what comes before is not what is wanted
                progress.stale += 1
        row = {
            "step": progress.step,
            "valid_loss": result.loss,
            "valid_bleu": result.bleu,
            "best": is_best,
            "target_tokens": progress.tokens,
        }
        progress.validations.append(row)
        self._hear()
        log.validation(row, time.perf_counter() - started)
        bleu = "" if result.bleu is None else f", BLEU {result.bleu:5.2f}"
        self.display.say(
            f"step {progress.step:>6,}  validation loss {result.loss:.4f}{bleu}{'  ← best so far' if is_best else ''}"
        )

    def _hear(self) -> None:
        """Take over what the first rank's validation found: whether there was a new best, and the clock."""
        self.world.at(f"step {self.progress.step:,}: waiting for the validation")
        self.progress.__dict__.update(self.world.from_first(asdict(self.progress)))

    def _checkpoint(self, extra: bool = False) -> None:
        progress = asdict(self.progress) | {"extra": extra}
        with self.world.alone(f"step {self.progress.step:,}: writing a checkpoint"):
            self.world.save(self.resume, self.progress.step, self.model, self.optimizer, progress, self._more())
            if self.world.is_first:
                checkpoint.prune(self.resume, max(self.settings.keep, self.settings.average))

    def _more(self) -> More:
        """What a checkpoint keeps beside the optimizer's tensors."""
        return None if self.average is None else self.average.tensors()


@contextmanager
def _interruptible() -> Iterator[Callable[[], bool]]:
    """Turn the first SIGINT or SIGTERM into a flag, so that a step is finished and saved; the second ends at once."""
    seen: list[int] = []

    def note(number: int, frame: FrameType | None) -> None:
        if seen:
            raise KeyboardInterrupt
        seen.append(number)

    try:
        before = {number: signal.signal(number, note) for number in (signal.SIGINT, signal.SIGTERM)}
    except ValueError:  # not the main thread: signals are somebody else's
        before = {}
    try:
        yield lambda: bool(seen)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
