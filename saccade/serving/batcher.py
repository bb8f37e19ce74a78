"""What runs a model: sentences of all clients join one running batch.

Newcomers are let in between two steps: at once if nothing is at work; else when they have waited long enough for it to
be done (`patience`). Those who join midway cost a copy of the state, and stand further back in it: a quarter to
a third of a small model's throughput, which is done before anybody has to. What an
engine only takes in batches (CTranslate2; a captured step on a GPU) is given small ones, so that what is no longer
wanted has mostly not begun.
"""

import asyncio
import logging
import queue
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, TypeVar

import torch

from saccade.errors import SaccadeError
from saccade.generation.asked import ROWS
from saccade.generation.guard import Guarded, settled, shorter, stricter, suspect
from saccade.generation.running import Running, width_of
from saccade.generation.search import Hypothesis
from saccade.serving.pace import SOON, Pace
from saccade.serving.queue import FairQueue
from saccade.serving.schemas import Part, Result
from saccade.serving.settings import ServingSettings
from saccade.serving.tickets import Kind, Sentence, Ticket
from saccade.translator import Translator

log = logging.getLogger("saccade.serving")
T = TypeVar("T")

MICRO = 1024  # tokens of a small batch, padding counted
SO_FAR = 0.03  # seconds between two parts of a streamed translation
TOGETHER, HELD = 16, 0.25  # texts that are finished together, and seconds that one waits for others

Delivery = tuple[Ticket, Part | Result | Exception]


class Worker:
    """One a model. `submit`, `cancel` and `call` are for the event loop; the rest is the model's work, step by step.

    It has a thread of its own or, with `loop`, takes its steps in that event loop, one between two looks at what else
    there is to do: for a process that has nothing else, since two threads of Python keep each other waiting.
    """

    def __init__(
        self, translator: Translator, settings: ServingSettings, loop: asyncio.AbstractEventLoop | None = None
    ) -> None:
        self.translator = translator
        self.queue = FairQueue(settings.max_waiting, settings.max_waiting_characters)
        self.rows = 0  # at work, for whoever wants to know
        self.tokens = 0  # written so far
        self.in_batches = 0  # sentences in small batches
        self._messages: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._running: Running[Sentence] | None = None
        self._again: list[Sentence] = []
        self._at_work: dict[Ticket, set[Sentence]] = {}
        self._out: list[Delivery] = []
        self._unfinished: list[Ticket] = []  # all their pieces are there, but something was lost
        self._unfinished_since = 0.0
        self._pace = Pace(settings.patience)
        self._shown = 0.0
        self._batches = 0
        # A captured step belongs to one thread; CTranslate2 has as many workers of its own as there are threads.
        captured = translator.engine is translator.own_engine
        self._slots = 1 if captured else torch.get_num_threads()
        self._captures = captured and translator.device.type == "cuda"
        self._helpers = ThreadPoolExecutor(self._slots, "saccade-batch")
        self._closing = False
        self._loop = loop
        self._next: asyncio.Handle | None = None  # the next step, if they are taken in the event loop
        self._thread: threading.Thread | None = None
        if loop is None:
            self._thread = threading.Thread(target=self._run, name="saccade-model", daemon=True)
            self._thread.start()

    # For the event loop.

    def submit(self, tickets: Sequence[Ticket], request: object) -> None:
        """The texts of a request wait for their turn; raises `Refused` where there is no room for them."""
        self._loop = asyncio.get_running_loop()
        self.queue.put(tickets, request)
        self._pace.arrived()
        self._post(_nothing)

    def cancel(self, tickets: Sequence[Ticket], request: object) -> None:
        """Texts are no longer wanted: what waits is forgotten, what is at work leaves before the next step."""
        for ticket in tickets:
            ticket.over = True
        self.queue.remove(tickets, request)
        self._post(lambda: self._drop(tickets))

    async def call(self, function: Callable[[], T]) -> T:
        """Run something that needs the model, between two steps."""
        answer: Future[T] = Future()

        def work() -> None:
            if answer.set_running_or_notify_cancel():
                try:
                    answer.set_result(function())
                except BaseException as error:
                    answer.set_exception(error)

        self._post(work)
        return await asyncio.wrap_future(answer)

    def _post(self, message: Callable[[], None]) -> None:
        """To be done before the next step."""
        self._messages.put(message)
        if self._thread is None:
            self._wake()

    def _post_from_outside(self, message: Callable[[], None]) -> None:
        """The same, for any thread."""
        self._messages.put(message)
        if self._thread is None and self._loop is not None:
            self._loop.call_soon_threadsafe(self._wake)

    async def close(self) -> None:
        """Stop, when what is at work is done."""
        if self._thread is None:
            while self._busy:
                await asyncio.sleep(0.01)
        else:
            self._messages.put(self._stop)
            await asyncio.to_thread(self._thread.join)
        await asyncio.to_thread(self._helpers.shutdown)

    # In the event loop, if the steps are taken there.

    def _wake(self) -> None:
        """The next step is to be taken as soon as it can be."""
        assert self._loop is not None
        if self._next is not None:
            self._next.cancel()
        self._next = self._loop.call_soon(self._take_turn)

    def _take_turn(self) -> None:
        assert self._loop is not None
        self._next = None
        self._listen(0)
        self._work()
        pause = self._pause
        if pause is not None and self._next is None:
            self._next = (
                self._loop.call_later(pause, self._take_turn) if pause else self._loop.call_soon(self._take_turn)
            )

    # In the thread.

    def _run(self) -> None:
        while not self._closing or self._busy:
            self._listen(self._pause)
            self._work()

    def _stop(self) -> None:
        self._closing = True

    # In either.

    def _work(self) -> None:
        try:
            self._turn()
        except Exception as error:  # whoever is at work is told; those who come next start afresh
            log.exception("model failed")
            self._running = None
            for ticket in list(self._at_work):
                self._end(ticket, error)
        self._finish()
        self._tell()

    @property
    def _busy(self) -> bool:
        running = self._running is not None and self._running.busy
        return running or bool(self._again) or (self.queue.sentences > 0 and self._batches < self._slots)

    @property
    def _pause(self) -> float | None:
        """Seconds until there is something to do; None: not before somebody asks."""
        if not self._busy:
            return None
        return SOON / 4 if self._pace.gathering else 0

    def _listen(self, wait: float | None) -> None:
        """Do what was asked for, waiting for it so long; None: as long as it takes."""
        try:
            self._messages.get(block=wait != 0, timeout=wait)()
            while True:
                self._messages.get_nowait()()
        except queue.Empty:
            pass

    def _turn(self) -> None:
        """Let newcomers in, and take a step."""
        at_work = self._running.sentences if self._running is not None else 0
        if self._pace.due(self.queue.sentences + len(self._again), at_work):
            self._admit()
        if self._running is not None and self._running.busy:
            for sentence, hypotheses in self._running.step():
                self._found(sentence, hypotheses)
            self._show()
            self._pace.stepped(self._running.busy)
        self.rows = (self._running.rows if self._running is not None else 0) + self.in_batches

    def _admit(self) -> None:
        fresh = self._running is None or not self._running.busy
        again, self._again = self._again, []
        taken = [*again, *self.queue.take(self._room())]
        self._pace.let_in(len(taken), fresh)
        groups: dict[tuple[Any, ...], list[Sentence]] = {}
        for sentence in taken:
            if sentence.ticket.over:
                continue
            self._at_work.setdefault(sentence.ticket, set()).add(sentence)
            kind, second = sentence.ticket.kind, sentence.finding is not None
            stepwise = second or self._stepwise(sentence)
            width = width_of(sentence.columns) if stepwise else 0
            name = (stepwise, second, kind.key, width, bool(sentence.job.order.must))
            groups.setdefault(name, []).append(sentence)
        for (stepwise, *_), sentences in groups.items():
            sentences.sort(key=lambda sentence: -sentence.columns)
            if stepwise:
                self._start(sentences)
            else:
                self._start_batches(sentences)

    def _room(self) -> Callable[[Sentence], bool]:
        """Says of each sentence whether there is room for it, beside those before it."""
        cells: dict[int, int] = {}
        tokens = MICRO * (self._slots - self._batches)

        def accept(sentence: Sentence) -> bool:
            nonlocal tokens
            if not self._stepwise(sentence):
                tokens -= sentence.columns
                return tokens + sentence.columns > 0
            width = width_of(sentence.columns)
            if width not in cells:
                cells[width] = self._running.cells(width) if self._running is not None else 0
            cost = sentence.ticket.kind.rows * width
            if cells[width] and cells[width] + cost > sentence.ticket.kind.settings.batch_tokens * ROWS:
                return False
            cells[width] += cost
            return True

        return accept

    def _stepwise(self, sentence: Sentence) -> bool:
        """Whether it joins the running batch."""
        return sentence.ticket.kind.engine is self.translator.own_engine and not self._captures

    def _start(self, sentences: list[Sentence]) -> None:
        """Sentences of like settings and width join those that are at work."""
        kind, second = sentences[0].ticket.kind, sentences[0].finding is not None
        settings = stricter(kind.pool) if second else kind.pool
        if self._running is None:
            self.translator.model.eval()
            self._running = Running(self.translator.model)
        try:
            errand = self.translator.errand(settings, kind.book(second), [sentence.job for sentence in sentences])
            self._running.start(errand, sentences)
        except SaccadeError as error:
            for sentence in sentences:
                self._end(sentence.ticket, error)

    def _start_batches(self, sentences: list[Sentence]) -> None:
        start = 0
        for end in range(1, len(sentences) + 1):
            if end == len(sentences) or (end + 1 - start) * sentences[start].columns > MICRO:
                batch = sentences[start:end]
                start = end
                self._batches += 1
                self.in_batches += len(batch)
                self._helpers.submit(self._search, batch).add_done_callback(
                    lambda done, batch=batch: self._post_from_outside(lambda: self._searched(batch, done))  # type: ignore[misc]
                )

    def _search(self, batch: list[Sentence]) -> dict[Sentence, list[Hypothesis]]:
        """A small batch, in a thread of its own: those that are still wanted."""
        wanted = [sentence for sentence in batch if not sentence.ticket.over]
        if not wanted:
            return {}
        kind = wanted[0].ticket.kind
        scored = any(sentence.ticket.kind.told.scores for sentence in wanted) or kind.settings.mbr > 0
        found = kind.engine.search([sentence.job for sentence in wanted], kind.pool, scored=scored)
        return dict(zip(wanted, found, strict=True))

    def _searched(self, batch: list[Sentence], done: "Future[dict[Sentence, list[Hypothesis]]]") -> None:
        self._batches -= 1
        self.in_batches -= len(batch)
        error = done.exception()
        if error is not None:
            if not isinstance(error, SaccadeError):
                log.error("model failed", exc_info=error)
            for sentence in batch:
                self._end(sentence.ticket, error if isinstance(error, Exception) else RuntimeError(repr(error)))
            return
        for sentence, hypotheses in done.result().items():
            self._found(sentence, hypotheses)

    def _found(self, sentence: Sentence, hypotheses: list[Hypothesis]) -> None:
        """The model has answered: the guard looks at it, and the text it is part of may be done."""
        ticket = sentence.ticket
        if ticket.over:
            return
        kind, answer = ticket.kind, Guarded(hypotheses)
        self.tokens += len(hypotheses[0].tokens) if hypotheses else 0
        try:
            if sentence.finding is not None and sentence.first is not None:
                ngram = stricter(kind.pool).no_repeat_ngram
                answer = settled(sentence.first, sentence.finding, sentence.job, hypotheses, ngram)
            elif kind.settings.guard and (finding := suspect(sentence.job, answer, kind.pool)) is not None:
                job = shorter(sentence.job, finding, kind.pool)
                self._again.append(Sentence(ticket, sentence.place, job, finding, answer))
                return
            ticket.take(sentence.place, answer)
            if ticket.complete:
                if (result := ticket.kind.ready(ticket)) is not None:
                    self._end(ticket, result)
                    return
                self._unfinished_since = self._unfinished_since if self._unfinished else time.monotonic()
                self._unfinished.append(ticket)
        except Exception as error:
            self._failed(ticket, error)

    def _finish(self) -> None:
        """Texts that take another look at the model are finished together: when there are some, or others are done."""
        at_work = self._running is not None and self._running.busy
        waited = time.monotonic() - self._unfinished_since >= HELD
        if not self._unfinished or (at_work and not waited and len(self._unfinished) < TOGETHER):
            return
        kinds: dict[Kind, list[Ticket]] = {}
        for ticket in self._unfinished:
            if not ticket.over:
                kinds.setdefault(ticket.kind, []).append(ticket)
        self._unfinished = []
        for kind, tickets in kinds.items():
            try:
                for ticket, result in zip(tickets, kind.finish(tickets), strict=True):
                    self._end(ticket, result)
            except Exception as error:
                for ticket in tickets:
                    self._failed(ticket, error)

    def _failed(self, ticket: Ticket, error: Exception) -> None:
        if not isinstance(error, SaccadeError):
            log.error("answer failed", exc_info=error)
        self._end(ticket, error)

    def _end(self, ticket: Ticket, outcome: Result | Exception) -> None:
        if not ticket.over:
            ticket.over = True
            self._out.append((ticket, outcome))
        self._drop([ticket])

    def _drop(self, tickets: Sequence[Ticket]) -> None:
        leaving = [sentence for ticket in tickets for sentence in self._at_work.pop(ticket, ())]
        if self._running is not None and leaving:
            self._running.drop(leaving)
            self.rows = self._running.rows + self.in_batches
        self._again = [sentence for sentence in self._again if not sentence.ticket.over]

    def _show(self) -> None:
        """What is known so far of texts that are streamed."""
        if time.monotonic() - self._shown < SO_FAR:
            return
        for ticket, sentences in self._at_work.items():
            if ticket.streamed:
                self._shown = time.monotonic()
                text = ticket.so_far(lambda place, those=sentences: self._written(those, place))  # type: ignore[misc]
                if text and text != ticket.told_so_far:
                    ticket.told_so_far = text
                    self._out.append((ticket, Part(index=ticket.index, text=text)))

    def _written(self, sentences: set[Sentence], place: int) -> str | None:
        for sentence in sentences:
            if sentence.place == place and self._running is not None and self._running.holds(sentence):
                return self.translator.tokenizers.target.decode(self._running.so_far(sentence))
        return None

    def _tell(self) -> None:
        """Hand over what there is to say, all at once: each waking of whoever listens costs."""
        if not self._out or self._loop is None:
            return
        if not self._pace.tells(busy=self._running is not None and self._running.busy):
            return
        out, self._out = self._out, []
        if self._thread is None:
            _deliver(out)
            return
        try:
            self._loop.call_soon_threadsafe(_deliver, out)
        except RuntimeError:  # the loop has closed: nobody listens
            log.debug("nobody listens")


def _deliver(out: list[Delivery]) -> None:
    for ticket, event in out:
        ticket.deliver(event)


def _nothing() -> None:
    """A message that only wakes the thread."""
