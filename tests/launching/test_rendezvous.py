"""Where ranks find each other."""

import socket

import psutil

from hvd_nmt.hosts.host_list import Host
from hvd_nmt.launching.rendezvous import Rendezvous


def test_ranks_of_one_machine_meet_on_its_loopback_and_strangers_print_nothing(capfd, caplog):
    ((of_rank,),) = Rendezvous().variables([Host("a", 1)], "lo").values()
    port = int(of_rank["HOROVOD_GLOO_RENDEZVOUS_PORT"])
    assert of_rank["HOROVOD_GLOO_RENDEZVOUS_ADDR"] == "127.0.0.1"
    assert of_rank["HOROVOD_GLOO_IFACE"] == of_rank["NCCL_SOCKET_IFNAME"] == "lo"
    listening = [c.laddr.ip for c in psutil.Process().net_connections() if c.laddr.port == port]
    assert listening == ["127.0.0.1"]
    answers = []
    for path in ("/global/key", "/a\x1b[2Jrank-1-was-killed", "/a/b\x1b[2J"):
        with socket.create_connection(("127.0.0.1", port)) as client:
            client.sendall(f"GET {path} HTTP/1.0\r\n\r\n".encode())
            answers.append(client.recv(100).split()[1])
    assert answers == [b"404", b"400", b"400"]
    assert tuple(capfd.readouterr()) == ("", "")
    assert caplog.text == ""
