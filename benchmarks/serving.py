"""The server under load: throughput beside the offline engine, memory, floods, clients that go away.

    python -m benchmarks.serving load runs/demo --clients 64 --seconds 60
    python -m benchmarks.serving load base --clients 64 --seconds 60
    python -m benchmarks.serving memory runs/demo --requests 50000
    python -m benchmarks.serving flood runs/demo
    python -m benchmarks.serving disconnect runs/demo --clients 1000
    python -m benchmarks.serving all runs/demo
    python -m benchmarks.serving anchor runs/demo --anchor PYTHON

The folder is one of yours, or `base`: a Transformer of base size (512 wide, 6+6 layers) with random weights, which
writes as many pieces as it reads: good for speed, not for reading. The server is a process of its own, as a user would
start it, on the same machine as its clients, which are many connections of this one. Offline is `Translator.translate`
on as many sentences at once as there are clients, in this process, with the same threads; the two take turns, since a
machine that is shared with strangers is faster in one minute than in the next.
Answers are compared with the offline ones, text by text; each scenario ends in a line of JSON.

`--anchor PYTHON` asks LibreTranslate's own server, which that Python has installed, and ours, with the folder's
CTranslate2 export in both (`benchmarks/libretranslate_server.py`).
"""

import argparse
import asyncio
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import psutil
import torch

from benchmarks.common import Foreign
from saccade.config import Config
from saccade.data import builtin
from saccade.data.tokenizers import Tokenizer, Tokenizers
from saccade.folder import CONFIG, WEIGHTS, load
from saccade.models.build import build_model, with_shape
from saccade.serving.loops import settled
from saccade.training.checkpoint import save_weights, weights_of

LAYERS = {"encoder_layers": 6, "decoder_layers": 6}
SCENARIOS = ("load", "memory", "flood", "disconnect")
TURNS = 3  # of the server, offline before and after each
ANCHOR_PORT = 5055
POST = "POST {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\nContent-Length: {length}\r\n\r\n"


class Running(NamedTuple):
    """A server that was started."""

    process: psutil.Process
    host: str
    port: int

    @property
    def memory(self) -> float:
        """Resident, in MB, of it and its children."""
        own = [self.process, *self.process.children(recursive=True)]
        return sum(each.memory_info().rss for each in own) / 2**20


@contextmanager
def server(folder: Path, threads: int, *options: str) -> Iterator[Running]:
    """`saccade serve`, for as long as the block lasts; it must end with status 0."""
    line = [sys.executable, "-m", "saccade", "serve", str(folder), "--port", "0", "--no-open", "--no-log", *options]
    environment = os.environ | {"OMP_NUM_THREADS": str(threads)}
    with subprocess.Popen(line, stderr=subprocess.PIPE, text=True, env=environment) as process:
        assert process.stderr is not None
        said = ""
        while "http://" not in said:
            said = process.stderr.readline()
            if not said:
                raise SystemExit("the server did not start")
        found = re.search(r"http://([\d.]+):(\d+)", said)
        assert found is not None
        try:
            yield Running(psutil.Process(process.pid), found[1], int(found[2]))
        finally:
            process.terminate()
            if process.wait(60) != 0:
                print("the server did not end well", file=sys.stderr)


class Connection:
    """One client, which keeps its connection."""

    def __init__(self, running: Running) -> None:
        self.running = running

    async def __aenter__(self) -> "Connection":
        self.reader, self.writer = await asyncio.open_connection(self.running.host, self.running.port)
        return self

    async def __aexit__(self, *error: object) -> None:
        self.writer.close()

    async def post(self, path: str, body: dict[str, Any]) -> tuple[int, dict[str, Any]]:
        sent = json.dumps(body).encode()
        self.writer.write(POST.format(path=path, length=len(sent)).encode() + sent)
        head = (await self.reader.readuntil(b"\r\n\r\n")).decode().lower()
        length = re.search(r"content-length: (\d+)", head)
        assert length is not None, head
        answer = await self.reader.readexactly(int(length[1]))
        return int(head.split()[1]), json.loads(answer)


async def metric(running: Running, name: str) -> float:
    """A number of /metrics."""
    reader, writer = await asyncio.open_connection(running.host, running.port)
    writer.write(b"GET /metrics HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n")
    page = (await reader.read()).decode()
    writer.close()
    return sum(float(line.split()[1]) for line in page.splitlines() if re.match(rf"{name}[ {{]", line))


# Scenarios.


def offline_rate(translator: Any, texts: Sequence[str], batch: int, seconds: float) -> float:
    """Sentences a second, `batch` at a time."""
    done, start = 0, time.perf_counter()
    while time.perf_counter() - start < seconds:
        first = done % max(1, len(texts) - batch)
        translator.translate(list(texts[first : first + batch]))
        done += batch
    return done / (time.perf_counter() - start)


def load_test(arguments: argparse.Namespace, folder: Path, texts: list[str]) -> dict[str, Any]:
    """Many clients for a while: no error, the offline answers, and how fast."""
    translator = load(folder, "cpu", engine=arguments.engine)
    expected = {t.source: t.text for t in translator.translate(texts)}
    foreign, rates = Foreign(), []
    settled()  # all clients are of this process: its collector is not to make them wait
    latencies: list[float] = []
    wrong: list[str] = []
    statuses: dict[int, int] = {}

    async def client(running: Running, number: int, since: float, until: float) -> None:
        async with Connection(running) as connection:
            turn = number
            while time.perf_counter() < until:
                text = texts[turn % len(texts)]
                turn += arguments.clients
                start = time.perf_counter()
                status, answer = await connection.post("/v1/translate", {"text": text})
                statuses[status] = statuses.get(status, 0) + 1
                if since <= (now := time.perf_counter()) < until:
                    latencies.append(now - start)
                said = answer["results"][0]["translations"][0]["text"] if status == 200 else answer.get("error")
                if said != expected[text]:
                    wrong.append(f"{text!r}: {said!r}, offline {expected[text]!r}")

    async def clients(running: Running, seconds: float) -> None:
        since = time.perf_counter() + min(3.0, seconds / 4)  # all are at work by then
        until = since + seconds
        await asyncio.gather(*(client(running, number, since, until) for number in range(arguments.clients)))

    with server(folder, arguments.threads, "--cache", "0", "--engine", arguments.engine) as running:
        asyncio.run(clients(running, 1.0))  # the model is there before anything is timed
        latencies.clear()
        statuses.clear()
        for _ in range(TURNS):
            rates.append(offline_rate(translator, texts, arguments.clients, arguments.seconds / TURNS / 3))
            asyncio.run(clients(running, arguments.seconds / TURNS))
        rates.append(offline_rate(translator, texts, arguments.clients, arguments.seconds / TURNS / 3))
        memory = running.memory
    others = foreign.share()  # the server has ended, so that its time is counted as ours
    served, offline = len(latencies) / arguments.seconds, statistics.mean(rates)
    cuts = statistics.quantiles(latencies, n=100) if len(latencies) > 1 else [latencies[0]] * 99
    for line in wrong[:5]:
        print(line, file=sys.stderr)
    return {
        "clients": arguments.clients,
        "seconds": arguments.seconds,
        "statuses": statuses,
        "different from offline": len(wrong),
        "sentences/s": round(served, 1),
        "offline sentences/s": round(offline, 1),
        "lowest and highest of them": [round(min(rates), 1), round(max(rates), 1)],
        "ratio": round(served / offline, 3),
        "p50 ms": round(1000 * cuts[49], 1),
        "p99 ms": round(1000 * cuts[98], 1),
        "memory MB": round(memory),
        "share of others": round(others, 3),
    }


def memory_test(arguments: argparse.Namespace, folder: Path, texts: list[str]) -> dict[str, Any]:
    """Many requests, none like another: resident memory stays where it was after the first of them."""
    after: dict[int, float] = {}
    first = max(1, arguments.requests // 50)

    async def clients(running: Running) -> None:
        numbers = iter(range(arguments.requests))

        async def client() -> None:
            async with Connection(running) as connection:
                for number in numbers:
                    text = f"{texts[number % len(texts)]} {number}"
                    status, _ = await connection.post("/v1/translate", {"text": text, "search": {"beam": 1}})
                    assert status == 200, status
                    if number in (first, arguments.requests - 1):
                        after[number] = running.memory

        await asyncio.gather(*(client() for _ in range(min(arguments.clients, 64))))

    with server(folder, arguments.threads, "--cache", "1") as running:
        asyncio.run(clients(running))
        after[arguments.requests] = running.memory
    before, last = after[first], after[arguments.requests]
    return {
        "requests": arguments.requests,
        f"MB after {first:,}": round(before, 1),
        "MB at the end": round(last, 1),
        "grown": f"{last / before - 1:.1%}",
    }


def flood_test(arguments: argparse.Namespace, folder: Path, texts: list[str]) -> dict[str, Any]:
    """Ten times what may wait, at once: it is answered or refused with a time to come back, and service returns."""
    room = 64
    statuses: dict[int, int] = {}

    async def flood(running: Running) -> float:
        async def client(number: int) -> None:
            async with Connection(running) as connection:
                status, _ = await connection.post("/v1/translate", {"text": texts[number % len(texts)]})
                statuses[status] = statuses.get(status, 0) + 1

        await asyncio.gather(*(client(number) for number in range(10 * room)))
        start = time.perf_counter()
        async with Connection(running) as connection:
            status, _ = await connection.post("/v1/translate", {"text": texts[0]})
            assert status == 200, status
        return time.perf_counter() - start

    with server(folder, arguments.threads, "--cache", "0", "--max-waiting", str(room)) as running:
        back = asyncio.run(flood(running))
    return {"requests": 10 * room, "may wait": room, "statuses": statuses, "back after ms": round(1000 * back, 1)}


def disconnect_test(arguments: argparse.Namespace, folder: Path, texts: list[str]) -> dict[str, Any]:
    """Clients that go away midway leave no work behind."""

    async def leave(running: Running) -> dict[str, Any]:
        async def client(number: int) -> None:
            async with Connection(running) as connection:
                some = [texts[(number + i) % len(texts)] for i in range(4)]
                sent = json.dumps({"text": some}).encode()
                connection.writer.write(POST.format(path="/v1/translate", length=len(sent)).encode() + sent)
                await connection.writer.drain()
                await asyncio.sleep(0.05 + 0.2 * (number % 10) / 10)

        async with Connection(running) as connection:
            await connection.post("/v1/translate", {"text": texts[0]})  # the model is there before they come
        for start in range(0, arguments.clients, 100):
            await asyncio.gather(*(client(start + i) for i in range(min(100, arguments.clients - start))))
        gone = time.perf_counter()
        while await metric(running, "saccade_rows") or await metric(running, "saccade_requests_at_work"):
            await asyncio.sleep(0.01)
            assert time.perf_counter() - gone < 30, "work was left behind"
        idle = time.perf_counter() - gone
        return {
            "clients": arguments.clients,
            "idle after ms": round(1000 * idle, 1),
            "rows": await metric(running, "saccade_rows"),
            "waiting": await metric(running, "saccade_waiting_sentences"),
            "texts stopped": await metric(running, "saccade_stopped_total"),
        }

    with server(folder, arguments.threads, "--cache", "0") as running:
        return asyncio.run(leave(running))


def anchor(arguments: argparse.Namespace, folder: Path, texts: list[str]) -> dict[str, Any]:
    """LibreTranslate's own server and ours, with the same CTranslate2 export, asked by the same call in turn."""
    config, export = Config.load(folder / CONFIG), folder / "ctranslate2"
    if not export.exists():
        raise SystemExit(f"{folder}: has no export; saccade export {folder} --to ctranslate2")
    languages = {"source": config.data.source, "target": config.data.target}
    script = Path(__file__).with_name("libretranslate_server.py")
    line = [arguments.anchor, str(script), str(export), *map(str, languages.values()), "--port", str(ANCHOR_PORT)]
    environment = os.environ | {"OMP_NUM_THREADS": str(arguments.threads)}
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    with subprocess.Popen(line, env=environment, **quiet) as process:  # type: ignore[call-overload]
        theirs = _asked(Running(psutil.Process(process.pid), "127.0.0.1", ANCHOR_PORT), arguments, texts, languages)
        process.terminate()
    with server(folder, arguments.threads, "--cache", "0", "--engine", "ctranslate2") as running:
        ours = _asked(running, arguments, texts, languages)
    both = ours["answers"].keys() & theirs["answers"].keys()
    alike = sum(theirs["answers"][text] == ours["answers"][text] for text in both)
    shown = {
        name: {key: asked[key] for key in asked if key != "answers"}
        for name, asked in (("Saccade", ours), ("LibreTranslate", theirs))
    }
    return shown | {
        "ratio": round(ours["sentences/s"] / theirs["sentences/s"], 2),
        "alike": f"{alike} of {len(both)}",
    }


def _asked(
    running: Running, arguments: argparse.Namespace, texts: list[str], languages: dict[str, str | None]
) -> dict[str, Any]:
    answers: dict[str, str] = {}
    latencies: list[float] = []
    statuses: dict[int, int] = {}

    async def client(number: int, until: float) -> None:
        async with Connection(running) as connection:
            turn = number
            while time.perf_counter() < until:
                text = texts[turn % len(texts)]
                turn += arguments.clients
                start = time.perf_counter()
                status, answer = await connection.post("/translate", {"q": text} | languages)
                latencies.append(time.perf_counter() - start)
                statuses[status] = statuses.get(status, 0) + 1
                answers[text] = str(answer.get("translatedText"))

    async def clients() -> float:
        for _ in range(600):
            try:
                async with Connection(running) as connection:
                    await connection.post("/translate", {"q": texts[0]} | languages)
                    break
            except OSError:
                await asyncio.sleep(0.1)
        settled()
        start = time.perf_counter()
        await asyncio.gather(*(client(number, start + arguments.seconds) for number in range(arguments.clients)))
        return time.perf_counter() - start

    seconds = asyncio.run(clients())
    cuts = statistics.quantiles(latencies, n=100)
    return {
        "sentences/s": round(len(latencies) / seconds, 1),
        "statuses": statuses,
        "p50 ms": round(1000 * cuts[49], 1),
        "p99 ms": round(1000 * cuts[98], 1),
        "memory MB": round(running.memory),
        "answers": answers,
    }


# A model of base size.


def base_folder(place: Path) -> Path:
    """A Transformer of base size with random weights, whose answers end where they may."""
    texts = [text for pair in islice(builtin.pairs("en", "de"), 4_000) for text in pair]
    tokenizer = Tokenizer.train(texts, "bpe", 8_000)
    Tokenizers(tokenizer, tokenizer).save(place)
    config = Config.of(
        {
            "data": {"source": "en", "target": "de"},
            "model": {"family": "transformer", "width": 512, "heads": 8, "feed_forward": 2048, **LAYERS},
            "search": {"max_length_factor": 1.0, "max_length_extra": 2, "guard": False, "protect": []},
        }
    )
    config = config.model_copy(update={"model": with_shape(config.model, True)})
    torch.manual_seed(1)
    save_weights(weights_of(build_model(config, tokenizer.size, tokenizer.size)), place / WEIGHTS)
    config.save(place / CONFIG)
    return place


def sentences(count: int) -> list[str]:
    """Sources of the built-in corpus that no model was trained on, each once."""
    return list(dict.fromkeys(source for source, _ in islice(builtin.pairs("en", "de", split="test"), 3 * count)))[
        :count
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("scenario", choices=(*SCENARIOS, "all", "anchor"))
    parser.add_argument("folder", help="a folder, or `base`")
    parser.add_argument("--clients", type=int, default=64)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--requests", type=int, default=50_000)
    parser.add_argument("--sentences", type=int, default=1_000)
    parser.add_argument("--threads", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--engine", default="torch")
    parser.add_argument("--anchor", metavar="PYTHON", help="one that has libretranslate and tokenizers installed")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    texts = sentences(arguments.sentences)
    tests = {"load": load_test, "memory": memory_test, "flood": flood_test, "disconnect": disconnect_test}
    with tempfile.TemporaryDirectory() as place:
        folder = base_folder(Path(place)) if arguments.folder == "base" else Path(arguments.folder)
        chosen = {"all": SCENARIOS, "anchor": ()}.get(arguments.scenario, (arguments.scenario,))
        for name in chosen:
            print(
                json.dumps({"scenario": name, "folder": arguments.folder} | tests[name](arguments, folder, texts)),
                flush=True,
            )
        if arguments.anchor:
            print(json.dumps(anchor(arguments, folder, texts)))


if __name__ == "__main__":
    main()
