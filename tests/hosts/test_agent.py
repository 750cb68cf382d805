"""An agent and the ranks that it starts, over the pipes that ssh would give it."""

import os
import queue
import signal
import subprocess
import sys
import time

import psutil
import pytest

from hvd_nmt.hosts.channel import Channel

RANK = """
import os, signal, sys, time
def say(text):
    print(text, flush=True)
"""
DEAF = "signal.signal(signal.SIGTERM, lambda *_: None); say('deaf'); time.sleep(600)"
LEFT_OVER = "import subprocess; subprocess.Popen(['bash', '-c', \"trap '' TERM; exec sleep 7772\"]"
BEATS = """
from hvd_nmt.common.tensorflow_import import wait_as_spare
wait_as_spare(lambda: say('imports ' + os.environ['HVD_NMT_START_ID']))
say('needed ' + os.environ['HVD_NMT_START_ID'])
from hvd_nmt.common import heartbeat
beat = heartbeat.Heartbeat()
beat.limit_s = 0.5
beat.begin()
"""


class Agent:
    """A real one, and what it tells."""

    def __init__(self, folder):
        self.process = subprocess.Popen(
            [sys.executable, "-m", "hvd_nmt.hosts.agent"], cwd=folder,
            env=os.environ | {"HVD_NMT_GRACE_S": "2"}, stdin=subprocess.PIPE,
            stdout=subprocess.PIPE, start_new_session=True,
        )  # fmt: skip
        self.told = queue.SimpleQueue()
        self.channel = Channel(self.process.stdout, self.process.stdin, self.told.put)
        self.output = ""

    def ask(self, do, **values):
        self.channel.send({"do": do, "id": do, **values})
        return self.wait_for(lambda message: message.get("id") == do)

    def start(self, *programs, start_id="1", following="", imports_s=None, words=()):
        """A rank for each program."""
        ranks = [[n, {"PROGRAM": RANK + text}] for n, text in enumerate(programs)]
        words = words or [sys.executable, "-c", "import os; exec(os.environ['PROGRAM'])"]
        return self.ask(
            "start", words=words, variables={}, ranks=ranks, start_id=start_id,
            next_start_id=following, imports_s=imports_s,
        )  # fmt: skip

    def wait_for(self, wanted):
        """The first message that is wanted; output is gathered meanwhile."""
        while True:
            message = self.told.get(timeout=300)
            assert message is not None, "the agent has ended"
            if message.get("tell") == "output":
                self.output += message["text"]
                self.channel.send({"do": "printed"})
            if wanted(message):
                return message

    def end_of(self, rank):
        return self.wait_for(
            lambda message: message.get("tell") == "ended" and message["rank"] == rank
        )

    def state_of(self, rank, **wanted):
        """What a rank does, once that holds."""

        def state(message):
            return message.get("states", {}).get(rank, {})

        return state(self.wait_for(lambda message: wanted.items() <= state(message).items()))

    def end(self, patience_s=0.0, asks=False):
        return self.ask("end", patience_s=patience_s, asks=asks, run_dir=None)

    def says(self, text):
        self.wait_for(lambda message: text in self.output)

    def children(self):
        return psutil.Process(self.process.pid).children(recursive=True)

    def spare(self):
        """The first, once there is one."""
        while True:
            for child in self.children():
                if "HVD_NMT_SPARE" in child.environ():
                    return child
            time.sleep(0.05)


@pytest.fixture
def agent(tmp_path):
    started = Agent(tmp_path)
    yield started
    started.channel.close()
    started.process.kill()
    started.process.wait()


def gone(pid):
    deadline = time.monotonic() + 60
    while psutil.pid_exists(pid) and time.monotonic() < deadline:
        if psutil.Process(pid).status() == psutil.STATUS_ZOMBIE:
            return True
        time.sleep(0.02)
    return not psutil.pid_exists(pid)


def test_how_ranks_end_and_what_they_printed(agent):
    agent.start(
        "say('bad byte'); sys.stdout.buffer.write(b'\\xff\\xfe \\xe2\\x82'); sys.exit(3)",
        "os.kill(os.getpid(), 9)",
        "time.sleep(1), print('no end', end='')",
    )
    ends = [agent.wait_for(lambda message: message.get("tell") == "ended") for _ in range(3)]
    assert {end["rank"]: end["code"] for end in ends} == {0: 3, 1: -9, 2: 0}
    assert agent.end()["left"] == 0
    assert "bad byte\n\\xff\\xfe \\xe2\\x82" in agent.output
    assert "no end" in agent.output


def test_a_command_that_is_not_there(agent):
    reply = agent.start("", words=["nowhere"])
    assert (reply["error"], reply["passes"]) == ("nowhere: No such file or directory", False)


def test_imports_that_hang(agent):
    agent.start("time.sleep(600)", imports_s=0.1)
    assert agent.state_of("0", stuck=True)["section"] == ""


def test_nothing_is_left_of_what_ranks_started(agent):
    """Not what is deaf, in a session of its own, without a parent, or holds the output."""
    agent.start(
        f"{LEFT_OVER})\n{LEFT_OVER}, start_new_session=True, env={{}})\nsay('started'); "
        f"time.sleep(600)",
        DEAF,
    )
    agent.says("started")
    agent.says("deaf")
    children = agent.children()
    assert len(children) == 4
    children[0].kill()  # the first rank: what it started is adopted
    agent.end_of(0)
    assert agent.end(patience_s=0.3, asks=True)["left"] == 0
    assert all(gone(child.pid) for child in children)


def test_ranks_that_are_asked_have_their_patience_and_it_can_be_shortened(agent):
    agent.start(
        "signal.signal(signal.SIGTERM, lambda *_: (say('saved'), sys.exit(75)))\n"
        "say('ready'); time.sleep(600)",
        DEAF,
    )
    agent.says("ready")
    agent.says("deaf")
    end = {"do": "end", "run_dir": None}
    agent.channel.send(end | {"id": 1, "patience_s": 600, "asks": True})
    assert agent.end_of(0)["code"] == 75
    agent.channel.send(end | {"id": 2, "patience_s": 0, "asks": False})
    assert agent.end_of(1)["code"] == -signal.SIGKILL
    first, second = (agent.wait_for(lambda message: message.get("id") in (1, 2)) for _ in range(2))
    assert {first["id"], second["id"]} == {1, 2}
    assert first["left"] == 0
    assert "saved" in agent.output


@pytest.mark.parametrize("how", ["launcher", "agent"])
def test_ranks_end_where_launcher_or_agent_does(agent, how):
    agent.start(DEAF)
    agent.says("deaf")
    (rank,) = agent.children()
    if how == "launcher":
        agent.channel.close()
    else:
        agent.process.kill()
    assert gone(rank.pid)
    agent.process.wait(600)


def test_what_an_earlier_agent_left_is_ended(agent):
    """Its start is in the environment of all that it started."""
    sleeper = subprocess.Popen(["sleep", "7772"], env=os.environ | {"HVD_NMT_START_ID": "abc.3"})
    other = subprocess.Popen(["sleep", "7772"], env=os.environ | {"HVD_NMT_START_ID": "xyz.1"})
    try:
        agent.channel.send({"do": "clear", "launch_id": "abc"})
        assert sleeper.wait(60) == -signal.SIGKILL
        assert other.poll() is None
    finally:
        other.kill()
        sleeper.kill()
        other.wait()


def test_a_rank_that_hangs_prints_its_stacks_and_a_stopped_one_is_told_as_such(agent):
    step = "beat.enter(heartbeat.STEP); beat.enter(heartbeat.INPUT)\n"
    step += "beat.enter(heartbeat.STEP, waits=True)\n"
    program = BEATS + step + "say('beats')\n"
    agent.start(program + "def hang():\n    while True: pass\nhang()", program + "time.sleep(600)")
    agent.says("beats")
    state = agent.state_of("0", stuck=True, section="step")
    assert not state["stopped"]
    assert not state["waits"]  # though it said so: it computes
    agent.children()[1].send_signal(signal.SIGSTOP)
    assert agent.state_of("1", stuck=True, stopped=True)["section"] == "step"
    agent.says("in hang")


def test_who_reads_nothing_stops_the_ranks_and_no_answer(agent):
    """Some pieces are on their way, and the rest waits in the rank."""
    agent.start("while True: print('x' * 65535)")
    size, seconds = 0, 0.0
    while seconds < 3:  # none is said to be printed
        message = agent.told.get(timeout=300)
        size += len(message.get("text", ""))
        seconds = message.get("states", {}).get("0", {}).get("seconds", 0.0)
    assert 0 < size <= 32 << 16
    assert agent.ask("facts", request={})["facts"]["time_s"] > 0
    assert agent.end()["left"] == 0


def test_a_spare_waits_until_its_start_and_no_other(agent):
    """The ranks have trained for some seconds when it is started."""
    train = BEATS + "beat.enter(heartbeat.STEP)\ntime.sleep(600)"
    agent.start(train, following="2")
    agent.says("needed 1")
    spare = agent.spare()
    agent.end()  # the rank, not the spare
    assert "needed 2" not in agent.output
    agent.start(train, start_id="2", following="3")
    agent.says("needed 2")
    assert "imports 2" in agent.output
    assert spare.is_running()
    left = agent.spare()
    agent.end()
    assert gone(spare.pid)
    agent.start("say('something else')", start_id="3")
    agent.says("something else")
    assert gone(left.pid)
