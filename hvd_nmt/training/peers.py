"""Which rank was lost, and when: every rank keeps a connection to rank 0 open.

Horovod says that a collective failed, not through whom, and sometimes the survivors just wait. The
kernel closes a connection when its process ends, however it ends: who did not take leave was lost.

The port of rank 0 is open for the seconds in which the ranks connect. It takes a random token that
went to the ranks through a collective, and the number of a rank; nothing else is ever read of it.
"""

from __future__ import annotations

import contextlib
import hmac
import os
import secrets
import selectors
import socket
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

import psutil

_CONNECT_TIMEOUT_S = 5.0
_TOKEN_BYTES = 16
_NUMBER_BYTES = 4
_ACCEPTED, _LOST, _LEAVING = b"A", b"L", b"B"
_SILENCE_S = 33
"""after which a host that answers nothing is lost; Gloo's own limit is 30 s"""
_OWN_ERROR_S = 1.0
"""what a rank has to end with its own error, before it counts as stuck in a collective; horovodrun
kills the ranks of its own host 5 s after a loss"""


class Peers:
    """This rank's connections, watched by a thread of their own.

    Args:
        links: for each rank that this one is connected to, the socket.
    """

    def __init__(self, links: dict[int, socket.socket]) -> None:
        self.lost: int | None = None
        """the first rank that is known to be gone without leave"""
        self.left: list[int] = []
        """ranks that took leave: they ended by themselves, before this one"""
        self.when_stuck: Callable[[], None] | None = None
        """called by the thread when a rank was lost and the main thread does not notice"""
        self._links = links
        self._watched = set(links)
        """ranks that have not ended, as far as this one knows"""
        self._silent: set[int] = set()
        """ranks that ended without leave"""
        self._closing = False
        threading.Thread(target=self._watch, name="peers", daemon=True).start()

    @property
    def connections(self) -> list[tuple[socket.socket, bytes]]:
        """This rank's, for whoever watches over it, each with the note that its peer is lost."""
        return [(link, _message(_LOST, number)) for number, link in self._links.items()]

    def close(self) -> None:
        """Take leave: this rank ends by itself."""
        self._closing = True
        self._send(_LEAVING, 0)
        for link in self._links.values():
            with contextlib.suppress(OSError):
                link.shutdown(socket.SHUT_RDWR)  # which ends the thread

    def wait_for_news(self, timeout_s: float) -> None:
        """Give the news of a rank that ended a moment to arrive."""
        deadline = time.monotonic() + timeout_s
        # No lock: a handler of signals calls this too.
        while self.lost is None and not self.left and time.monotonic() < deadline:
            time.sleep(0.02)

    def died_silently(self, number: int, timeout_s: float) -> bool:
        """Whether a rank that this one is connected to ended without leave, now or in that time.

        After a loss a rank takes leave when it has said so: this one may have to say it instead.
        """
        deadline = time.monotonic() + timeout_s
        while number in self._watched and time.monotonic() < deadline:
            time.sleep(0.02)
        return number in self._silent

    def _watch(self) -> None:
        with selectors.DefaultSelector() as selector:
            for index, link in self._links.items():
                selector.register(link, selectors.EVENT_READ, index)
            while selector.get_map() and not self._closing:
                for key, _ in selector.select():
                    kind, number = _received(self._links[key.data])
                    if kind == _LOST:
                        self._lose(number)
                        continue
                    selector.unregister(key.fileobj)
                    if kind != _LEAVING:
                        self._silent.add(key.data)
                        self._lose(key.data)
                    elif self.lost is None:
                        self.left.append(key.data)
                    self._watched.discard(key.data)

    def _lose(self, number: int) -> None:
        if self.lost is None and not self._closing:
            self.lost = number
            self._send(_LOST, number)
            late = threading.Timer(_OWN_ERROR_S, self._get_unstuck)
            late.daemon = True
            late.start()

    def _get_unstuck(self) -> None:
        if self.when_stuck is not None and not self._closing:
            self.when_stuck()

    def _send(self, kind: bytes, number: int) -> None:
        for link in self._links.values():
            with contextlib.suppress(OSError):  # it is the one that is gone
                link.sendall(_message(kind, number))


def loss(peers: Peers | None, hosts: Sequence[str]) -> str:
    """The beginning of a sentence: who is gone.

    Args:
        peers: the connections of this rank; None: there are none.
        hosts: of each rank.
    """
    if peers is not None and peers.left:
        number = peers.left[0]
        return (
            f"Rank {number} on {hosts[number]} ended before the others, and its message, if it "
            "had one, is above: "
        )
    if peers is not None and peers.lost is not None:
        return f"Rank {peers.lost} on {hosts[peers.lost]} is gone (killed, or out of memory): "
    return (
        f"{socket.gethostname()} cannot reach another rank any more; its message, if it had the "
        "time for one, is above: "
    )


def connect(index: int, size: int, gather: Callable[[Any], list[Any]]) -> Peers | list[int]:
    """Connect every rank with rank 0; a collective.

    Args:
        index: of this rank.
        size: number of ranks.
        gather: gives every rank's value, by rank.

    Returns:
        On each rank its connections, or, where not all could be made, the ranks without.
    """
    links: dict[int, socket.socket] = {}
    with contextlib.ExitStack() as undo:
        listener, offer = None, None
        if index == 0:
            with contextlib.suppress(OSError):
                listener = undo.enter_context(_listener(size))
                token = secrets.token_bytes(_TOKEN_BYTES)
                offer = [*listener.getsockname(), token.hex()]
        offer = gather(offer)[0]
        if listener is not None and offer is not None:
            links = _accept(listener, size, bytes.fromhex(offer[2]))
        elif offer is not None:
            with contextlib.suppress(OSError):
                links = {0: _join(offer, index)}
    wanted = range(1, size) if index == 0 else [0]
    missing = [number or index for number in wanted if number not in links]
    without = sorted({number for numbers in gather(missing) for number in numbers})
    if without:
        for link in links.values():
            link.close()
        return without
    return Peers(links)


def _listener(size: int) -> socket.socket:
    """On the network card that Horovod uses; otherwise where this host's name leads."""
    card = os.environ.get("HOROVOD_GLOO_IFACE", "")
    addresses = [
        entry.address
        for entry in psutil.net_if_addrs().get(card, [])
        if entry.family == socket.AF_INET
    ]
    address = addresses[0] if addresses else socket.gethostbyname(socket.gethostname())
    return socket.create_server((address, 0), backlog=size)


def _accept(listener: socket.socket, size: int, token: bytes) -> dict[int, socket.socket]:
    links: dict[int, socket.socket] = {}
    deadline = time.monotonic() + _CONNECT_TIMEOUT_S
    while len(links) < size - 1 and (left_s := deadline - time.monotonic()) > 0:
        listener.settimeout(left_s)
        try:
            link, _ = listener.accept()
        except OSError:
            break
        link.settimeout(1.0)
        hello = _read(link, _TOKEN_BYTES + _NUMBER_BYTES)
        number = int.from_bytes(hello[_TOKEN_BYTES:], "big")
        known = hmac.compare_digest(hello[:_TOKEN_BYTES], token)
        if known and 0 < number < size and number not in links:
            link.sendall(_ACCEPTED)
            links[number] = _kept(link)
        else:
            link.close()
    return links


def _join(offer: list[Any], index: int) -> socket.socket:
    address, port, token = offer
    link = socket.create_connection((address, port), timeout=_CONNECT_TIMEOUT_S)
    link.sendall(bytes.fromhex(token) + index.to_bytes(_NUMBER_BYTES, "big"))
    if _read(link, 1) != _ACCEPTED:
        link.close()
        raise ConnectionError("rank 0 did not accept the connection")
    return _kept(link)


def _kept(link: socket.socket) -> socket.socket:
    """Open for the whole run; the kernel asks now and then whether the other host still answers."""
    link.settimeout(None)
    link.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    link.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, _SILENCE_S // 3)
    link.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, _SILENCE_S // 3)
    link.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 2)
    link.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, _SILENCE_S * 1000)
    return link


def _message(kind: bytes, number: int) -> bytes:
    return kind + number.to_bytes(_NUMBER_BYTES, "big")


def _received(link: socket.socket) -> tuple[bytes, int]:
    """Kind and number of the next message; without a kind where the connection has ended."""
    message = _read(link, 1 + _NUMBER_BYTES)
    return message[:1], int.from_bytes(message[1:], "big")


def _read(link: socket.socket, count: int) -> bytes:
    """So many bytes, or none where the connection has ended or says too little."""
    data = b""
    with contextlib.suppress(OSError):
        while len(data) < count:
            part = link.recv(count - len(data))
            if not part:
                return b""
            data += part
    return data if len(data) == count else b""
