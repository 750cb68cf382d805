"""CPU and memory of this host: real work."""

import subprocess
import sys
import time

from hvd_nmt.telemetry import host
from hvd_nmt.telemetry.host import cpu_flags, host_facts, host_sample


def test_facts():
    facts = host_facts()
    assert facts["cpu_model"]
    assert facts["cores"] >= 1
    assert facts["memory_total_bytes"] > 2**20


def test_flags_are_read_from_the_kernel(monkeypatch, tmp_path):
    assert all(isinstance(flag, str) for flag in cpu_flags())
    cpuinfo = tmp_path / "cpuinfo"
    cpuinfo.write_text("processor\t: 0\nmodel name\t: x\nflags\t\t: fpu avx512_bf16 sse\n\n")
    monkeypatch.setattr(host, "Path", lambda name: cpuinfo)
    assert {"fpu", "avx512_bf16", "sse"} <= cpu_flags()
    cpuinfo.write_text("processor\t: 0\nFeatures\t: fp asimd\n")  # ARM
    assert cpu_flags() == set()
    cpuinfo.unlink()
    assert cpu_flags() == set()


def test_work_shows_as_cpu():
    host_sample()
    used_before_s = time.process_time()
    while time.process_time() < used_before_s + 0.1:
        pass
    seen = host_sample()
    assert 0 < seen["cpu_percent"] <= 100
    assert 0 < seen["memory_used_bytes"] < host_facts()["memory_total_bytes"]


def test_a_process_knows_when_it_began():
    """As another process sees it, and before it could have asked."""
    code = "from hvd_nmt.telemetry.host import process_started_s as s; print(s())"
    before_s = time.time()
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    # The kernel counts from the boot, whose time it tells in whole seconds.
    assert before_s - 1.1 < float(done.stdout) < time.time() + 1
