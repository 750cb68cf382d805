"""How a host is reached: the command whose standard input and output are those of its agent."""

import abc
from typing import final

from hvd_nmt.hosts.host_list import is_here

SILENCE_S = 360.0
"""seconds after which a silent host is lost; Gloo gives its peers 300 s"""


class Transport(abc.ABC):
    """A way to run a shell command on a host. Another way is one class, chosen in `transport_to`:

    @final
    class KubectlExec(Transport):
        def command(self, host: str, shell_line: str, timeout_s: float) -> list[str]:
            limit = f"--pod-running-timeout={timeout_s:g}s"
            return ["kubectl", "exec", limit, "-i", host, "--", "sh", "-c", shell_line]
    """

    is_remote = True
    """whether the command is a program that stays between this process and the agent, as ssh"""

    @abc.abstractmethod
    def command(self, host: str, shell_line: str, timeout_s: float) -> list[str]:
        """The words of a command that runs a line of sh on a host.

        Args:
            host: the host's name.
            shell_line: what runs there. Any user can read command lines: it holds no secret.
            timeout_s: seconds to connect.
        """


@final
class Local(Transport):
    """This machine."""

    is_remote = False

    def command(self, host: str, shell_line: str, timeout_s: float) -> list[str]:
        """A shell, which becomes the agent."""
        return ["sh", "-c", shell_line]


@final
class Ssh(Transport):
    """Another machine, through ssh that asks no question."""

    def command(self, host: str, shell_line: str, timeout_s: float) -> list[str]:
        """A connection that notices when the host no longer answers."""
        return [
            "ssh", "-o", "BatchMode=yes", "-o", f"ConnectTimeout={max(1, int(timeout_s // 2))}",
            "-o", "ConnectionAttempts=1", "-o", "ControlPath=none",
            "-o", "ServerAliveInterval=15", "-o", f"ServerAliveCountMax={int(SILENCE_S / 15)}",
            host, shell_line,
        ]  # fmt: skip


def transport_to(host: str) -> Transport:
    """The way to a host of this name."""
    return Local() if is_here(host) else Ssh()
