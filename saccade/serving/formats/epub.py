"""Books (.epub): chapters in XHTML, and the table of contents."""

from saccade.serving.formats.archive import Limits, translated_archive
from saccade.serving.formats.xml import decoded_xml, encoded_xml
from saccade.text.markup import XHTML, Dialect, translated_html
from saccade.text.rows import Work

_CONTENTS = Dialect(frozenset(), frozenset(), frozenset(), rows=frozenset(("text",)), xml=True)
_DIALECTS = {".xhtml": XHTML, ".html": XHTML, ".htm": XHTML, ".ncx": _CONTENTS}


def translated_epub(data: bytes, limits: Limits) -> Work[bytes]:
    """The book with its chapters translated."""

    def member(name: str, content: bytes) -> Work[bytes]:
        # Chapters have the document type of XHTML and its names for characters, so no XML parser reads them.
        text = yield from translated_html(decoded_xml(name, content, limits), _DIALECTS[_ending(name)])
        return encoded_xml(text, content)

    return (yield from translated_archive(data, limits, lambda name: _ending(name) in _DIALECTS, member))


def _ending(name: str) -> str:
    return "." + name.rpartition(".")[2].lower()
