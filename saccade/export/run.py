"""A whole export: a folder that translates in, a folder for another program out, verified before it is called good."""

from collections.abc import Callable, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple

import saccade
from saccade.config import SearchConfig
from saccade.data.corpora import read_lines
from saccade.data.store import Store
from saccade.display import Display
from saccade.errors import SaccadeError
from saccade.evaluation.metrics import bleu, tokenizer_for
from saccade.export import ctranslate2, huggingface, onnx
from saccade.export.fit import TARGETS, refuse
from saccade.export.record import RECORD, fingerprint, write_export
from saccade.export.verify import Agreement, Answers, Ids, searches, verify
from saccade.files import remove_folder, writing, written_atomically
from saccade.folder import WEIGHTS, load
from saccade.generation.orders import Job
from saccade.translator import Translator

VERIFIED = 2000  # sentences, at most
SCORE_TOLERANCE = 1e-3  # of a token's log-probability


class Examples(NamedTuple):
    """What an export is verified with: sources in ids, and their translations where they are known."""

    sources: list[Ids]
    targets: list[Ids] | None


class Task(NamedTuple):
    """What a format needs to know."""

    translator: Translator
    examples: Examples
    quantization: str
    display: Display


Write = Callable[[Task, Path], dict[str, Any]]  # writes and verifies, and gives what the record should say


def export(
    folder: str | Path,
    to: str,
    out: str | Path | None = None,
    quantization: str | None = None,
    verify_with: str | None = None,
    display: Display | None = None,
) -> Path:
    """Export the model in `folder` to `to` and give the place. Nothing is left there if the verification fails.

    `verify_with`: a file of source sentences. Default: the validation set that training kept in the folder.
    """
    folder = Path(folder)
    display = display or Display()
    if to not in FORMATS:
        raise SaccadeError(f"--to {to} is not known; use {', '.join(FORMATS)}")
    if quantization is not None and to != "ctranslate2":
        raise SaccadeError(f"--quantization {quantization} is for --to ctranslate2; leave it out")
    translator = load(folder, "cpu", engine="torch")
    refuse(translator.config.model, to)
    out = folder / to if out is None else Path(out)
    if out.exists() and not (out / RECORD).exists():
        raise SaccadeError(f"{out}: is there already, and is not an export; choose another --out")
    examples = _examples(folder, translator, verify_with)
    with writing(out, "choose another --out"), written_atomically(out) as place:
        record = FORMATS[to](Task(translator, examples, quantization or "float32", display), place)
        write_export(
            place,
            {
                "saccade": saccade.__version__,
                "format": to,
                "weights": fingerprint(folder / WEIGHTS),
                "sentences": len(examples.sources),
                **record,
            },
        )
        if out.exists():
            remove_folder(out)
    display.say(f"{out}: ready for {TARGETS[to]}")
    return out


def _examples(folder: Path, translator: Translator, verify_with: str | None) -> Examples:
    store = folder / "resume" / "data" / "valid"
    if verify_with is not None:
        lines = [line for line in read_lines(verify_with) if line.strip()][:VERIFIED]
        if not lines:
            raise SaccadeError(f"{verify_with}: no sentences to verify the export with; give a file that has some")
        return Examples(translator.tokenizers.source.encode_batch(lines), None)
    if not store.exists():
        raise SaccadeError(
            f"{folder}: keeps no validation set to verify the export with (resume/data/valid); "
            "give source sentences with --verify FILE"
        )
    valid = Store(store)
    pairs = [valid.pair(i) for i in range(min(VERIFIED, len(valid)))]
    kept = [(source.tolist(), target.tolist()) for source, target in pairs if len(source)]
    return Examples([source for source, _ in kept], [target for _, target in kept])


def demand(agreements: Sequence[Agreement], to: str) -> None:
    """Refuse an export that says something else than the model."""
    for agreement in agreements:
        if agreement.different:
            raise SaccadeError(
                f"the export to {TARGETS[to]} differs from the model ({agreement}); nothing was written; "
                "please report this with the folder's config.yaml"
            )


def _to_ctranslate2(task: Task, place: Path) -> dict[str, Any]:
    from saccade.engines.ctranslate2 import CTranslate2Engine

    translator, sources = task.translator, task.examples.sources
    ctranslate2.write(translator.model, translator.tokenizers, place, task.quantization)
    translator.tokenizers.save(place)
    engine = CTranslate2Engine(
        place,
        translator.tokenizers,
        translator.never_written,
        translator.own_engine,
        translator.device,
    )

    def theirs(jobs: Sequence[Job], settings: SearchConfig) -> Answers:
        return [found[0].tokens if found else None for found in engine.searched(jobs, settings)]

    agreements = []
    for settings in searches(translator.config.search):
        agreements.append(verify(translator, sources, settings, theirs, renormalise=True))
        task.display.say(f"verified {agreements[-1]}")
    off = _score_difference(task, engine)
    if task.quantization == "float32":
        demand(agreements, "ctranslate2")
        if off > SCORE_TOLERANCE:
            raise SaccadeError(
                f"the export to CTranslate2 gives tokens other log-probabilities than the model (by {off:.4f}); "
                "nothing was written; please report this with the folder's config.yaml"
            )
    record: dict[str, Any] = {
        "ctranslate2": version("ctranslate2"),
        "quantization": task.quantization,
        "computed_in": engine.computes_in,
        "verified": [agreement._asdict() for agreement in agreements],
        "score_difference": off,
    }
    own_settings = translator.config.search
    if engine.obstacle(own_settings) is None:
        record |= _as_set(task, engine, own_settings)
    return record


def _score_difference(task: Task, engine: Any) -> float:
    """How far apart the log-probabilities of whole pairs are, by token, where they are farthest apart."""
    sources, targets = task.examples
    if targets is None:  # any will do
        size = task.translator.tokenizers.target.size
        targets = [[id for id in source if id < size] for source in reversed(sources)]
    fits = ctranslate2.POSITIONS - 1
    pairs = [pair for pair in zip(sources, targets, strict=True) if max(map(len, pair)) <= fits]
    theirs = engine.score(pairs)
    ours = task.translator.score_ids(pairs)
    apart = (abs(a - b) / (len(target) + 1) for a, b, (_, target) in zip(ours, theirs, pairs, strict=True))
    return max(apart, default=0.0)


def _as_set(task: Task, engine: Any, settings: SearchConfig) -> dict[str, Any]:
    """Both engines as a user of the folder meets them, with its own search settings."""
    translator, (sources, targets) = task.translator, task.examples
    answers, jobs = [], translator.jobs(sources, settings)
    for each in (translator.own_engine, engine):
        with task.display.task(f"translating with {each.name}", len(sources)) as progress:
            answers.append([found[0] for found in each.search(jobs, settings, progress)])
    ours, theirs = answers
    share = sum(a.tokens == b.tokens for a, b in zip(ours, theirs, strict=True)) / len(sources)
    line = f"with the folder's search settings: {share:.2%} of translations equal"
    record: dict[str, Any] = {"equal_as_set": share}
    if targets is not None:
        decode = translator.tokenizers.target.decode
        references = [decode(target) for target in targets]
        tokenize = tokenizer_for(translator.config.data.target, references)
        scores = [bleu([decode(h.tokens) for h in side], references, tokenize=tokenize) for side in answers]
        record |= {"bleu_torch": scores[0], "bleu": scores[1]}
        line += f"; BLEU {scores[1]:.2f}, torch {scores[0]:.2f}"
    task.display.say(line)
    return record


def _to_huggingface(task: Task, place: Path) -> dict[str, Any]:
    translator, sources = task.translator, task.examples.sources
    huggingface.write(translator, place)
    try:
        import transformers
    except ImportError:
        task.display.say("not verified: transformers is not installed; pip install transformers, and export again")
        return {"verified": []}
    huggingface.check_tokenizer(place, translator, sources)

    def theirs(jobs: Sequence[Job], settings: SearchConfig) -> Answers:
        return huggingface.generate(place, jobs, settings)

    agreements = []
    for settings in searches(translator.config.search):
        agreements.append(verify(translator, sources, settings, theirs))
        task.display.say(f"verified {agreements[-1]}")
    demand(agreements, "huggingface")
    return {
        "transformers": transformers.__version__,
        "verified": [agreement._asdict() for agreement in agreements],
    }


def _to_onnx(task: Task, place: Path) -> dict[str, Any]:
    translator, sources = task.translator, task.examples.sources
    onnx.write(translator.model, place)
    translator.tokenizers.save(place)

    def theirs(jobs: Sequence[Job], settings: SearchConfig) -> Answers:
        return onnx.greedy(place, jobs, settings, translator.never_written)

    agreement = verify(translator, sources, searches(translator.config.search)[0], theirs)
    task.display.say(f"verified {agreement}")
    demand([agreement], "onnx")
    return {"onnxruntime": version("onnxruntime"), "verified": [agreement._asdict()]}


FORMATS: dict[str, Write] = {
    "ctranslate2": _to_ctranslate2,
    "huggingface": _to_huggingface,
    "onnx": _to_onnx,
}
