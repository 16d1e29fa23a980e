"""A Spark context that starts when it is first needed, or in the background, in a thread: first the
JVM, then the context. Jobs of tasks need no session."""

from __future__ import annotations

import secrets
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from pgsluice.errors import ConfigError, PgsluiceError, SparkFailed
from pgsluice.spark.errors import spark_errors, summarize_error
from pgsluice.spark.installed import is_measured
from pgsluice.spark.session.daemon_ahead import VARIABLE, DaemonAhead
from pgsluice.spark.session.jvm import Launch, LaunchEndedError, has_jvm
from pgsluice.spark.session.loading import load_pyspark
from pgsluice.spark.session.master import is_local
from pgsluice.spark.session.session import build_session, forget_session, merged_settings, prepare
from pgsluice.system.processes import Part, say_it_ended, why_not_started

if TYPE_CHECKING:
    from pyspark import SparkContext

_LOOK_INTERVAL_S = 0.1


class ContextOnDemand:
    """Returns the context; thread-safe.

    Args:
        start: starts the context and returns it; called once. If it raises, all callers get its
            error.
        look_after: see below; it must neither wait nor raise.

    Attributes:
        look_after: called several times a second; logs what has ended of Spark's processes.
        running: the context; None until it has started.
    """

    def __init__(
        self, start: Callable[[], SparkContext], look_after: Callable[[], None] = lambda: None
    ) -> None:
        self.look_after = look_after
        self.running: SparkContext | None = None
        self._start = start
        self._error: BaseException | None = None
        self._lock = threading.Lock()

    def __call__(self) -> SparkContext:
        with self._lock:
            if self._error is not None:
                raise self._error
            if self.running is None:
                try:
                    self.running = self._start()
                except BaseException as error:
                    self._error = error
                    raise
            return self.running


class StartingContext(threading.Thread):
    """A context that starts in a thread after :meth:`begin`.

    The JVM takes seconds to start and cannot be interrupted meanwhile. So the start happens in a
    thread: other work continues, and the start can be abandoned. In a thread, PySpark also does not
    replace pgsluice's handler of SIGINT.

    Args:
        settings: as for :func:`build_session`.
        app_name: as for :func:`build_session`.
        log: the file for the stderr of the JVM and its Python workers, which would otherwise
            print stack traces on the user's terminal.
        owns_process: this process runs only pgsluice.
        daemon: the module of a worker daemon that can be loaded ahead
            (:mod:`pgsluice.spark.session.daemon_ahead`); None: there is none.
    """

    def __init__(
        self,
        settings: Mapping[str, str],
        app_name: str,
        log: Path,
        *,
        owns_process: bool,
        daemon: str | None = None,
    ) -> None:
        super().__init__(name="pgsluice-spark", daemon=True)
        self._settings = settings
        self._app_name = app_name
        self._log = log
        self._owns_process = owns_process
        self._daemon = daemon
        self._daemon_ahead: DaemonAhead | None = None
        self._log_bytes = 0
        self._lock = threading.Lock()
        self._launch: Launch | None = None
        self._has_begun = False
        self._has_ended = False
        self._context: SparkContext | None = None
        self._is_over = threading.Event()
        """Set when the start has ended, with a context or an error."""
        self._error: BaseException | None = None
        self._why = ""

    def begin(self) -> None:
        """Start the context, if it was not started: the JVM, and at the same time the import of
        PySpark.

        If that fails, :meth:`wait` raises the error.
        """
        with self._lock:
            if self._has_begun:
                return
            self._has_begun = True
        try:
            self._launch_jvm()
            load_pyspark(owns_process=self._owns_process)
        except BaseException as error:
            self._fail(error)
        else:
            self.start()

    def _launch_jvm(self) -> None:
        prepare()
        self._log_bytes = self._log.stat().st_size if self._log.exists() else 0
        if has_jvm():
            return
        settings = merged_settings({"spark.app.name": self._app_name, **self._settings})
        is_ours = self._owns_process and is_local(settings["spark.master"])
        # Only Linux has sockets without files, by which Spark's daemon finds the one ahead.
        can_be_ahead = sys.platform == "linux" and is_measured()
        # Libraries read some variables while they are imported.
        has_variables = any(name.startswith("spark.executorEnv.") for name in settings)
        if not is_ours or self._daemon is None or has_variables or not can_be_ahead:
            self._launch = Launch(settings, self._log)
            return
        name = secrets.token_hex()
        self._launch = Launch(settings, self._log, {VARIABLE: name})
        self._daemon_ahead = DaemonAhead(self._daemon, name, self._log)

    def look_after(self) -> None:
        """Log if the daemon of the Python workers was killed."""
        daemon = self._daemon_ahead
        code = None if daemon is None else daemon.process.poll()
        if daemon is not None and code is not None:
            self._daemon_ahead = None
            daemon.close()
            if code:  # else Spark has ended it
                say_it_ended(Part.DAEMON, daemon.process.pid, code)

    def _close_daemon(self) -> None:
        if (daemon := self._daemon_ahead) is not None:
            daemon.close()

    def _fail(self, error: BaseException) -> None:
        self._error = error
        try:
            self._close_daemon()
            self._why = _why(error)
            forget_session()
        finally:
            self._is_over.set()

    def wait(self, look: Callable[[], object]) -> SparkContext:
        """Wait for the start and return the context.

        Args:
            look: called a few times per second meanwhile. If it raises, the wait ends, and the
                context is stopped once it has started.

        Raises:
            ConfigError: PySpark or Java is missing or too old, or Spark refuses a setting.
            SparkFailed: the JVM could not be started, or ended before it had started.
            PgsluiceError: an error that ``look`` raised.
        """
        self.begin()
        while not self._is_over.is_set():
            try:
                look()
            except BaseException:
                self.end()
                raise
            self._is_over.wait(_LOOK_INTERVAL_S)
        if self._context is None:
            self._raise_error()
        assert self._context is not None
        return self._context

    def run(self) -> None:
        try:
            self._start()
        except BaseException as error:
            self._fail(error)

    def _start(self) -> None:
        context = self._launch.context() if self._launch is not None else None
        if context is None:
            context = build_session(self._settings, self._app_name).sparkContext
        with self._lock:
            self._context = context
            is_needed = not self._has_ended
        if not is_needed:
            context.stop()
        self._is_over.set()

    @property
    def has_ended(self) -> bool:
        """Whether the context was stopped, or given up, by :meth:`end` or :meth:`forget`."""
        return self._has_ended

    def end(self) -> None:
        """Stop the context: now, or as soon as it has started.

        In a user's process, later code must not find a context that is about to end.
        """
        with self._lock:
            if self._has_ended:
                return
            self._has_ended, context = True, self._context
        self._close_daemon()
        if context is not None:
            try:
                context.stop()
            except spark_errors():  # its JVM has ended; what ends the run is another error
                forget_session()
        else:
            if self._launch is not None:
                self._launch.end()
            if not self._owns_process and self.is_alive():
                self.join()

    def forget(self) -> None:
        """End the JVM of a failed context, so that this process can start another one."""
        with self._lock:
            has_begun, self._has_ended = self._has_begun, True
            self._context = None  # its JVM ends, so nobody stops it
        self._close_daemon()
        if has_begun:
            forget_session()
            if self.is_alive():
                self.join()  # what it waits for has ended with the JVM

    def _raise_error(self) -> NoReturn:
        if isinstance(self._error, PgsluiceError):
            raise self._error
        lines = self._logged().decode(errors="replace").strip().splitlines()
        end = [f"the end of {self._log}:", *lines[-4:]] if lines else []
        if is_refusal(self._error, lines):
            what = f"Spark did not start{self._why}"
            raise ConfigError(what, hint="\n".join(end)) from self._error
        if isinstance(self._error, OSError) and not isinstance(self._error, ConnectionError):
            what, hint = why_not_started(Part.JVM, self._error)
            raise SparkFailed(what, hint=hint) from self._error
        if isinstance(self._error, LaunchEndedError) and not self._error.has_started:
            raise SparkFailed(
                "Spark's JVM could not be started", hint="\n".join(end)
            ) from self._error
        killed = "start again; no data is lost. Did something kill it?"
        raise SparkFailed(
            "Spark's JVM ended while it started", hint="\n".join([killed, *end])
        ) from self._error

    def _logged(self) -> bytes:
        """The JVM's output; a log that had grown too large was started again."""
        logged = self._log.read_bytes() if self._log.exists() else b""
        return logged[self._log_bytes if len(logged) >= self._log_bytes else 0 :]


def _why(error: BaseException) -> str:
    """Spark's message, after a colon; call it while the JVM exists."""
    from py4j.protocol import Py4JJavaError

    with suppress(*spark_errors()):
        return f": {summarize_error(error)}" if isinstance(error, Py4JJavaError) else ""
    return ""


def is_refusal(error: BaseException | None, log: Sequence[str]) -> bool:
    """Whether Spark itself refused to start, by an exception. A killed JVM has none.

    Args:
        error: the error that PySpark raised.
        log: the lines that the JVM has written, including its usual warnings.
    """
    from py4j.protocol import Py4JJavaError

    if isinstance(error, LaunchEndedError) and error.is_kill:
        return False
    return isinstance(error, Py4JJavaError) or any(
        line.startswith(("Exception in thread", "Error:")) for line in log
    )
