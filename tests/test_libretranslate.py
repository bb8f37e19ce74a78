"""What was written for LibreTranslate works unchanged."""

import io
import json
import tempfile
import urllib.error
import zipfile
from collections.abc import Iterator
from pathlib import Path

import docx
import httpx
import pytest
from libretranslatepy import LibreTranslateAPI
from served import Served, serving

import saccade
from saccade.serving.detect import detect
from saccade.serving.documents import FORMATS
from saccade.serving.downloads import Downloads, name_of
from saccade.serving.keys import add_key
from saccade.serving.problems import Busy
from saccade.translator import Translator

PAGE = '<p class="x">Anna sees <b>two</b> dogs &amp; <a href="/y">a cat</a>.</p><script>no()</script>'


@pytest.fixture(scope="module")
def served(trained: Path) -> Iterator[Served]:
    with serving(trained) as one:
        yield one


@pytest.fixture(scope="module")
def translator(trained: Path) -> Translator:
    return saccade.load(trained, "cpu", engine="torch")


def test_the_client_from_pypi_works(served: Served, translator: Translator) -> None:
    client = LibreTranslateAPI(served.url)
    text = "Monday, 5 January 2021"
    assert client.translate(text, "en", "de") == translator.translate(text).text
    assert client.languages()[0] == {"code": "en", "name": "English", "targets": ["de"]}
    assert {"code": "de", "name": "German", "targets": []} in client.languages()
    best = client.detect("Guten Morgen, liebe Leute")[0]
    assert best["language"] == "de"
    assert 50 < best["confidence"] <= 100


def test_the_client_from_pypi_works_with_a_key(trained: Path, tmp_path: Path) -> None:
    file = tmp_path / "keys.json"
    token = add_key(file, "anna", "3/hour")
    with serving(trained, keys=file) as one:
        for wrong, status, why in ((None, 400, "to get an API key"), ("sk-x", 403, "Invalid API key")):
            with pytest.raises(urllib.error.HTTPError) as caught:
                LibreTranslateAPI(one.url, wrong).translate("Monday", "en", "de")
            assert caught.value.code == status
            assert why in json.load(caught.value)["error"]
        client = LibreTranslateAPI(one.url, token)
        assert client.languages()
        for _ in range(2):
            assert client.translate("Monday", "en", "de")
        bearer = {"Authorization": f"Bearer {token}"}
        assert httpx.post(f"{one.url}/v1/translate", json={"text": "Monday"}, headers=bearer).status_code == 200
        with pytest.raises(urllib.error.HTTPError) as caught:
            client.detect("Monday")
        assert caught.value.code == 429
        assert int(caught.value.headers["Retry-After"]) > 60
        assert json.load(caught.value)["error"].startswith("Slowdown:")
        settings = httpx.get(f"{one.url}/frontend/settings").json()
        assert settings["apiKeys"] is settings["keyRequired"] is True
        assert httpx.post(f"{one.url}/v1/translate", json={"text": "Monday"}).status_code == 400


def test_texts_lists_forms_and_pages(served: Served, translator: Translator) -> None:
    texts = ["Monday", "May 3, 2001"]
    expected = [one.text for one in translator.translate(texts)]
    pair = {"source": "en", "target": "de"}
    with served.client() as client:
        assert client.post("/translate", json={"q": texts[1]} | pair).json() == {"translatedText": expected[1]}
        assert client.post("/translate", json={"q": texts} | pair).json() == {"translatedText": expected}
        assert client.post("/translate", data={"q": texts[0]} | pair).json() == {"translatedText": expected[0]}
        assert client.post("/translate", params={"q": texts[0]} | pair).json() == {"translatedText": expected[0]}
        form = {"Content-Type": "application/x-www-form-urlencoded"}
        unquoted = client.post("/translate", content="q=Monday;+May+3&source=en&target=de", headers=form).json()
        assert unquoted == {"translatedText": translator.translate("Monday; May 3").text}
        many = client.post("/translate", content="q=x&source=en&target=de" + "&a=b" * 20, headers=form)
        assert (many.status_code, many.json()["error"]) == (400, "Invalid request: more than 20 fields")
        several = client.post("/translate", json={"q": texts, "alternatives": 2} | pair).json()
        assert several["translatedText"] == expected
        n_best = translator.translate(texts[0], n_best=3).n_best
        assert several["alternatives"][0] == [one.text for one in n_best[1:]]
        page = client.post("/translate", json={"q": PAGE, "format": "html"} | pair).json()["translatedText"]
        for kept in ('<p class="x">', "<b>", "</b>", '<a href="/y">', "</a>", "</p><script>no()</script>"):
            assert page.count(kept) == 1
        both = client.post("/translate", json={"q": [PAGE, texts[0]], "format": "html"} | pair).json()
        assert both["translatedText"] == [page, expected[0]]
        plain = client.post("/translate", json={"q": texts[0], "format": "html"} | pair).json()["translatedText"]
        assert plain == expected[0]


def test_languages_are_found_out(served: Served, translator: Translator) -> None:
    with served.client() as client:
        one = client.post("/translate", json={"q": "Monday", "source": "auto", "target": "de"}).json()
        assert one["detectedLanguage"]["language"] == "en"
        assert one["translatedText"] == translator.translate("Monday").text
        two = client.post("/translate", json={"q": ["Monday", "May"], "source": "auto", "target": "de"}).json()
        assert [found["language"] for found in two["detectedLanguage"]] == ["en", "en"]


GERMAN = "Das ist das Haus meines Vaters und meiner Mutter, und wir sind schon seit langer Zeit dort gewesen."


def test_a_text_that_is_in_the_language_asked_for_stays_as_it_is(served: Served, translator: Translator) -> None:
    page = f"<p>{GERMAN}<br>{GERMAN}</p>"
    with httpx.Client(base_url=served.url) as client:
        same = client.post("/translate", json={"q": ["Montag ", "1 & 2"], "source": "de", "target": "de"}).json()
        html = client.post("/translate", json={"q": page, "source": "auto", "target": "de", "format": "html"}).json()
        found = client.post("/translate", json={"q": [GERMAN, "Monday"], "source": "auto", "target": "de"}).json()
        file = {"file": ("a.txt", GERMAN.encode())}
        kept = client.post("/translate_file", files=file, data={"source": "de", "target": "de"}).json()
        assert client.get(kept["translatedFileUrl"]).text == GERMAN
    assert same["translatedText"] == ["Montag ", "1 & 2"]
    assert (html["translatedText"], html["detectedLanguage"]["language"]) == (page, "de")
    assert found["translatedText"][0] == GERMAN
    assert found["detectedLanguage"][0]["language"] == "de"


def test_a_short_text_is_taken_for_one_that_wants_to_be_translated(served: Served, translator: Translator) -> None:
    answer = httpx.post(f"{served.url}/translate", json={"q": "September", "source": "auto", "target": "de"}).json()
    assert answer["translatedText"] == translator.translate("September").text
    assert answer["detectedLanguage"]["language"] == "en"


def test_detection_is_among_what_is_served() -> None:
    assert detect("Bonjour tout le monde", ["en", "fr-CA", "de"])[0].language == "fr-CA"
    assert [one.language for one in detect("It is a fine day today", ["de", "en"])] == ["en", "de"]
    assert detect("12 + 3", ["de", "en"]) == [("de", 0.0)]
    assert detect("hello", ["source"]) == [("source", 0.0)]
    assert detect("hello there", ["en"]) == [("en", 100.0)]


@pytest.mark.parametrize(
    ("call", "body", "why"),
    [
        ("translate", {"source": "en", "target": "de"}, "Invalid request: missing q parameter"),
        ("translate", {"q": "", "source": "en", "target": "de"}, "Invalid request: missing q parameter"),
        ("translate", {"q": "x", "target": "de"}, "Invalid request: missing source parameter"),
        ("translate", {"q": "x", "source": "en"}, "Invalid request: missing target parameter"),
        ("translate", {"q": "x", "source": "xx", "target": "de"}, "xx is not supported"),
        ("translate", {"q": "x", "source": "en", "target": "../x"}, "../x is not supported"),
        ("translate", {"q": "x", "source": "auto", "target": "en"}, "en is not supported"),
        (
            "translate",
            {"q": "x", "source": "de", "target": "en"},
            "English (en) is not available as a target language from German (de)",
        ),
        ("translate", {"q": "x", "source": "en", "target": "de", "format": "pdf"}, "pdf format is not supported"),
        ("translate", {"q": [1], "source": "en", "target": "de"}, "neither a text nor a list of texts"),
        ("translate", {"q": "x", "source": ["en"], "target": "de"}, "source parameter is not a text"),
        ("translate", {"q": "x", "source": "en", "target": "de", "alternatives": 99}, "not a number from 0 to 15"),
        ("translate", {"q": "x" * 200_001, "source": "en", "target": "de"}, "(200001) exceeds text limit (200000)"),
        ("translate", ["x"], "Invalid JSON format"),
        ("detect", {}, "Invalid request: missing q parameter"),
    ],
)
def test_what_is_wrong_is_said_as_libretranslate_says_it(served: Served, call: str, body: object, why: str) -> None:
    answer = httpx.post(f"{served.url}/{call}", json=body)
    assert answer.status_code == 400
    assert why in answer.json()["error"]


def test_suggestions_settings_and_health(served: Served) -> None:
    with served.client() as client:
        refused = client.post("/suggest", data={"q": "a", "s": "b", "source": "en", "target": "de"})
        assert (refused.status_code, refused.json()) == (403, {"error": "Suggestions are disabled on this server."})
        settings = client.get("/frontend/settings").json()
        assert settings["language"]["target"] == {"code": "de", "name": "German"}
        assert settings["supportedFilesFormat"] == list(FORMATS)
        assert settings["keyRequired"] is False
        assert client.get("/health").json()["status"] == "ok"
        for probe in ("/health", "/", "/metrics"):  # as load balancers ask
            answer = client.head(probe)
            assert (answer.status_code, answer.content) == (200, b""), probe
        assert client.get("/no/such/thing").json() == {"error": "Not Found"}


def send(served: Served, name: str, content: bytes, source: str = "en") -> httpx.Response:
    fields = {"source": source, "target": "de"}
    return httpx.post(f"{served.url}/translate_file", files={"file": (name, content)}, data=fields, timeout=60)


@pytest.mark.parametrize("source", ["en", "auto"])
def test_files_are_translated_and_fetched(served: Served, translator: Translator, source: str) -> None:
    document = docx.Document()
    document.add_paragraph("Monday, May 3, 2001")
    out = io.BytesIO()
    document.save(out)
    answer = send(served, "../dir/a report.docx", out.getvalue(), source).json()
    assert answer["translatedFileUrl"].startswith(f"{served.url}/download_file/")
    fetched = httpx.get(answer["translatedFileUrl"])
    assert 'filename="a_report_de.docx"' in fetched.headers["content-disposition"]
    assert fetched.headers["x-content-type-options"] == "nosniff"
    assert (
        "sandbox" in fetched.headers["content-security-policy"]
        or "'none'" in fetched.headers["content-security-policy"]
    )
    paragraphs = docx.Document(io.BytesIO(fetched.content)).paragraphs
    assert paragraphs[0].text == translator.translate("Monday, May 3, 2001").text


def test_no_file_is_put_on_a_disk(served: Served, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "none"))
    answer = send(served, "a.txt", b"Monday\n" * 300_000)
    assert answer.status_code == 200, answer.text


@pytest.mark.parametrize("kind", ["application/json", "application/x-www-form-urlencoded"])
def test_only_a_form_with_a_file_may_be_as_large_as_a_file(served: Served, kind: str) -> None:
    answer = httpx.post(f"{served.url}/translate_file", content=b"[" * 2**21, headers={"Content-Type": kind})
    assert answer.status_code == 413


def test_files_that_are_not_taken(served: Served) -> None:
    bomb = io.BytesIO()
    with zipfile.ZipFile(bomb, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("content.xml", b"\0" * (10 << 20))
    for name, content, why in (
        ("a.exe", b"x", "file format not supported"),
        ("a.odt", bomb.getvalue(), "unpacks to more than"),
        ("a.docx", b"x", "damaged"),
        ("a.txt", b"", "empty file"),
    ):
        answer = send(served, name, content)
        assert answer.status_code == 400
        assert why in answer.json()["error"]
    assert httpx.post(f"{served.url}/translate_file", data={"source": "en", "target": "de"}).status_code == 400
    assert send(served, "a.txt", b"x" * (17 << 20)).status_code == 413
    for token in ("x", "..%2f..%2fetc%2fpasswd", "%00"):
        assert httpx.get(f"{served.url}/download_file/{token}").status_code == 404


def test_downloads_expire_and_take_a_bounded_room() -> None:
    now = 0.0
    downloads = Downloads(100, 60, clock=lambda: now)
    first = downloads.put(b"x" * 60, ".txt", "a.txt")
    assert len(first) > 40
    assert downloads.get(first) is not None
    second = downloads.put(b"y" * 60, ".txt", "b.txt")
    assert downloads.get(first) is None
    assert downloads.get(second) is not None
    now = 61.0
    assert downloads.get(second) is None
    assert downloads.size == 0
    with pytest.raises(Busy, match="more than are kept here"):
        downloads.put(b"z" * 101, ".txt", "c.txt")


@pytest.mark.parametrize(
    ("given", "name"),
    [
        ("report.docx", "report_de.docx"),
        ("/etc/../passwd.docx", "passwd_de.docx"),
        ('a"b\r\nX: y.docx', "abX y_de.docx"),
        (".docx", "translation_de.docx"),
        ("Größe 表.docx", "Größe 表_de.docx"),
    ],
)
def test_names_of_files_are_names_and_nothing_else(given: str, name: str) -> None:
    assert name_of(given, "de", ".docx") == name
