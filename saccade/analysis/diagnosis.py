"""What a folder does well and badly on some pairs, in numbers: `saccade report` puts them on a page."""

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from saccade.alignment.align import Aligner, Held, attention_readers
from saccade.analysis.flags import Looks, looks_of, repeated
from saccade.display import Display
from saccade.evaluation.metrics import score_corpus, tokenizer_for
from saccade.folder import LOG, load
from saccade.summary import summarise
from saccade.translator import Translator

LENGTHS = (5, 10, 15, 20, 30, 40)  # words of the source: where one group ends and the next begins
FREQUENCIES = (0, 1, 4, 9, 99, 999)  # times that a word came up
POSITIONS = 6
FACTS = ("languages", "model", "parameters", "data", "training")
LOGGED = {"training loss": "loss", "validation loss": "valid_loss", "validation BLEU": "valid_bleu"}


class Group(NamedTuple):
    """A score for a part of the data."""

    name: str
    score: float | None  # None: there is nothing in it
    size: int  # sentences or words


@dataclass(frozen=True)
class Sentence:
    """A pair as the model translated it."""

    number: int  # from 1
    source: str
    reference: str
    translation: str
    score: float  # chrF
    repeats: str | None  # what is said again and again
    looks: Looks | None
    links: list[tuple[int, int, float]]  # source word, target word, how sure

    @property
    def flags(self) -> list[str]:
        found = [f"repeats “{self.repeats}”"] if self.repeats else []
        return found + (self.looks.flags if self.looks is not None else [])


@dataclass(frozen=True)
class Diagnosis:
    """One folder."""

    name: str
    facts: dict[str, str]
    scores: list[dict[str, Any]]
    curve: dict[str, list[tuple[float, float]]]  # training and validation loss, validation BLEU by step
    by_length: list[Group]
    by_frequency: list[Group]
    by_position: list[Group]
    by_score: list[Group]  # how many sentences have such a chrF
    sentences: list[Sentence]
    attends: bool

    def flagged(self) -> dict[str, list[Sentence]]:
        """Sentences in trouble, the worst first."""
        looked = [each for each in self.sentences if each.looks is not None]
        return {
            "repetition": [each for each in self.sentences if each.repeats],
            "under-translation": sorted((e for e in looked if e.looks.under), key=lambda e: -e.looks.ignored),  # type: ignore[union-attr]
            "detached attention": sorted((e for e in looked if e.looks.detached), key=lambda e: -e.looks.at_end),  # type: ignore[union-attr]
        }

    def to_dict(self) -> dict[str, Any]:
        facts = asdict(self)
        for name in ("by_length", "by_frequency", "by_position", "by_score"):
            facts[name] = [group._asdict() for group in getattr(self, name)]
        for written, sentence in zip(facts["sentences"], self.sentences, strict=True):
            written["looks"] = None if sentence.looks is None else sentence.looks._asdict()
            written["flags"] = sentence.flags
        return facts


def diagnose(
    folder: Path,
    sources: Sequence[str],
    references: Sequence[str],
    counts: Counter[str],
    device: str | None,
    display: Display,
) -> Diagnosis:
    """Translate, and look at what came of it; `counts`: how often words came up in training."""
    translator = load(folder, device, engine="torch")
    with display.task(f"translating with {folder}", len(sources)) as progress:
        translations = [found.text for found in translator.stream(sources, progress)]
    tokenize = tokenizer_for(translator.config.data.target, references)
    scores = score_corpus(translations, references, metrics=("bleu", "chrf"), tokenize=tokenize)
    facts = summarise(folder)
    sentences = _sentences(translator, sources, references, translations, display)
    return Diagnosis(
        name=str(folder),
        facts={
            name: str(facts[name]) for name in ("languages", "model", "parameters", "data", "training") if name in facts
        },
        scores=[score.to_dict() for score in scores],
        curve=learning_curve(folder / LOG),
        by_length=by_length(sources, references, translations),
        by_frequency=by_frequency(references, translations, counts),
        by_position=by_position(references, translations),
        by_score=by_score([sentence.score for sentence in sentences]),
        sentences=sentences,
        attends=translator.model.attends,
    )


def _sentences(
    translator: Translator,
    sources: Sequence[str],
    references: Sequence[str],
    translations: Sequence[str],
    display: Display,
) -> list[Sentence]:
    links: list[list[tuple[int, int, float]]] = [[] for _ in sources]
    looks: list[Looks | None] = [None] * len(sources)
    if translator.model.attends and any(s.strip() and t.strip() for s, t in zip(sources, translations, strict=True)):
        reader, _ = attention_readers(translator, None, Held(sources, translations), display)
        aligned = Aligner(reader).align(sources, translations)
        links = [[(*link, round(p, 3)) for link, p in zip(*each, strict=True)] for each in aligned]
        looks = looks_of(translator, sources, translations)
    return [
        Sentence(number, source, reference, text, _chrf(text, reference), repeated(text, source), look, link)
        for number, (source, reference, text, look, link) in enumerate(
            zip(sources, references, translations, looks, links, strict=True), start=1
        )
    ]


def _chrf(text: str, reference: str) -> float:
    from sacrebleu.metrics import CHRF

    return float(CHRF().sentence_score(text, [reference]).score)


def learning_curve(log: Path) -> dict[str, list[tuple[float, float]]]:
    """What the log says, by step; empty where there is none."""
    curve: dict[str, list[tuple[float, float]]] = {name: [] for name in LOGGED}
    if not log.exists():
        return curve
    for line in log.read_text(encoding="utf-8").splitlines():
        entry = json.loads(line)
        for name, key in (
            ("training loss", "loss"),
            ("validation loss", "valid_loss"),
            ("validation BLEU", "valid_bleu"),
        ):
            if entry.get(key) is not None:
                curve[name].append((entry["step"], entry[key]))
    return curve


def by_length(sources: Sequence[str], references: Sequence[str], translations: Sequence[str]) -> list[Group]:
    """chrF of the sentences of each length."""
    lengths = np.array([len(source.split()) for source in sources])
    groups, first = [], 1
    for last in (*LENGTHS, None):
        chosen = np.flatnonzero((lengths >= first) & (lengths <= (last or np.inf))).tolist()
        name = f"{first}–{last}" if last else f"{first}+"
        score = None
        if len(chosen):
            texts = [[side[i] for i in chosen] for side in (translations, references)]
            score = score_corpus(texts[0], texts[1], metrics=("chrf",))[0].value
        groups.append(Group(name, score, len(chosen)))
        first = (last or 0) + 1
    return _trimmed(groups)


def by_frequency(references: Sequence[str], translations: Sequence[str], counts: Counter[str]) -> list[Group]:
    """F1 of the words of each frequency, matched within sentences, in percent."""
    edges = (*FREQUENCIES, None)
    matched, found, wanted = (np.zeros(len(edges)) for _ in range(3))
    for reference, text in zip(references, translations, strict=True):
        one, other = Counter(reference.split()), Counter(text.split())
        for word in one | other:
            group = next(i for i, last in enumerate(edges) if last is None or counts[word] <= last)
            wanted[group] += one[word]
            found[group] += other[word]
            matched[group] += min(one[word], other[word])
    groups, first = [], 0
    for i, last in enumerate(edges):
        name = f"{first}+" if last is None else str(last) if first == last else f"{first}–{last}"
        total = found[i] + wanted[i]
        groups.append(Group(name, float(200 * matched[i] / total) if total else None, int(wanted[i])))
        first = (last or 0) + 1
    return _trimmed(groups)


def by_position(references: Sequence[str], translations: Sequence[str]) -> list[Group]:
    """The share of the references' words that are found, by where they stand in their sentence, in percent."""
    found, wanted = np.zeros(POSITIONS), np.zeros(POSITIONS)
    for reference, text in zip(references, translations, strict=True):
        words, left = reference.split(), Counter(text.split())
        for place, word in enumerate(words):
            part = place * POSITIONS // len(words)
            wanted[part] += 1
            if left[word] > 0:
                left[word] -= 1
                found[part] += 1
    share = 100 / POSITIONS
    return [
        Group(f"{round(i * share)}–{round((i + 1) * share)}%", float(100 * f / w) if w else None, int(w))
        for i, (f, w) in enumerate(zip(found, wanted, strict=True))
    ]


def by_score(scores: Sequence[float]) -> list[Group]:
    """The share of the sentences in each tenth of the scale, in percent."""
    tenth = np.minimum(np.array(scores) // 10, 9)
    counts = [int((tenth == i).sum()) for i in range(10)]
    return [Group(f"{10 * i}+", 100 * n / max(1, len(scores)), n) for i, n in enumerate(counts)]


def _trimmed(groups: list[Group]) -> list[Group]:
    """Without empty groups at the end."""
    while groups and not groups[-1].size:
        groups = groups[:-1]
    return groups
