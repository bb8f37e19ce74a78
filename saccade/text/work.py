"""The lines of a file, translated as a command was told to: here, or on another machine."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from saccade.errors import SaccadeError
from saccade.files import digest
from saccade.folder import CONFIG, WEIGHTS, load
from saccade.generation.columns import Columns
from saccade.generation.rerank import Judge
from saccade.text.glossary import Glossary
from saccade.text.pipeline import Pipeline
from saccade.training.memory import is_out_of_memory
from saccade.translation import Translation

if TYPE_CHECKING:
    from saccade.generation.ensemble import Mean

Task = tuple[int, Sequence[str]]  # how many lines come before, and some lines


class Written(NamedTuple):
    """What is written for a line of the source, and what was noted on the way."""

    text: str
    notes: list[str]


@dataclass(frozen=True)
class TranslationWork:
    """Folders and settings: all that a translation depends on."""

    folders: tuple[str, ...]
    device: str | None = None
    mean: "Mean" = "probabilities"
    engine: str = "auto"
    rerank: tuple[str, float, bool] | None = None  # a folder, its weight, and whether it translates back
    glossary: str | None = None
    columns: Columns = field(default_factory=Columns)
    search: dict[str, Any] = field(default_factory=dict)

    def open(self) -> "Opened":
        """Load the models."""
        return Opened(self)

    def told(self, source: str) -> dict[str, Any]:
        """What the lines made of `source` depend on, whatever machine and engine writes them, as the user calls it.

        What stands in no file, as what comes through a pipe, is known by its name alone.
        """
        read = [Path(source)] if Path(source).is_file() else []  # one that is not there is refused where it is read
        for folder in (*self.folders, *(self.rerank or ())[:1]):
            read += [Path(folder) / part for part in (CONFIG, WEIGHTS)]
        read += [Path(self.glossary)] if self.glossary else []
        words = Path(self.search.get("shortlist") or "")
        read += [words] if words.is_file() else []  # one that is not is refused where it is read
        contents = {f"contents of {path}": digest(path) for path in read}
        how = {"mean": self.mean, "rerank": self.rerank, "glossary": self.glossary} | self.columns._asdict()
        return {"input": source, "folders": self.folders, **how, **self.search, **contents}


class Opened:
    """A translation that is ready for lines."""

    def __init__(self, work: TranslationWork) -> None:
        folders = list(work.folders)
        translator = load(folders if len(folders) > 1 else folders[0], work.device, mean=work.mean, engine=work.engine)
        judges = []
        if work.rerank is not None:
            folder, weight, reverse = work.rerank
            judges = [Judge(load(folder, work.device), weight, reverse)]
        self.note = translator.engine_note(**work.search) if work.engine == "auto" else None
        self._columns = work.columns
        self._numbered = bool(work.search.get("n_best"))
        glossary = Glossary.read(work.glossary) if work.glossary else None
        self._pipeline = Pipeline(translator, glossary, judges, **work.search)

    def __call__(self, task: Task) -> list[Written]:
        return list(self.stream(task))

    def stream(self, task: Task, progress: Callable[[int], None] | None = None) -> Iterator[Written]:
        """What is written for each line, in their order, each as soon as it is ready."""
        before, lines = task
        sources, told = self._columns.read(lines, first=before + 1)
        translations = self._pipeline.stream(sources, progress, before + 1, scored=self._numbered, **told)
        for number, translation in enumerate(self._fitting(translations), start=before):
            if self._numbered:
                found = translation.n_best or [translation]
                text = "".join(f"{number} ||| {best.text} ||| {best.score:.4f}\n" for best in found)
            else:
                text = (translation.n_best or [translation])[0].text + "\n"
            yield Written(text, translation.notes)

    def _fitting(self, translations: Iterator[Translation]) -> Iterator[Translation]:
        try:
            yield from translations
        except (RuntimeError, MemoryError) as error:
            if not is_out_of_memory(error):
                raise
            now = self._pipeline.settings
            raise SaccadeError(
                f"memory: the search does not fit; lower search.beam (now {now.beam:,}), or search.batch_tokens (now "
                f"{now.batch_tokens:,}) in the folder's config.yaml, or split long lines with --split always"
            ) from error
