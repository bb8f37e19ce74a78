"""The files that a corpus was prepared from, and whether they are what they were."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from saccade.config.data import DataConfig
from saccade.data.corpora import expanded
from saccade.display import Display
from saccade.errors import SaccadeError
from saccade.files import digest

State = list[Any]  # size, time and, unless it is streamed, what it holds; empty: no file


def files_of(data: DataConfig) -> list[str]:
    """All files that a corpus is prepared from."""
    mixed = [name for item in data.mixture for name in (*item.train, *item.valid)]
    return expanded([*data.train, *data.valid, *data.replay, *mixed], monolingual=True)


def states_of(data: DataConfig) -> dict[str, State]:
    """Each file as it is now."""
    found, streamed = {}, _streamed(data)
    for name in files_of(data):
        state = size_and_time(name)
        found[name] = state if name in streamed or not state else [*state, digest(name)]
    return found


def size_and_time(name: str) -> State:
    """The first two of a file's state."""
    path = Path(name)
    return [path.stat().st_size, path.stat().st_mtime_ns] if path.is_file() else []


def check_files(before: Mapping[str, State], data: DataConfig, run: Path, display: Display) -> None:
    """Refuse files that hold something else than they did; of a stream's, say so.

    One of these may be found damaged after days, and be mended.
    """
    streamed = _streamed(data)
    other = [name for name, state in before.items() if not _is_still(name, state)]
    for name in other:
        if name not in streamed:
            raise SaccadeError(
                f"{name}: does not hold what it held when {run} was prepared from it; put that back to go on, choose "
                "another --out, or start over with --restart"
            )
    if other:
        more = f" and {len(other) - 1:,} more" if other[1:] else ""
        display.say(
            f"stream: {other[0]}{more} changed since the run began, which goes on with what is there now, and with the "
            "vocabulary and the validation set that it has; --restart begins again"
        )


def check_names(before: Mapping[str, State], data: DataConfig, run: Path) -> None:
    """Refuse files that a pattern or a folder has now and had not, or the other way round."""
    now = files_of(data)
    come = [name for name in now if name not in before]
    gone = [name for name in before if name not in now]
    if not come and not gone:
        return
    name, *others = come or gone
    more = f" and {len(others):,} more" if others else ""
    said, remedy = ("was not there", "take it away") if come else ("is gone, which was there", "put it back")
    raise SaccadeError(
        f"{name}{more}: {said} when {run} was prepared; {remedy} to go on, choose another --out, or start over with "
        "--restart"
    )


def _is_still(name: str, state: State) -> bool:
    """A file that was copied or touched is another only if it holds something else."""
    now = size_and_time(name)
    if now == state[:2]:
        return True
    return len(state) > 2 and bool(now) and now[0] == state[0] and digest(name) == state[2]


def _streamed(data: DataConfig) -> set[str]:
    files = [*data.train, *(name for item in data.mixture for name in item.train)] if data.stream else []
    return set(expanded(files, monolingual=True))
