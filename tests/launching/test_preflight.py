"""Where ranks go: facts of this machine, changed into those of other hosts."""

import copy
import dataclasses
import re

import pytest

from hvd_nmt.hosts.connection import Connections
from hvd_nmt.hosts.facts import HostFacts
from hvd_nmt.hosts.host_list import Host
from hvd_nmt.launch import config_of
from hvd_nmt.launching import preflight
from hvd_nmt.launching.job import Job, LaunchOptions
from hvd_nmt.launching.preflight import place

A, B, C = Host("a", 2), Host("b", 2), Host("c", 2)
NO_SSH = "ssh: connect to host b port 22: No route to host"


def test_the_first_slots_are_taken():
    assert place([A, B, C], {}, 6) == (A, B, C)
    assert place([A, B, C], {}, 3) == (A, Host("b", 1))
    assert place([A, B, C], {"b"}, 4) == (A, C)
    assert place([A, B], {"a"}, 4) == (B,)
    assert place([A], {"a"}, 2) == ()


@pytest.fixture(scope="module")
def own_facts():
    with Connections(60.0) as connections:
        (answer,) = connections.ask([Host("localhost", 1)], {})
    assert answer.error is None
    return answer.facts


@pytest.fixture
def answers(own_facts, monkeypatch):
    """Host -> its answer, which may be changed."""
    names = ("a", "b", "c")
    by_name = {}
    for number, name in enumerate(names):
        facts = copy.deepcopy(own_facts)
        facts["names"] = {other: [f"10.0.0.{index}"] for index, other in enumerate(names)}
        facts["names"][own_facts["host"]] = [f"10.0.0.{number}"]
        facts["routes"] = dict.fromkeys(names, "eth0")
        facts["nics"] = {
            card: {"is_up": True, "link_mbit_per_s": 10_000} for card in ("lo", "eth0")
        }
        facts["run_dir"] |= {"saved_step": None}
        by_name[name] = HostFacts(Host(name, 2), facts)

    def ask(connections, wanted, request):
        return [dataclasses.replace(by_name[host.name], host=host) for host in wanted]

    monkeypatch.setattr(Connections, "ask", ask)
    monkeypatch.setattr(preflight, "is_here", lambda name: False)
    monkeypatch.setattr(preflight.facts, "nics", dict)  # this one's cards
    return by_name


TRAIN = ("python", "-m", "hvd_nmt.train")


def outlook_of(hosts, ranks, min_ranks, nic="", known_step=-1, is_restart=False, words=TRAIN):
    job = Job(words, config_of(words), hosts, ranks, min_ranks, LaunchOptions(nic=nic))
    return preflight.ask_hosts(job, Connections(1.0), known_step, is_restart)


def hinders(outlook, text):
    """Whether a hindrance has a text, a regular expression."""
    return any(re.search(text, hindrance) for hindrance in outlook.hindrances)


def lose(answers, name):
    answers[name] = HostFacts(Host(name, 2), {}, NO_SSH)


def test_hosts_that_answer_well(answers):
    outlook = outlook_of((A, B), 4, 4)
    assert (outlook.hosts, outlook.nic, outlook.skipped) == ((A, B), "eth0", {})
    assert not [text for text in outlook.hindrances if "memory" not in text], outlook


def test_a_host_that_is_missing_hinders_or_is_skipped(answers):
    lose(answers, "b")
    assert hinders(outlook_of((A, B, C), 6, 6), "^b: ssh: .*No route")
    outlook = outlook_of((A, B, C), 6, 4)
    assert (outlook.hosts, [*outlook.skipped]) == ((A, C), ["b"])
    assert not hinders(outlook, "^b:")
    assert outlook_of((A, B, C), 4, 4).hosts == (A, C)  # a spare one


def test_a_host_with_a_fault_is_skipped_only_once_the_run_continues(answers):
    answers["b"].facts["code"] = "another"
    wanted = (A, C, B), 6, 4
    first, later = outlook_of(*wanted), outlook_of(*wanted, is_restart=True)
    assert hinders(first, "^b: code of hvd_nmt: ")
    assert first.skipped == {}
    assert (later.hosts, [*later.skipped]) == ((A, C), ["b"])


def test_rank_0_does_not_begin_again_where_the_checkpoint_is_missing(answers):
    """It is on hosts alone that are gone."""
    lose(answers, "a")
    wanted = (A, B, C), 6, 2
    outlook = outlook_of(*wanted, known_step=500, is_restart=True)
    assert hinders(outlook, "no host has the checkpoint of step 500")
    answers["b"].facts["run_dir"]["saved_step"] = 500
    outlook = outlook_of(*wanted, known_step=500, is_restart=True)
    assert not hinders(outlook, "checkpoint of")
    assert outlook.saved_step == 500


def test_a_run_directory_that_is_held_is_no_fault_of_the_host(answers):
    answers["a"].facts["run_dir"] |= {"held_by": "process 7 on a"}
    outlook = outlook_of((A, B), 4, 2, is_restart=True)
    assert outlook.skipped == {}
    assert hinders(outlook, "another run is in")


def test_the_card_that_was_named_must_be_there(answers):
    del answers["b"].facts["nics"]["eth0"]
    for nic in ("", "eth0"):
        assert hinders(outlook_of((A, B), 4, 4, nic), "^b: network: no card eth0")
    answers["b"].facts["routes"] = {"a": "eth1"}
    outlook = outlook_of((A, B), 4, 4)
    assert outlook.nic is None
    assert hinders(outlook, "card of another name")


def test_another_command_needs_no_data(answers):
    for answer in answers.values():
        answer.facts["data"] = {"error": "none", "exists": False}
    assert hinders(outlook_of((A, B), 4, 4, words=(*TRAIN, "--data.corpus", "files")), "data: none")
    outlook = outlook_of((A, B), 4, 4, words=("python", "other.py"))
    assert not hinders(outlook, "data")
    assert outlook.saved_step == -1
