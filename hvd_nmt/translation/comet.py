"""COMET scores of translations, computed by an environment of its own, which has PyTorch.

Source: Rei et al. 2020, "COMET: A Neural Framework for MT Evaluation". `launch/comet.sh` makes the
environment; the model is a checkpoint that the user has.
"""

from __future__ import annotations

import json
import math
import os
import queue
import subprocess
import tempfile
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import IO, Any

from hvd_nmt.common.errors import ConfigError, RunError
from hvd_nmt.common.progress import progress
from hvd_nmt.translation import comet_worker, scoring
from hvd_nmt.translation.scoring import Comparison, Text

ENVIRONMENT = "HVD_NMT_COMET"
"""variable that names the virtual environment"""
NAME = "COMET"
SILENT_S = 1800.0
"""without a word from the other process, after which it is taken to hang"""
_LONGEST = 300
"""characters of its error that are shown"""


def require(model: Path) -> tuple[Path, Path]:
    """See, before anything is translated, that COMET can be computed.

    Args:
        model: a checkpoint of COMET, or the folder that holds its `checkpoints/model.ckpt`.

    Returns:
        The environment's Python, and the checkpoint.

    Raises:
        ConfigError: there is no environment, or no such checkpoint.
    """
    python = _environment() / "bin" / "python"
    if not python.exists():
        raise ConfigError(
            f"--comet needs an environment with unbabel-comet, and there is none in "
            f"{python.parents[1]}: make it with launch/comet.sh, or name one by {ENVIRONMENT}=DIR."
        )
    checkpoint = model / "checkpoints" / "model.ckpt" if model.is_dir() else model
    if not checkpoint.is_file():
        raise ConfigError(f"--comet {model}: there is no file {checkpoint}, a checkpoint of COMET.")
    checkpoint = checkpoint.absolute()  # which may be a link to a file with another folder
    if not (checkpoint.parents[1] / "hparams.yaml").is_file():
        raise ConfigError(
            f"--comet {model}: the file hparams.yaml is missing from {checkpoint.parents[1]}, "
            "where COMET's models have it."
        )
    return python, checkpoint


def added(
    comparison: Comparison, model: Path, source: Text, reference: Text, systems: Sequence[Text]
) -> tuple[Comparison, RunError | None]:
    """A comparison with COMET; and what went wrong, which leaves it as it was.

    Args:
        comparison: of the systems.
        model: see `require`.
        source: what was translated.
        reference: its right translation; models without references do not look at it.
        systems: translations, in the comparison's order.

    Raises:
        ConfigError: see `require`.
    """
    try:
        with progress(len(systems) * len(source.lines), "sentences", NAME) as bar:
            scores = sentence_scores(model, source, reference, systems, bar.update)
    except RunError as error:
        return comparison, error
    signature = f"model:{model.resolve().name}|mean of sentences times 100"
    return scoring.with_sentence_scores(comparison, NAME, signature, scores), None


def sentence_scores(
    model: Path,
    source: Text,
    reference: Text,
    systems: Sequence[Text],
    advance: Callable[[int], object] = lambda n: None,
) -> list[list[float]]:
    """The score of each sentence of each system, most often 0 to 1, higher is better.

    Args:
        model, source, reference, systems: as for `added`.
        advance: gets the number of sentences that were scored since the last call.

    Raises:
        ConfigError: see `require`.
        RunError: the other process failed, or hangs.
    """
    python, checkpoint = require(model)
    rows = [
        {"src": src, "mt": mt, "ref": ref}
        for system in systems
        for src, mt, ref in zip(source.lines, system.lines, reference.lines, strict=True)
    ]
    scores: list[float] = []
    # Ours may name packages that are not made for that Python.
    names = {"PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV"}
    environment = {name: text for name, text in os.environ.items() if name not in names}
    with (
        tempfile.TemporaryFile() as given,
        tempfile.TemporaryFile() as errors,
    ):
        given.write(json.dumps(rows).encode())
        given.seek(0)
        process = subprocess.Popen(
            [python, "-W", "ignore", Path(comet_worker.__file__).resolve(), checkpoint],
            stdin=given, stdout=subprocess.PIPE, stderr=errors, env=environment, text=True,
        )  # fmt: skip
        try:
            for line in _lines(process, model):
                found = _understood(line, model)
                scores += found
                advance(len(found))
        finally:
            process.kill()
            process.wait()
        if len(scores) != len(rows):
            errors.seek(0)
            said = errors.read().decode(errors="replace").strip().splitlines()
            last = f" ({said[-1][:_LONGEST]})" if said else ""
            raise _failed(model, f"its process ended with code {process.returncode}{last}")
    n = len(source.lines)
    return [scores[at : at + n] for at in range(0, len(scores), n)]


def _environment() -> Path:
    if named := os.environ.get(ENVIRONMENT):
        return Path(named)
    cache = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    return Path(cache) / "hvd_nmt" / "comet"


def _lines(process: subprocess.Popen[str], model: Path) -> Any:
    """What the process prints, line by line, until it ends; it is killed when it is silent."""
    lines: queue.Queue[str] = queue.Queue()
    assert process.stdout is not None
    reading = threading.Thread(target=_read, args=(process.stdout, lines), daemon=True)
    reading.start()
    while True:
        try:
            line = lines.get(timeout=SILENT_S)
        except queue.Empty:
            raise _failed(model, f"its process said nothing for {SILENT_S:g} s") from None
        if not line:
            process.wait()
            return
        yield line


def _read(stream: IO[str], lines: queue.Queue[str]) -> None:
    with stream:
        for line in stream:
            lines.put(line)
    lines.put("")


def _understood(line: str, model: Path) -> list[float]:
    content = json.loads(line)
    if "error" in content:
        raise _failed(model, content["error"][:_LONGEST])
    scores = [float(score) for score in content["scores"]]
    if not all(map(math.isfinite, scores)):
        raise _failed(model, "it gives scores that are not finite")
    return scores


def _failed(model: Path, why: str) -> RunError:
    return RunError(
        f"COMET with {model} failed: {why.rstrip('.')}. The other scores do not depend on it; give "
        "another model, or leave out --comet."
    )
