"""Log lines of a failed run: the reason in one line, at once and as the last line.

In a simulation Flower's process learns of an exception after Ray has started, ten seconds or more later. So the line
is printed where the exception is raised. Flower then logs the exception and, as the last thing, a page about its exit
code; the line is added to that page. docs/how_to/run_status.md says how to read the status of a run.
"""

from __future__ import annotations

import logging

from flwr_flynn.app.data.datasets import full_text
from flwr_flynn.errors import FlyNNError

_LONGEST = 2000  # characters of a reason
_EXIT_PAGE = "Exit Code:"  # its first words in Flower 1.23 to 1.42

_FLOWER = logging.getLogger("flwr")


def one_line(record: logging.LogRecord) -> bool:
    """Log filter: this package's own errors, which Flower would log with a traceback, become one line."""
    error = record.exc_info[1] if record.exc_info else None
    if error is not None and is_plain(error):
        record.msg, record.args, record.exc_info = reason(error), (), None
    return True


def is_plain(error: BaseException) -> bool:
    """True for an error that its message explains, without a traceback."""
    return isinstance(error, FlyNNError | MemoryError)


def reason(error: BaseException) -> str:
    """The type and the message of an error, with its notes, in one line."""
    text = " ".join(f"{type(error).__name__}: {full_text(error)}".split())
    return text if len(text) <= _LONGEST else text[: _LONGEST - 1] + "…"


def tell(error: BaseException) -> None:
    """Print the line of a failed run, and have it as the last line of the exit page that Flower will log."""
    line = f"FAILED: {reason(error)}"
    print(line, flush=True)

    def with_line(record: logging.LogRecord) -> bool:
        """Log filter: leave out the error, where it was told whole, and end the exit page with the line."""
        text = record.getMessage()
        if is_plain(error) and text == reason(error):
            return False
        if text.startswith(_EXIT_PAGE):
            page = text.splitlines()[0] if is_plain(error) else text
            record.msg, record.args = f"{page}\n{line}", ()
        return True

    _FLOWER.addFilter(with_line)
