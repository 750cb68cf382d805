"""What a launcher is to do: a command, its hosts, and how often they are tried again."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from hvd_nmt.config import Config
from hvd_nmt.config.schema import NaturalFloat, NaturalInt, PositiveFloat, require_limits
from hvd_nmt.hosts.host_list import Host


@dataclass(frozen=True)
class LaunchOptions:
    """Where the ranks run, and how often they are started again."""

    hosts: Annotated[str, tyro.conf.arg(aliases=["-H"])] = ""
    """hosts and slots (-H), such as a:2,b:2 (default: this machine); it has a slot for each GPU"""
    hostfile: Path | None = None
    """file with lines NAME slots=RANKS, instead of -H"""
    num_proc: Annotated[NaturalInt, tyro.conf.arg(aliases=["-np"])] = 0
    """ranks (-np), 0: all that the hosts have room for"""
    nic: str = ""
    """network card between hosts (default: that of the route); it has the same name on each"""
    min_ranks: NaturalInt = 0
    """ranks that are enough where a host fails, 0: all; a later start takes the host in again"""
    restarts_per_hour: NaturalInt = 10
    """restarts within any hour, 0: none; the pause before the next is as long as that takes"""
    wait_for_hosts_h: NaturalFloat = 24.0
    """most hours to wait for what hinders a restart; counted again each time"""
    timeout_s: PositiveFloat = 30.0
    """seconds that each host has to answer"""
    dry_run: bool = False
    """ask the hosts and print what would be started where; start nothing"""

    def __post_init__(self) -> None:
        require_limits(self)


@dataclass(frozen=True)
class Job:
    """A command for ranks on hosts, until it is done."""

    command: tuple[str, ...]
    config: Config | None
    """configuration of its run; None: it is not hvd_nmt.train, so nothing is known of it"""
    hosts: tuple[Host, ...]
    """hosts with their slots, in order"""
    ranks: int
    min_ranks: int
    """slots that are enough: hosts that cannot be used are skipped while so many remain"""
    options: LaunchOptions = LaunchOptions()
    """nic, timeout_s and what is allowed when hosts or ranks fail"""

    @property
    def rescues(self) -> bool:
        """Whether a host saves what it has when another is lost, without which it may continue."""
        return self.min_ranks < self.ranks
