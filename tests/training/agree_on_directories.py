"""Worker of test_host_directories.py: what two hosts agree on, in one folder after the other.

    horovodrun -np 2 -H localhost:2 python agree_on_directories.py OUT CASE ...

Each CASE is a folder with those of the hosts, host0 and host1, in which they work.
"""

import dataclasses
import json
import os
import socket
import sys
from pathlib import Path

from hvd_nmt import config as configuration
from hvd_nmt.common.errors import UserError
from hvd_nmt.training import horovod, run_directory


def main(out, cases):
    rank = horovod.init(2)
    host = f"host{rank.index}"
    rank = dataclasses.replace(rank, host=host)
    socket.gethostname = lambda: host
    config = dataclasses.replace(configuration.presets()["base"][1], run_dir=Path("run"))
    with (out / f"{rank.index}.jsonl").open("w", encoding="utf-8") as file:
        for case in cases:
            os.chdir(case / host)
            said, found = [], None
            try:
                found = run_directory.claim_directories(config.run_dir, rank, said.append)
            except UserError as error:
                said.append(str(error))
            line = {"case": case.name, "said": said}
            if found is not None:
                line |= {"writers": found.writers, "source": found.source, "id": found.run_id}
                if found.lock is not None:
                    found.lock.close()
            file.write(json.dumps(line) + "\n")
    horovod.shutdown()


if __name__ == "__main__":
    main(Path(sys.argv[1]), [Path(case) for case in sys.argv[2:]])
