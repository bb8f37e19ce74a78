"""Files that are text: .txt, .html and .srt."""

import codecs
import re

from saccade.errors import SaccadeError
from saccade.serving.formats.archive import Limits
from saccade.text.markup import translated_html
from saccade.text.rows import Work

_BOMS = ((codecs.BOM_UTF8, "utf-8-sig"), (codecs.BOM_UTF16_LE, "utf-16"), (codecs.BOM_UTF16_BE, "utf-16"))
_CHARSET = re.compile(rb"<meta[^>]{0,200}?charset\s*=\s*[\"']?([A-Za-z0-9._\-]{1,40})", re.IGNORECASE)
_TIME = re.compile(r"\s*\d{1,3}:\d\d:\d\d[,.]\d{1,3}\s*-->\s*\d{1,3}:\d\d:\d\d[,.]\d{1,3}.*")
# What a subtitle begins with: where it stands on the screen ({\an8}), and the dash of one speaker of several.
_LEAD = re.compile(r"(?:\{\\[^{}]*\}\s*)*(?:[-–—]+(?![\d>])\s*)?")
# Encodings in which every tag is written in ASCII's bytes; others could hide one.
_HTML_ENCODINGS = re.compile(r"utf-8|us-ascii|iso-?8859-\d+|latin-?1|windows-125\d|cp125\d|koi8-[ru]|euc-\w+")


def translated_text(data: bytes, limits: Limits) -> Work[bytes]:
    """A text, line by line; empty lines and what lines begin and end with stay."""
    text, encoding = _decoded(data)
    lines = re.split(r"(\r\n|\r|\n)", text)
    told = [i for i, line in enumerate(lines) if line.strip()]
    answers = yield [lines[i].strip() for i in told]
    for i, answer in zip(told, answers, strict=True):
        line = lines[i]
        left, right = len(line) - len(line.lstrip()), len(line.rstrip())
        lines[i] = line[:left] + _one_line(answer) + line[right:]
    return "".join(lines).encode(encoding, "replace")


def translated_page(data: bytes, limits: Limits) -> Work[bytes]:
    """An HTML file, in the encoding that it says it has."""
    declared = _CHARSET.search(data[:4096])
    text, encoding = _decoded(data, declared[1].decode().lower() if declared else None)
    if text.count("<") > limits.tags:
        raise SaccadeError(f"the page has more than {limits.tags:,} tags; split it")
    page = yield from translated_html(text)
    return page.encode(encoding, "xmlcharrefreplace" if "16" not in encoding else "replace")


def translated_subtitles(data: bytes, limits: Limits) -> Work[bytes]:
    """Subtitles (.srt): what a cue says, or each of its speakers, as one sentence, in as many lines as it had."""
    text, encoding = _decoded(data)
    end = "\r\n" if "\r\n" in text else "\n"
    lines = text.replace("\r\n", "\n").replace("\r", "\n").split("\n")
    cues: list[tuple[int, int]] = []
    begin: int | None = None
    for i, line in enumerate([*lines, ""]):
        if _TIME.fullmatch(line):
            begin = i + 1
        elif not line.strip() and begin is not None:
            if i > begin:
                cues += _said(lines, begin, i)
            begin = None
    if not cues:
        raise SaccadeError("the file has no subtitles: no line like 00:00:01,000 --> 00:00:02,500")
    texts = [" ".join(line.strip() for line in lines[start:stop]) for start, stop in cues]
    leads = [_lead(text) for text in texts]
    answers = yield [text[len(lead) :] for text, lead in zip(texts, leads, strict=True)]
    for (start, stop), lead, answer in zip(cues, leads, answers, strict=True):
        lines[start:stop] = _in_lines(lead + _one_line(answer).replace("-->", "→") or "…", stop - start)
    return end.join(line for line in lines if line is not _GONE).encode(encoding, "replace")


def _said(lines: list[str], begin: int, end: int) -> list[tuple[int, int]]:
    """The lines of a cue, or those of each who speaks in it."""
    first, *others = [i for i in range(begin, end) if i == begin or _speaks(lines[i])]
    starts = [first, *(others if _speaks(lines[first]) else [])]
    return list(zip(starts, [*starts[1:], end], strict=True))


def _lead(line: str) -> str:
    found = _LEAD.match(line)
    return found[0] if found else ""


def _speaks(line: str) -> bool:
    return _lead(line.strip()).rstrip().endswith(("-", "–", "—"))


_TAG = re.compile(r"<[^<>]*>")
_GONE = "\x00gone"  # the place of a line that is no more: the numbers of those after it stay


def _in_lines(text: str, count: int) -> list[str]:
    """A text in `count` lines of about the same length, some of them gone where it has too few words."""
    out: list[list[str]] = [[] for _ in range(count)]
    words = text.split(" ")
    lengths = [len(_TAG.sub("", word)) + 1 for word in words]
    total, position = sum(lengths), 0.0
    for word, length in zip(words, lengths, strict=True):
        out[min(int((position + length / 2) * count / total), count - 1)].append(word)
        position += length
    return [" ".join(line) if line else _GONE for line in out]


def _one_line(text: str) -> str:
    return re.sub(r"[\r\n\v\f\x1c-\x1e\x85\u2028\u2029]+", " ", text)


def _decoded(data: bytes, declared: str | None = None) -> tuple[str, str]:
    """The text, and the encoding to write it in."""
    encoding = next((name for bom, name in _BOMS if data.startswith(bom)), None)
    if encoding is None:
        encoding = declared if declared and _HTML_ENCODINGS.fullmatch(declared) else "utf-8"
    try:
        return data.decode(encoding), encoding
    except (UnicodeDecodeError, LookupError):
        raise SaccadeError(f"the file is not in {encoding.upper()}; save it in UTF-8") from None
