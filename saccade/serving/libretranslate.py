"""LibreTranslate's protocol, so that what was written for it works unchanged.

Bodies are JSON or forms, errors are `{"error": "…"}`, and statuses and messages are LibreTranslate's: 400 for what is
wrong with a request, 403 for a key that is not one, 429 for too many requests.
"""

import asyncio
import json
from typing import Annotated, Any
from urllib.parse import parse_qsl

from babel import Locale, UnknownLocaleError
from fastapi import APIRouter, Depends, Request
from fastapi.responses import Response
from starlette.datastructures import UploadFile
from starlette.formparsers import MultiPartException, MultiPartParser

from saccade.serving.deadline import Deadline
from saccade.serving.detect import Detection, detect
from saccade.serving.documents import FORMATS, TYPES, ending_of, translated_file
from saccade.serving.downloads import Downloads, name_of
from saccade.serving.formats.archive import Limits
from saccade.serving.libre_shapes import (
    DETECT,
    FILE,
    MOST_ALTERNATIVES,
    TRANSLATE,
    Chosen,
    Detected,
    FileAnswer,
    FrontendSettings,
    Language,
    Named,
    Translated,
    problems,
)
from saccade.serving.pool import Entry
from saccade.serving.problems import NotFound, Wrong
from saccade.serving.schemas import Problem, whole
from saccade.serving.security import Forbidden, Guard
from saccade.serving.server import Server
from saccade.serving.told import Told
from saccade.serving.v1 import TheServer
from saccade.serving.work import driven, translating
from saccade.text.markup import translated_html
from saccade.text.rows import together

router = APIRouter(tags=["LibreTranslate"])
FIELDS = 20  # of a form
SHORT = 40  # characters; a shorter text of a list is taken to be in the language of the whole list
SURE = 99.0  # confidence in a text being in the very language that is asked for


def guard_of(request: Request) -> Guard:
    """Who may ask."""
    guard: Guard = request.app.state.guard
    return guard


def downloads_of(request: Request) -> Downloads:
    """The files that wait, made with the first."""
    state, settings = request.app.state, request.app.state.server.settings
    if not hasattr(state, "downloads"):
        state.downloads = Downloads(settings.files_kept, settings.file_minutes * 60)
    downloads: Downloads = state.downloads
    return downloads


TheGuard = Annotated[Guard, Depends(guard_of)]
TheDownloads = Annotated[Downloads, Depends(downloads_of)]


@router.post("/translate", responses=problems(), response_model_exclude_none=True, openapi_extra=TRANSLATE)
async def translate(request: Request, server: TheServer, guard: TheGuard) -> Translated:
    """Translate a text or a list of them, plain or HTML."""
    fields = await _fields(request)
    client = guard.admit(request, _text_in(fields, "api_key"))
    texts, several = _texts(fields, server)
    source, target = _needed(fields, "source"), _needed(fields, "target")
    kind = _text_in(fields, "format") or "text"
    if kind not in ("text", "html"):
        raise Wrong(f"{kind} format is not supported")
    alternatives = _alternatives(fields)
    deadline = server.deadline()
    detected = await asyncio.to_thread(_detected, server, texts, target) if source == "auto" else None
    entries = [_entry(server, one.language, target) for one in detected or [Detection(source, 100.0)] * len(texts)]
    answers = list(texts)
    others: list[list[str]] = [[] for _ in texts]
    for entry in filter(None, dict.fromkeys(entries)):
        places = [i for i, its in enumerate(entries) if its is entry]
        if kind == "html":
            pages = together([translated_html(texts[i]) for i in places])
            made = await driven(pages, translating(server, entry.name, client, deadline), deadline)
            for i, page in zip(places, made, strict=True):
                answers[i] = page
            continue
        told = Told(n_best=min(alternatives + 1, server.settings.max_beam), scores=False)
        found = await server.translate([texts[i] for i in places], entry.name, told, client, deadline=deadline)
        for i, result in zip(places, found.results, strict=True):
            answers[i], *others[i] = [one.text for one in result.translations]
    languages = None if detected is None else [Detected(**one._asdict()) for one in detected]
    return Translated(
        translatedText=answers if several else answers[0],
        alternatives=None if not alternatives else others if several else others[0],
        detectedLanguage=None if languages is None else languages if several else languages[0],
    )


@router.post("/detect", responses=problems(), openapi_extra=DETECT)
async def detect_language(request: Request, server: TheServer, guard: TheGuard) -> list[Detected]:
    """Which of the served languages a text is in, the likeliest first."""
    fields = await _fields(request)
    guard.admit(request, _text_in(fields, "api_key"))
    texts, _ = _texts(fields, server)
    found = await asyncio.to_thread(detect, "\n".join(texts), list(_languages(server)))
    return [Detected(**one._asdict()) for one in found if one.confidence] or [Detected(**found[0]._asdict())]


@router.get("/languages")
async def languages(server: TheServer) -> list[Language]:
    """The languages that are served, and what each can be translated to."""
    return [Language(code=c, name=name_of_language(c), targets=t) for c, t in _languages(server).items()]


@router.get("/frontend/settings")
async def frontend_settings(server: TheServer, guard: TheGuard) -> FrontendSettings:
    """What a page that speaks this protocol wants to know."""
    served = [(entry.card.source, entry.card.target) for entry in server.pool.entries.values()] or [("", "")]
    source, target = (Named(code=code, name=name_of_language(code)) for code in served[0])
    return FrontendSettings(
        apiKeys=guard.needs_key,
        charLimit=server.settings.max_characters,
        filesTranslation=True,
        frontendTimeout=500,
        keyRequired=guard.needs_key,
        language=Chosen(source=source, target=target),
        suggestions=False,
        supportedFilesFormat=list(FORMATS),
    )


@router.post("/suggest", responses={403: {"model": Problem}})
async def suggest() -> None:
    """Suggestions are not taken, as by LibreTranslate when they are off."""
    raise Forbidden("Suggestions are disabled on this server.")


@router.post("/translate_file", responses=problems(), openapi_extra=FILE)
async def translate_file(request: Request, server: TheServer, guard: TheGuard, downloads: TheDownloads) -> FileAnswer:
    """Translate a file into one of the same kind; the answer says where it can be fetched, for some minutes."""
    fields = await _fields(request)
    client = guard.admit(request, _text_in(fields, "api_key"))
    file = fields.get("file")
    if not isinstance(file, UploadFile) or not file.filename:
        raise Wrong("Invalid request: missing file parameter")
    source, target = _needed(fields, "source"), _needed(fields, "target")
    ending, content = ending_of(file.filename), await file.read()
    if source == "auto":
        _sources_of(server, target)
    else:
        _entry(server, source, target)
    settings = server.settings
    deadline = Deadline(settings.file_time_limit, "send a smaller file")

    async def translate(texts: list[str]) -> list[str]:
        nonlocal source
        if not texts:
            return []
        if source == "auto":
            source = (await asyncio.to_thread(_detected, server, texts, target))[0].language
        by = _entry(server, source, target)
        return texts if by is None else await translating(server, by.name, client, deadline)(texts)

    work = translated_file(ending, content, Limits(settings.max_unpacked, settings.max_members))
    made = await driven(work, translate, deadline)
    token = downloads.put(made, ending, name_of(file.filename, target, ending))
    return FileAnswer(translatedFileUrl=str(request.url_for("download_file", token=token)))


@router.get("/download_file/{token}", responses={404: {"model": Problem}}, response_class=Response)
async def download_file(token: str, downloads: TheDownloads) -> Response:
    """A translated file."""
    found = downloads.get(token)
    if found is None:
        raise NotFound("there is no such file, or not any more; translate it again")
    headers = {"Content-Disposition": found.disposition, "Cache-Control": "private, no-store"}
    return Response(found.content, media_type=TYPES[found.ending], headers=headers)


async def _fields(request: Request) -> dict[str, Any]:
    """What a request brings: JSON, or a form and the address."""
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind.endswith("json"):
        try:
            fields = json.loads(await request.body())
        except (ValueError, RecursionError):
            raise Wrong("Invalid JSON format") from None
        if not isinstance(fields, dict):
            raise Wrong("Invalid JSON format")
        return fields
    if kind == "application/x-www-form-urlencoded":
        try:  # as Flask reads it, in which LibreTranslate is written: a semicolon parts nothing
            pairs = parse_qsl((await request.body()).decode("latin-1"), keep_blank_values=True, max_num_fields=FIELDS)
        except ValueError:
            raise Wrong(f"Invalid request: more than {FIELDS} fields") from None
        return dict(request.query_params) | dict(pairs)
    if kind != "multipart/form-data":
        return dict(request.query_params)
    limits = request.app.state.server.settings
    parser = MultiPartParser(
        request.headers, request.stream(), max_files=1, max_fields=FIELDS, max_part_size=limits.max_body
    )
    parser.spool_max_size = limits.max_file  # in memory: no text is written to a disk, which may be full besides
    try:
        return dict(request.query_params) | dict(await parser.parse())
    except MultiPartException as error:
        raise Wrong(f"Invalid request: {error.message}") from None


def _text_in(fields: dict[str, Any], name: str) -> str | None:
    value = fields.get(name)
    if value is not None and not isinstance(value, str):
        raise Wrong(f"Invalid request: {name} parameter is not a text")
    return None if value is None else str(whole(value))


def _needed(fields: dict[str, Any], name: str) -> str:
    value = _text_in(fields, name)
    if not value:
        raise Wrong(f"Invalid request: missing {name} parameter")
    return value


def _texts(fields: dict[str, Any], server: Server) -> tuple[list[str], bool]:
    """The texts, and whether they were a list."""
    q = fields.get("q")
    several = isinstance(q, list)
    texts = q if isinstance(q, list) else [q]
    if not q or not texts:
        raise Wrong("Invalid request: missing q parameter")
    if not all(isinstance(text, str) for text in texts):
        raise Wrong("Invalid request: q parameter is neither a text nor a list of texts")
    limits = server.settings
    for size, limit in ((len(texts), limits.max_texts), (sum(map(len, texts)), limits.max_characters)):
        if size > limit:
            raise Wrong(f"Invalid request: request ({size}) exceeds text limit ({limit})")
    return whole(texts), several


def _alternatives(fields: dict[str, Any]) -> int:
    given = fields.get("alternatives") or 0
    try:
        count = int(given) if isinstance(given, int | str) and not isinstance(given, bool) else -1
    except ValueError:
        count = -1
    if not 0 <= count <= MOST_ALTERNATIVES:
        raise Wrong(f"Invalid request: alternatives parameter is not a number from 0 to {MOST_ALTERNATIVES}")
    return count


def _languages(server: Server) -> dict[str, list[str]]:
    """Language codes, those that can be translated from first, with what each can be translated to."""
    found: dict[str, list[str]] = {}
    cards = [entry.card for entry in server.pool.entries.values()]
    for card in cards:
        targets = found.setdefault(card.source, [])
        if card.target not in targets:
            targets.append(card.target)
    for card in cards:
        found.setdefault(card.target, [])
    return found


def _entry(server: Server, source: str, target: str) -> Entry | None:
    """The model for a pair of languages, or LibreTranslate's words for there being none; None: it is one language, and
    its texts stay as they are."""
    served = _languages(server)
    for code in (source, target):
        if code not in served:
            raise Wrong(f"{code} is not supported")
    if source == target:
        return None
    for entry in server.pool.entries.values():
        if (entry.card.source, entry.card.target) == (source, target):
            return entry
    names = [f"{name_of_language(code)} ({code})" for code in (target, source)]
    raise Wrong(f"{names[0]} is not available as a target language from {names[1]}")


def _sources_of(server: Server, target: str) -> list[str]:
    """The languages that the target can be translated from."""
    found = [code for code, targets in _languages(server).items() if target in targets]
    if not found:
        raise Wrong(f"{target} is not supported")
    return found


def _detected(server: Server, texts: list[str], target: str) -> list[Detection]:
    """The language of each text: of those that the target can be translated from, or the target where that is sure."""
    sources = _sources_of(server, target)

    def language_of(text: str) -> Detection:
        own = detect(text, [*sources, target])[0]
        sure = own.language == target and own.confidence >= SURE and len(text) > SHORT
        return own if sure else detect(text, sources)[0]

    whole = language_of("\n".join(texts))
    return [language_of(text) if len(text) > SHORT else whole for text in texts]


def name_of_language(code: str) -> str:
    """What English calls a language."""
    try:
        return Locale.parse(code, sep="-" if "-" in code else "_").get_display_name("en") or code
    except (UnknownLocaleError, ValueError):
        return code
