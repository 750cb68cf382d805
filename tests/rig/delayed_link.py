"""Another way between the hosts of the rig, which delays each packet, until this process ends.

`tc` does that where a kernel has netem. Usage: delayed_link.py MILLISECONDS
"""

import collections
import contextlib
import fcntl
import os
import select
import struct
import subprocess
import sys
import time

TUNSETIFF, IFF_TUN, IFF_NO_PI = 0x400454CA, 0x0001, 0x1000
HOSTS = {"v100a": ("10.77.0.1", "10.77.0.2"), "v100b": ("10.77.0.2", "10.77.0.1")}
"""name: own address, that of the other"""


def end_on(host, own, other):
    """The file of a tunnel whose other end is a host's way to the other one."""
    name = f"delayed-{host}"
    file = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
    fcntl.ioctl(file, TUNSETIFF, struct.pack("16sH", name.encode(), IFF_TUN | IFF_NO_PI))
    for words in (
        f"link set {name} netns {host}",
        f"-n {host} link set {name} up txqueuelen 10000",
        f"-n {host} route add {other} dev {name} src {own}",
    ):
        subprocess.run(["ip", *words.split()], check=True)
    return file


def main():
    """Pass packets on, each after the delay."""
    delay_s = float(sys.argv[1]) / 1000
    a, b = (end_on(host, *addresses) for host, addresses in HOSTS.items())
    others, waiting = {a: b, b: a}, collections.deque()
    while True:
        select.select([a, b], [], [], max(0.0, waiting[0][0] - time.monotonic()) if waiting else 1)
        for file, other in others.items():
            with contextlib.suppress(BlockingIOError):
                while packet := os.read(file, 1 << 16):
                    waiting.append((time.monotonic() + delay_s, other, packet))
        while waiting and waiting[0][0] <= time.monotonic():
            _, other, packet = waiting.popleft()
            os.write(other, packet)


if __name__ == "__main__":
    main()
