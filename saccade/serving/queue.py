"""What waits for a model: bounded, and shared fairly. Event loop and worker thread both use it."""

import math
import threading
import time
from collections import OrderedDict, deque
from collections.abc import Callable, Sequence

from saccade.serving.problems import Busy, Refused, TooLarge, TooMany
from saccade.serving.tickets import Sentence, Ticket


class FairQueue:
    """Sentences by client and, of a client, by request: each gets its turn, however much the others have waiting."""

    def __init__(self, most: int, most_characters: int) -> None:
        self.most, self.most_characters = most, most_characters
        self.sentences = self.characters = 0
        self._clients: OrderedDict[str, OrderedDict[object, deque[Sentence]]] = OrderedDict()
        self._lock = threading.Lock()
        self._taken, self._since = 0, time.monotonic()
        self._rate = 0.0  # sentences a second, of late

    def put(self, tickets: Sequence[Ticket], request: object) -> None:
        """All sentences of a request, or none: a request that finds no room is refused."""
        sentences = [sentence for ticket in tickets for sentence in ticket.sentences]
        characters = sum(sentence.characters for sentence in sentences)
        if not sentences:
            return
        client = tickets[0].client
        with self._lock:
            if len(sentences) > self.most or characters > self.most_characters:
                raise TooLarge(
                    f"{len(sentences):,} sentences of {characters:,} characters in one request, more than the "
                    f"{self.most:,} of {self.most_characters:,} that may wait at all; send less at a time"
                )
            if self.sentences + len(sentences) > self.most or self.characters + characters > self.most_characters:
                raise self._refusal(client)
            requests = self._clients.setdefault(client, OrderedDict())
            requests[request] = deque(sentences)
            self.sentences += len(sentences)
            self.characters += characters

    def _refusal(self, client: str) -> Refused:
        own = sum(len(waiting) for waiting in self._clients.get(client, {}).values())
        seconds = max(1, min(60, math.ceil(self.sentences / self._rate))) if self._rate else 1
        if 2 * own > self.sentences and len(self._clients) > 1:
            return TooMany(f"{own:,} sentences of yours are waiting already; wait for some of them", seconds)
        return Busy(f"{self.sentences:,} sentences are waiting already; try again in {seconds} s", seconds)

    def take(self, accept: Callable[[Sentence], bool]) -> list[Sentence]:
        """Those that may start now, one of each client and request in turn. `accept` is asked of each, and counts."""
        taken: list[Sentence] = []
        with self._lock:
            refused: set[str] = set()
            while len(refused) < len(self._clients):
                client = next(name for name in self._clients if name not in refused)
                self._clients.move_to_end(client)
                sentence = self._next_of(self._clients[client], accept)
                if sentence is None:
                    refused.add(client)
                else:
                    taken.append(sentence)
                    self._count_out(sentence)
                if not self._clients[client]:
                    del self._clients[client]
                    refused.discard(client)
            self._measure(len(taken))
        return taken

    @staticmethod
    def _next_of(
        requests: "OrderedDict[object, deque[Sentence]]", accept: Callable[[Sentence], bool]
    ) -> Sentence | None:
        for request in list(requests):
            waiting = requests[request]
            if accept(waiting[0]):
                sentence = waiting.popleft()
                requests.move_to_end(request)
                if not waiting:
                    del requests[request]
                return sentence
        return None

    def remove(self, tickets: Sequence[Ticket], request: object) -> None:
        """What of a request's texts is still waiting is no longer wanted."""
        gone = set(tickets)
        with self._lock:
            for client, requests in list(self._clients.items()):
                if request not in requests:
                    continue
                left = deque(sentence for sentence in requests[request] if sentence.ticket not in gone)
                for sentence in requests[request]:
                    if sentence.ticket in gone:
                        self._count_out(sentence)
                if left:
                    requests[request] = left
                else:
                    del requests[request]
                if not requests:
                    del self._clients[client]

    def _count_out(self, sentence: Sentence) -> None:
        self.sentences -= 1
        self.characters -= sentence.characters

    def _measure(self, taken: int) -> None:
        self._taken += taken
        seconds = time.monotonic() - self._since
        if seconds > 1.0:
            self._rate = self._taken / seconds
            self._taken, self._since = 0, time.monotonic()
