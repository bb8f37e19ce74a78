"""What every request passes, with an application and a client that do what the test says."""

import asyncio

import pytest

from saccade.serving.gate import GONE, Gate
from saccade.serving.server import Server
from saccade.serving.settings import ServingSettings


def serving() -> Server:
    return Server([], ServingSettings(max_body=10, log_requests=False))


def counted(server: Server, status: int) -> float | None:
    labels = {"path": "other", "status": str(status)}
    return server.metrics.registry.get_sample_value("saccade_requests_total", labels)


class Client:
    """Sends its messages, and then nothing until it is told to leave."""

    def __init__(self, *messages):
        self.messages, self.left, self.got = list(messages), asyncio.Event(), []

    async def receive(self):
        if self.messages:
            return self.messages.pop(0)
        await self.left.wait()
        return {"type": "http.disconnect"}

    async def send(self, message):
        self.got.append(message)


SCOPE = {"type": "http", "path": "/", "method": "POST", "headers": []}


def body(data: bytes, more: bool = False):
    return {"type": "http.request", "body": data, "more_body": more}


async def answer(send):
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": b"done"})


def test_a_request_passes_and_nothing_listens_for_it_afterwards():
    async def app(scope, receive, send):
        assert (await receive())["body"] == b"a"
        assert (await receive())["body"] == b"b"
        await answer(send)

    async def passed():
        server, client = serving(), Client(body(b"a", more=True), body(b"b"))
        await Gate(app, server)(SCOPE, client.receive, client.send)
        await asyncio.sleep(0)
        assert len(asyncio.all_tasks()) == 1
        return counted(server, 200), client.got[-1]["body"]

    assert asyncio.run(passed()) == (1.0, b"done")


@pytest.mark.parametrize("reads_on", [False, True])
def test_whoever_answers_a_client_that_goes_away_is_stopped(reads_on):
    stopped = []

    async def app(scope, receive, send):
        await receive()
        try:
            if reads_on:
                assert (await receive())["type"] == "http.disconnect"
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            stopped.append("while it worked")
            raise

    async def passed():
        server, client = serving(), Client(body(b"a"))
        asking = asyncio.create_task(Gate(app, server)(SCOPE, client.receive, client.send))
        await asyncio.sleep(0)
        client.left.set()
        await asking
        return counted(server, GONE), client.got

    assert asyncio.run(passed()) == (1.0, [])
    assert stopped == ["while it worked"]


def test_a_client_that_goes_away_while_it_sends_is_not_answered():
    async def app(scope, receive, send):
        while (await receive())["more_body"]:
            pass
        await answer(send)

    async def passed():
        server, client = serving(), Client(body(b"a", more=True))
        client.left.set()
        await Gate(app, server)(SCOPE, client.receive, client.send)
        return counted(server, GONE), client.got

    assert asyncio.run(passed()) == (1.0, [])


def test_a_body_that_turns_out_too_large_is_refused_though_the_application_takes_errors_for_its_own():
    async def app(scope, receive, send):
        try:
            while (await receive())["more_body"]:
                pass
        except Exception:
            await answer(send)

    async def passed():
        server, client = serving(), Client(body(b"a" * 8, more=True), body(b"a" * 8, more=True))
        await Gate(app, server)(SCOPE, client.receive, client.send)
        return counted(server, 413), client.got[0]["status"]

    assert asyncio.run(passed()) == (1.0, 413)


def test_a_server_that_stops_what_is_running_is_obeyed():
    async def app(scope, receive, send):
        await receive()
        await asyncio.sleep(60)

    async def passed():
        server, client = serving(), Client(body(b"a"))
        asking = asyncio.create_task(Gate(app, server)(SCOPE, client.receive, client.send))
        await asyncio.sleep(0)
        asking.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asking
        return counted(server, GONE)

    assert asyncio.run(passed()) is None
