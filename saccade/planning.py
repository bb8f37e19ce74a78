"""The choices nobody should have to make: sizes and rates fit for the corpus and the machine, each with its reason."""

import copy
import math
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from saccade.config import Config, Model, Size
from saccade.data.batching import Batch, Batcher
from saccade.data.corpora import is_text
from saccade.data.store import Store
from saccade.devices import autocast, predates_bf16
from saccade.display import spell_time
from saccade.models.build import default_learning_rate, goes_without_source, measures, with_shape
from saccade.models.protocol import EncoderDecoder
from saccade.training.memory import is_out_of_memory
from saccade.training.objectives import Objective, make_objective
from saccade.training.optim import make_optimizer


class Band(NamedTuple):
    """What suits corpora up to a number of pairs."""

    pairs: float
    cpu: Size
    gpu: Size
    dropout: float
    r_drop: float  # on a GPU; a step takes twice as long with it, which a CPU cannot spare
    cpu_epochs: int
    gpu_epochs: int
    cpu_tokens: int
    gpu_tokens: int


# Few pairs want a narrow, shallow model, strong dropout and many epochs (Araabi & Monz 2020; docs/lab-log.md: 29,000
# pairs want 128 wide, or 256 with R-Drop, and some 90 epochs). R-Drop's α is the paper's for translation; with more
# pairs than IWSLT's it buys less, and costs as much.
BANDS = (
    Band(20_000, "tiny", "tiny", 0.3, 5.0, 60, 120, 2048, 4096),
    Band(60_000, "tiny", "small", 0.3, 5.0, 40, 90, 2048, 8192),
    Band(150_000, "small", "medium", 0.3, 5.0, 40, 60, 4096, 8192),
    Band(400_000, "small", "base", 0.3, 5.0, 20, 40, 4096, 16_384),
    Band(1_500_000, "small", "base", 0.2, 0.0, 20, 30, 4096, 32_768),
    Band(math.inf, "small", "base", 0.1, 0.0, 8, 20, 4096, 32_768),
)
CPU_FEWEST_STEPS = 300
GPU_FEWEST_STEPS = 3000  # minutes, whatever the corpus; early stopping ends what has nothing more to learn
HELD_UP = 1.25  # so many times as quick, and one thread is worth a warning
MOST_ASKED = 5.0  # seconds that finding this out may take
MOST_STEPS = 300_000  # as many as the largest model of Vaswani et al. 2017 took


def band_of(pairs: int) -> Band:
    """The band of a corpus."""
    return next(band for band in BANDS if pairs <= band.pairs)


def choose_sides(config: Config, model: Model) -> Config:
    """Fill in whether the corpus has targets alone, which `model` may be content with."""
    if config.data.monolingual is not None:
        return config
    files = config.data.train
    alone = goes_without_source(model) and len(files) == 1 and is_text(files[0])
    return config.with_changes({"data": {"monolingual": alone}})


def choose_vocabulary(config: Config) -> Config:
    """One vocabulary for both sides where a model is to write both; otherwise the corpus decides."""
    if config.tokenizer.joint is None and config.training.bidirectional_steps:
        return config.with_changes({"tokenizer": {"joint": True}})
    return config


def choose_model(config: Config, pairs: int, joint: bool, device: torch.device) -> tuple[Config, list[str]]:
    """Fill in the model's settings that are left open."""
    band = band_of(pairs)
    size = config.model.size or (band.cpu if device.type == "cpu" else band.gpu)
    changes: dict[str, Any] = {"size": size}
    if config.model.dropout is None:
        changes["dropout"] = band.dropout
    model = with_shape(config.model.model_copy(update=changes), joint)
    reasons = []
    if config.model.size is None and config.model.width is None:
        where = "CPU" if device.type == "cpu" else "GPU"
        reasons.append(f"model: {model.family} {size} ({measures(model)}): {pairs:,} pairs on a {where}")
    if config.model.dropout is None:
        reasons.append(f"dropout: {band.dropout} ({'few' if band.dropout > 0.1 else 'enough'} pairs)")
    return Config.of(config.model_dump() | {"model": model.model_dump()}), reasons


def choose_training(
    config: Config, train: Store, device: torch.device, pairs: int | None = None
) -> tuple[Config, list[str]]:
    """Fill in the training settings that are left open. `pairs`: of the corpus, where `train` is a sample of it."""
    given, pairs = config.training, len(train) if pairs is None else pairs
    band = band_of(pairs)
    batch_tokens = given.batch_tokens or (band.cpu_tokens if device.type == "cpu" else band.gpu_tokens)
    steps_an_epoch = Batcher(train, batch_tokens=batch_tokens, seed=given.seed).batches_in(0) / given.accumulate
    steps_an_epoch *= pairs / len(train)
    on_cpu = device.type == "cpu"
    fewest, epochs = (CPU_FEWEST_STEPS, band.cpu_epochs) if on_cpu else (GPU_FEWEST_STEPS, band.gpu_epochs)
    one_way = min(MOST_STEPS, max(fewest, round(epochs * steps_an_epoch)))
    max_steps = given.max_steps or one_way + given.bidirectional_steps
    rate = given.learning_rate or default_learning_rate(config.model, batch_tokens * given.accumulate)
    r_drop, why = _choose_r_drop(config, pairs, device)
    warmup = given.warmup_steps if given.warmup_steps is not None else min(4000, max(1, round(0.08 * max_steps)))
    sometimes = min(max(20, math.ceil(max_steps / 25)), max_steps, max(1, round(2 * steps_an_epoch)))
    every = given.validate_every or max(1, math.ceil(max_steps / 40), sometimes)
    bf16 = device.type == "cuda" and not predates_bf16(device)
    chosen = {
        "batch_tokens": batch_tokens,
        "max_steps": max_steps,
        "learning_rate": rate,
        "warmup_steps": warmup,
        "validate_every": every,
        "checkpoint_every": given.checkpoint_every or every,
        "precision": given.precision or ("bf16" if bf16 else "fp32"),
        "device": given.device or device.type,
        "threads": given.threads or torch.get_num_threads(),
        "r_drop": r_drop,
        "validate_bleu_pairs": 0 if config.data.monolingual else given.validate_bleu_pairs,
    }
    reasons = []
    if given.max_steps is None:
        reasons.append(
            f"steps: at most {max_steps:,} of {batch_tokens:,} tokens ({max_steps / steps_an_epoch:.0f} times through "
            f"the corpus); stops after {given.patience} validations without a new best"
        )
    if given.r_drop is None:
        reasons.append(f"R-Drop: {why}")
    if config.data.monolingual:
        reasons.append("validation: by loss alone (targets without sources: nothing to translate)")
    if given.learning_rate is None:
        reasons.append(
            f"learning rate: {rate:.2g} at its peak, after {warmup:,} steps (narrow models and large batches bear a "
            "higher one)"
        )
    source_tokens, target_tokens = train.tokens
    ratio = config.search.length_ratio or (round(target_tokens / source_tokens, 3) if source_tokens else None)
    return config.with_changes({"training": chosen, "search": {"length_ratio": ratio or None}}), reasons


def _choose_r_drop(config: Config, pairs: int, device: torch.device) -> tuple[float, str]:
    """α of R-Drop, and why."""
    given, band = config.training, band_of(pairs)
    if given.r_drop is not None:
        return given.r_drop, "as given"
    if config.data.monolingual:
        return 0.0, "off (targets without sources)"
    if given.simcut:
        return 0.0, "off (SimCut draws predictions together already)"
    if not band.r_drop:
        return 0.0, f"off ({pairs:,} pairs are enough without, in half the time)"
    if device.type == "cpu":
        return 0.0, f"off (a CPU would take twice as long; training.r_drop={band.r_drop:g} turns it on)"
    return band.r_drop, f"α {band.r_drop:g}: each batch is read twice ({pairs:,} pairs are few)"


class Estimate(NamedTuple):
    """What a run will need, measured on real batches before it starts."""

    tokens_per_second: float  # target tokens
    seconds: float  # to the last step, if early stopping does not end it
    memory: int  # bytes: weights, gradients, optimizer, moving average and the activations of the largest batch
    available: int
    activations: int = 0  # bytes of `memory` that go in pieces, if the batch does
    by_one_thread: float = 0.0  # target tokens per second, where there are several and it was tried

    @property
    def pieces(self) -> int:
        """In how many pieces the largest batch fits, a power of two; 0 if weights and moments alone do not."""
        room = 0.9 * self.available - (self.memory - self.activations)
        return 0 if room <= 0 else 2 ** max(0, math.ceil(math.log2(max(1, self.activations) / room)))

    def lines(self) -> list[str]:
        need, have = self.memory / 2**20, self.available / 2**20
        said = [
            f"estimate: {self.tokens_per_second:,.0f} target tokens/s, at most {spell_time(self.seconds)} beside "
            f"validation; "
            f"memory {need:,.0f} MB of {have:,.0f} MB free"
        ]
        if need > 0.9 * have:
            said.append(
                "warning: this may not fit in memory; a batch that does not goes in pieces, which takes longer: lower "
                "training.batch_tokens (and raise training.accumulate) or choose a smaller model.size"
            )
        if self.by_one_thread > HELD_UP * self.tokens_per_second:
            said.append(
                f"warning: one thread alone would do {self.by_one_thread:,.0f} target tokens/s now: threads wait for "
                "each other while something else is at work on this machine; end that, or set training.threads=1"
            )
        return said


def foresee(config: Config, model: EncoderDecoder, batcher: Batcher, device: torch.device, ranks: int = 1) -> list[str]:
    """What `estimate` says, or that memory was too short to tell."""
    try:
        return estimate(config, model, batcher, device, ranks).lines()
    except (RuntimeError, MemoryError) as error:
        if not is_out_of_memory(error):
            raise
    return ["estimate: none, a whole batch and a copy of the model do not fit in memory together"]


def estimate(config: Config, model: EncoderDecoder, batcher: Batcher, device: torch.device, ranks: int = 1) -> Estimate:
    """Try the largest batch and a usual one on a copy of the model, leaving every generator as it was.

    `batcher` has this rank's share of the batches; all ranks together are as many times as fast, gradients' travel
    not counted.
    """
    settings = config.training
    available = free_memory(device) // (ranks if device.type == "cpu" else 1)  # which ranks share
    tokens_a_step = _target_tokens(batcher.store) / batcher.batches_in(0) * settings.accumulate
    generator = torch.get_rng_state()
    largest, usual = batcher.longest().to(device), next(iter(batcher.epoch(0))).to(device)
    trial = make_objective(copy.deepcopy(model), settings)
    optimizer = make_optimizer(trial, settings)
    activations = _by_piece(largest, lambda piece: _activation_bytes(trial, piece, device, settings.precision))

    def step() -> float:
        return _by_piece(usual, lambda piece: _timed_step(trial, optimizer, piece, device, settings.precision))

    seconds = min(step(), step())
    threads = torch.get_num_threads()
    asked = device.type == "cpu" and ranks == 1 and 1 < threads <= MOST_ASKED / seconds
    by_one = _with_one_thread(step) if asked else math.inf
    torch.set_rng_state(generator)
    weights = sum(parameter.numel() * 4 for parameter in model.parameters())
    rate = max(1, usual.target_tokens) * ranks / seconds
    return Estimate(
        tokens_per_second=rate,
        seconds=(settings.max_steps or 0) * tokens_a_step / rate,
        memory=(5 if settings.ema else 4) * weights + int(activations),
        available=available,
        activations=int(activations),
        by_one_thread=max(1, usual.target_tokens) / by_one,
    )


def _with_one_thread(measure: Callable[[], float]) -> float:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        return measure()
    finally:
        torch.set_num_threads(threads)


def free_memory(device: torch.device) -> int:
    """Bytes that nobody uses, on the device itself."""
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0]
    import psutil  # what the machine has; a GPU is asked itself

    return int(psutil.virtual_memory().available)


def _by_piece(batch: Batch, measure: Callable[[Batch], float]) -> float:
    """What `measure` finds for a batch; if memory is short, for a piece of it, times as many as there are."""
    number = 1
    while True:
        pieces = batch.pieces(number)
        try:
            return measure(pieces[0]) * len(pieces)
        except (RuntimeError, MemoryError) as error:
            if not is_out_of_memory(error) or number >= len(batch.indices):
                raise
        number *= 2


def _activation_bytes(trial: Objective, batch: Batch, device: torch.device, precision: str | None) -> int:
    """What the backward pass of a batch must remember, each storage once."""
    kept: dict[int, int] = {}
    own = {parameter.untyped_storage().data_ptr() for parameter in trial.parameters()}

    def remember(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in own:
            kept[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(remember, lambda tensor: tensor), autocast(device, precision):
        trial(batch)
    return sum(kept.values())


def _timed_step(
    trial: Objective, optimizer: torch.optim.Optimizer, batch: Batch, device: torch.device, precision: str | None
) -> float:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    start = time.perf_counter()
    with autocast(device, precision):
        loss = trial(batch)
    (loss.total / loss.tokens).backward()
    optimizer.step()
    optimizer.zero_grad()
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter() - start


def _target_tokens(store: Store) -> int:
    return store.tokens[1] + len(store)
