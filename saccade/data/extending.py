"""A vocabulary that grows: new pieces behind the old ones, which keep their ids, and old text keeps its pieces.

Two things can be added. *Terms* are words that are one piece and never split, whatever stands in them: a tag such as
`<BT>`, a product's name. *Learned pieces* are what the old pieces of a new corpus most often form together.

In byte-pair encoding the new merges stand behind all old ones. A merge is done only when no earlier one can be, and a
new piece is in no old merge, so the old merges are done as if there were no others: wherever the new vocabulary writes
a new piece, the old one writes the pieces that it is made of (`origins`), and every other piece stays what it was.
"""

import heapq
import json
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from itertools import pairwise

from saccade.config import TokenizerConfig
from saccade.data.tokenizers import LONGEST_PIECE, RUNS, Tokenizer, Tokenizers, letters_of, spelled
from saccade.data.unigram import MOST_WORDS
from saccade.errors import SaccadeError

Lines = Callable[[], Iterable[str]]
Merge = tuple[int, int]

GROWS = ("bpe", "words", "characters")
FEWEST = 2  # times that a piece must come up, as when a vocabulary is learned


def extend(
    tokenizers: Tokenizers, settings: TokenizerConfig, sources: Lines, targets: Lines
) -> tuple[Tokenizers, str | None]:
    """Both vocabularies with `settings.terms` and `settings.new_pieces` from the corpus; and what was done."""
    if not settings.terms and not settings.new_pieces:
        return tokenizers, None

    def grown(tokenizer: Tokenizer, *sides: Lines) -> Tokenizer:
        lines = (line for side in sides for line in side())
        return learn_pieces(with_terms(tokenizer, settings.terms), lines, settings.new_pieces)

    if tokenizers.joint:
        one = grown(tokenizers.source, sources, targets)
        made = Tokenizers(one, one)
    else:
        made = Tokenizers(grown(tokenizers.source, sources), grown(tokenizers.target, targets))
    counts = [new.size - old.size for old, new in zip(tokenizers, made, strict=True)]
    said = f"{counts[0]:,}" if made.joint else f"{counts[0]:,} + {counts[1]:,}"
    return made, f"vocabulary: {said} new pieces behind the {tokenizers.target.size:,} old ones"


def with_terms(tokenizer: Tokenizer, terms: Sequence[str]) -> Tokenizer:
    """The tokenizer with each term as one piece where it stands as a word, at the beginning or behind a space.

    A text without any of the terms is cut as before.
    """
    terms = [term for term in dict.fromkeys(terms) if term not in tokenizer.terms]
    for term in terms:
        if not term or term.split() != [term]:
            raise SaccadeError(f"tokenizer.terms: {term!r} is not one word; give words without white space")
    if not terms:
        return tokenizer
    if tokenizer.kind == "bytes":
        raise SaccadeError(
            f"tokenizer.terms={terms}: tokenizer.kind=bytes has no pieces but bytes; use characters, words or bpe"
        )
    file = json.loads(tokenizer.to_json())
    before = " " if tokenizer.begins_with_space else ""
    pieces = [letters_of(before + term) for term in terms]
    new = [piece for piece in pieces if tokenizer.id_of(piece) is None]
    if tokenizer.kind == "unigram":
        for term, piece in zip(terms, pieces, strict=True):
            if piece in new and len(tokenizer.runs(before + term)) == 1:  # the likeliest cut of longer words may use it
                raise SaccadeError(
                    f"tokenizer.terms: {term!r} may stand inside other words, which a unigram vocabulary would then "
                    "cut otherwise than before; use tokenizer.kind=bpe, or terms of letters and signs, such as <BT>"
                )
        file["model"]["vocab"] += [[piece, 0.0] for piece in new]
    else:
        if tokenizer.kind == "bpe" and not file["model"]["ignore_merges"]:
            _check_whole(tokenizer, file["model"]["vocab"])
        file["model"]["ignore_merges"] = True  # a run that is a piece is that piece: how a term is found
        _number(file["model"]["vocab"], new)
    split = file["pre_tokenizer"]["pretokenizers"][0]["pattern"]
    split["Regex"] = spelled([*tokenizer.terms, *terms], before) + RUNS[tokenizer.kind]
    return Tokenizer.of_json(json.dumps(file))


def _check_whole(tokenizer: Tokenizer, vocabulary: dict[str, int]) -> None:
    """Looking runs up before merging them must change nothing: each piece has to be what its own merges give."""
    odd = [piece for piece, id in vocabulary.items() if id > 3 and tokenizer.merged(piece) != [id]]
    if odd:
        raise SaccadeError(
            f"tokenizer.terms: the vocabulary has {len(odd)} pieces that its merges never give (such as {odd[0]!r}), "
            "so a term would change how old text is cut; train a folder with the terms from the beginning"
        )


def learn_pieces(tokenizer: Tokenizer, lines: Iterable[str], count: int) -> Tokenizer:
    """The tokenizer with at most `count` pieces more, those that come up most in `lines`."""
    if not count:
        return tokenizer
    if tokenizer.kind not in GROWS:
        raise SaccadeError(
            f"tokenizer.new_pieces={count}: a vocabulary of kind {tokenizer.kind} cannot grow; only {', '.join(GROWS)} "
            "can. List tokenizer.terms, or leave it out"
        )
    words: Counter[str] = Counter()
    for line in lines:
        words.update(line.split(" "))
    before = " " if tokenizer.begins_with_space else ""
    runs: Counter[str] = Counter()
    for word, times in words.most_common(MOST_WORDS):
        for run in tokenizer.runs(before + word):
            runs[run] += times
    file = json.loads(tokenizer.to_json())
    if tokenizer.kind == "bpe":
        merges = _learn_merges(runs, tokenizer, count)
        names = tokenizer.symbols
        for left, right in merges:
            file["model"]["merges"].append([names[left], names[right]])
            names.append(names[left] + names[right])
        _number(file["model"]["vocab"], names[tokenizer.size :])
    else:
        unknown = [run for run, times in runs.most_common() if times >= FEWEST and tokenizer.id_of(run) is None]
        _number(file["model"]["vocab"], unknown[:count])
    return Tokenizer.of_json(json.dumps(file))


def origins(old: Tokenizer, new: Tokenizer) -> list[list[int]]:
    """For each piece that `new` has and `old` has not, the old pieces that stood where it stands."""
    if not begins_with(new, old):
        raise SaccadeError("the new vocabulary does not begin with the old one; extend the one that the model has")
    letters = new.symbols[old.size :]
    before = " " if new.begins_with_space else ""
    terms = {letters_of(before + term): term for term in new.terms}
    return [old.encode(terms[piece]) if piece in terms else old.merged(piece) for piece in letters]


def begins_with(new: Tokenizer, old: Tokenizer) -> bool:
    """Whether the first pieces of `new` are those of `old`."""
    return new.symbols[: old.size] == old.symbols


def _number(vocabulary: dict[str, int], pieces: Sequence[str]) -> None:
    vocabulary |= {piece: id for id, piece in enumerate(pieces, start=len(vocabulary))}


def _learn_merges(runs: Counter[str], tokenizer: Tokenizer, count: int) -> list[Merge]:
    """Byte-pair encoding (Sennrich et al. 2016, algorithm 1) that begins with old pieces rather than with letters.

    The id of the k-th merge is `tokenizer.size + k`. A pair is left alone if its text is a piece already (the old
    merges had a reason not to make it there), or if by itself it would be cut otherwise.
    """
    words = [tokenizer.merged(run) for run in runs]
    times = list(runs.values())
    names, made_of = tokenizer.symbols, [[id] for id in range(tokenizer.size)]
    known = set(names)
    counts: Counter[Merge] = Counter()
    places: defaultdict[Merge, set[int]] = defaultdict(set)
    for number, ids in enumerate(words):
        for pair in pairwise(ids):
            counts[pair] += times[number]
            places[pair].add(number)
    queue = [(-total, pair) for pair, total in counts.items()]
    heapq.heapify(queue)
    merges: list[Merge] = []
    while queue and len(merges) < count:
        total, pair = heapq.heappop(queue)
        if -total != counts[pair] or -total < FEWEST:  # what was counted before a merge took some of it away
            continue
        text, parts = names[pair[0]] + names[pair[1]], made_of[pair[0]] + made_of[pair[1]]
        if text in known or len(text) > LONGEST_PIECE or tokenizer.merged(text) != parts:
            continue
        merges.append(pair)
        names.append(text)
        made_of.append(parts)
        known.add(text)
        changed: set[Merge] = set()
        for number in places.pop(pair):
            before = words[number]
            after = words[number] = _merged(before, pair, len(names) - 1)
            for ids, sign in ((before, -1), (after, 1)):
                for other in pairwise(ids):
                    counts[other] += sign * times[number]
                    changed.add(other)
                    if sign > 0:
                        places[other].add(number)
        for other in sorted(changed):
            if counts[other] > 0:
                heapq.heappush(queue, (-counts[other], other))
    return merges


def _merged(ids: list[int], pair: Merge, into: int) -> list[int]:
    made: list[int] = []
    place = 0
    while place < len(ids):
        if tuple(ids[place : place + 2]) == pair:
            made.append(into)
            place += 2
        else:
            made.append(ids[place])
            place += 1
    return made
