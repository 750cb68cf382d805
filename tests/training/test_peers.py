"""Which rank was lost: those that are left know it, say it, and end by themselves."""

from __future__ import annotations

import socket
import threading

import pytest

import toy
from hvd_nmt.training import peers as peers_module
from hvd_nmt.training.peers import Peers, loss

HOSTS = ["v100a", "v100a", "v100b"]
LOST_2 = b"L" + (2).to_bytes(4, "big")
LEAVING = b"B" + bytes(4)
# A collective that hangs, as NCCL's do, is stood in for by a sleep.
STUCK = """
import os, signal, sys, time
from pathlib import Path
import hvd_nmt
from hvd_nmt.training import horovod

rank = horovod.init(3)
horovod.meet_peers(rank)
signal.signal(signal.SIGTERM, signal.SIG_IGN)  # horovodrun sends it at once, and -9 after 5 s

def leave(error):
    Path(f"{rank.index}.txt").write_text(f"{horovod.speaks_for_lost_rank(rank)} {error}")
    horovod.leave_peers()
    os._exit(error.exit_code)

with horovod.report_lost_peers(lambda: "see there.", leave):
    Path(f"{rank.index}.ready").touch()
    if rank.index == int(sys.argv[1]):
        while len(list(Path().glob("*.ready"))) < rank.size:
            time.sleep(0.05)
        os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(600)
"""


@pytest.fixture
def connected():
    """The peers of rank 0, and the other ends of its connections, by rank."""
    pairs = {rank: socket.socketpair() for rank in (1, 2)}
    before = set(threading.enumerate())
    peers = Peers({rank: own for rank, (own, _) in pairs.items()})
    (watching,) = set(threading.enumerate()) - before
    yield peers, {rank: other for rank, (_, other) in pairs.items()}
    peers.close()
    watching.join()
    for link in (link for pair in pairs.values() for link in pair):
        link.close()


@pytest.mark.parametrize("by", ["the kernel", "a watchdog"])
def test_a_rank_that_ends_without_leave_is_lost_and_the_others_are_told(
    connected, monkeypatch, by
) -> None:
    """Where Gloo aborts a rank because of a loss, its watchdog passes on whose it was."""
    monkeypatch.setattr(peers_module, "_OWN_ERROR_S", 0.0)
    peers, others = connected
    stuck = threading.Event()
    peers.when_stuck = stuck.set
    if by == "the kernel":
        others[2].close()
    else:
        others[1].sendall(LOST_2)
    assert stuck.wait(600)  # nobody waits for ever in a collective
    assert others[1].recv(5) == LOST_2
    assert (peers.lost, peers.left) == (2, [])
    assert loss(peers, HOSTS) == "Rank 2 on v100b is gone (killed, or out of memory): "
    assert peers.died_silently(2, 0.0) == (by == "the kernel")


def test_the_first_that_was_lost_is_named_and_not_who_went_after_it(connected) -> None:
    peers, others = connected
    others[2].close()
    assert others[1].recv(5) == LOST_2
    others[1].close()
    assert peers.died_silently(1, 600)
    assert peers.lost == 2


def test_a_rank_that_takes_leave_is_not_lost(connected) -> None:
    peers, others = connected
    others[2].sendall(LEAVING)
    peers.wait_for_news(600)
    assert (peers.lost, peers.left) == (None, [2])
    assert loss(peers, HOSTS).startswith("Rank 2 on v100b ended before the others, and its message")
    assert loss(None, HOSTS).startswith(f"{socket.gethostname()} cannot reach another rank any")


@pytest.mark.long
@pytest.mark.parametrize("lost", [2, 0])
def test_ranks_that_are_stuck_in_a_collective_leave_by_themselves(toy_commands, tmp_path, lost):
    """And one of them speaks; within horovodrun's 5 s, after which nobody could."""
    command = [*toy.horovodrun(3), *toy_commands.command(STUCK), str(lost)]
    done = toy.Run(command, tmp_path, toy.environment(tmp_path)).finished()
    texts = {path.stem: path.read_text(encoding="utf-8") for path in tmp_path.glob("[0-9].txt")}
    assert sorted(texts) == sorted({"0", "1", "2"} - {str(lost)}), done.stderr
    gone = f"Rank {lost} on {socket.gethostname()} is gone (killed, or out of memory): see there."
    speaker = "1" if lost == 0 else "0"
    assert texts == {rank: f"{rank == speaker} {gone}" for rank in texts}
