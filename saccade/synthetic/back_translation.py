"""Back-translation (Sennrich et al. 2016): text of the target language, with sources that a reverse model writes."""

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from saccade.config import CleaningConfig
from saccade.data.corpora import Corpus, expanded, open_corpora
from saccade.data.pairs import Pair
from saccade.display import Display
from saccade.errors import SaccadeError
from saccade.files import alone
from saccade.folder import WEIGHTS
from saccade.synthetic.files import names_of
from saccade.synthetic.job import Made, Make, file_mark, load_writer, run_job
from saccade.text.pipeline import Pipeline

TAG = "<BT>"


def back_translate(
    reverse: str | Path | Sequence[str | Path],
    files: Sequence[str],
    out: str | Path,
    *,
    tag: str = TAG,
    clean: bool = True,
    device: str | None = "cpu",
    engine: str = "auto",
    display: Display | None = None,
    **search: Any,
) -> Made:
    """Write lines of text as targets, with what the reverse folder makes of them as sources.

    The model that learns from them always sees true text on its target side. A `tag` before each source (Caswell et al.
    2019) tells it that what follows was written by a machine; to be one piece it must be among `tokenizer.terms`. No
    tag: an empty one. Sampling (`method="sample"`, with `top_k` or without) writes more varied sources than a beam
    (Edunov et al. 2018); other keywords, too, are settings of the search.
    """
    if tag and tag.split() != [tag]:
        raise SaccadeError(f"--tag {tag!r}: is not one word; choose one without white space, such as {TAG}")
    translator = load_writer(reverse, device, engine)
    folders = [reverse] if isinstance(reverse, str | Path) else list(reverse)
    mark = {
        "reverse": [file_mark(Path(folder) / WEIGHTS) for folder in folders],
        "text": [file_mark(file) for file in expanded(files, monolingual=True)],
        "tag": tag,
        "clean": clean,
        "search": search,
    }
    data = translator.config.data
    corpora: list[Corpus] = open_corpora(files, monolingual=True)
    with alone(out, "choose another --out"):
        return run_job(
            corpora,
            _write_sources(Pipeline(translator, **search)),
            names_of(Path(out), data.target, data.source),
            Path(out),
            mark,
            what="back-translating",
            cleaning=CleaningConfig(enabled=clean, drop_duplicates=False),
            prefix=f"{tag} " if tag else "",
            display=display or Display(),
        )


def _write_sources(pipeline: Pipeline) -> Make:
    def make(pairs: Sequence[Pair], progress: Callable[[int], None]) -> Iterator[Pair]:
        found = pipeline.stream([pair.target for pair in pairs], progress, first=pairs[0].line, scored=False)
        for pair, translation in zip(pairs, found, strict=True):
            yield Pair(translation.text, pair.target, pair.line)

    return make
