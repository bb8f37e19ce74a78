"""No request makes the server fail or hang: every call of the OpenAPI page, and bytes that are no request at all."""

import json
import re
import socket
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx
import pytest
import schemathesis
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.errors import Unsatisfiable
from schemathesis import checks
from schemathesis.generation import GenerationMode
from schemathesis.schemas import BaseSchema
from served import Served, serving

from saccade.config import SearchConfig

EXAMPLES = settings(
    max_examples=10,
    deadline=None,
    derandomize=True,
    suppress_health_check=list(HealthCheck),
)
CHECKS = [
    checks.not_a_server_error,
    checks.status_code_conformance,
    checks.content_type_conformance,
    checks.response_schema_conformance,
    checks.response_headers_conformance,
]
SECONDS = 20  # in which every request has an answer: the server's own limit is shorter


@pytest.fixture(scope="module")
def served(trained: Path) -> Iterator[Served]:
    with serving(trained, time_limit=5.0, file_time_limit=5.0) as one:
        yield one


@pytest.fixture(scope="module")
def schema(served: Served) -> BaseSchema:
    return schemathesis.openapi.from_url(f"{served.url}/openapi.json")


def further(body: Any) -> None:
    """Languages and models that are not there are refused at once; let most requests go further."""
    if isinstance(body, dict):
        if isinstance(body.get("source"), str) and len(body["source"]) < 4:
            body.update(source="en", target="de")
        if isinstance(body.get("model"), str) and len(body["model"]) < 4:
            del body["model"]


@pytest.mark.parametrize("mode", [GenerationMode.POSITIVE, GenerationMode.NEGATIVE])
def test_every_call_answers_as_its_schema_says(schema: BaseSchema, mode: GenerationMode) -> None:
    called = set()
    for found in schema.get_all_operations():
        operation = found.ok()
        try:
            cases = operation.as_strategy(generation_mode=mode)
        except Unsatisfiable:
            continue

        @EXAMPLES
        @given(cases)
        def call(case: schemathesis.Case) -> None:
            further(case.body)
            case.call_and_validate(checks=CHECKS, timeout=SECONDS)

        with suppress(Unsatisfiable):  # nothing can be wrong with a call that takes nothing
            call()
            called.add(operation.path)
    assert {"/translate", "/translate_file", "/detect", "/v1/translate", "/v1/look", "/v1/alternatives"} <= called


NUMBERS = [0, -1, 1, 3, 2**31, 2**63, 10**400, 0.5, 1e-300, 1e300, float("nan"), float("inf"), -float("inf")]
VALUES = st.sampled_from(
    [*NUMBERS, True, None, "", "beam", "sample", "diverse", "always", "99999", [], ["x"], [""], {}]
)


@settings(EXAMPLES, max_examples=60)
@given(st.dictionaries(st.sampled_from(sorted(SearchConfig.model_fields)), VALUES, max_size=4))
def test_any_search_settings_are_done_or_refused(served: Served, search: dict[str, Any]) -> None:
    body = json.dumps({"text": "Monday, May 3", "search": search, "tokens": True, "banned": ["x"]})
    assert_answered(post(served, "/v1/translate", body))


CALLS = ["/translate", "/detect", "/translate_file", "/v1/translate", "/v1/look", "/v1/alternatives", "/suggest"]
KINDS = [
    "application/json",
    "application/x-www-form-urlencoded",
    "multipart/form-data; boundary=x",
    "multipart/form-data",
    "multipart/form-data; boundary=x; charset=nosuch",
    "text/plain",
    "application/json; charset=utf-16",
    "",
]
PIECES = [
    b"--x\r\n",
    b"--x--\r\n",
    b'Content-Disposition: form-data; name="q"\r\n\r\n',
    b'; filename="a.docx"',
    b"q=%ff&",
]
OTHERS = [
    b"source=en&target=de&",
    b"\r\n",
    b"\x00",
    b"\xff\xfe",
    b'{"q": "',
    b'", "source": "en", "target": "de"}',
    b"[" * 9,
]


some_bytes = st.sampled_from([*PIECES, *OTHERS]) | st.binary(max_size=9)


def post(served: Served, call: str, body: str | bytes, kind: str = "application/json") -> httpx.Response:
    return httpx.post(served.url + call, content=body, headers={"Content-Type": kind}, timeout=SECONDS)


def assert_answered(answer: httpx.Response) -> None:
    assert answer.status_code < 500, answer.text
    assert answer.status_code == 200 or answer.json()["error"]


@settings(EXAMPLES, max_examples=40)
@given(
    st.sampled_from(CALLS),
    st.sampled_from(KINDS),
    st.lists(st.sampled_from([*PIECES, *OTHERS]) | st.binary(max_size=9)),
)
def test_bad_bytes_are_refused(served: Served, call: str, kind: str, pieces: list[bytes]) -> None:
    assert_answered(post(served, call, b"".join(pieces), kind))


WORDS = """
\ud800|\udfff\ud800|\x00|\u202e|<b>|</p>|&#xD800;|&#0;|{0}|%s|\u2028|Monday|\ufffe|<0>|<br 1/>|🏳️‍🌈|e\u0301e\u0301| |<!--
<i title='|﷽﷽|-->|]]>|\u0085|{{|$1
""".strip()
texts = st.lists(st.sampled_from(re.split(r"[|\n]", WORDS)), min_size=1, max_size=4).map("".join)


@settings(EXAMPLES, max_examples=12)
@given(texts, st.sampled_from(["text", "html"]))
def test_any_text_has_an_answer(served: Served, text: str, kind: str) -> None:
    body = {"q": [text or "x", "x"], "source": "auto", "target": "de", "format": kind}
    answer = post(served, "/translate", json.dumps(body))
    assert answer.status_code == 200, answer.text
    assert len(answer.json()["translatedText"]) == 2
    answer = post(served, "/v1/translate", json.dumps({"text": text, "alignments": True, "n_best": 2}))
    assert answer.status_code == 200, answer.text


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize(
    "body",
    [
        "[" * 100_000,
        '{"q":' * 50_000,
        '{"q": NaN, "source": Infinity, "target": -1e999}',
        '{"text": "x", "n_best": 1e400, "search": {"temperature": NaN, "length_penalty": Infinity}}',
        '{"text": "x", "search": {"method": "sample", "temperature": 1e-300}}',
        '{"text": "x", "search": {"beam": -1}, "prefix": "\\ud800"}',
        '{"text": "x", "glossary": {"": "", "x": "\\ud800"}, "must": [""], "banned": [""]}',
        '{"text": {"a": []}, "q": {"a": 1}}',
        '{"q": "x", "q": ["y"], "source": null, "target": {}}',
        f'{{"q": "x", "source": "{"e" * 5000}", "target": "de"}}',
        f'{{"text": "x", "n_best": {"9" * 5000}}}',
        "null",
        "",
    ],
    ids=lambda body: body[:30],
)
def test_bad_json_is_refused(served: Served, call: str, body: str) -> None:
    assert_answered(post(served, call, body))


@pytest.mark.parametrize(
    "request_",
    [
        b"GET / HTTP/1.1\r\nHost: localhost\r\nX: " + b"a" * 1_000_000 + b"\r\n\r\n",
        b"GET /" + b"a" * 1_000_000 + b" HTTP/1.1\r\nHost: localhost\r\n\r\n",
        b"GET / HTTP/1.1\r\n" + b"X: y\r\n" * 100_000 + b"\r\n",
        b"POST /translate HTTP/1.1\r\nHost: localhost\r\nContent-Length: -1\r\n\r\n",
        b"POST /translate HTTP/1.1\r\nHost: localhost\r\nContent-Length: 5\r\nContent-Length: 9\r\n\r\nhello",
        b"POST /translate HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
        b"GET /%2e%2e/%2e%2e/etc/passwd HTTP/1.1\r\nHost: localhost\r\n\r\n",
        b"GET /download_file/%ff%fe HTTP/1.1\r\nHost: localhost\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00",
        b"\x00" * 1000,
    ],
    ids=lambda request: repr(request[:40]),
)
def test_bad_requests_do_not_end_the_server(served: Served, request_: bytes) -> None:
    with socket.create_connection(("127.0.0.1", served.port), timeout=SECONDS) as connection:
        try:
            connection.sendall(request_)
            connection.shutdown(socket.SHUT_WR)
            answer = connection.recv(4096)
        except OSError:  # it has hung up already
            answer = b""
    assert b" 500 " not in answer[:20]
    assert httpx.get(f"{served.url}/health").status_code == 200


def test_after_all_this_the_server_answers_and_has_nothing_left_to_do(served: Served) -> None:
    assert served.texts("Monday")
    assert served.server.requests == 0
