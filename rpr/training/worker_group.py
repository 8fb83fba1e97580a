"""The processes of a training on several machines begin together, and none waits for the dead.

TensorFlow's all-reduce waits for a machine that is gone for a long time or for ever. So each worker
keeps a connection to the chief, at the port after the chief's, which ends when a process does:

  a worker ends      everyone starts over, in the process that it has, from the last checkpoint, as
                     soon as that worker is back
  the chief ends     the workers end, with one line
  one fails          all end, with its line

Nothing here imports TensorFlow.
"""
import contextlib
import io
import os
import socket
import sys
import threading
import time
from typing import NamedTuple

from rpr.utils.console import terminal
from rpr.utils.errors import UserError

_PATIENCE = 30.0                                      # seconds from one "waiting for" to the next
# A machine without power does not end its connections: silent for 10 + 6 * 5 s, it is gone.
_ALIVE = ((socket.SO_KEEPALIVE, 1), (socket.TCP_KEEPIDLE, 10), (socket.TCP_KEEPINTVL, 5),
          (socket.TCP_KEEPCNT, 6))


class WorkerGroup:
    """One process of several.

    Args:
      cluster: `rpr.training.devices.TrainingCluster`.
      fingerprint: a word that must be the same in all of them.
    """

    def __init__(self, cluster, fingerprint):
        self._addresses, self._index = cluster.addresses, cluster.index
        host, port = self._addresses[0].rsplit(":", 1)
        self._meeting = host, int(port) + 1
        self._fingerprint = fingerprint
        self._peers = {}                              # index -> connection, its lines
        self._left = {}                               # index -> an event: it has done its work
        self._ending = threading.Event()
        self._verdict = threading.Lock()              # never given back: the process ends with it

    def join(self):
        """Waits until all are there; from then on they are watched.

        Raises:
          UserError: one of them was started for another training.
        """
        if self._index:
            self._join_chief()
        else:
            self._gather()
        for index, (_, lines) in self._peers.items():
            self._left[index] = threading.Event()
            threading.Thread(target=self._watch, args=(index, lines), daemon=True).start()

    def leave(self):
        """This one has done its work; waits until all have."""
        if self._index:
            self._tell("done")
            self._left[0].wait()
            return
        for left in self._left.values():
            left.wait()
        self._ending.set()
        self._tell("done")

    def fail(self, reason):
        """This one fails: all others end with the same line."""
        self._ending.set()
        self._tell(f"failed {self._addresses[self._index]}: {reason}")

    def _gather(self):
        others = []
        expected = {str(index): index for index in range(1, len(self._addresses))}
        with socket.create_server(("", self._meeting[1])) as server:
            server.settimeout(_PATIENCE)
            while len(self._peers) < len(expected):
                try:
                    peer = _peer(server.accept()[0])
                    word, index, fingerprint = peer.lines.readline().strip().split(" ")
                except TimeoutError:
                    _say("waiting for " + ", ".join(self._addresses[index] for index in
                                                    set(expected.values()) - set(self._peers)))
                    continue
                except (ValueError, OSError):
                    continue                          # not one of us
                if word != "join" or index not in expected:
                    continue
                index = expected[index]
                peer.connection.settimeout(None)
                self._peers[index] = peer
                if fingerprint != self._fingerprint:
                    others.append(self._addresses[index])
        if others:                                    # told to all, so not before all are there
            reason = (f"{', '.join(others)}: started with other flags or hparams, or does not see "
                      "the same --output_dir")
            self.fail(reason)
            raise UserError(reason)
        self._tell("go")

    def _join_chief(self):
        told = time.monotonic()
        while True:
            try:
                peer = _peer(socket.create_connection(self._meeting, _PATIENCE))
                peer.connection.settimeout(None)      # the chief may wait for others
                peer.connection.sendall(f"join {self._index} {self._fingerprint}\n".encode())
                word, _, rest = peer.lines.readline().strip().partition(" ")
            except OSError:
                word = ""
            if word == "go":
                self._peers[0] = peer
                return
            if word == "failed":
                raise UserError(rest)
            if time.monotonic() - told > _PATIENCE:
                told = time.monotonic()
                _say(f"waiting for the chief, {self._addresses[0]}")
            time.sleep(1)

    def _tell(self, line):
        for peer in self._peers.values():
            with contextlib.suppress(OSError):        # its watch notices
                peer.connection.sendall(f"{line}\n".encode())

    def _watch(self, index, lines):
        while True:
            try:
                word, _, rest = lines.readline().strip().partition(" ")
            except OSError:
                word = ""
            if word == "done":
                self._left[index].set()
                return
            if self._ending.is_set():
                return
            # One loss brings others about, as those that were told of it start over: the first
            # one alone is told.
            self._verdict.acquire()
            if word == "failed":
                if not self._index:
                    self._tell(f"failed {rest}")
                _end(rest)
            if word == "again":
                _start_over(rest)
            if self._index:
                _end(f"the chief, {self._addresses[0]}, ended; started again, all go on from the "
                     "last checkpoint")
            lost = f"lost {self._addresses[index]}"
            self._tell(f"again {lost}")
            _start_over(lost)


class _Peer(NamedTuple):
    connection: socket.socket
    lines: io.TextIOBase


def _peer(connection):
    connection.settimeout(_PATIENCE)
    connection.setsockopt(socket.SOL_SOCKET, *_ALIVE[0])
    for option, value in _ALIVE[1:]:
        connection.setsockopt(socket.IPPROTO_TCP, option, value)
    return _Peer(connection, connection.makefile(encoding="utf-8"))


def _say(line):
    terminal.print(f"rpr train: {line}", highlight=False, soft_wrap=True)


def _end(line):
    """Ends the process: its main thread may be waiting inside TensorFlow, for ever."""
    _say(line)
    os._exit(1)


def _start_over(why):
    """Becomes a new process of the same command, which waits for the others."""
    _say(f"{why}; going on from the last checkpoint when it is back")
    os.dup2(terminal.file.fileno(), 2)                # the error stream goes to a log
    os.closerange(3, 4096)                            # connections, and a GPU's, end here
    os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])
