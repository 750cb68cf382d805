"""Horovod's server, at which ranks find each other."""

import socket
import threading
from collections.abc import Sequence
from http import HTTPStatus
from typing import final

import psutil
from horovod.runner.common.util.hosts import HostInfo, get_host_assignments
from horovod.runner.gloo_run import create_run_env_vars, create_slot_env_vars
from horovod.runner.http.http_server import RendezvousHandler, RendezvousHTTPServer

from hvd_nmt.hosts.host_list import Host


class _Handler(RendezvousHandler):
    """Answers ranks and refuses others, for Horovod would print what a stranger sends."""

    def parse_request(self) -> bool:
        """Whether a request is to be answered."""
        is_whole = super().parse_request()
        if is_whole and not (self.path.count("/") == 2 and self.path.isprintable()):
            self.send_error(HTTPStatus.BAD_REQUEST)
            return False
        return is_whole


class _Server(RendezvousHTTPServer):
    def handle_error(self, *connection: object) -> None:
        """Nothing: a stranger may end a connection at any time."""


@final
class Rendezvous:
    """The server, on the card that the ranks use and no other."""

    def __init__(self) -> None:
        self._address = ""

    def variables(self, hosts: Sequence[Host], nic: str) -> dict[str, list[dict[str, str]]]:
        """Host -> the variables of each of its ranks, for one start."""
        infos = [HostInfo(host.name, host.slots) for host in hosts]
        slots = get_host_assignments(infos, sum(host.slots for host in hosts))
        if (address := _address(nic)) != self._address:
            self._address = address
            self._server = _Server((address, 0), _Handler, 0)
            threading.Thread(target=self._server.serve_forever, daemon=True).start()
        self._server.init(slots)
        common = create_run_env_vars(address, [nic], str(self._server.server_port))
        by_host: dict[str, list[dict[str, str]]] = {host.name: [] for host in hosts}
        for slot in slots:
            by_host[slot.hostname].append(create_slot_env_vars(slot) | common)
        return by_host


def _address(nic: str) -> str:
    """The address of this machine on a network card."""
    for entry in psutil.net_if_addrs().get(nic, []):
        if entry.family == socket.AF_INET:
            return str(entry.address)
    return socket.gethostbyname(socket.gethostname())
