"""Files translated into files of the same kind: what is read of a stranger's file is within limits (`formats`)."""

from collections.abc import Callable
from pathlib import PurePosixPath

from saccade.errors import SaccadeError
from saccade.serving.formats.archive import Limits, check_count
from saccade.serving.formats.epub import translated_epub
from saccade.serving.formats.office import translated_presentation, translated_word
from saccade.serving.formats.opendocument import translated_opendocument
from saccade.serving.formats.plain import translated_page, translated_subtitles, translated_text
from saccade.text.rows import Work

FORMATS: dict[str, Callable[[bytes, Limits], Work[bytes]]] = {
    ".txt": translated_text,
    ".html": translated_page,
    ".htm": translated_page,
    ".srt": translated_subtitles,
    ".docx": translated_word,
    ".pptx": translated_presentation,
    ".odt": translated_opendocument,
    ".odp": translated_opendocument,
    ".epub": translated_epub,
}
TYPES = {
    ".txt": "text/plain",
    ".html": "text/html",
    ".htm": "text/html",
    ".srt": "application/x-subrip",
    ".docx": "application/vnd.openxmlformats-officedocument.wordprocessingml.document",
    ".pptx": "application/vnd.openxmlformats-officedocument.presentationml.presentation",
    ".odt": "application/vnd.oasis.opendocument.text",
    ".odp": "application/vnd.oasis.opendocument.presentation",
    ".epub": "application/epub+zip",
}
_ARCHIVES = (".docx", ".pptx", ".odt", ".odp", ".epub")


def ending_of(name: str) -> str:
    """The ending by which a file's kind is known; nothing else of its name is used."""
    ending = PurePosixPath(name.replace("\\", "/").replace("\x00", "")).suffix.lower()
    if ending not in FORMATS:
        raise SaccadeError(f"Invalid request: file format not supported; these are: {', '.join(FORMATS)}")
    return ending


def translated_file(ending: str, data: bytes, limits: Limits | None = None) -> Work[bytes]:
    """A file of the same kind in another language."""
    limits = limits or Limits()
    if not data:
        raise SaccadeError("Invalid request: empty file")
    if ending in _ARCHIVES:
        check_count(data, limits)
    return (yield from FORMATS[ending](data, limits))
