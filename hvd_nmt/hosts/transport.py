"""How a host is reached: the command whose standard input and output are those of its agent."""

import abc
from typing import final

from hvd_nmt.hosts.host_list import is_here

SILENCE_S = 360.0
"""seconds after which a silent host is lost; Gloo gives its peers 300 s"""


class Transport(abc.ABC):
    """A way to run a shell command on a host. Another one is a class, chosen by `transport_to`:

    class KubectlExec(Transport):
        def command(self, host: str, shell_line: str, timeout_s: float) -> list[str]:
            return ["kubectl", "exec", "-i", host, "--", "sh", "-c", shell_line]
    """

    is_remote = True
    """whether the command stays between this process and the agent, as ssh does"""

    @abc.abstractmethod
    def command(self, host: str, shell_line: str, timeout_s: float) -> list[str]:
        """The words that run a line of sh, which holds no secret; it has `timeout_s` to connect."""


@final
class Local(Transport):
    """A child of this process."""

    is_remote = False

    def command(self, host: str, shell_line: str, timeout_s: float) -> list[str]:
        return ["sh", "-c", shell_line]


@final
class Ssh(Transport):
    """ssh that asks no question, and notices when the host no longer answers."""

    def command(self, host: str, shell_line: str, timeout_s: float) -> list[str]:
        return [
            "ssh", "-o", "BatchMode=yes", "-o", f"ConnectTimeout={max(1, int(timeout_s // 2))}",
            "-o", "ConnectionAttempts=1", "-o", "ControlPath=none",
            "-o", "ServerAliveInterval=15", "-o", f"ServerAliveCountMax={int(SILENCE_S / 15)}",
            host, shell_line,
        ]  # fmt: skip


def transport_to(host: str) -> Transport:
    """The transport to a host of this name."""
    return Local() if is_here(host) else Ssh()
