"""The models that a server was given: loaded when first asked for, dropped when memory is wanted for others."""

import asyncio
import hashlib
import logging
import time
from collections import defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path

from saccade.config import Config
from saccade.data.tokenizers import Tokenizers
from saccade.errors import SaccadeError
from saccade.folder import CONFIG, WEIGHTS, require
from saccade.models.build import attends
from saccade.serving.deadline import Deadline
from saccade.serving.model import LocalModel, Model
from saccade.serving.problems import Busy, NotFound, TooSlow
from saccade.serving.replicas import Replicas, shares_of
from saccade.serving.schemas import ModelCard
from saccade.serving.settings import ServingSettings
from saccade.serving.trying import Tries
from saccade.training.checkpoint import parameters_in

log = logging.getLogger("saccade.serving")

OVERHEAD = 1.3  # bytes in memory to a byte of weights: packed copies, tokenizers, what is at work
EXAMPLES = 3  # texts to try a model with


@dataclass(eq=False)
class Loaded:
    """A model in memory. It is closed when it is retired and nobody uses it."""

    model: Model
    version: str
    size: int
    users: int = 0
    retired: bool = False
    used: float = field(default_factory=time.monotonic)
    tokens: int = 0  # written, as far as they were counted


@dataclass(eq=False)
class Entry:
    """A folder that may be asked for by name."""

    name: str
    folder: Path
    card: ModelCard
    size: int
    beam: int  # that its settings have
    loaded: Loaded | None = None
    loading: "asyncio.Task[Loaded] | None" = None
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)


class ModelPool:
    """Folders by name, and those of them that are loaded, within a budget of memory."""

    def __init__(
        self, folders: Sequence[Path], settings: ServingSettings, before_closing: Callable[[Loaded], Awaitable[object]]
    ) -> None:
        """`before_closing`: a last look at a model."""
        self.settings, self._before_closing = settings, before_closing
        self.budget = int(settings.memory * 2**30)
        self.entries: dict[str, Entry] = {}
        for folder in folders:
            self.add(folder)
        self._freed = asyncio.Condition()
        self._leaving: set[Loaded] = set()  # retired, but in use

    def add(self, folder: Path) -> None:
        """One more folder that may be asked for."""
        if any(entry.folder == folder for entry in self.entries.values()):
            return
        entry = _entry(_name_for(folder, self.entries), folder, self.settings)
        if entry.size > self.budget:
            raise SaccadeError(
                f"{folder}: takes about {entry.size / 2**30:.2f} GB, more than --memory {self.settings.memory:g}; "
                "raise it"
            )
        self.entries[entry.name] = entry

    def named(self, name: str | None) -> Entry:
        """The folder of that name; None: the first."""
        if not self.entries:
            raise NotFound("no model is served here yet; the run that is watched has none")
        if name is None:
            return next(iter(self.entries.values()))
        if name not in self.entries:
            raise NotFound(f"model={name!r} is not served here; these are: {', '.join(self.entries)}")
        return self.entries[name]

    def cards(self) -> list[ModelCard]:
        """All of them, as they are now."""
        return [self.card(entry) for entry in self.entries.values()]

    def card(self, entry: Entry) -> ModelCard:
        loaded = entry.loaded
        engine = "" if loaded is None else loaded.model.engine
        return entry.card.model_copy(update={"loaded": loaded is not None, "engine": engine or self.settings.engine})

    @property
    def loaded(self) -> list[Loaded]:
        """In memory now, those that are about to leave counted."""
        return [entry.loaded for entry in self.entries.values() if entry.loaded is not None] + list(self._leaving)

    @asynccontextmanager
    async def use(self, entry: Entry, deadline: Deadline | None = None) -> AsyncIterator[Loaded]:
        """The model, loaded if need be; it stays while it is used, whatever becomes of its folder.

        `deadline`: until when its loading is waited for.
        """
        loaded = entry.loaded or await self._load(entry, deadline)
        while loaded.retired or loaded.model.gone:  # between its loading and now
            if loaded is entry.loaded:
                await self.retire(entry)
            loaded = entry.loaded or await self._load(entry, deadline)
        loaded.users += 1
        loaded.used = time.monotonic()
        try:
            yield loaded
        finally:
            loaded.users -= 1
            if loaded.retired and not loaded.users:
                await asyncio.shield(self._close(loaded))

    async def _load(self, entry: Entry, deadline: Deadline | None) -> Loaded:
        """Load it, once for all who wait; it goes on though those who asked have gone away."""
        if entry.loading is None:
            entry.loading = asyncio.create_task(self._loaded(entry))
        loading = entry.loading
        done, _ = await asyncio.wait([loading], timeout=None if deadline is None else deadline.left)
        if not done and deadline is not None:
            raise TooSlow(f"model={entry.name!r} is not loaded after {deadline.seconds:g} seconds; ask again", 5)
        return loading.result()

    async def _loaded(self, entry: Entry) -> Loaded:
        try:
            async with entry.lock:
                if entry.loaded is None:
                    await self._make_room(entry)
                    entry.loaded = await self._read(entry)
                return entry.loaded
        finally:
            entry.loading = None

    async def _read(self, entry: Entry) -> Loaded:
        began = time.monotonic()
        version = await asyncio.to_thread(version_of, entry.folder)
        if self.settings.processes != 0:
            model: Model = await Replicas.start(entry.folder, self.settings)
        else:
            model = await asyncio.to_thread(LocalModel.load, entry.folder, self.settings)
        seconds = round(time.monotonic() - began, 3)
        log.info("model loaded", extra={"fields": {"model": entry.name, "version": version, "seconds": seconds}})
        return Loaded(model, version, entry.size)

    async def warm_up(self) -> None:
        """Load the first model before anybody asks for it."""
        with suppress(SaccadeError, Busy):  # whoever asks is told why
            async with self.use(self.named(None)):
                pass

    async def _make_room(self, wanted: Entry) -> None:
        """Let the least recently used leave, until there is room for one more."""
        deadline = time.monotonic() + self.settings.time_limit
        while sum(loaded.size for loaded in self.loaded) + wanted.size > self.budget:
            others = [entry for entry in self.entries.values() if entry.loaded is not None and entry is not wanted]
            staying = sum(entry.size for entry in others)
            if staying + wanted.size > self.budget:
                oldest = min(others, key=lambda entry: entry.loaded.used)  # type: ignore[union-attr]
                await self.retire(oldest)
                continue
            async with self._freed:  # enough are leaving: wait for the last of their requests
                try:
                    await asyncio.wait_for(self._freed.wait(), max(deadline - time.monotonic(), 0.01))
                except asyncio.TimeoutError:
                    raise Busy(f"model={wanted.name!r}: no memory for it now; try again", 5) from None

    async def retire(self, entry: Entry) -> None:
        """Out of the way of new requests; in memory until the last that uses it is done."""
        loaded, entry.loaded = entry.loaded, None
        if loaded is None:
            return
        loaded.retired = True
        self._leaving.add(loaded)
        log.info("model retired", extra={"fields": {"model": entry.name, "version": loaded.version}})
        if not loaded.users:
            await self._close(loaded)

    async def _close(self, loaded: Loaded) -> None:
        await self._before_closing(loaded)
        await loaded.model.close()
        self._leaving.discard(loaded)
        async with self._freed:
            self._freed.notify_all()

    async def reload_changed(self) -> None:
        """Look now and then whether folders have changed; what is new is loaded before what is old leaves."""
        seen: dict[str, str] = {}
        tries: defaultdict[str, Tries] = defaultdict(lambda: Tries(self.settings.reload_every))
        while True:
            await asyncio.sleep(self.settings.reload_every)
            for entry in list(self.entries.values()):
                if entry.loaded is None:
                    continue
                now = await asyncio.to_thread(_look_at, entry.folder)
                settled, seen[entry.name] = seen.get(entry.name) == now, now
                if not settled or entry.loaded is None or now == entry.loaded.version:
                    continue
                if not tries[entry.name].due(now):
                    continue
                try:
                    await self._reload(entry)
                except Exception as error:  # half written, or its process was ended: the old one goes on, and so do we
                    again = tries[entry.name].failed(now)
                    fields = {"model": entry.name, "why": str(error), "again_in": again}
                    log.warning("model not reloaded", extra={"fields": fields})

    async def _reload(self, entry: Entry) -> None:
        async with entry.lock:
            now = await asyncio.to_thread(_entry, entry.name, entry.folder, self.settings)
            fresh = await self._read(entry)  # the last that can fail: no model is left that nobody closes
            entry.card, entry.size, entry.beam = now.card, now.size, now.beam
            await self.retire(entry)
            entry.loaded = fresh

    async def close(self) -> None:
        """Stop all that is running."""
        for entry in self.entries.values():
            if entry.loading is not None:
                await asyncio.wait([entry.loading])
        for loaded in self.loaded:
            await loaded.model.close()


def version_of(folder: Path) -> str:
    """Changes when a file that the translator reads does."""
    facts = []
    for path in sorted(folder.iterdir()) if folder.is_dir() else []:
        if path.suffix in (".yaml", ".safetensors", ".json") and path.name not in ("record.json",) and path.is_file():
            stat = path.stat()
            facts.append(f"{path.name} {stat.st_size} {stat.st_mtime_ns} {stat.st_ino}")
    return hashlib.sha256("\n".join(facts).encode()).hexdigest()[:12]


def _look_at(folder: Path) -> str:
    """Its version, or why it has none: what cannot be read is no reason to look no more."""
    try:
        return version_of(folder)
    except OSError as error:
        return str(error)


def _name_for(folder: Path, taken: dict[str, Entry]) -> str:
    name = folder.resolve().name
    number = 2
    while name in taken:
        name, number = f"{folder.resolve().name}-{number}", number + 1
    return name


def _examples(config: Config) -> list[str]:
    """Of the built-in corpus, sentences that it has never seen: that it knows no others, nobody would guess."""
    data = config.data
    if data.train or data.source is None or data.target is None:
        return []
    from saccade.data import builtin  # Babel's data is loaded only when it is used

    try:
        return [source for source, _ in islice(builtin.pairs(data.source, data.target, split="test"), EXAMPLES)]
    except SaccadeError:  # another language was written into the settings since
        return []


def _entry(name: str, folder: Path, settings: ServingSettings) -> Entry:
    require(folder)
    config = Config.load(folder / CONFIG)
    Tokenizers.load(folder)  # what is wrong with them is said now
    if config.data.monolingual:
        raise SaccadeError(f"{folder}: is a language model, which translates nothing; serve a folder of pairs")
    card = ModelCard(
        name=name,
        source=config.data.source or "",
        target=config.data.target or "",
        family=config.model.family,
        parameters=parameters_in(folder / WEIGHTS),
        # From the settings: building the model, even without storage, imports PyTorch's compiler (145 MB, a second).
        attends=attends(config.model),
        examples=_examples(config),
        loaded=False,
        engine="",
    )
    copies = 1 if settings.processes == 0 else shares_of(folder, settings).processes
    size = int((folder / WEIGHTS).stat().st_size * OVERHEAD) * copies
    return Entry(name, folder, card, size, config.search.beam)
