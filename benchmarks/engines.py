"""Text in, text out: `saccade translate` with its engines, beside CTranslate2 called directly on the same export.

    python -m benchmarks.engines runs/model --input test.en --threads 2

The folder must hold an export (`saccade export runs/model --to ctranslate2`). Called directly means what its user would
write: tokenizer.json through the `tokenizers` library, all sentences in one call that sorts and batches them, text from
the library again. It searches as the engine does: the same beam, patience and number of hypotheses.
"""

import argparse
import itertools
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import ctranslate2
import torch
from tokenizers import Tokenizer

from benchmarks.common import Foreign, in_turns, report
from saccade.data.corpora import read_lines
from saccade.engines.choose import EXPORT
from saccade.engines.ctranslate2 import BATCH_TOKENS, Effort
from saccade.folder import load
from saccade.translator import Translator

OURS = "saccade, CTranslate2"


def direct(folder: Path, texts: list[str], beam: int, effort: Effort, threads: int) -> Callable[[], list[str]]:
    """CTranslate2 without us."""
    place = folder / EXPORT
    joint = place / "tokenizer.json"
    source = Tokenizer.from_file(str(joint if joint.exists() else place / "tokenizer.source.json"))
    target = Tokenizer.from_file(str(joint if joint.exists() else place / "tokenizer.target.json"))
    translator = ctranslate2.Translator(str(place), device="cpu", inter_threads=threads, intra_threads=1)

    def run() -> list[str]:
        tokens = [encoding.tokens for encoding in source.encode_batch(texts)]
        results = translator.translate_batch(
            tokens,
            max_batch_size=BATCH_TOKENS,
            batch_type="tokens",
            beam_size=beam,
            patience=effort.patience,
            num_hypotheses=effort.hypotheses,
            length_penalty=effort.divided,
            disable_unk=True,
            return_scores=True,
        )
        ids = [[target.token_to_id(token) for token in result.hypotheses[0]] for result in results]
        return target.decode_batch(ids)

    return run


def texts_of(translator: Translator, texts: list[str], **how: Any) -> list[str]:
    return [found.text for found in translator.stream(texts, **how)]


def counted(run: Callable[[], list[str]], tokens: int) -> int:
    run()
    return tokens


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--input", required=True)
    parser.add_argument("--sentences", type=int, default=1000)
    parser.add_argument("--beams", type=int, nargs="+", default=[1, 5])
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--without-torch", action="store_true", help="leave out our own engine, which is slower")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    lines = [line for line in read_lines(arguments.input) if line.strip()]
    texts = list(itertools.islice(itertools.cycle(lines), arguments.sentences))
    ours = load(arguments.folder, "cpu", engine="ctranslate2")
    own = load(arguments.folder, "cpu", engine="torch")
    ways = [(size, rule) for size in arguments.beams for rule in (("safe", "beam") if size > 1 else ("safe",))]
    for beam, stopping in ways:
        search = {"beam": beam, "early_stopping": stopping}
        plain = direct(arguments.folder, texts, beam, Effort.of(ours.settings_for(**search)), arguments.threads)

        runs: dict[str, Callable[[], list[str]]] = {
            OURS: partial(texts_of, ours, texts, scored=False, **search),
            "… with scores": partial(texts_of, ours, texts, **search),
            "CTranslate2 called directly": plain,
        }
        if not arguments.without_torch:
            runs["saccade, torch"] = partial(texts_of, own, texts, **search)
        said = {name: run() for name, run in runs.items()}
        tokens = sum(map(len, own.tokenizers.target.encode_batch(said[OURS])))
        for name, made in said.items():
            same = sum(a == b for a, b in zip(made, said[OURS], strict=True)) / len(made)
            print(f"{name}: {same:.2%} of the sentences as ours")
        foreign = Foreign()
        rates = in_turns({name: partial(counted, run, tokens) for name, run in runs.items()}, arguments.rounds)
        title = f"beam {beam}, early_stopping={stopping}, {len(texts):,} sentences"
        report(title, rates, OURS, "tokens/s", foreign.share())


if __name__ == "__main__":
    main()
