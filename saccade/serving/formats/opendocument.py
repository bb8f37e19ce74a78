"""OpenDocument text (.odt, and .odp): paragraphs and headings with their spans; footnotes are islands in them."""

import re

from saccade.serving.formats.archive import Limits, translated_archive
from saccade.serving.formats.xml import encoded_xml, read_xml
from saccade.text.markup import Dialect, translated_html
from saccade.text.rows import Work

_INLINE = "text:span text:a text:meta text:ruby text:ruby-base"
_ISLANDS = "text:note office:annotation draw:frame draw:custom-shape draw:g draw:a text:ruby-text"
_ALONE = """
text:s text:tab text:line-break text:soft-page-break text:bookmark text:bookmark-start text:bookmark-end
text:reference-mark text:reference-mark-start text:reference-mark-end text:change text:change-start text:change-end
office:annotation-end
"""
_UNTOUCHED = """
text:page-number text:page-count text:date text:time text:title text:author-name text:file-name text:chapter
text:sequence text:bookmark-ref text:reference-ref text:note-ref text:tracked-changes text:variable-set
text:variable-get text:user-defined text:placeholder text:bibliography-mark svg:title svg:desc
"""
OPENDOCUMENT = Dialect(
    inline=frozenset(_INLINE.split()),
    untouched=frozenset(_UNTOUCHED.split()),
    alone=frozenset((_ALONE + _UNTOUCHED).split()),
    islands=frozenset(_ISLANDS.split()),
    rows=frozenset(("text:p", "text:h")),
    xml=True,
)
_WANTED = re.compile(r"(?:content|styles)\.xml")


def translated_opendocument(data: bytes, limits: Limits) -> Work[bytes]:
    """The file with its paragraphs translated."""

    def member(name: str, content: bytes) -> Work[bytes]:
        text = yield from translated_html(read_xml(name, content, limits), OPENDOCUMENT)
        return encoded_xml(text, content)

    return (yield from translated_archive(data, limits, lambda name: bool(_WANTED.fullmatch(name)), member))
