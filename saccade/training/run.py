"""A whole run: settings in, a folder that translates out."""

import time
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch

from saccade.config import Config
from saccade.data.batching import Batcher
from saccade.data.prepare import Prepared, prepare
from saccade.data.store import Store
from saccade.data.tokenizers import Tokenizers
from saccade.display import Display
from saccade.errors import SaccadeError
from saccade.evaluation.metrics import bleu, score_corpus, tokenizer_for
from saccade.files import remove_folder, sweep_partials, writing
from saccade.folder import CONFIG, RECORD, WEIGHTS, describe_device, write_record
from saccade.models.build import build_model, count_parameters, device_for
from saccade.planning import autocast, choose_model, choose_training, estimate, spell_time
from saccade.training import checkpoint
from saccade.training.checks import check_together, resumable
from saccade.training.loop import Outcome, Trainer, Validation
from saccade.training.objectives import CrossEntropy
from saccade.translator import Translator


def train(
    config: Config,
    out: str | Path,
    *,
    start_from: str | Path | None = None,
    restart: bool = False,
    display: Display | None = None,
) -> Translator:
    """Train as `config` says in the folder `out`, or go on where a run in that folder was stopped.

    `start_from`: begin with the weights and the tokenizer of another folder (fine-tuning). `restart`: throw away what
    `out` holds. Raises KeyboardInterrupt, after saving, when the run was interrupted.
    """
    with writing(out, "choose another --out; the same command goes on from the last checkpoint"):
        return _run(config, Path(out), start_from, restart, display or Display())


def _run(config: Config, folder: Path, start_from: str | Path | None, restart: bool, display: Display) -> Translator:
    _open_folder(folder, config, restart)
    started = time.perf_counter()
    device = device_for(config.training.device)
    torch.set_num_threads(config.training.threads or torch.get_num_threads())
    if device.type == "cuda":
        torch.set_float32_matmul_precision("high")

    config = resumable(config, folder, tuned=start_from is not None)
    check_together(config)
    given = Tokenizers.load(start_from) if start_from else None
    prepared = prepare(config, folder / "resume" / "data", display, given)
    config, reasons = _resolve(prepared, start_from, device)
    for line in [*prepared.reasons, *reasons]:
        display.say(line)

    torch.manual_seed(config.training.seed)
    model = build_model(config, prepared.tokenizers.source.size, prepared.tokenizers.target.size)
    if start_from:
        checkpoint.load_weights(model, Path(start_from) / WEIGHTS)
        display.say(f"weights: from {start_from}")
    model.to(device)
    translator = Translator(config, prepared.tokenizers, model)
    batcher = Batcher(
        prepared.train,
        batch_tokens=_known(config.training.batch_tokens),
        seed=config.training.seed,
        encode=_subword_dropout(config, prepared),
    )
    trainer = Trainer(config.training, model, batcher, _validator(config, translator, prepared.valid), folder, display)
    restored = trainer.restore()
    config.save(folder / CONFIG)
    if restored:
        display.say(f"resuming: step {trainer.progress.step:,} of {config.training.max_steps:,} ({folder}/resume)")
    else:
        prepared.tokenizers.save(folder)
        display.say(
            f"model: {count_parameters(model):,} parameters on {describe_device(device)}, {config.training.precision}; "
            f"padding {batcher.waste():.1%} in {len(batcher.shapes)} shapes"
        )
        for line in estimate(config, model, batcher, device).lines():
            display.say(line)
    outcome = trainer.fit()
    if outcome.interrupted:
        display.say(f"stopped at step {outcome.progress.step:,}; the same command goes on from here")
        raise KeyboardInterrupt
    display.say(f"done: {outcome.reason}; best at step {outcome.progress.best_step:,}")
    _finish(config, translator, trainer, prepared, outcome, display)
    display.say(f"{folder}: ready after {spell_time(time.perf_counter() - started)}")
    return translator


def _open_folder(folder: Path, config: Config, restart: bool) -> None:
    """Make the folder ready: new, emptied, or as a stopped run left it."""
    if restart and folder.exists():
        if any(folder.iterdir()) and not (folder / "resume").exists() and not (folder / CONFIG).exists():
            raise SaccadeError(
                f"{folder}: is not a folder that Saccade made; --restart would throw it away; empty it first"
            )
        remove_folder(folder)
    if (folder / RECORD).exists() and config.training.max_steps is None:
        raise SaccadeError(
            f"{folder}: is trained already; choose another --out, give a larger training.max_steps=… to go on, "
            "or --restart to throw it away"
        )
    folder.mkdir(parents=True, exist_ok=True)
    for place in (folder, folder / "resume", folder / "resume" / "data"):
        sweep_partials(place)


def _resolve(prepared: Prepared, start_from: str | Path | None, device: torch.device) -> tuple[Config, list[str]]:
    """Every setting that was left open, chosen; a folder that is fine-tuned keeps its model."""
    config = prepared.config
    reasons: list[str] = []
    if start_from:
        base = Config.load(Path(start_from) / CONFIG)
        kept = base.model.model_dump()
        if config.model.dropout is not None:
            kept["dropout"] = config.model.dropout
        config = Config.of(config.model_dump() | {"model": kept})
    else:
        config, reasons = choose_model(config, len(prepared.train), prepared.tokenizers.joint, device)
    config, more = choose_training(config, prepared.train, device)
    return config, reasons + more


def _subword_dropout(config: Config, prepared: Prepared) -> Callable[[int, int], tuple[Any, Any]] | None:
    """How to encode training pairs anew each epoch, if that is asked for: stores decode to their exact text."""
    rate, seed, store = config.training.subword_dropout, config.training.seed, prepared.train
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
    batcher = Batcher(valid, batch_tokens=_known(config.training.batch_tokens), seed=0)
    shown = range(min(config.training.validate_bleu_pairs, len(valid)))
    sources, references = texts_of(valid, translator.tokenizers, shown)
    tokenize = tokenizer_for(config.data.target, references)
    objective = CrossEntropy(translator.model, 0.0)

    @torch.no_grad()
    def validate() -> Validation:
        translator.model.eval()
        total, tokens = 0.0, 0
        for batch in batcher.epoch(0):
            with autocast(translator.device, config.training.precision):
                loss = objective(batch.to(translator.device))
            total += loss.nll.item()
            tokens += loss.tokens
        score = None
        if sources:
            with autocast(translator.device, config.training.precision):
                translated = translator.translate(sources, beam=1, n_best=1, coverage_penalty=0.0)
            score = bleu([translation.text for translation in translated], references, tokenize=tokenize)
        return Validation(total / tokens, score)

    return validate


def texts_of(store: Store, tokenizers: Tokenizers, indices: range) -> tuple[list[str], list[str]]:
    """Sources and targets of some pairs of a store, as text."""
    sources = [tokenizers.source.decode(store.source(i).tolist()) for i in indices]
    targets = [tokenizers.target.decode(store.target(i).tolist()) for i in indices]
    return sources, targets


def _finish(
    config: Config, translator: Translator, trainer: Trainer, prepared: Prepared, outcome: Outcome, display: Display
) -> None:
    """Choose between the best checkpoint and the mean of the last, score the choice, write the card."""
    folder = trainer.folder
    checkpoint.prune(trainer.resume, config.training.keep)
    chosen = f"best of {len(outcome.progress.validations)} validations (step {outcome.progress.best_step:,})"
    checkpoint.load_weights(translator.model, folder / WEIGHTS)
    last = [place / WEIGHTS for place in checkpoint.checkpoints(folder / "resume")][-config.training.average :]
    if config.training.average > 1 and len(last) > 1:
        best = trainer.validate()
        checkpoint.fill(translator.model, checkpoint.average(last), last[-1])
        mean = trainer.validate()
        display.say(f"validation loss: best checkpoint {best.loss:.4f}, mean of the last {len(last)} {mean.loss:.4f}")
        if mean.loss < best.loss:
            chosen = f"mean of the last {len(last)} checkpoints"
            checkpoint.save_weights(checkpoint.weights_of(translator.model), folder / WEIGHTS)
        else:
            checkpoint.load_weights(translator.model, folder / WEIGHTS)
    count = min(2000, len(prepared.valid))
    sources, references = texts_of(prepared.valid, prepared.tokenizers, range(count))
    with display.task("translating the validation set", count) as progress:
        translated = [t.text for t in translator.stream(sources, progress=progress)]
    scores = score_corpus(
        translated, references, metrics=("bleu", "chrf"), tokenize=tokenizer_for(config.data.target, references)
    )
    for score in scores:
        display.say(f"validation {score}")
    write_record(
        folder,
        {
            "saccade": version("saccade"),
            "torch": torch.__version__,
            "device": describe_device(translator.device),
            "parameters": count_parameters(translator.model),
            "data": prepared.report,
            "valid_pairs": count,
            "steps": outcome.progress.step,
            "target_tokens": outcome.progress.tokens,
            "minutes": outcome.progress.seconds / 60,
            "ended": outcome.reason,
            "chosen": chosen,
            "search": f"beam {config.search.beam}, length penalty {config.search.length_penalty:g}",
            "scores": [score.to_dict() for score in scores],
        },
    )


def _known(value: int | None) -> int:
    assert value is not None
    return value
