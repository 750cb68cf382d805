"""COMET in an environment of its own, run as a script there: it imports nothing of the package.

    python comet_worker.py MODEL < sentences.json > scores.jsonl

In: a JSON list of objects with src, mt and ref. Out: a line {"scores": [...]} for each next piece
of the list, or {"error": "..."}. What libraries print goes to stderr.
"""

import json
import os
import sys
from pathlib import Path
from typing import Any

_AT_ONCE, _BATCH = 256, 16
"""sentences of a piece, and of a forward pass"""


def main() -> None:
    """Score what comes in."""
    del sys.path[0]  # the folder of this script, whose files have names of other packages, too
    out = os.fdopen(os.dup(1), "w", encoding="utf-8", buffering=1)
    os.dup2(2, 1)
    sentences = json.load(sys.stdin)
    try:
        import comet

        model = comet.load_from_checkpoint(sys.argv[1], local_files_only=True)
        gpus = _gpus(Path(sys.argv[1]).stat().st_size)
        for at in range(0, len(sentences), _AT_ONCE):
            piece = sentences[at : at + _AT_ONCE]
            found = model.predict(piece, batch_size=_BATCH, gpus=gpus, progress_bar=False)
            scores = [float(score) for score in found.scores]
            print(json.dumps({"scores": scores}), file=out, flush=True)
    except Exception as error:  # of a library, or of a file that is no model
        text = " ".join(str(error).split())
        print(json.dumps({"error": f"{type(error).__name__}: {text}"}), file=out, flush=True)


def _gpus(model_bytes: int) -> int:
    """1 where a GPU has room for the model: what has just translated may still hold its memory."""
    import torch

    available: Any = torch.cuda.is_available()
    return int(available and torch.cuda.mem_get_info()[0] > 2 * model_bytes + (1 << 30))


if __name__ == "__main__":
    main()
