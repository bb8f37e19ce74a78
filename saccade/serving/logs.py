"""Logs: a JSON object a line. Users' texts are not in them unless that was asked for."""

import json
import logging
import sys
from datetime import datetime, timezone


class JsonLines(logging.Formatter):
    """`time`, `level`, `event`, then the fields of the event."""

    def format(self, record: logging.LogRecord) -> str:
        when = datetime.fromtimestamp(record.created, timezone.utc).isoformat(timespec="milliseconds")
        row = {"time": when, "level": record.levelname.lower(), "event": record.getMessage()}
        row |= getattr(record, "fields", {})
        if record.exc_info:
            row["error"] = self.formatException(record.exc_info)
        return json.dumps(row, ensure_ascii=False, default=str)


def log_to_stderr(level: int = logging.INFO) -> None:
    """The server's events, and what uvicorn has to complain of."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonLines())
    for name, least in (("saccade.serving", level), ("uvicorn", logging.WARNING)):
        logger = logging.getLogger(name)
        logger.handlers, logger.propagate = [handler], False
        logger.setLevel(least)
