"""Put into a translation what must be in it, at the place that the alignment says.

The translation is a row of *items* (units, with the white space before each). What is there already stays; what the
model made of a placeholder is replaced by it; what it invented goes; what is missing comes in at the gap g with the
fewest crossings

    cost(g) = Σ_{t<g} a(t, after) + Σ_{t≥g} a(t, before)

where a(t, ·) is the weight of item t on what stands after or before the placeholder in the source. A pair of tags takes
the run of items with the most weight inside it, Σ (a(t, inside) - a(t, outside)), within the run of the pair around it
and beside those of its siblings: so pairs stay nested whatever the weights are.
"""

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from saccade.text.alignment import Array, Piece, Range, units_of, weights_between
from saccade.text.glossary import occurrences, standing
from saccade.text.numbers import Found, survivors
from saccade.text.placeholders import BREAKS, EXACT, Protection, tag_of
from saccade.text.spans import UNSPACED, Span

_NO_SPACE_AFTER = re.compile(rf"[\s(\[{{<«„“‘¿¡/\-{UNSPACED}\u3000-\u303f\uff00-\uffef]")
_NO_SPACE_BEFORE = re.compile(rf"[\s)\]}}>»”’.,;:!?…/\-%{UNSPACED}\u3000-\u303f\uff00-\uffef]")
# Signs that placeholders are made of: a translation that keeps a placeholder from being read is freed of them.
_SIGNS = re.compile(r"[^\w\s.,;!?]|_")


class Marked(NamedTuple):
    """A line, what must come through, and the text to translate: the line without its tags."""

    line: str
    spans: list[Span]  # in the line
    plain: str
    words: list[Span]  # all but tags, in `plain`
    tags: list[Span]  # each at the place in `plain` where it was cut out, with no width
    told: tuple[str, ...] = ()  # phrases that the translation was told to hold, and how to begin
    begins: str = ""  # how it was told to begin

    @property
    def phrases(self) -> list[str]:
        """What must appear in the translation: for a search that takes such constraints."""
        return [span.wanted for span in self.words if span.kind != "numbers"]


@dataclass
class _Item:
    """A unit of the translation."""

    before: str  # white space
    text: str
    row: Array  # weights on the units of the source
    fixed: bool = False


@dataclass
class _Node:
    """A tag by itself, or a pair with what it holds; `start` and `end` are gaps between items."""

    opening: Span
    closing: Span | None = None
    children: list["_Node"] = field(default_factory=list)
    start: int = 0
    end: int = 0


def mark(line: str, protection: Protection) -> Marked:
    """Find what must come through and cut out the tags: a model has seldom seen one, and they are not words."""
    spans = protection.find(line)
    plain, position = "", 0
    words: list[Span] = []
    tags: list[Span] = []
    for span in spans:
        plain += line[position : span.start]
        position = span.end
        if span.kind != "tags":
            words.append(span.at(len(plain)))
            plain += span.text
            continue
        following = line[span.end : span.end + 1]
        if plain[-1:].isspace() and following.isspace():
            position += 1  # one space where there were two around it
        elif tag_of(span.text).name in BREAKS and plain[-1:].strip() and following.strip():
            plain += " "
        tags.append(span._replace(start=len(plain), end=len(plain)))
    return Marked(line, spans, plain + line[position:], words, tags)


def place(marked: Marked, text: str, pieces: Sequence[Piece], protection: Protection) -> tuple[str, list[str]]:
    """The translation with all that must be in it, and what was done, in words.

    Checked before it is given: where a neighbour keeps a placeholder from being read, it gets spaces, then the
    translation loses its signs, and at last the source itself is the answer.
    """
    attempts = ((text, pieces, False), (text, pieces, True), (_SIGNS.sub(" ", text), (), True))
    for written, aligned, spaced in attempts:
        placed, notes = _placed(marked, written, aligned, protection, spaced)
        if not protection.losses(marked.line, marked.spans, placed, marked.told):
            return placed, notes
    return source_itself(marked), ["the source was kept: its placeholders could not be put into the translation"]


def _placed(
    marked: Marked, text: str, pieces: Sequence[Piece], protection: Protection, spaced: bool
) -> tuple[str, list[str]]:
    settled = _settle(marked, text, protection)
    missing = [span for i, span in enumerate(marked.words) if i not in settled.found]
    if not missing and not settled.removed and not settled.tags and not spaced:
        return text, []
    sources = units_of(marked.plain, [(span.start, span.end) for span in marked.words])
    fixed = {kept: span for kept, span in settled.kept.items() if span is not None}
    targets = units_of(text, sorted({**settled.kept, **settled.removed}))
    weights, attended = weights_between(pieces, targets, sources)
    items = _items(text, targets, weights, settled, sources, fixed)
    begun = int(settled.begun)  # before the first item, which is how the translation was told to begin, comes nothing
    notes = [
        f"removed {text[start:end]!r}" for start, end in sorted(settled.removed) if not settled.removed[start, end]
    ]
    for (start, end), span in sorted(settled.removed.items()):
        if span is not None:
            notes.append(f"{text[start:end]!r} became {span.wanted!r}")
    for span in missing:
        if span in settled.removed.values():
            continue
        notes.append(_put_in(items, span, sources, attended, begun))
    if spaced:
        for left, item in zip([None, *items[:-1]], items, strict=True):
            if left is not None and (left.fixed or item.fixed):
                item.before = item.before or " "
    roots = _tree(settled.tags)
    _lay_out(roots, begun, len(items), items, sources)
    if roots:
        notes.append(f"placed {len(settled.tags)} tags")
    return _rendered(items, roots, marked), notes


class _Settled(NamedTuple):
    """What of a translation stays and what goes."""

    found: set[int]  # numbers of the words that are there
    kept: dict[Range, Span | None]  # ranges not to touch, and the word each is for
    removed: dict[Range, Span | None]  # ranges to take out, and the word to put there instead
    tags: list[Span]  # those of the line that are not written yet
    begun: bool  # as it was told to begin


def _settle(marked: Marked, text: str, protection: Protection) -> _Settled:
    found: set[int] = set()
    written = protection.exact(text)
    phrases = standing(
        marked.told, text, [(span.start, span.end) for span in written]
    )  # no word of them is replaced, and no tag stands within them
    kept: dict[Range, Span | None] = dict.fromkeys(phrases)
    invented: list[Span] = []
    indent = len(text) - len(text.lstrip())
    begun = bool(marked.begins) and text.startswith(marked.begins, indent)
    tags = list(marked.tags)
    exact = [i for i, span in enumerate(marked.words) if span.kind in EXACT]
    # A term that is part of a glossary's translation is right where it stands.
    allowed = Counter(
        inner.text for span in marked.words if span.kind == "glossary" for inner in protection.exact(span.wanted)
    )
    for span in written:
        match = next((i for i in exact if i not in found and marked.words[i].text == span.text), None)
        within = any(span.start < end and start < span.end for start, end in phrases)
        if match is not None:
            found.add(match)
        if within:
            same = [tag for tag in tags if tag.text == span.text]
            if same and begun and span.start < indent + len(marked.begins):
                tags.remove(same[0])
            continue
        if match is not None:
            kept[span.start, span.end] = marked.words[match]
        elif allowed[span.text]:
            allowed[span.text] -= 1
        else:
            invented.append(span)
    removed: dict[Range, Span | None] = {}
    waiting = [marked.words[i] for i in exact if i not in found]
    for span in invented:
        # What the model made of a variable looks like one.
        instead = next((other for other in waiting if other.kind == span.kind), None)
        if instead is not None:
            waiting.remove(instead)
        removed[span.start, span.end] = instead
    for i, span in enumerate(marked.words):
        if span.kind == "glossary":
            taken = [*(place for place in kept if place not in phrases), *removed]
            for start, end in occurrences(span.wanted, text):
                if not any(start < e and s < end for s, e in taken):
                    found.add(i)
                    if not any(start < e and s < end for s, e in phrases):
                        kept[start, end] = span
                    break
    numbers = [i for i, span in enumerate(marked.words) if span.kind == "numbers"]
    if numbers:
        places = survivors(
            marked.plain,
            [Found(marked.words[i].start, marked.words[i].end) for i in numbers],
            text,
            protection.language,
            [*(place for place, span in kept.items() if span and span.kind != "glossary"), *removed],
        )
        for i, there in zip(numbers, places, strict=True):
            if there is not None:
                found.add(i)
                if not any(there.start < end and start < there.end for start, end in kept):
                    kept[there.start, there.end] = marked.words[i]
    return _Settled(found, kept, removed, tags, begun)


def _items(
    text: str,
    targets: Sequence[Range],
    weights: Array,
    settled: _Settled,
    sources: Sequence[Range],
    fixed: dict[Range, Span],
) -> list[_Item]:
    items: list[_Item] = []
    position = 0
    owed = ""  # white space before something that was taken out
    for unit, row in zip(targets, weights, strict=True):
        before = text[position : unit[0]]
        if not before and items and _needs_space(items[-1].text, text[slice(*unit)]):
            before = owed
        position, owed = unit[1], ""
        if unit in settled.removed:
            span = settled.removed[unit]
            if span is None:
                owed = before
                continue
            items.append(_Item(before, span.wanted, _one_hot(span, sources), fixed=True))
        else:
            known = fixed.get(unit)
            its = row if known is None or row.any() else _one_hot(known, sources)
            items.append(_Item(before, text[slice(*unit)], its, fixed=unit in settled.kept))
    if items:
        items[0].before = text[: len(text) - len(text.lstrip())]
    return items


def _put_in(items: list[_Item], span: Span, sources: Sequence[Range], attended: bool, low: int) -> str:
    """Put a word that is missing in the place of what was written for it, or at the gap, from `low` on, with the fewest
    crossings."""
    first, last = _covered(span, sources)
    new = _Item("", span.wanted, _one_hot(span, sources), fixed=True)
    gains = [-np.inf if item.fixed else 2 * item.row[first:last].sum() - 1 for item in items]
    run = _best_run(gains, 0, len(items)) if attended else None
    if run and sum(gains[slice(*run)]) > 0 and sum(len(i.text) for i in items[slice(*run)]) <= 2 * len(span.text) + 8:
        start, end = run
        new.before = items[start].before
        old = "".join(item.before + item.text for item in items[start:end]).strip()
        if span.kind == "numbers" and start and items[start - 1].text in ("-", "−", ".") and not new.before:
            new.text = span.text  # its sign is there already
        items[start:end] = [new]
        return f"{old!r} became {span.wanted!r}"
    gap = _gap(items, first, last, low, len(items), ())
    if gap and _needs_space(items[gap - 1].text, span.wanted):
        new.before = " "
    if gap < len(items):
        if gap == 0:
            new.before = items[0].before
            items[0].before = ""
        if not items[gap].before and _needs_space(span.wanted, items[gap].text):
            items[gap].before = " "
    items.insert(gap, new)
    return f"inserted {span.wanted!r}"


def _needs_space(left: str, right: str) -> bool:
    word = len(right) > 1 and right[0] in "%-./:!"  # %s, -5 and .NET are words; a bare % belongs to its number
    return not (_NO_SPACE_AFTER.match(left[-1:]) or (_NO_SPACE_BEFORE.match(right[:1]) and not word))


def _gap(items: Sequence[_Item], first: int, last: int, low: int, high: int, runs: Sequence[Range]) -> int:
    """The gap from `low` to `high`, within none of the runs, with the fewest crossings; of equals the likeliest."""
    if not items:
        return 0
    rows = np.stack([item.row for item in items])  # (T, S)
    before, after = rows[:, :first].sum(1), rows[:, last:].sum(1)
    cost = np.concatenate([[0.0], after.cumsum()]) + before.sum() - np.concatenate([[0.0], before.cumsum()])
    expected = len(items) * first / max(rows.shape[1] - (last - first), 1)
    gaps = [g for g in range(low, high + 1) if not any(start < g < end for start, end in runs)]
    return min(gaps, key=lambda g: (round(float(cost[g]), 6), abs(g - expected)))


def _best_run(gains: Sequence[float], low: int, high: int) -> Range | None:
    """The run with the largest sum, at least one item, from `low` to `high` (Kadane's algorithm); -inf is a wall."""
    best: tuple[float, int, int] | None = None
    start, total = low, 0.0
    for i in range(low, high):
        if gains[i] == -np.inf:
            start, total = i + 1, 0.0
            continue
        if total < 0:
            start, total = i, 0.0
        total += gains[i]
        if best is None or (total, i + 1 - start) > (best[0], best[2] - best[1]):
            best = total, start, i + 1
    return best and best[1:]


def _tree(tags: Sequence[Span]) -> list[_Node]:
    """Tags as pairs within pairs; one without a partner stands by itself."""
    roots: list[_Node] = []
    open_: list[_Node] = []
    levels = [roots]
    for tag in tags:
        kind = tag_of(tag.text)
        if kind.closes and any(tag_of(node.opening.text).name == kind.name for node in open_):
            while True:
                node = open_.pop()
                inner = levels.pop()
                if tag_of(node.opening.text).name == kind.name:
                    node.closing = tag
                    break
                node.children = []
                levels[-1].extend(inner)  # never closed: what it held goes to the one around it
            continue
        node = _Node(tag)
        levels[-1].append(node)
        if kind.opens:
            open_.append(node)
            levels.append(node.children)
    while open_:
        node = open_.pop()
        inner = levels.pop()
        node.children = []
        levels[-1].extend(inner)
    return roots


def _lay_out(nodes: Sequence[_Node], low: int, high: int, items: Sequence[_Item], sources: Sequence[Range]) -> None:
    """Give each node its gaps, from `low` to `high`; runs of siblings do not overlap."""
    runs: list[Range] = []
    for node in nodes:
        if node.closing is None:
            continue
        first, last = _covered(Span("tags", node.opening.start, node.closing.start, "", ""), sources)
        run = None
        if first < last:
            gains = [2 * item.row[first:last].sum() - item.row.sum() + 1e-9 for item in items]
            for start, end in runs:
                gains[start:end] = [-np.inf] * (end - start)
            run = _best_run(gains, low, high)
        if run is None:
            gap = _gap(items, first, last, low, high, runs)
            run = gap, gap
        node.start, node.end = run
        runs.append(run)
        _lay_out(node.children, node.start, node.end, items, sources)
    for node in nodes:
        if node.closing is None:
            first, last = _covered(node.opening, sources)
            node.start = node.end = _gap(items, first, last, low, high, runs)


def _covered(span: Span, sources: Sequence[Range]) -> Range:
    """Which units of the source a span covers; where it has no width, the place between two."""
    inside = [i for i, (start, end) in enumerate(sources) if start < span.end and span.start < end]
    if inside and span.end > span.start:
        return inside[0], inside[-1] + 1
    place = sum(start < span.start for start, _ in sources)
    return place, place


def _one_hot(span: Span, sources: Sequence[Range]) -> Array:
    first, last = _covered(span, sources)
    row = np.zeros(len(sources))
    row[first:last] = 1 / max(last - first, 1)
    return row


def _rendered(items: Sequence[_Item], roots: Sequence[_Node], marked: Marked) -> str:
    """The text: white space goes before tags that open and after those that close; one by itself keeps its own."""
    out = ""
    between: list[Span] = []
    partners = {id(span) for span in _pairs(roots)}
    for token in [*_walk(roots, 0, len(items)), len(items)]:
        if isinstance(token, Span):
            between.append(token)
            continue
        space = items[token].before if token < len(items) else ""
        out += _with_space(between, space, partners, marked, first=not out, last=token == len(items))
        between = []
        out += items[token].text if token < len(items) else ""
    return out


def _pairs(nodes: Sequence[_Node]) -> Iterator[Span]:
    for node in nodes:
        if node.closing is not None:
            yield from (node.opening, node.closing)
        yield from _pairs(node.children)


def _walk(nodes: Sequence[_Node], low: int, high: int) -> Iterator[Span | int]:
    """Tags and the numbers of items in their order."""
    position = low
    order = {id(node): number for number, node in enumerate(nodes)}
    for node in sorted(nodes, key=lambda node: (node.start, node.end, order[id(node)])):
        yield from range(position, node.start)
        position = max(position, node.end)
        yield node.opening
        if node.closing is not None:
            yield from _walk(node.children, node.start, node.end)
            yield node.closing
    yield from range(position, high)


def _with_space(tags: Sequence[Span], space: str, partners: set[int], marked: Marked, first: bool, last: bool) -> str:
    """Tags between two items that have `space` between them."""
    leading = 0
    while leading < len(tags) and tag_of(tags[leading].text).closes and id(tags[leading]) in partners:
        leading += 1
    out = "".join(tag.text for tag in tags[:leading])
    own = False  # whether a tag brought white space, or said that there is none
    spaced = False
    for tag in tags[leading:]:
        alone = id(tag) not in partners
        left, right = _spaces_around(tag, marked)
        if alone:
            own = True
            if left and not spaced and not (first and not out):
                out += space or " "
        elif not own:
            own = True
            out += space
        out += tag.text
        spaced = bool(alone and right)
        if spaced and not (last and tag is tags[-1]):
            out += space or " "
    return out if own else out + space


def _spaces_around(tag: Span, marked: Marked) -> tuple[bool, bool]:
    """Whether the source has white space on the two sides of a tag."""
    number = next(i for i, other in enumerate(marked.tags) if other is tag)
    span = [span for span in marked.spans if span.kind == "tags"][number]
    return marked.line[: span.start][-1:].isspace(), marked.line[span.end :][:1].isspace()


def source_itself(marked: Marked) -> str:
    """The line, with its glossary's terms translated where they stand."""
    out, position = "", 0
    for span in marked.spans:
        out += marked.line[position : span.start] + (span.text if span.kind == "numbers" else span.wanted)
        position = span.end
    return out + marked.line[position:]
