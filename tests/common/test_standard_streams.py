"""Work whose output nobody reads goes on."""

import shlex
import subprocess
import sys

import pytest

WORK = """
import sys
from hvd_nmt.common.standard_streams import outliving_readers
with outliving_readers("x"):
    for _ in range(100_000): print("a line", flush=True)
    print("an error", file=sys.stderr)
open("done", "w").close()
"""


WITHOUT = b"x goes on without stdout, which cannot be written any more "


@pytest.mark.parametrize(
    ("pipe", "out", "err"),
    [
        ("| head -n 1", b"a line\n", WITHOUT + b"(Broken pipe)"),
        ("2>&1 | head -n 1", b"a line\n", b""),
        ("> /dev/full", b"", WITHOUT + b"(No space left on device)"),
        (">&-", b"", b"an error\n"),
    ],
)
def test_work_goes_on_and_ends_well(tmp_path, pipe, out, err):
    command = f"set -o pipefail; {shlex.join([sys.executable, '-c', WORK])} {pipe}"
    done = subprocess.run(["bash", "-c", command], capture_output=True, cwd=tmp_path)
    assert (done.returncode, done.stdout) == (0, out), done.stderr
    assert done.stderr.startswith(err)
    assert done.stderr.count(b"\n") == (2 if b"stdout" in err else err.count(b"\n"))
    assert (tmp_path / "done").exists()
