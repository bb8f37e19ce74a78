"""Why a request has no answer, as errors that know their HTTP status."""

from saccade.errors import SaccadeError


class Refused(Exception):
    """A request that is not answered; `retry_after` is in seconds."""

    status = 400

    def __init__(self, message: str, retry_after: int | None = None) -> None:
        super().__init__(message)
        self.retry_after = retry_after


class Wrong(Refused):
    """The request asks for what cannot be done."""


class NotFound(Refused):
    """The request names what is not there."""

    status = 404


class TooLarge(Refused):
    """More than is taken in one request."""

    status = 413


class TooMany(Refused):
    """This client has too much waiting."""

    status = 429


class Busy(Refused):
    """The server has too much waiting, or is about to stop."""

    status = 503


class TooSlow(Refused):
    """The time limit is over, and the work was stopped."""

    status = 504


def as_refused(error: Exception) -> Refused | None:
    """What a client is told of an error; None: it is ours, and no business of theirs."""
    if isinstance(error, Refused):
        return error
    return Wrong(str(error)) if isinstance(error, SaccadeError) else None


KINDS: dict[str, type[Exception]] = {
    kind.__name__: kind for kind in (Wrong, NotFound, TooLarge, TooMany, Busy, TooSlow, SaccadeError)
}
