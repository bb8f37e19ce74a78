"""XML from strangers: well formed, without a document type or entities of its own, and not too much of it."""

import re
from typing import Any

from defusedxml.common import DefusedXmlException
from defusedxml.ElementTree import DefusedXMLParser, ParseError

from saccade.errors import SaccadeError
from saccade.serving.formats.archive import Limits

_DECLARED = re.compile(rb"^\s*<\?xml[^>]*?encoding\s*=\s*[\"']([A-Za-z0-9._\-]+)[\"']")
_SUBSET = re.compile(r"<!DOCTYPE[^>\[]*\[|<!ENTITY", re.IGNORECASE)


class _Nothing:
    """Takes what a parser says, and keeps none of it."""

    def start(self, tag: str, attributes: dict[str, str]) -> None: ...
    def end(self, tag: str) -> None: ...
    def data(self, text: str) -> None: ...
    def close(self) -> None: ...


def read_xml(name: str, data: bytes, limits: Limits) -> str:
    """The text of a member that a parser has read from end to end."""
    try:
        parser: Any = DefusedXMLParser(target=_Nothing(), forbid_dtd=True)
        parser.feed(data)
        parser.close()
    except DefusedXmlException:
        raise SaccadeError(f"{name}: has a document type or entities of its own, which are not taken") from None
    except (ParseError, ValueError, LookupError) as error:
        raise SaccadeError(f"{name}: is damaged ({error}); save the file again") from None
    return decoded_xml(name, data, limits)


def decoded_xml(name: str, data: bytes, limits: Limits) -> str:
    """The text of a member, which may have a document type but no entities in it."""
    declared = _DECLARED.match(data[:200])
    encoding = "utf-16" if data[:2] in (b"\xff\xfe", b"\xfe\xff") else "utf-8-sig"
    if declared and encoding == "utf-8-sig" and declared[1].lower() not in (b"utf-8", b"utf-16", b"us-ascii"):
        raise SaccadeError(f"{name}: is encoded in {declared[1].decode()}; save the file in UTF-8")
    try:
        text = data.decode(encoding)
    except UnicodeDecodeError:
        raise SaccadeError(f"{name}: is not in {encoding[:6].upper().rstrip('-')}; save the file again") from None
    if text.count("<") > limits.tags:
        raise SaccadeError(f"{name}: has more than {limits.tags:,} tags; split the file")
    if _SUBSET.search(text):
        raise SaccadeError(f"{name}: has entities of its own, which are not taken; save the file without them")
    return text


def encoded_xml(text: str, original: bytes) -> bytes:
    """Text in the encoding of what it was made from."""
    return text.encode("utf-16" if original[:2] in (b"\xff\xfe", b"\xfe\xff") else "utf-8", "replace")
