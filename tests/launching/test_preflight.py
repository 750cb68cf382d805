"""Where ranks go: answers of this machine, changed into what other hosts would say."""

import copy
import dataclasses

import pytest

from hvd_nmt.hosts.connections import Connections
from hvd_nmt.hosts.facts import HostFacts
from hvd_nmt.hosts.host_list import Host
from hvd_nmt.launch import config_of
from hvd_nmt.launching import preflight
from hvd_nmt.launching.preflight import Job, place

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
    """By host what it answers; any of it may be changed."""
    names = ("a", "b", "c")
    told = {}
    for number, name in enumerate(names):
        facts = copy.deepcopy(own_facts)
        facts["names"] = {other: [f"10.0.0.{index}"] for index, other in enumerate(names)}
        facts["names"][own_facts["host"]] = [f"10.0.0.{number}"]
        facts["routes"] = dict.fromkeys(names, "eth0")
        facts["nics"] = {card: {"is_up": True, "is_loopback": card == "lo",
                                "link_mbit_per_s": 10_000} for card in ("lo", "eth0")}  # fmt: skip
        facts["run_dir"] |= {"saved_step": None}
        told[name] = HostFacts(Host(name, 2), facts)

    def ask(connections, wanted, request):
        return [dataclasses.replace(told[host.name], host=host) for host in wanted]

    monkeypatch.setattr(Connections, "ask", ask)
    monkeypatch.setattr(preflight, "is_here", lambda name: False)
    monkeypatch.setattr(preflight.psutil, "net_if_stats", dict)  # this one's cards
    return told


TRAIN = ("python", "-m", "hvd_nmt.train")


def look(hosts, ranks, min_ranks, nic="", known_step=-1, is_restart=False, words=TRAIN):
    job = Job(words, config_of(words), hosts, ranks, min_ranks, nic)
    return preflight.ask_hosts(job, Connections(1.0), known_step, is_restart)


def lose(answers, name):
    answers[name] = HostFacts(Host(name, 2), {}, NO_SSH)


def test_hosts_that_answer_well(answers):
    outlook = look((A, B), 4, 4)
    assert outlook.hosts == (A, B)
    assert outlook.nic == "eth0"
    assert outlook.left_out == {}
    assert not [said for said in outlook.hindrances if "memory" not in said], outlook


def test_a_host_that_is_missing_hinders_or_is_left_out(answers):
    lose(answers, "b")
    outlook = look((A, B, C), 6, 6)
    assert any(said.startswith("b: ssh: ") and "No route" in said for said in outlook.hindrances)
    outlook = look((A, B, C), 6, 4)
    assert outlook.hosts == (A, C)
    assert list(outlook.left_out) == ["b"]
    assert not any(said.startswith("b:") for said in outlook.hindrances)
    assert look((A, B, C), 4, 4).hosts == (A, C)  # a spare one


def test_a_host_with_a_fault_is_left_out_only_once_the_run_goes_on(answers):
    answers["b"].facts["code"] = "another"
    wanted = (A, C, B), 6, 4
    first, later = look(*wanted), look(*wanted, is_restart=True)
    assert any(said.startswith("b: code of hvd_nmt: ") for said in first.hindrances)
    assert first.left_out == {}
    assert list(later.left_out) == ["b"]
    assert later.hosts == (A, C)


def test_rank_0_does_not_begin_anew_where_the_checkpoint_is_missing(answers):
    """It is on hosts alone that are gone."""
    lose(answers, "a")
    wanted = (A, B, C), 6, 2
    outlook = look(*wanted, known_step=500, is_restart=True)
    assert any("no host has the checkpoint of step 500" in said for said in outlook.hindrances)
    answers["b"].facts["run_dir"]["saved_step"] = 500
    outlook = look(*wanted, known_step=500, is_restart=True)
    assert not any("checkpoint of" in said for said in outlook.hindrances)
    assert outlook.saved_step == 500


def test_a_run_directory_that_is_held_is_no_fault_of_the_host(answers):
    answers["a"].facts["run_dir"] |= {"held_by": "process 7 on a"}
    outlook = look((A, B), 4, 2, is_restart=True)
    assert outlook.left_out == {}
    assert any("another run is in" in said for said in outlook.hindrances)


def test_the_card_that_was_named_must_be_there(answers):
    del answers["b"].facts["nics"]["eth0"]
    for nic in ("", "eth0"):
        outlook = look((A, B), 4, 4, nic)
        assert any(said.startswith("b: network: no card eth0") for said in outlook.hindrances)
    answers["b"].facts["routes"] = {"a": "eth1"}
    outlook = look((A, B), 4, 4)
    assert outlook.nic is None
    assert any("card of another name" in said for said in outlook.hindrances)


def test_another_command_needs_no_data(answers):
    for answer in answers.values():
        answer.facts["data"] = {"error": "none", "exists": False}
    words = (*TRAIN, "--data.corpus", "files")
    assert any("data: none" in said for said in look((A, B), 4, 4, words=words).hindrances)
    outlook = look((A, B), 4, 4, words=("python", "other.py"))
    assert not any("data" in said for said in outlook.hindrances)
    assert outlook.saved_step == -1
