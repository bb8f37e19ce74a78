"""Rows measured in a process of their own: `python -m saccade.comparing.measure quality|speed PLAN` < rows.

The first line of standard input names the rows, as JSON; when it ends, whoever asked is gone. `quality` trains (or goes
on, or finds it trained) and measures what the model writes; `speed` is run while nothing else is, and measures how fast
it learns and writes. Each row leaves one JSON file, put in place whole; the process ends at the first row that fails.
"""

import json
import os
import signal
import sys
import threading
import time
from itertools import islice
from pathlib import Path
from statistics import median
from typing import Any

import torch

from saccade import api
from saccade.comparing.plan import Plan, Row
from saccade.comparing.results import write_result
from saccade.config import Config, known
from saccade.data.batching import Batch, Batcher, collate
from saccade.data.store import Store
from saccade.data.unpadded import UnpaddedBatcher
from saccade.devices import autocast, describe_device, device_for
from saccade.display import Display
from saccade.errors import SaccadeError
from saccade.evaluation.alignment import read_pharaoh, score_alignment
from saccade.evaluation.metrics import metrics_for, score_corpus, tokenizer_for
from saccade.files import write_text
from saccade.folder import CONFIG, LOG, RECORD, load, read_record
from saccade.models.build import build_model, count_parameters, measures
from saccade.training.captured import CapturedSteps
from saccade.training.objectives import make_objective
from saccade.training.optim import make_optimizer
from saccade.translator import Translator

SECONDS = 1.0  # a speed is measured for at least so long
LENGTHS = (8, 16, 32, 64, 128, 256)  # of the cost curve
COST_TOKENS = 4096
DECODED = 128  # sentences


def quality(plan: Plan, row: Row, seed: int) -> dict[str, Any]:
    """Train, translate the test set, align the gold sentences."""
    translator = _trained(plan, row, seed)
    sources, references = plan.test_pairs()
    translations = [found.text for found in translator.stream(sources, **plan.search)]
    write_text(row.results(plan, seed) / "translations.txt", "".join(line + "\n" for line in translations))
    tokenize = tokenizer_for(translator.config.data.target, references)
    metrics = metrics_for(translator.config.model.family)[:2]
    scores = score_corpus(translations, references, metrics=metrics, tokenize=tokenize)
    folder = row.folder(plan, seed)
    record = read_record(folder)
    return {
        "model": f"{translator.config.model.family}: {measures(translator.config.model)}",
        "parameters": count_parameters(translator.model),
        "steps": record.get("steps"),
        "target_tokens": record.get("target_tokens"),
        "minutes": record.get("minutes"),
        "device": record.get("device"),
        "scores": [score.to_dict() for score in scores],
        "tokenize": tokenize,
        "alignment": _alignment(plan, translator),
        "drawn": _drawn(plan, translator),
        "curve": learning_curve(folder / LOG),
    }


def _trained(plan: Plan, row: Row, seed: int) -> Translator:
    if row.trained:
        return load(row.path, plan.device, engine="torch")
    overrides = [*plan.overrides, f"training.seed={seed}"]
    if plan.device is not None:
        overrides.append(f"training.device={plan.device}")
    folder = row.folder(plan, seed)
    if (folder / RECORD).exists() and not Config.load(row.path, overrides).training.max_steps:
        # Trained already, for as many steps as were chosen then: it is only to be measured again.
        overrides.append(f"training.max_steps={Config.load(folder / CONFIG).training.max_steps}")
    try:
        return api.train(*plan.data, *overrides, out=folder, config=row.path, valid=plan.valid)
    except SaccadeError as error:
        if "--restart" not in str(error):
            raise
        raise SaccadeError(f"{error}; here: remove {folder}") from None


def _alignment(plan: Plan, translator: Translator) -> dict[str, float] | None:
    if plan.gold is None or not translator.model.attends:
        return None
    pairs = zip(*plan.gold_pairs(), strict=True)
    found = [frozenset(translator.forced(source, target).alignment) for source, target in pairs]
    return score_alignment(found, read_pharaoh(plan.gold))._asdict()


def _drawn(plan: Plan, translator: Translator) -> dict[str, Any] | None:
    forced = translator.forced(*plan.drawn())
    if forced.word_attention is None:
        return None
    weights = [[round(float(weight), 4) for weight in row] for row in forced.word_attention]
    return {"source": forced.source_words, "target": forced.target_words, "weights": weights}


def learning_curve(log: Path) -> list[dict[str, float | None]]:
    """Each validation of a run, with the target tokens that had been learned from by then."""
    if not log.exists():
        return []
    curve, tokens = [], 0
    for line in log.read_text(encoding="utf-8").splitlines():
        entry = json.loads(line)
        tokens = entry.get("target_tokens", tokens)
        if "valid_loss" in entry:
            curve.append({"tokens": tokens, "loss": entry["valid_loss"], "bleu": entry["valid_bleu"]})
    return curve


def speed(plan: Plan, row: Row, seed: int) -> dict[str, Any]:
    """Target tokens a second in training and in translating, and the cost of a step against the length."""
    folder = row.folder(plan, seed)
    device = device_for(plan.device)
    translator = load(folder, str(device), engine="torch")  # as every row, whatever a folder was exported to
    config = translator.config
    sources, _ = plan.test_pairs()
    asked = sources[:DECODED]
    list(translator.stream(asked, **plan.search))  # once before the clock runs: what is captured or packed is so now
    started = time.perf_counter()
    found = list(translator.stream(asked, **plan.search))
    seconds = time.perf_counter() - started
    written = sum(len(translation.tokens) + 1 for translation in found)
    store = folder / "resume" / "data" / "train"
    return {
        "device": describe_device(device),
        "threads": torch.get_num_threads(),
        "decode_tokens_per_second": written / seconds,
        "train_tokens_per_second": _training_speed(config, translator, Store(store)) if store.exists() else None,
        "cost": _cost(config, translator),
    }


def _training_speed(config: Config, translator: Translator, store: Store) -> float:
    if config.training.unpadded and translator.device.type == "cuda":
        return _captured_speed(config, translator, store)
    batcher = Batcher(store, batch_tokens=known(config.training.batch_tokens), seed=config.training.seed)
    batches = [batch.to(translator.device) for batch, _ in zip(batcher.epoch(0), range(12), strict=False)]
    step = _Step(config, translator)
    tokens = sum(batch.target_tokens for batch in batches)
    rates: list[float] = []
    started = step.clock()
    while len(rates) < 4 or step.clock() - started < SECONDS:
        before = step.clock()
        for batch in batches:
            step(batch)
        rates.append(tokens / (step.clock() - before))
    return median(rates[1:])  # the first round, in which every shape is new, is not counted


def _captured_speed(config: Config, translator: Translator, store: Store) -> float:
    """Of steps that are captured, as the training loop takes them."""
    batcher = UnpaddedBatcher(store, batch_tokens=known(config.training.batch_tokens), seed=config.training.seed)
    batches = [batch.pin_memory() for _, batch in islice(batcher.stream(), 12)]
    model = build_model(config, *(side.size for side in translator.tokenizers)).to(translator.device)
    steps = CapturedSteps(model, config.training, make_optimizer(model, config.training), Display(quiet=True))
    rates: list[float] = []
    while len(rates) < 4 or sum(batch.target_tokens for batch in batches) * len(rates) / rates[-1] < SECONDS:
        torch.cuda.synchronize(translator.device)
        before = time.perf_counter()
        for batch in batches:
            steps.take([batch], batch.target_tokens, 1e-4)
        torch.cuda.synchronize(translator.device)
        rates.append(sum(batch.target_tokens for batch in batches) / (time.perf_counter() - before))
    return median(rates[1:])  # in the first round the step is captured


def _cost(config: Config, translator: Translator) -> list[dict[str, float]]:
    """Milliseconds of training for a thousand target tokens, at each length that the model can hold."""
    curve = []
    vocabularies = [side.size for side in (translator.tokenizers.source, translator.tokenizers.target)]
    generator = torch.Generator().manual_seed(1)
    step = _Step(config, translator)
    for length in LENGTHS:
        if translator.longest is not None and 2 * length > translator.longest:
            break
        rows = max(1, COST_TOKENS // length)
        sides = [torch.randint(4, size, (rows, length), generator=generator).tolist() for size in vocabularies]
        batch = collate(list(zip(*sides, strict=True)), range(rows)).to(translator.device)
        step(batch)
        if translator.device.type == "cuda":
            torch.cuda.reset_peak_memory_stats()
        started = step.clock()
        step(batch)
        step(batch)
        seconds = (step.clock() - started) / 2
        peak = torch.cuda.max_memory_allocated() / 2**20 if translator.device.type == "cuda" else 0.0
        curve.append({"length": length, "ms_per_1000": 1e6 * seconds / batch.target_tokens, "peak_mb": peak})
    return curve


class _Step:
    """A whole training step on a model of the folder's shape, as the training loop takes it."""

    def __init__(self, config: Config, translator: Translator) -> None:
        sizes = translator.tokenizers.source.size, translator.tokenizers.target.size
        model = build_model(config, *sizes).to(translator.device)
        self.device, self.precision = translator.device, config.training.precision
        self.objective = make_objective(model, config.training)
        self.optimizer = make_optimizer(model, config.training)
        for group in self.optimizer.param_groups:
            group["lr"] = 1e-4

    def __call__(self, batch: Batch) -> None:
        with autocast(self.device, self.precision):
            loss = self.objective(batch)
        (loss.total / loss.tokens).backward()
        self.optimizer.step()
        self.optimizer.zero_grad()

    def clock(self) -> float:
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
        return time.perf_counter()


def main(what: str, plan_path: str) -> None:
    """Measure row after row, and write down what was found."""
    plan = Plan.load(plan_path)
    rows = json.loads(sys.stdin.readline())
    threading.Thread(target=_stop_when_alone, daemon=True).start()
    for name, path, seed in rows:
        row = Row(name, Path(path))
        measured = {"quality": quality, "speed": speed}[what](plan, row, seed)
        write_result(what, row, seed, plan, measured)


def _stop_when_alone() -> None:
    """Save and stop when whoever asked was killed: the same command, given again, is to find nobody in its folders."""
    while os.read(0, 1):  # not `sys.stdin`, whose lock must be free at the end
        pass
    os.kill(os.getpid(), signal.SIGTERM)


if __name__ == "__main__":
    try:
        main(*sys.argv[1:])
    except SaccadeError as error:
        sys.exit(f"error: {error}")
