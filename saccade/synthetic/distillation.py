"""Sequence-level knowledge distillation (Kim & Rush 2016): a student learns what a teacher writes."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from saccade.config import CleaningConfig
from saccade.data.corpora import TargetCorpus, expanded, is_text, open_corpora
from saccade.data.lines import STANDARD_INPUT, check_readable
from saccade.data.pairs import Corpus, Pair
from saccade.display import Display
from saccade.errors import SaccadeError
from saccade.files import alone
from saccade.folder import WEIGHTS
from saccade.synthetic.files import names_of
from saccade.synthetic.job import Made, Make, file_mark, load_writer, run_job
from saccade.text.pipeline import Pipeline
from saccade.translator import Translation, Translator

Likeness = Literal["chrf", "bleu"]


@dataclass(frozen=True)
class SourceCorpus:
    """One text file of sources, for which there are no references."""

    corpus: TargetCorpus

    @property
    def name(self) -> str:
        return self.corpus.name

    @property
    def path(self) -> str:
        return self.corpus.path

    def __iter__(self) -> Iterator[Pair]:
        return (Pair(line, "", number) for _, line, number in self.corpus)


def distill(
    teacher: str | Path | Sequence[str | Path],
    files: Sequence[str],
    out: str | Path,
    *,
    interpolate: Likeness | None = None,
    least: float = 0.0,
    clean: bool = True,
    device: str | None = "cpu",
    engine: str = "auto",
    display: Display | None = None,
    **search: Any,
) -> Made:
    """Write the sources of a corpus with what the teacher makes of them, to be trained on.

    The student's loss is L = -log p(ŷ | x), where ŷ is the teacher's best translation by beam search, which stands for
    its whole distribution over sequences (Kim & Rush 2016, eq. 7 to 9). With `interpolate`, ŷ is the hypothesis of the
    beam that is most like the reference (their 3.4, sequence-level interpolation); `least`: pairs whose chosen
    translation is less like it than this, from 0 to 100, are left out.

    Several folders are an ensemble. One text file is sources alone. Other keywords are settings of the search.
    """
    display = display or Display()
    translator = load_writer(teacher, device, engine)
    corpora = _corpora(files, translator, needs_references=interpolate is not None or least > 0)
    folders = [teacher] if isinstance(teacher, str | Path) else list(teacher)
    source, target = translator.config.data.source, translator.config.data.target
    mark = {
        "teacher": [file_mark(Path(folder) / WEIGHTS) for folder in folders],
        "corpus": [file_mark(file) for file in expanded(files)],
        "interpolate": interpolate,
        "least": least,
        "clean": clean,
        "search": search,
    }
    with alone(out, "choose another --out"):
        return run_job(
            corpora,
            _teach(translator, interpolate, least, search),
            names_of(Path(out), source, target),
            Path(out),
            mark,
            what="distilling",
            cleaning=CleaningConfig(enabled=clean, drop_duplicates=False),
            prefix="",
            display=display,
        )


def _corpora(files: Sequence[str], translator: Translator, needs_references: bool) -> list[Corpus]:
    data = translator.config.data
    named = expanded(files)
    if len(files) == 1 and all(map(is_text, named)):
        if needs_references:
            raise SaccadeError(
                f"{files[0]}: has sources alone, and --interpolate and --least compare with references; give the "
                "target file too"
            )
        for file in named:
            check_readable(file)
        return [SourceCorpus(TargetCorpus(file)) for file in named]
    if not files:
        raise SaccadeError(f"no corpus to distil; name its files, or {STANDARD_INPUT} for TSV on standard input")
    return open_corpora(
        files,
        source=data.source,
        target=data.target,
        source_field=data.source_field,
        target_field=data.target_field,
    )


def _teach(translator: Translator, interpolate: Likeness | None, least: float, search: dict[str, Any]) -> Make:
    if interpolate is not None:
        beam = search.get("beam", translator.config.search.beam)
        search = {"n_best": beam} | search
    pipeline = Pipeline(translator, **search)
    like = likeness(interpolate or "chrf")

    def make(pairs: Sequence[Pair], progress: Callable[[int], None]) -> Iterator[Pair | None]:
        found = pipeline.stream([pair.source for pair in pairs], progress, first=pairs[0].line, scored=False)
        for pair, translation in zip(pairs, found, strict=True):
            best = _nearest(translation, pair.target, like) if interpolate is not None else translation.text
            if least and like(best, pair.target) < least:
                yield None
            else:
                yield Pair(pair.source, best, pair.line)

    return make


def _nearest(translation: Translation, reference: str, like: Callable[[str, str], float]) -> str:
    """Of the n best the one most like the reference; of equals the likelier."""
    texts = [one.text for one in translation.n_best] or [translation.text]
    return max(texts, key=lambda text: like(text, reference))


def likeness(metric: Likeness) -> Callable[[str, str], float]:
    """How like a reference a sentence is, from 0 to 100: sacrebleu's sentence scores."""
    from sacrebleu.metrics import BLEU, CHRF

    if metric not in ("chrf", "bleu"):
        raise SaccadeError(f"--interpolate {metric}: is not known; use chrf or bleu")
    judge: Any = CHRF() if metric == "chrf" else BLEU(effective_order=True)
    return lambda text, reference: float(judge.sentence_score(text, [reference]).score)
