"""`saccade train --devices N`: torchrun's launcher in this process, a worker for each device, restarts included."""

import os
import signal
import sys
import tempfile
import threading
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from saccade.errors import SaccadeError

VERDICT = "SACCADE_VERDICT"  # names the file in which a worker leaves an exit status that no restart would change
FINAL = {2: "refused", 130: "interrupted"}
PATIENCE = 30.0  # seconds in which the first process of a machine comes to where another one is
LAST_WORD = 5.0  # … and in which one that has ended for good has said so


def launch(arguments: list[str], devices: int, restarts: int) -> None:
    """Run `saccade ARGUMENTS` once for each device of this machine; ends this process unless all goes well."""
    from torch.distributed.elastic.multiprocessing.api import SignalException
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.launcher.api import LaunchConfig, elastic_launch

    with tempfile.TemporaryDirectory(prefix="saccade-") as place:
        verdict = Path(place) / "verdict"
        os.environ[VERDICT] = str(verdict)
        config = LaunchConfig(
            min_nodes=1,
            max_nodes=1,
            nproc_per_node=devices,
            run_id=uuid.uuid4().hex,
            rdzv_backend="c10d",
            rdzv_endpoint="localhost:0",
            max_restarts=restarts,
        )
        try:
            elastic_launch(config, sys.executable)("-m", "saccade.distributed.launch", *arguments)
        except ChildFailedError as error:
            if not verdict.exists():
                rank, failure = error.get_first_failure()
                raise SaccadeError(
                    f"rank {rank} of {devices} ended with status {failure.exitcode} ({restarts} restarts are spent); "
                    "the same command goes on from the last checkpoint"
                ) from None
        except SignalException:
            sys.exit(130)
        finally:
            del os.environ[VERDICT]
        if verdict.exists():
            sys.exit(int(verdict.read_text()))


@contextmanager
def one_voice() -> Iterator[None]:
    """What all processes of a machine refuse, the first one says; torchrun ends the others while they wait.

    One that ended at once would have torchrun end the first before it has spoken. What the first does not refuse is
    said after a while by who does.
    """
    try:
        yield
    except SaccadeError:
        if os.environ.get("LOCAL_RANK", "0") != "0":
            time.sleep(PATIENCE)
        raise


def work() -> None:
    """A worker: as `python -m saccade`, but what another attempt would not change is no failure to be tried again."""
    from saccade.__main__ import main

    verdict = Path(os.environ[VERDICT])
    if os.environ.get("RANK") == "0":
        verdict.unlink(missing_ok=True)  # an earlier attempt's
    try:
        main()
    except SystemExit as end:
        if end.code not in FINAL:
            raise
        verdict.write_text(str(end.code), encoding="utf-8")
    except RuntimeError:
        # A collective whose other end is gone, most often: if that one ended for good, it has said why, or is about to.
        until = time.monotonic() + LAST_WORD
        while not verdict.exists():
            if time.monotonic() > until:
                raise
            time.sleep(0.1)


def _stop_with_launcher() -> None:
    """If the launcher is killed, stop as if asked to (a step is finished and saved), rather than go on unseen."""
    launcher = os.getppid()

    def look() -> None:
        while os.getppid() == launcher:
            time.sleep(1)
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=look, name="saccade-launcher", daemon=True).start()


if __name__ == "__main__":
    _stop_with_launcher()
    work()
