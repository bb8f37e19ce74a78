"""Text to text around a model: protect → split → translate → place → join. The command line and servers share it.

A line that fits, and whose translation has all that must be in it, is what the model made of it, untouched.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import islice
from typing import TYPE_CHECKING, Any, NamedTuple

from saccade.errors import SaccadeError
from saccade.text.alignment import Piece, Range
from saccade.text.glossary import Glossary, occurrences
from saccade.text.placeholders import Protection
from saccade.text.placing import Marked, mark, place, source_itself
from saccade.text.segments import Limits, fits, segments, space_between

if TYPE_CHECKING:
    from saccade.generation.orders import Phrases
    from saccade.generation.rerank import Judge
    from saccade.translator import Translation, Translator


class Line(NamedTuple):
    """A text that is marked and split."""

    marked: Marked
    segments: list[Range]  # of the marked line's plain text
    source: str
    protection: Protection
    number: int  # by which it is refused

    @property
    def texts(self) -> list[str]:
        """What is translated of it; one with nothing to translate takes the place of one, blank."""
        return [self.marked.plain[start:end] for start, end in self.segments] or [""]


TOGETHER = 64  # lines that are finished at once
Made = tuple[Line, Sequence["Translation"]]  # a line, and what was made of its pieces


class Prepared(NamedTuple):
    """Texts on their way to the model: what it is given, and what each piece is told (`Translator.stream`)."""

    lines: list[Line]
    pieces: list[str]
    told: dict[str, list[Any]]


class Pipeline:
    """A translator for any text, with the settings of one request."""

    def __init__(
        self,
        translator: "Translator",
        glossary: Mapping[str, str] | Glossary | None = None,
        judges: Sequence["Judge"] = (),
        **search: Any,
    ) -> None:
        config = translator.config
        settings = config.with_changes({"search": search}).search if search else config.search
        self.translator = translator
        self.search = search | ({"judges": judges} if judges else {})
        self.settings = settings
        self.glossary = glossary
        self.protection_of_told = self._protection([kind for kind in settings.protect if kind != "numbers"])
        told = settings.banned or settings.must or settings.shortlist
        self.protection = self.protection_of_told if told else self._protection(settings.protect)
        longest = translator.longest
        if longest is not None:
            # Room for its end and, where source and target share the positions, for as long a translation.
            longest = longest // 2 - 1 if translator.one_sequence else longest - 1
        self.limits = Limits(
            settings.max_source if longest is None else min(settings.max_source, longest),
            config.data.cleaning.max_characters if config.data.cleaning.enabled else None,
        )

    def _protection(self, kinds: Sequence[str]) -> Protection:
        return Protection(kinds, self.settings.terms, self.glossary, self.translator.config.data.target)

    def stream(
        self,
        texts: Sequence[str],
        progress: Callable[[int], None] | None = None,
        first: int = 1,
        *,
        prefix: "str | Sequence[str] | None" = None,
        must: "Phrases | None" = None,
        allowed: "Phrases | None" = None,
        scored: bool = True,
    ) -> Iterator["Translation"]:
        """Translations of `texts` in their order, each as soon as it is ready; `first` is the first one's number.

        `prefix`, `must`, `allowed` and `scored` are those of `Translator.stream`, for whole texts: one that is told how
        to begin or what to hold is not split.
        """
        prepared = self.prepare(texts, first, prefix=prefix, must=must, allowed=allowed)

        def shown(done: int) -> None:
            if progress is not None:
                progress(done * len(prepared.lines) // len(prepared.pieces))

        translated = self.translator.stream(
            prepared.pieces, shown, first=first, scored=scored, **prepared.told, **self.search
        )
        lines = iter(prepared.lines)
        while some := list(islice(lines, TOGETHER)):
            yield from self.finish([(line, [next(translated) for _ in line.texts]) for line in some])

    def prepare(
        self,
        texts: Sequence[str],
        first: int = 1,
        *,
        prefix: "str | Sequence[str] | None" = None,
        must: "Phrases | None" = None,
        allowed: "Phrases | None" = None,
    ) -> Prepared:
        """The first half: what the model is to translate. `finish` makes texts of what it says to each line."""
        given = {"prefix": prefix, "must": must, "allowed": allowed}
        told = {name: _each(name, value, len(texts)) for name, value in given.items() if value is not None}
        lines: list[Line] = []
        for i, text in enumerate(texts):
            own = {name: values[i] for name, values in told.items()}
            lines.append(self._prepare(text, first + i, own))
            _check_whole(lines[-1], own)
            _check_terms(lines[-1], self.settings.banned)
        # A line with nothing to translate takes the place of one, so that a line refused is named by its number.
        spread = {
            name: [value for line, value in zip(lines, values, strict=True) for _ in line.texts]
            for name, values in told.items()
        }
        return Prepared(lines, [piece for line in lines for piece in line.texts], spread)

    def so_far(self, line: Line, said: Sequence[str]) -> str:
        """What is known of a translation: of its first segments, as the model writes them."""
        text, end = "", 0
        for (start, stop), part in zip(line.segments, said, strict=False):
            if text:
                text += line.marked.plain[end:start] or space_between(text, part)
            text, end = text + part.strip(), stop
        return text

    def _prepare(self, text: str, number: int, told: Mapping[str, Any]) -> Line:
        # What a translation is told to write, or not to, is not mended for its numbers.
        protection = self.protection_of_told if any(told.values()) else self.protection
        phrases = (told.get("prefix") or "", *(told.get("must") or ()), *self.settings.must)
        held = tuple(filter(None, map(str.strip, phrases)))
        marked = mark(text, protection)._replace(told=held, begins=phrases[0].strip())

        def line(segments: list[Range]) -> Line:
            return Line(marked, segments, text, protection, number)

        if _nothing_to_say(marked):
            return line([])
        if self.settings.split == "never":
            return line([(0, len(marked.plain))])
        if self.settings.split == "auto" and not marked.spans and "\n" not in text and self._fits(text):
            return line([(0, len(text))])
        whole = [(span.start, span.end) for span in marked.words]
        found = segments(
            marked.plain,
            self.translator.tokenizers.source,
            self.limits,
            self.translator.config.data.source,
            always=self.settings.split == "always",
            whole=whole,
            where=f"line {number:,}",
        )
        if len(found) == 1 and not marked.tags and "\n" not in text:
            found = [(0, len(marked.plain))]  # as it is, white space and all
        return line(found)

    def _fits(self, text: str) -> bool:
        return fits(text, self.translator.tokenizers.source, self.limits)

    def finish(self, made: Sequence[Made]) -> list["Translation"]:
        """The second half: translations of lines from those of their pieces.

        What the model must be asked for again, where something was lost, it is asked for all of them at once.
        """
        done = [self.ready(*one) for one in made]
        lost = [one for one, ready in zip(made, done, strict=True) if ready is None]
        ranked = [
            [(line, [_nth(part, rank) for part in parts]) for rank in range(_ranks(parts))] for line, parts in lost
        ]
        joined = iter(self._joined([one for ranks in ranked for one in ranks]))
        mended = (
            self._finished(parts, list(islice(joined, len(ranks))))
            for (_, parts), ranks in zip(lost, ranked, strict=True)
        )
        return [next(mended) if ready is None else ready for ready in done]

    def ready(self, line: Line, parts: Sequence["Translation"]) -> "Translation | None":
        """The translation of a line of which nothing was lost, for which the model need not be asked again."""
        if not line.segments:
            return replace(parts[0], source=line.source, text=source_itself(line.marked))
        whole: list[Translation] = []
        for rank in range(_ranks(parts)):
            untouched = self._untouched(line, [_nth(part, rank) for part in parts])
            if untouched is None:
                return None
            whole.append(untouched)
        return self._finished(parts, whole)

    def _finished(self, parts: Sequence["Translation"], joined: list["Translation"]) -> "Translation":
        """One translation of several, the best first, each text once: mended ones may agree."""
        if not any(part.n_best for part in parts):
            return joined[0]
        if self.settings.method != "sample":  # what was drawn twice is twice as likely
            texts = [one.text for one in joined]
            joined = [one for rank, one in enumerate(joined) if texts.index(one.text) == rank]
        if joined == parts[0].n_best:
            return parts[0]
        best = replace(joined[0], n_best=[])
        best.n_best.extend([best, *joined[1:]])
        return best

    def _joined(self, made: Sequence[Made]) -> list["Translation"]:
        """Translations of lines from those of their segments."""
        done = {i: whole for i, one in enumerate(made) if (whole := self._untouched(*one)) is not None}
        mended = [i for i in range(len(made)) if i not in done]
        self.translator.attend([made[i][1][0] for i in mended if len(made[i][1]) == 1])
        placed = [(i, *self._placed(*made[i])) for i in mended]
        scored = [(i, text) for i, text, _ in placed if self._held(made[i][0].source, text, made[i][1])]
        forced = self.translator.forced_all([(made[i][0].source, text) for i, text in scored])
        known = {i: found for (i, _), found in zip(scored, forced, strict=True)}
        for i, text, notes in placed:
            line, parts = made[i]
            if i in known:
                done[i] = replace(known[i], parts=list(parts), notes=notes)
            else:
                done[i] = _summed(line.source, text, parts, notes)
        return [done[i] for i in range(len(made))]

    def _untouched(self, line: Line, parts: Sequence["Translation"]) -> "Translation | None":
        """What the model made of a line that it was given as it is, if nothing was lost."""
        marked = line.marked
        if line.segments != [(0, len(line.source))] or marked.plain != line.source:
            return None
        if line.protection.losses(line.source, marked.spans, parts[0].text, marked.told):
            return None
        notes = [*parts[0].notes, *self._ended_early(parts[0])]
        return replace(parts[0], notes=notes) if notes != parts[0].notes else parts[0]

    def _placed(self, line: Line, parts: Sequence["Translation"]) -> tuple[str, list[str]]:
        """The text of a line with all that must be in it, and what was done."""
        marked = line.marked
        notes = [note for part in parts for note in (*part.notes, *self._ended_early(part))]
        text = ""
        pieces: list[Piece] = []
        for (start, end), part in zip(line.segments, parts, strict=True):
            said = part.text.strip()
            if pieces:
                text += marked.plain[pieces[-1].source[1] : start] or space_between(text, said)
            skipped = len(part.text) - len(part.text.lstrip())
            pieces.append(Piece(part, (start, end), (len(text) - skipped, len(text) + len(said))))
            text += said
        placed, done = place(marked, text, pieces, line.protection)
        _check_phrases(line, text, placed)
        before, after = marked.plain[: line.segments[0][0]], marked.plain[line.segments[-1][1] :]
        split = [f"split into {len(parts)}"] if len(parts) > 1 else []
        return before + placed + after, [*split, *notes, *done]

    def _ended_early(self, part: "Translation") -> list[str]:
        """A word on a translation that the model's positions had no room to end."""
        longest = self.translator.longest
        if longest is None:
            return []
        written = len(part.tokens) + 1
        if self.translator.one_sequence:
            written += len(self.translator.tokenizers.source.encode(part.source)) + 1
        return [f"may have ended early, at the {longest:,} positions of the model"] if written >= longest else []

    def _held(self, source: str, text: str, parts: Sequence["Translation"]) -> bool:
        """Whether the model can hold the translation as a whole, to score it."""
        return len(parts) == 1 and self._fits(source) and fits(text, self.translator.tokenizers.target, self.limits)


def _summed(source: str, text: str, parts: Sequence["Translation"], notes: list[str]) -> "Translation":
    """A translation that is known by its parts alone."""
    return replace(
        parts[0],
        source=source,
        text=text,
        score=sum(part.score for part in parts),
        tokens=[token for part in parts for token in part.tokens],
        n_best=[],
        parts=list(parts),
        notes=notes,
        _ids=[],
        _translator=None,
    )


def _each(name: str, given: Any, texts: int) -> Sequence[Any]:
    """What each text is told, where it is one for all or one each."""
    if isinstance(given, str) and name != "prefix":
        raise SaccadeError(f"{name}={given!r} is a text where a list of phrases is wanted; write [{given!r}]")
    # A text is one for all, and so is a list of texts where lists are wanted.
    common = isinstance(given, str) or (name != "prefix" and all(isinstance(part, str) for part in given))
    each = [given] * texts if common else list(given)
    if len(each) != texts:
        raise SaccadeError(f"{name}: {len(each)} for {texts} texts; give one for all, or one each")
    return each


def _check_whole(line: Line, told: Mapping[str, Any]) -> None:
    for name, value in told.items():
        if len(line.segments) > 1 and value:
            raise SaccadeError(
                f"line {line.number:,}: is split into {len(line.segments)} sentences, and {name} is for a whole one; "
                "give it sentence by sentence, or set search.split=never"
            )


def _check_terms(line: Line, banned: Sequence[str]) -> None:
    for phrase in filter(str.strip, banned):
        for span in line.marked.words:
            if span.kind in ("glossary", "terms") and any(occurrences(phrase, span.wanted)):
                raise SaccadeError(
                    f"line {line.number:,}: its translation must hold {span.wanted!r}, for {span.text!r} is in the "
                    f"{span.kind}, and search.banned forbids {phrase!r}; take one of them back"
                )


def _check_phrases(line: Line, written: str, placed: str) -> None:
    told = line.marked.told
    if told and any(written.count(phrase) > placed.count(phrase) for phrase in told):
        raise SaccadeError(
            f"line {line.number:,}: its placeholders and what it must hold ({', '.join(told)}) do not go together; "
            "take something back, or set search.protect"
        )


def _ranks(parts: Sequence["Translation"]) -> int:
    return max(1, *(len(part.n_best) for part in parts))


def _nth(part: "Translation", rank: int) -> "Translation":
    return part.n_best[min(rank, len(part.n_best) - 1)] if part.n_best else part


def _nothing_to_say(marked: Marked) -> bool:
    """Whether a line holds nothing but white space, signs and what stays as it is, and is told nothing."""
    if not marked.spans or marked.told or any(span.kind == "numbers" for span in marked.words):
        return not marked.plain.strip()
    rest, position = "", 0
    for span in marked.words:
        rest += marked.plain[position : span.start]
        position = span.end
    return not any(character.isalnum() for character in rest + marked.plain[position:])
