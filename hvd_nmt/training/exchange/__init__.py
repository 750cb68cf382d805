"""What travels between the ranks of a run: one object of one of three kinds."""

from hvd_nmt.config.exchange import Exchange
from hvd_nmt.training.exchange.all_reduce import AllReduce, Float16
from hvd_nmt.training.exchange.base import GradientExchange
from hvd_nmt.training.exchange.islands import Islands
from hvd_nmt.training.exchange.over_hosts import HostGroups


def of(exchange: Exchange, groups: HostGroups | None, optimizer: str) -> GradientExchange:
    """The one that a run asked for; `groups` of its ranks are None where all sum together."""
    if groups is None:
        return AllReduce()
    every = exchange.sync_every
    return Float16(groups) if every == 1 else Islands(groups, every, optimizer)
