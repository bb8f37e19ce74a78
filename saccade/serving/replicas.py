"""A model in several processes: a small one gains little from a second thread, and much from a second process."""

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import torch

from saccade.folder import WEIGHTS
from saccade.serving.keeping import KEEPING
from saccade.serving.listening import Stop, Tell
from saccade.serving.model import Asked, State
from saccade.serving.remote import RemoteModel
from saccade.serving.schemas import Alternatives, LookRequest
from saccade.serving.settings import ServingSettings
from saccade.training.checkpoint import parameters_in

SMALL = 20_000_000  # parameters; a step of more is worth sharing between threads
MOST = 4  # processes of a small model, unless more are asked for
TOGETHER = 16  # texts of a request that go to one process, though another has less to do


class Shares(NamedTuple):
    """How the cores are shared out."""

    processes: int
    threads: int  # of each
    small: bool  # whether the model is


def shares_of(folder: Path, settings: ServingSettings) -> Shares:
    """For a folder on this machine; `OMP_NUM_THREADS` says how many cores there are to be shared."""
    cores = torch.get_num_threads()
    small = settings.device in (None, "cpu") and parameters_in(folder / WEIGHTS) < SMALL
    processes = settings.processes or (min(cores, MOST) if small else 1)
    return Shares(processes, max(1, cores // processes), small)


class Replicas:
    """Processes with the same model. A request goes to the one that has least to do, a large one to all of them."""

    def __init__(self, models: Sequence[RemoteModel]) -> None:
        self.models = models
        self.engine = models[0].engine
        self._texts = [0] * len(models)  # that each is at

    @classmethod
    async def start(cls, folder: Path, settings: ServingSettings) -> "Replicas":
        """All of them at once; where one cannot be, none is."""
        processes, threads, small = shares_of(folder, settings)
        environment = {name: str(size) for name, size in KEEPING.items()} if small else {}
        each = settings.model_copy(
            update={
                "max_waiting": -(-settings.max_waiting // processes),
                "max_waiting_characters": -(-settings.max_waiting_characters // processes),
            }
        )
        starting = (RemoteModel.start(folder, each, threads, environment) for _ in range(processes))
        started = await asyncio.gather(*starting, return_exceptions=True)
        models = [model for model in started if isinstance(model, RemoteModel)]
        for problem in started:
            if isinstance(problem, BaseException):
                await asyncio.gather(*(model.close() for model in models))
                raise problem
        return cls(models)

    @property
    def gone(self) -> bool:
        return any(model.gone for model in self.models)

    def translate(self, asked: Asked, tell: Tell) -> Stop:
        stops: list[Stop] = []

        def stop() -> None:
            for part in stops:
                part()

        try:
            for part in self._divided(asked):
                stops.append(self._by_one(part, tell))
        except BaseException:
            stop()
            raise
        return stop

    def _divided(self, asked: Asked) -> list[Asked]:
        """The request in as many parts as it is worth; those of like place in it apart, so that all are alike long."""
        count = min(len(self.models), len(asked.texts) // TOGETHER)
        if count < 2:
            return [asked]
        return [
            replace(asked, texts=asked.texts[i::count], prefixes=asked.prefixes and asked.prefixes[i::count])
            for i in range(count)
        ]

    def _by_one(self, asked: Asked, tell: Tell) -> Stop:
        number = self._least_busy
        stop = self.models[number].translate(asked, tell)
        self._texts[number] += len(asked.texts)

        def done() -> None:
            self._texts[number] -= len(asked.texts)
            stop()

        return done

    @property
    def _least_busy(self) -> int:
        return min(range(len(self.models)), key=self._texts.__getitem__)

    async def alternatives(self, text: str, prefix: str, count: int, client: str) -> Alternatives:
        return await self.models[self._least_busy].alternatives(text, prefix, count, client)

    async def look(self, name: str, request: LookRequest) -> str:
        return await self.models[self._least_busy].look(name, request)

    async def state(self) -> State:
        states = await asyncio.gather(*(model.state() for model in self.models))
        return State(*(sum(values) for values in zip(*states, strict=True)))

    async def close(self) -> None:
        await asyncio.gather(*(model.close() for model in self.models))
