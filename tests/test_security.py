"""Strangers stay out: of other hosts, of other sites' pages, without keys, too often."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from conftest import Command
from served import Served, serving

from saccade.errors import SaccadeError
from saccade.serving.security import HEADERS, check_exposure, is_loopback
from saccade.serving.settings import ServingSettings


@pytest.fixture(scope="module")
def served(trained: Path) -> Iterator[Served]:
    with serving(trained, cors=["https://good.example"]) as one:
        yield one


@pytest.mark.parametrize(
    ("host", "alone"),
    [
        *((host, True) for host in ("127.0.0.1", "127.9.9.9", "::1", "[::1]", "localhost", "a.localhost")),
        *((host, False) for host in ("0.0.0.0", "::", "", "10.0.0.1", "127.0.0.1.evil.example", "localhost.evil", "x")),
    ],
)
def test_what_is_loopback(host: str, alone: bool) -> None:
    assert is_loopback(host) is alone


def test_a_server_is_not_opened_to_others_by_mistake(trained: Path, tmp_path: Path, command: Command) -> None:
    ended = command("serve", trained, "--host", "0.0.0.0", "--port", 0, "--no-open")
    assert ended.status == 2
    assert "others can reach that, and no keys are set; make some with `saccade keys add`" in ended.err
    check_exposure(ServingSettings(host="0.0.0.0", without_keys=True))
    check_exposure(ServingSettings(host="0.0.0.0", keys=tmp_path / "keys.json"))
    for wrong in ({"cors": ["*"]}, {"cors": ["example.org"]}, {"cors": ["https://a.b/c"]}, {"rate": "x"}):
        with pytest.raises(SaccadeError, match="is no"):
            check_exposure(ServingSettings(**wrong))


def test_every_answer_has_the_headers(served: Served) -> None:
    with served.client() as client:
        for answer in (
            client.get("/health"),
            client.get("/nowhere"),
            client.post("/translate", json={}),
            client.post("/v1/translate", content=b"x" * (2 << 20)),
            client.get("/health", headers={"Host": "evil.example"}),
        ):
            assert {name: answer.headers.get(name) for name in HEADERS} == HEADERS
    policy = HEADERS["Content-Security-Policy"]
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    assert "*" not in policy


@pytest.mark.parametrize(
    "host", ["evil.example", "evil.example:8000", "127.0.0.1.evil.example", "", "localhost@x", "["]
)
def test_names_that_were_made_to_point_here_are_refused(served: Served, host: str) -> None:
    with served.client() as client:
        answer = client.post("/translate", json={"q": "Monday"}, headers={"Host": host})
        assert answer.status_code in (400, 403)
        assert "translatedText" not in answer.text


@pytest.mark.parametrize("host", ["localhost", "LOCALHOST:1", "127.0.0.1", "[::1]:80", "x.localhost"])
def test_names_of_loopback_are_known(served: Served, host: str) -> None:
    with served.client() as client:
        assert client.get("/health", headers={"Host": host}).status_code == 200


def test_a_name_behind_a_proxy_can_be_allowed(trained: Path) -> None:
    with serving(trained, hosts=["Translate.example.org"]) as one, one.client() as client:
        assert client.get("/health", headers={"Host": "translate.example.org"}).status_code == 200
        assert client.get("/health", headers={"Host": "evil.example.org"}).status_code == 403


def test_pages_of_other_sites_may_not_call_unless_they_are_listed(served: Served) -> None:
    body = {"q": "Monday", "source": "en", "target": "de"}
    with served.client() as client:
        for origin, status in (
            ("https://evil.example", 403),
            ("null", 403),
            ("http://127.0.0.1.evil.example", 403),
            ("http://[", 403),
            (served.url, 200),
            ("https://good.example", 200),
        ):
            answer = client.post("/translate", data=body, headers={"Origin": origin})
            assert answer.status_code == status, origin
            allowed = answer.headers.get("access-control-allow-origin")
            assert allowed == (origin if "good" in origin else None)
        assert "access-control-allow-origin" not in client.get("/health").headers
        asked = {"Origin": "https://good.example", "Access-Control-Request-Method": "POST"}
        assert client.options("/translate", headers=asked).headers["access-control-allow-methods"] == "GET, POST"


def test_addresses_without_a_key_have_a_rate_where_one_is_set(trained: Path) -> None:
    with serving(trained, rate="2/hour") as one, one.client() as client:
        body = {"q": "Monday", "source": "en", "target": "de"}
        assert [client.post("/translate", json=body).status_code for _ in range(3)] == [200, 200, 429]
        refused = client.post("/v1/translate", json={"text": "Monday"})
        assert refused.status_code == 429
        assert int(refused.headers["Retry-After"]) > 60
        assert client.get("/languages").status_code == 200


def test_a_guest_may_not_try_keys_for_ever(trained: Path, tmp_path: Path) -> None:
    keys = tmp_path / "keys.json"
    keys.write_text('{"keys": []}')
    with serving(trained, keys=keys) as one, one.client() as client:
        statuses = {client.get("/v1/models", headers={"X-API-Key": f"sk-{i}"}).status_code for i in range(310)}
        assert statuses == {403, 429}


def test_nothing_is_loaded_by_a_name_that_was_not_configured(served: Served, trained: Path) -> None:
    with served.client() as client:
        for name in (str(trained), "../en-de", "", "en-de/.", "/etc/passwd"):
            assert client.post("/v1/translate", json={"text": "x", "model": name}).status_code == 404
        for name in ("shortlist", "rerank", "device", "out"):
            told = {"text": "x", "search": {name: "/etc/passwd"}}
            assert client.post("/v1/translate", json=told).status_code == 400
