"""Blocks of work on a Ray cluster (Moritz et al. 2018), by Ray Data: what the same work gives here, in the same order.

    with on_ray("10.0.0.1:6379") as cluster:
        for result in cluster.map(work, tasks): ...

Tasks go out in waves of a few for each processor, so that what waits on the cluster is bounded, whatever the corpus.
Every machine has Saccade installed, and sees folders of models under the same names; corpora and results are read and
written by the process that asks.
"""

import importlib
import logging
import os
import pickle
import re
import socket
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from itertools import islice
from typing import Any, TypeVar

from saccade.errors import SaccadeError

Task = TypeVar("Task")
Result = TypeVar("Result")

LOCAL = "local"  # a cluster of this machine alone, which ends with the command
ADDRESS = re.compile(r"auto|local|ray://\S+|[\w.\-\[\]:]+:\d+")
ANSWER = 10.0  # seconds in which a cluster is to be reached
FEWEST = 16  # tasks in a wave


def spelled_out(arguments: Sequence[str]) -> list[str]:
    """Arguments in which `--ray` has a value: the address that follows it, or `local`."""
    found: list[str] = []
    rest = list(arguments)
    while rest:
        argument = rest.pop(0)
        if argument == "--ray":
            argument += "=" + (rest.pop(0) if rest and ADDRESS.fullmatch(rest[0]) else default_address())
        found.append(argument)
    return found


def default_address() -> str:
    """The cluster that the environment names, or none but this machine."""
    return os.environ.get("RAY_ADDRESS") or LOCAL


@contextmanager
def on_ray(address: str) -> Iterator["Cluster"]:
    """Join a cluster, or begin one on this machine that ends here; one that this process is in already is used."""
    try:
        ray = importlib.import_module("ray")
        data = importlib.import_module("ray.data")
    except ImportError:
        raise SaccadeError("--ray needs ray: pip install 'saccade[scale]'") from None
    begun = not ray.is_initialized()
    if begun:
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # nothing is told to anybody unless somebody wants it
        try:
            _check_reached(address)
            ray.init(address=address, log_to_driver=False, logging_level=logging.ERROR)
        except (OSError, ValueError, RuntimeError, ray.exceptions.AuthenticationError) as error:
            reason = (str(error).splitlines() or [type(error).__name__])[0].partition(". ")[0]
            remedy = "start one with `ray start --head`"
            if not isinstance(error, ConnectionRefusedError):  # Ray says no more of a cluster that shuts us out
                remedy += (
                    ", join one that wants a token (Ray's do where ~/.ray/auth_token is) with RAY_AUTH_MODE=token and "
                    "that token there or in RAY_AUTH_TOKEN"
                )
            raise SaccadeError(
                f"--ray={address}: no cluster answers there ({reason}); {remedy}, or give --ray alone to use this "
                "machine"
            ) from None
    logging.getLogger("ray.data").setLevel(logging.ERROR)
    context = data.DataContext.get_current()
    context.enable_progress_bars = False
    context.execution_options.preserve_order = True
    try:
        yield Cluster(ray, data)
    finally:
        if begun:
            ray.shutdown()


def _check_reached(address: str) -> None:
    """Raise OSError where nothing listens at HOST:PORT: Ray itself would try again for minutes, deaf to signals."""
    host, _, port = address.rpartition(":")
    if host and port.isdecimal() and not address.startswith("ray://"):  # whose client gives up by itself
        socket.create_connection((host.strip("[]"), int(port)), timeout=ANSWER).close()


class Cluster:
    """Applies functions to tasks on many machines."""

    def __init__(self, ray: Any, data: Any) -> None:
        self._ray, self._data = ray, data

    def map(self, work: Callable[[Task], Result], tasks: Iterable[Task]) -> Iterator[Result]:
        """What `work` makes of each task, in the order of the tasks."""
        packed = self._ray.cloudpickle.dumps(work)  # once, rather than by each wave's plan
        return self._waves(
            lambda wave: wave.map_batches(_done, fn_args=(packed,), batch_size=1, batch_format="numpy"), tasks
        )

    def pool(self, make: Callable[[], Callable[[Task], Result]], tasks: Iterable[Task]) -> Iterator[Result]:
        """The same by actors: each makes its function once (a model is loaded), and keeps it for a wave.

        One for each GPU of the cluster, or, without any, for each processor.
        """
        gpus = int(self._ray.cluster_resources().get("GPU", 0))
        needs = {"num_gpus": 1} if gpus else {"num_cpus": 1}
        pool = self._data.ActorPoolStrategy(min_size=1, max_size=gpus or self.processors)
        return self._waves(
            lambda wave: wave.map_batches(
                _Actor,
                fn_constructor_args=(self._ray.cloudpickle.dumps(make),),
                compute=pool,
                batch_size=1,
                batch_format="numpy",
                **needs,
            ),
            tasks,
        )

    @property
    def processors(self) -> int:
        """Of all machines."""
        return max(1, int(self._ray.cluster_resources().get("CPU", 1)))

    def _waves(self, plan: Callable[[Any], Any], tasks: Iterable[Any]) -> Iterator[Any]:
        iterator = iter(tasks)
        while wave := list(islice(iterator, max(FEWEST, 4 * self.processors))):
            rows = [{"task": pickle.dumps(task)} for task in wave]
            for row in plan(self._data.from_items(rows, override_num_blocks=len(rows))).iter_rows():
                ended, value = pickle.loads(row["result"])
                if not ended:
                    raise SaccadeError(value)
                yield value


class RayMapper:
    """A `Mapper` that joins the cluster when there is something to do, and leaves it when all is done."""

    def __init__(self, address: str) -> None:
        self.address = address
        self._joined = ExitStack()
        self._cluster: Cluster | None = None

    def map(self, work: Callable[[Task], Result], tasks: Iterable[Task]) -> Iterator[Result]:
        """What `work` makes of each task, in the order of the tasks."""
        if self._cluster is None:
            self._cluster = self._joined.enter_context(on_ray(self.address))
        return self._cluster.map(work, tasks)

    def close(self) -> None:
        """Leave the cluster."""
        self._joined.close()
        self._cluster = None


class _Actor:
    """A function that is made once, where it runs."""

    def __init__(self, packed: bytes) -> None:
        self.work = pickle.loads(packed)()

    def __call__(self, batch: Any) -> dict[str, list[bytes]]:
        return {"result": [_tried(self.work, task) for task in batch["task"]]}


def _done(batch: Any, packed: bytes) -> dict[str, list[bytes]]:
    work = pickle.loads(packed)
    return {"result": [_tried(work, task) for task in batch["task"]]}


def _tried(work: Callable[[Any], Any], task: bytes) -> bytes:
    """What became of a task; what a user can mend travels as its sentence."""
    try:
        return pickle.dumps((True, work(pickle.loads(task))))
    except SaccadeError as error:
        return pickle.dumps((False, str(error)))
