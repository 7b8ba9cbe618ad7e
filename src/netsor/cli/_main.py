"""The entry point: every error in one line, and Ctrl-C ends the command within a
second, whatever it is doing.

Exit codes: 2 for bad input, 1 for errors of netsor, 130 for an interrupt, and 141 if
the reader of the output closed it, as a shell reports for a process that SIGPIPE ended.
The signal itself stays off: it would end the process whenever a worker or a cluster
closes a connection. Commands add their own codes, such as 1 for a program without a
limit.
"""

from __future__ import annotations

import io
import logging
import os
import signal
import sys
import threading
import traceback
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

import click
from click import ClickException

from ..runtime import _early_sigint
from ..runtime._executors import threads_start
from ._options import cli
from ._output import echo_error

INTERRUPTED = 130
CLOSED = 128 + 13  # SIGPIPE
PACKAGE = Path(__file__).parent.parent
GRACE = 0.7  # seconds for the main thread to clean up and end
# Python's resource tracker cleans up after a killed process, and would print a warning
# after our last line.
QUIET = "ignore::UserWarning:multiprocessing.resource_tracker"


def main() -> None:
    """Run the command, and end the process."""
    _open_streams()
    watch = Watch()
    try:
        with watch:
            code = _run(watch)
    except KeyboardInterrupt:  # while the watch was set up, or ended
        watch.say()
        code = INTERRUPTED
    # Python might raise the handled signal again while it exits
    if code == INTERRUPTED:
        for stream in (sys.stdout, sys.stderr):
            # it may be None, or closed
            with suppress(AttributeError, OSError, ValueError):
                stream.flush()
        os._exit(code)
    sys.exit(code)


def _run(watch: Watch) -> int:
    """Run the command and write its output to the end; the exit code."""
    try:
        code = 0
        try:
            with warnings.catch_warnings(), _logged():
                # numpy's, of numbers that left double precision
                warnings.simplefilter("error", RuntimeWarning)
                # its own, of a progress bar that cannot be drawn
                warnings.filterwarnings("ignore", "tqdm:")
                with cli.make_context("netsor", sys.argv[1:], obj=watch) as context:
                    cli.invoke(context)
        except click.exceptions.Exit as stop:
            code = stop.exit_code
        except click.exceptions.NoArgsIsHelpError as error:
            click.echo(error.format_message())
        sys.stdout.flush()
        return code
    except BrokenPipeError:  # the reader of the output, such as head, has closed it
        _give_up_stdout()
        return CLOSED
    except ClickException as error:
        echo_error(" ".join(_usage_message(error).split()))
    except (KeyboardInterrupt, click.Abort):
        watch.say()
        return INTERRUPTED
    except (Exception, SystemExit) as error:
        if not _report_unexpected(error):
            return 1
    return 2


# `netsor reproduce` has the settings of the paper: other ones are those of a layer
OF_THE_LAYER = ("--heads", "--activation", "--width")


def _usage_message(error: ClickException) -> str:
    """What click says of wrong usage, with the help or the options that are meant."""
    text = error.format_message()
    if isinstance(error, click.NoSuchOption) and _is_of_the_layer(error):
        return (
            f"No such option {error.option_name}: netsor reproduce has the paper's"
            f" settings; for others use netsor law {error.option_name} or"
            f" netsor compare {error.option_name}"
        )
    if isinstance(error, click.NoSuchOption) and error.possibilities:
        nearest = " or ".join(error.possibilities[:2])  # click sorts them by name
        return f"No such option {error.option_name}: did you mean {nearest}?"
    if isinstance(error, click.MissingParameter) and error.ctx is not None:
        return f"{text.rstrip('.')}: see {error.ctx.command_path} --help"
    return text


def _is_of_the_layer(error: click.NoSuchOption) -> bool:
    """Whether `netsor reproduce` was given an option of `netsor law`."""
    command = error.ctx.info_name if error.ctx is not None else None
    return command == "reproduce" and error.option_name in OF_THE_LAYER


@contextmanager
def _logged() -> Iterator[None]:
    """Print log messages of the library to stderr."""
    log = logging.getLogger("netsor")
    handler = _ToStderr()
    level, propagates = log.level, log.propagate  # to restore
    log.propagate = False
    log.setLevel(logging.INFO)
    log.addHandler(handler)
    try:
        yield
    finally:
        log.removeHandler(handler)
        log.setLevel(level)
        log.propagate = propagates


class _ToStderr(logging.Handler):
    """Prints log messages as the command prints its own."""

    def emit(self, record: logging.LogRecord) -> None:
        """Print the message of a record on standard error."""
        echo_error(record.getMessage())


def _report_unexpected(error: BaseException) -> bool:
    """Print an error that no command expected; False if it is netsor's own."""
    from ._load_program import LOADED, one_line

    if isinstance(error, OSError):
        _give_up_stdout()  # stdout may be the file that cannot be written
    message = _system_message(error)
    if message is not None:
        echo_error(message)
        return True
    frames = traceback.extract_tb(error.__traceback__)
    if isinstance(error, ValueError | TypeError) and _is_raised_here(frames):
        echo_error(one_line(error))
        return True
    described = f"{type(error).__name__}: {one_line(error)}"
    if any(frame.filename in LOADED for frame in frames):
        echo_error(f"FILE:PROGRAM failed: {described}")
        return True
    echo_error(
        f"an internal error of netsor, please report it: {type(error).__name__}"
        f" at {_last_line_of_netsor(frames)}: {one_line(error)}"
    )
    return False


def _system_message(error: BaseException) -> str | None:
    """What to say of an error of the user's file, the numbers or the system; None for
    any other.
    """
    from ._load_program import one_line

    match error:
        case SystemExit():
            return f"FILE:PROGRAM: {one_line(error)}"
        case RuntimeWarning():
            return (
                f"the numbers leave double precision ({one_line(error)}): choose less"
                " extreme options"
            )
        case RuntimeError() if str(error).startswith("can't start new thread"):
            return (
                "no more threads can be started: use fewer --workers, or raise the"
                " limit of this system"
            )
        case MemoryError():
            return (
                "there is not enough memory: use fewer draws, tokens or heads, or a"
                " smaller width"
            )
        case OSError():
            return f"a file cannot be read or written: {one_line(error)}"
    return None


def _is_raised_here(frames: Sequence[traceback.FrameSummary]) -> bool:
    """Whether a `raise` of netsor ended the traceback: the message is for the user."""
    if not frames or not Path(frames[-1].filename).is_relative_to(PACKAGE):
        return False
    return (frames[-1].line or "").startswith("raise ")


def _last_line_of_netsor(frames: Sequence[traceback.FrameSummary]) -> str:
    """The file and the line where the traceback was in netsor last."""
    for frame in reversed(frames):
        path = Path(frame.filename)
        if path.is_relative_to(PACKAGE):
            return f"{path.relative_to(PACKAGE)}:{frame.lineno}"
    return "start"


def _open_streams() -> None:
    """Make stdin, stdout and stderr usable if the process was started with some of them
    closed, and let the outputs print ? for what they cannot encode.
    """
    # The descriptors of the system: a file opened later would get the number of a
    # closed one, and whatever is printed would be written into it.
    for descriptor in (0, 1, 2):
        try:
            os.fstat(descriptor)
        except OSError:  # it is closed
            with suppress(OSError):
                os.open(os.devnull, os.O_RDWR)  # takes the lowest number that is free
    # Python's objects for them, which are None if they were closed at the start. No
    # command reads stdin.
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None:
            setattr(sys, name, open(os.devnull, "w"))  # noqa: SIM115 (it stays open)
        elif isinstance(stream, io.TextIOWrapper):
            # the terminal's encoding may lack ± and ∞
            stream.reconfigure(errors="replace")


def _give_up_stdout() -> None:
    """Discard unwritten output: else Python would try to write it again when the
    process ends.
    """
    with suppress(OSError, ValueError, AttributeError):
        if sys.stdout.fileno() == 1:
            os.dup2(os.open(os.devnull, os.O_WRONLY), 1)


class Watch:
    """A context in which an interrupt ends the process soon, with `message` on stderr.

    Python handles an interrupt only between two bytecodes of the main thread, and one
    of them may be a matrix product that takes minutes. So a second thread, woken by the
    signal itself, gives the main thread GRACE seconds to end, and then ends the
    process.
    """

    def __init__(self) -> None:
        """The watch begins when its context is entered."""
        self.message = "interrupted"
        self._said = threading.Lock()
        self._left = threading.Event()
        self._pipe: tuple[int, int] | None = None
        self._wakeup = -1  # the descriptor that signals were written to before

    def __enter__(self) -> Watch:
        """Begin to watch, in the main thread; in others there are no signals."""
        if threading.current_thread() is not threading.main_thread():
            return self
        if signal.getsignal(signal.SIGINT) in (
            _early_sigint.leave,
            signal.default_int_handler,
        ):
            signal.signal(signal.SIGINT, _once)
        os.environ.setdefault("PYTHONWARNINGS", QUIET)
        if sys.platform != "win32" and threads_start():
            # Python writes the number of every signal into the pipe, at once
            self._pipe = os.pipe()
            reading_end, writing_end = self._pipe
            os.set_blocking(reading_end, True)
            os.set_blocking(writing_end, False)  # as set_wakeup_fd needs
            self._wakeup = signal.set_wakeup_fd(writing_end, warn_on_full_buffer=False)
            watcher = threading.Thread(
                target=self._follow, args=(reading_end,), daemon=True
            )
            watcher.start()
        return self

    def __exit__(self, *_: object) -> None:
        """End the watch, and restore how signals were handled."""
        self._left.set()
        if self._pipe is not None:
            signal.set_wakeup_fd(self._wakeup)
            os.close(self._pipe[1])  # which ends the thread
        if signal.getsignal(signal.SIGINT) is _once:
            signal.signal(signal.SIGINT, signal.default_int_handler)

    def say(self) -> None:
        """Print the message, once."""
        if self._said.acquire(blocking=False):
            echo_error(self.message)

    def _follow(self, pipe: int) -> None:
        """In the second thread: read signals from the pipe until it is closed. After an
        interrupt, end the process unless the main thread leaves the context in time.
        """
        while number := os.read(pipe, 1):
            if number[0] == signal.SIGINT and not self._left.wait(GRACE):
                self.say()
                os._exit(INTERRUPTED)
        os.close(pipe)


def _once(*_: object) -> None:
    """The first interrupt ends the command; further ones are ignored, or they would end
    the cleaning up.
    """
    # not SIG_IGN: Python prints a traceback for an interrupt that came just before and
    # has no function to handle it
    signal.signal(signal.SIGINT, lambda *_: None)
    raise KeyboardInterrupt
