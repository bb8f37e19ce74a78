"""A whole run: settings in, a folder that translates out."""

import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import torch

import saccade
from saccade.config import Config, known
from saccade.data.batching import Batcher
from saccade.data.both_ways import BothWays
from saccade.data.mapping import Mapper
from saccade.data.prepare import Prepared, check_corpora, prepare, training_members
from saccade.data.sampling import open_stream
from saccade.data.store import Store
from saccade.data.streams import streamed_lines, tally_of
from saccade.data.tokenizers import Tokenizers
from saccade.data.unpadded import UnpaddedBatcher
from saccade.data.windows import Batches, StreamBatcher
from saccade.devices import autocast, describe_device, device_for
from saccade.display import Display, spell_time
from saccade.distributed.choose import choose_sharding
from saccade.distributed.world import World, join
from saccade.errors import SaccadeError
from saccade.evaluation.metrics import bleu, metrics_for, score_corpus, tokenizer_for
from saccade.evaluation.perplexity import perplexity
from saccade.export import fit
from saccade.files import alone, remove_folder, sweep_partials, writing
from saccade.folder import CONFIG, RECORD, WEIGHTS, write_record
from saccade.models.build import build_model, count_parameters, in_one_sequence, longest_sequence
from saccade.models.packing import pack
from saccade.planning import choose_model, choose_sides, choose_training, choose_vocabulary, foresee
from saccade.training import checkpoint
from saccade.training.checks import (
    check_directions,
    check_folder,
    check_lengths,
    check_together,
    check_tuning,
    resumable,
    tuned_from,
)
from saccade.training.extension import Rows, load_grown, load_moments, new_rows, say_grown
from saccade.training.forgetting import report_forgetting
from saccade.training.loop import Outcome, Trainer, Validation
from saccade.training.objectives import CrossEntropy
from saccade.training.padding import choose_padding
from saccade.translator import Translator

ELSEWHERE = "choose another --out"


def train(
    config: Config,
    out: str | Path,
    *,
    start_from: str | Path | None = None,
    restart: bool = False,
    display: Display | None = None,
    mapper: Mapper | None = None,
) -> Translator:
    """Train as `config` says in the folder `out`, or go on where a run in that folder was stopped.

    `start_from`: begin with the weights and the tokenizer of another folder (fine-tuning). `restart`: throw away what
    `out` holds. `mapper`: where the corpus is prepared. Raises KeyboardInterrupt, after saving, when the run was
    interrupted.
    """
    with writing(out, ELSEWHERE), join(config.training) as world, _ours(out, world):
        base = Path(start_from) if start_from is not None else None
        return _run(config, Path(out), base, restart, display or Display(), world, mapper)


def prepare_folder(
    config: Config,
    out: str | Path,
    *,
    start_from: str | Path | None = None,
    restart: bool = False,
    display: Display | None = None,
    mapper: Mapper | None = None,
) -> Prepared:
    """Prepare the corpus of a run in the folder `out`, and do not train: `train` then finds it done."""
    with writing(out, ELSEWHERE), alone(out, ELSEWHERE):
        base = Path(start_from) if start_from is not None else None
        return _begin(config, Path(out), base, restart, display or Display(), World(), mapper)[0]


def _ours(out: str | Path, world: World) -> AbstractContextManager[None]:
    """No other run in that folder meanwhile: the first rank sees to it for all."""
    return alone(out, ELSEWHERE) if world.is_first else nullcontext()


def _begin(
    config: Config,
    folder: Path,
    base: Path | None,
    restart: bool,
    display: Display,
    world: World,
    mapper: Mapper | None,
) -> tuple[Prepared, torch.device]:
    """Refuse what cannot work, and prepare the data; of many ranks, the first does it and the others find it done."""
    # A process that took the place of one that died must not throw away what that one did.
    restart = restart and world.is_first and not world.restarted
    if not world.restarted:
        check_folder(folder, config, restart, base)
    config = config if base is None else config.in_family_of(Config.load(base / CONFIG))
    config = config if restart else resumable(config, folder, tuned=base is not None)
    config = config if base is None else tuned_from(config, Config.load(base / CONFIG), base)
    config = choose_sides(config, config.model)
    config = choose_vocabulary(config)
    device = device_for(world.device(config.training.device))
    check_together(config)
    check_corpora(config.data)
    check_tuning(config, base)
    given = None if base is None else Tokenizers.load(base)
    check_directions(config, given)
    if restart and folder.exists():  # only now that nothing else can be refused
        remove_folder(folder)
    folder.mkdir(parents=True, exist_ok=True)
    for place in (folder, folder / "resume", folder / "resume" / "data") if world.is_first else ():
        sweep_partials(place)
    torch.set_num_threads(config.training.threads or world.threads())
    if device.type == "cuda":
        torch.set_float32_matmul_precision("high")
        if device.index is not None:  # so that its generator is the one that checkpoints keep
            torch.cuda.set_device(device)

    try:
        prepared = prepare(config, folder / "resume" / "data", display, given, base, mapper)
    except SaccadeError:
        if not any(path.is_file() for path in folder.rglob("*")):  # nothing came of it: leave nothing
            remove_folder(folder)
        raise
    finally:
        if mapper is not None:
            mapper.close()
    return prepared, device


def _run(
    config: Config,
    folder: Path,
    base: Path | None,
    restart: bool,
    display: Display,
    world: World,
    mapper: Mapper | None,
) -> Translator:
    started = time.perf_counter()
    display = display if world.is_first else Display(quiet=True)
    with world.first_alone("preparing the data"):
        prepared, device = _begin(config, folder, base, restart, display, world, mapper)
        config, reasons = resolve(prepared, base, device)
        for line in [*prepared.reasons, *reasons]:
            display.say(line)
        check_lengths(config, prepared.train, prepared.valid)

    torch.manual_seed(config.training.seed)
    model = build_model(config, prepared.tokenizers.source.size, prepared.tokenizers.target.size)
    grown: Rows = {}
    if base is not None:
        grown = new_rows(config, Tokenizers.load(base), prepared.tokenizers)
        load_grown(model, base, grown, config.training.new_rows)
        display.say(f"weights: from {base}")
        say_grown(display, grown, config.training.new_rows)
    world, why = choose_sharding(config.training, model, device, world)
    config, about_padding = choose_padding(config, model, prepared.train, device, world)
    for line in [*why, *about_padding]:
        display.say(line)
    if not world.sharded:
        model.to(device)
        if device.type == "cpu":
            pack(model)
    translator = Translator(config, prepared.tokenizers, model)
    planned, batcher = _batches(config, prepared, world)
    both = _batches(config, prepared, world, both_ways=True)[1] if config.training.bidirectional_steps else None
    validate = _validator(config, translator, prepared.valid)
    trainer = Trainer(config.training, model, batcher, validate, folder, display, both, world, device)
    restored = trainer.restore()
    if base is not None and not restored:
        kept = config.training.keep_moments
        said = load_moments(trainer.optimizer, trainer.model, base, grown, kept, world.part)
        display.say(said or "Adam's moments: begun anew")
    if world.is_first:
        config.save(folder / CONFIG)
    if (folder / RECORD).exists() and (reason := trainer.ended()) is not None:
        display.say(
            f"{folder}: is trained already ({reason}); go on with a larger training.max_steps or training.patience"
        )
        checkpoint.load_weights(model, folder / WEIGHTS)
        return translator
    if restored:
        display.say(f"resuming: step {trainer.progress.step:,} of {config.training.max_steps:,} ({folder}/resume)")
    elif world.is_first:
        prepared.tokenizers.save(folder)
        padding = "" if config.training.subword_dropout else f"; padding {batcher.waste():.1%}"
        display.say(
            f"model: {count_parameters(model):,} parameters on {describe_device(device)}, {config.training.precision}"
            f"{padding} in {len(batcher.shapes)} shape{'s' if len(batcher.shapes) > 1 else ''}"
        )
        if batcher.oversized:
            display.say(f"batches: {batcher.oversized:,} pairs are longer than training.batch_tokens and go alone")
        with world.alone("estimating time and memory"):
            for line in (
                []
                if world.sharded or isinstance(batcher, UnpaddedBatcher)
                else foresee(config, model, planned, device, world.size)
            ):
                display.say(line)
    outcome = trainer.fit()
    if outcome.interrupted:
        display.say(f"stopped at step {outcome.progress.step:,}; the same command goes on from here")
        raise KeyboardInterrupt
    display.say(f"done: {outcome.reason}; best at step {outcome.progress.best_step:,}")
    if world.is_first:
        with world.alone("scoring the result"):
            _finish(config, translator, trainer, prepared, outcome, display, base)
    world.close()
    if not world.is_first:
        checkpoint.load_weights(translator.model, folder / WEIGHTS)
    display.say(f"{folder}: ready after {spell_time(time.perf_counter() - started)}")
    return translator


def resolve(prepared: Prepared, base: Path | None, device: torch.device) -> tuple[Config, list[str]]:
    """Every setting that was left open, chosen; a folder that is fine-tuned keeps its model."""
    config = prepared.config
    reasons: list[str] = []
    if base is not None:
        config = tuned_from(config, Config.load(base / CONFIG), base)
    else:
        config, reasons = choose_model(config, prepared.pairs, prepared.tokenizers.joint, device)
    config, more = choose_training(config, prepared.train, device, prepared.pairs)
    unfit = fit.warning(config.model)
    return config, [*reasons, *more, *([unfit] if unfit else [])]


def _batches(
    config: Config, prepared: Prepared, world: World, both_ways: bool = False
) -> tuple[Batcher, Batches | UnpaddedBatcher]:
    """The batches of the prepared store, and those to train on: the same, those without padding, or those of the stream
    it is a sample of."""
    store = BothWays(prepared.train) if both_ways else prepared.train
    planned = Batcher(
        store,
        batch_tokens=known(config.training.batch_tokens),
        seed=config.training.seed,
        encode=_subword_dropout(config, prepared, store),
        rank=world.rank,
        world=world.size,
        mixture=prepared.mixture * (2 if both_ways else 1),
    )
    if config.training.unpadded:
        return planned, UnpaddedBatcher(
            store,
            batch_tokens=known(config.training.batch_tokens),
            seed=config.training.seed,
            mixture=prepared.mixture * (2 if both_ways else 1),
        )
    if not config.data.stream:
        return planned, planned
    stream = open_stream(
        config,
        training_members(config.data),
        prepared.tokenizers,
        prepared.valid,
        prepared.report,
        longest=longest_sequence(config.model),
        together=in_one_sequence(config.model),
    )
    seed, rank, size = config.training.seed, world.rank, world.size
    return planned, StreamBatcher(stream, planned, seed=seed, rank=rank, world=size, both_ways=both_ways)


def _subword_dropout(config: Config, prepared: Prepared, store: Store) -> Callable[[int, int], tuple[Any, Any]] | None:
    """How to encode training pairs anew each epoch, if that is asked for: stores decode to their exact text."""
    rate, seed = config.training.subword_dropout, config.training.seed
    if not rate:
        return None
    source, target = prepared.tokenizers

    def encode(index: int, epoch: int) -> tuple[list[int], list[int]]:
        sides = zip((source, target), store.pair(index), strict=True)
        return tuple(  # type: ignore[return-value]
            side.sample(side.decode(ids.tolist()), rate, (seed, epoch, index, place))
            for place, (side, ids) in enumerate(sides)
        )

    return encode


def _validator(config: Config, translator: Translator, valid: Store) -> Callable[[], Validation]:
    batcher = Batcher(valid, batch_tokens=known(config.training.batch_tokens), seed=0)
    shown = range(min(config.training.validate_bleu_pairs, len(valid)))
    sources, references = texts_of(valid, translator.tokenizers, shown)
    tokenize = tokenizer_for(config.data.target, references)
    objective = CrossEntropy(translator.model, 0.0)

    @torch.no_grad()
    def validate() -> Validation:
        translator.model.eval()
        translator.renew()
        total, tokens = 0.0, 0
        for batch in batcher.epoch(0):
            with autocast(translator.device, config.training.precision):
                loss = objective(batch.to(translator.device))
            total += loss.nll.item()
            tokens += loss.tokens
        score = None
        if sources:
            with autocast(translator.device, config.training.precision):
                translated = translator.translate(sources, beam=1, n_best=1, coverage_penalty=0.0, guard=False)
            score = bleu([translation.text for translation in translated], references, tokenize=tokenize)
        return Validation(total / tokens, score)

    return validate


def texts_of(store: Store, tokenizers: Tokenizers, indices: range) -> tuple[list[str], list[str]]:
    """Sources and targets of some pairs of a store, as text."""
    sources = [tokenizers.source.decode(store.source(i).tolist()) for i in indices]
    targets = [tokenizers.target.decode(store.target(i).tolist()) for i in indices]
    return sources, targets


def _finish(
    config: Config,
    translator: Translator,
    trainer: Trainer,
    prepared: Prepared,
    outcome: Outcome,
    display: Display,
    base: Path | None,
) -> None:
    """Choose between the best checkpoint and the mean of the last, score the choice, write the card."""
    streamed = tally_of(trainer.progress.place)
    for line in streamed_lines(streamed):
        display.say(line)
    folder, by = trainer.folder, config.training.validate_by
    checkpoint.prune(trainer.resume, max(config.training.keep, config.training.average))
    of = f", moving average of decay {config.training.ema:g}" if config.training.ema else ""
    chosen = f"best of {len(outcome.progress.validations)} validations (step {outcome.progress.best_step:,}{of})"
    best_weights = trainer.resume / checkpoint.BEST
    checkpoint.load_weights(translator.model, best_weights)
    last = [place / WEIGHTS for place in checkpoint.to_average(trainer.resume)][-config.training.average :]
    if config.training.average > 1 and len(last) > 1:
        best = trainer.validate()
        checkpoint.fill(translator.model, checkpoint.average(last), last[-1])
        mean = trainer.validate()
        display.say(f"validation loss: best checkpoint {best.loss:.4f}, mean of the last {len(last)} {mean.loss:.4f}")
        if mean.quality(by) > best.quality(by):
            chosen = f"mean of the last {len(last)} checkpoints"
        else:
            checkpoint.load_weights(translator.model, best_weights)
    translator.renew()
    checkpoint.save_weights(checkpoint.weights_of(translator.model), folder / WEIGHTS)
    count = min(2000, len(prepared.valid))
    sources, references = texts_of(prepared.valid, prepared.tokenizers, range(count))
    if config.data.monolingual:
        scores = perplexity(translator, sources, references)
    else:
        with display.task("translating the validation set", count) as progress:
            translated = [t.text for t in translator.stream(sources, progress=progress)]
        scores = score_corpus(
            translated,
            references,
            metrics=metrics_for(config.model.family)[:2],
            tokenize=tokenizer_for(config.data.target, references),
        )
    for score in scores:
        display.say(f"validation {score}")
    forgetting = None if base is None else report_forgetting(config, translator, base, display)
    write_record(
        folder,
        {
            **({} if forgetting is None else {"forgetting": forgetting}),
            "saccade": saccade.__version__,
            "torch": torch.__version__,
            "device": describe_device(translator.device),
            "parameters": count_parameters(translator.model),
            "data": prepared.report | ({"streamed": streamed} if streamed else {}),
            "valid_pairs": count,
            "steps": outcome.progress.step,
            "target_tokens": outcome.progress.tokens,
            "minutes": outcome.progress.seconds / 60,
            "ended": outcome.reason,
            "chosen": chosen,
            "search": "each line by itself"
            if config.data.monolingual
            else f"beam {config.search.beam}, length penalty {config.search.length_penalty:g}",
            "scores": [score.to_dict() for score in scores],
        },
    )
