"""Starts the processes of a training on several machines together, and detects lost ones.

TensorFlow's all-reduce waits for a lost machine for a long time or forever. So each worker keeps a
connection to the chief, at the port after the chief's, which ends when a process does:

  a worker ends      all resume from the last checkpoint, as soon as that worker is back
  the chief ends     the workers end with one line
  a process fails    all end with its reason

A process proves that it belongs to the training by a secret, which the chief writes to a file that
only its user can read. The connections are not encrypted, and those of TensorFlow are not even
authenticated: both need a private network (docs/security.md). This module does not import
TensorFlow.
"""
import contextlib
import hmac
import os
import queue
import secrets
import socket
import sys
import threading
import time
from collections.abc import Sequence

from rpr.utils.console import say, terminal
from rpr.utils.errors import UserError

_REMINDER = 30.0                                      # seconds between "waiting for" messages
_HANDSHAKE = 10.0                                     # seconds for a connection to introduce itself
_RETRY = 1.0                                          # seconds between attempts to join
_POLL = 0.1                                           # seconds
_MOST_PENDING = 32                                    # connections not yet introduced
_LONGEST_LINE = 2000                                  # bytes
# A machine without power does not end its connections. After 10 + 6 * 5 s of silence it is lost.
_KEEP_ALIVE = ((socket.TCP_KEEPIDLE, 10), (socket.TCP_KEEPINTVL, 5), (socket.TCP_KEEPCNT, 6))


class _Peer:
    """A connection to another process, with lines of limited length."""

    def __init__(self, connection: socket.socket) -> None:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for option, value in _KEEP_ALIVE:
            connection.setsockopt(socket.IPPROTO_TCP, option, value)
        self.connection = connection
        self._rest = b""

    def read_line(self, seconds: float | None = None) -> str:
        """The next line; empty if the connection ended or the line is too long or too late."""
        deadline = None if seconds is None else time.monotonic() + seconds
        try:
            while b"\n" not in self._rest:
                if len(self._rest) > _LONGEST_LINE:
                    return ""
                self.connection.settimeout(
                    None if deadline is None else max(_POLL, deadline - time.monotonic()))
                block = self.connection.recv(_LONGEST_LINE)
                if not block or deadline is not None and time.monotonic() > deadline:
                    return ""
                self._rest += block
        except OSError:
            return ""
        line, _, self._rest = self._rest.partition(b"\n")
        return line.decode(errors="replace")

    def send(self, line: str) -> None:
        """Sends a line; a lost connection is noticed by its reader."""
        with contextlib.suppress(OSError):
            self.connection.sendall(f"{line}\n".encode())


class WorkerGroup:
    """One process of a training on several machines.

    `addresses` are `host:port`, the chief's first; this process has number `index`. `fingerprint`
    must be equal in all processes. `secret_path` is in a directory that all machines see.
    """

    def __init__(self, addresses: Sequence[str], index: int, fingerprint: str, secret_path: str
                 ) -> None:
        self._addresses, self._index = addresses, index
        host, port = addresses[0].rsplit(":", 1)
        self._meeting = host.strip("[]"), int(port) + 1
        self._fingerprint, self._secret_path = fingerprint, secret_path
        self._peers: dict[int, _Peer] = {}
        self._done: dict[int, threading.Event] = {}   # by index: whether that process has finished
        self._ending = threading.Event()
        self._verdict = threading.Lock()              # never released: the process ends

    def join(self) -> None:
        """Waits for all processes, and watches them from then on.

        Refuses a process that was started for another training.
        """
        if self._index:
            self._join_chief()
        else:
            self._gather()
        for index, peer in self._peers.items():
            self._done[index] = threading.Event()
            threading.Thread(target=self._watch, args=(index, peer), daemon=True).start()

    def leave(self) -> None:
        """Tells the others that this process has finished, and waits until all have."""
        if self._index:
            self._send("done")
            self._done[0].wait()
            return
        for done in self._done.values():
            done.wait()
        self._ending.set()
        self._send("done")

    def fail(self, reason: str) -> None:
        """Ends all other processes with the reason why this one fails."""
        self._ending.set()
        self._send(f"failed {self._addresses[self._index]}: {reason}")

    def _gather(self) -> None:
        """Waits for all workers, as the chief."""
        secret = _write_secret(self._secret_path)
        introductions: queue.Queue[tuple[int, str, _Peer]] = queue.Queue()    # see `_meet`
        pending = threading.BoundedSemaphore(_MOST_PENDING)
        fingerprints, reminded = {0: self._fingerprint}, time.monotonic()
        family = socket.getaddrinfo(*self._meeting, type=socket.SOCK_STREAM)[0][0]
        with socket.create_server(self._meeting, family=family) as server:
            server.settimeout(_POLL)
            while len(self._peers) + 1 < len(self._addresses):
                with contextlib.suppress(OSError):    # TimeoutError is one
                    connection = server.accept()[0]
                    if pending.acquire(blocking=False):
                        threading.Thread(target=self._meet, daemon=True, args=(
                            connection, secret, introductions, pending)).start()
                    else:
                        connection.close()
                while not introductions.empty():
                    worker, fingerprints[worker], self._peers[worker] = introductions.get()
                if time.monotonic() - reminded > _REMINDER:
                    reminded = time.monotonic()
                    _say("waiting for " + ", ".join(
                        address for index, address in enumerate(self._addresses)
                        if index and index not in self._peers))
        # Only now: all processes are to be told, and one may have been started again.
        strangers = [self._addresses[worker] for worker, fingerprint in fingerprints.items()
                     if fingerprint != self._fingerprint]
        if strangers:
            reason = (f"{', '.join(strangers)}: started with other flags or hparams, or does not "
                      "see the same output_dir")
            self.fail(reason)
            raise UserError(reason)
        self._send("go")

    def _meet(self, connection: socket.socket, secret: str, introductions: queue.Queue,
              pending: threading.BoundedSemaphore) -> None:
        """Reads `join INDEX FINGERPRINT SECRET`; closes a connection of another training."""
        try:
            peer = _Peer(connection)
            words = peer.read_line(_HANDSHAKE).split(" ")
            if (len(words) == 4 and words[0] == "join" and words[1].isdecimal()
                    and 0 < int(words[1]) < len(self._addresses)
                    and hmac.compare_digest(words[3].encode(), secret.encode())):
                introductions.put((int(words[1]), words[2], peer))
            else:
                connection.close()
        except OSError:
            connection.close()
        finally:
            pending.release()

    def _join_chief(self) -> None:
        """Connects to the chief, as a worker, until it lets the training begin."""
        reminded = time.monotonic()
        while True:
            with contextlib.suppress(OSError):
                with open(self._secret_path, encoding="utf-8") as file:
                    secret = file.read().strip()
                peer = _Peer(socket.create_connection(self._meeting, _HANDSHAKE))
                peer.send(f"join {self._index} {self._fingerprint} {secret}")
                word, _, rest = peer.read_line().partition(" ")
                if word == "go":
                    self._peers[0] = peer
                    return
                if word == "failed":
                    raise UserError(rest)
                peer.connection.close()
            if time.monotonic() - reminded > _REMINDER:
                reminded = time.monotonic()
                _say(f"waiting for the chief, {self._addresses[0]}")
            time.sleep(_RETRY)

    def _send(self, line: str) -> None:
        for peer in self._peers.values():
            peer.send(" ".join(line.splitlines())[:_LONGEST_LINE - 100])

    def _watch(self, index: int, peer: _Peer) -> None:
        """Waits for the last line of a process; ends or restarts this one if that one is lost."""
        word, _, rest = peer.read_line().partition(" ")
        if word == "done":
            self._done[index].set()
            return
        if self._ending.is_set():
            return
        # The processes that are told of a loss start over, which looks like more losses. Only the
        # first one is reported.
        self._verdict.acquire()
        if word == "failed":
            if not self._index:
                self._send(f"failed {rest}")
            _end(rest)
        if word == "again":
            _start_over(rest)
        if self._index:
            _end(f"the chief, {self._addresses[0]}, ended; started again, all resume from the last "
                 "checkpoint")
        lost = f"lost {self._addresses[index]}"
        self._send(f"again {lost}")
        _start_over(lost)


def _write_secret(path: str) -> str:
    """Writes a new secret to a file that only this user can read, and returns it."""
    secret = secrets.token_hex(16)
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with contextlib.suppress(FileNotFoundError):
        os.unlink(path)
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
    with os.fdopen(descriptor, "w", encoding="utf-8") as file:
        file.write(secret + "\n")
    return secret


def _say(line: str) -> None:
    say(f"rpr train: {line}")


def _end(line: str) -> None:
    """Ends the process, although its main thread may wait inside TensorFlow forever."""
    _say(line)
    os._exit(1)


def _start_over(reason: str) -> None:
    """Replaces this process by the same command, which waits for the other processes."""
    _say(f"{reason}; resuming from the last checkpoint when it is back")
    os.dup2(terminal.file.fileno(), 2)                # the error stream goes to a log
    os.closerange(3, 4096)                            # connections and GPU devices
    os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])
