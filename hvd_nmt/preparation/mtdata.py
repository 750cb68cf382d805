"""Corpora by their names in the index of mtdata, which runs in its own process."""

import importlib.util
import subprocess
import sys
from pathlib import Path

from hvd_nmt.common.errors import ConfigError, DataError
from hvd_nmt.common.files import exclusive
from hvd_nmt.common.progress import print_line
from hvd_nmt.preparation.bitext import of_language

PREFIX = "mtdata:"
_PARTS = "train-parts"


def download(name: str, languages: tuple[str, str], cache: Path) -> tuple[Path, Path]:
    """The source and the target file of a corpus; ConfigError: no such name, or no such languages.

    mtdata takes it from its own cache ($MTDATA or ~/.mtdata), or else from the network. The files
    stay in the folder `cache`. DataError: it cannot be had.
    """
    codes = tuple(name.split("-")[-2:])
    sides = [[code for code in codes if code in of_language(side, codes)] for side in languages]
    if len(codes) < 2 or [*map(len, sides)] != [1, 1]:
        raise ConfigError(
            f"{PREFIX}{name} has the languages {' and '.join(codes)}: give --source-language and "
            "--target-language."
        )
    out = cache / "mtdata" / name
    with exclusive(out, out="--cache"):
        if not (out / _PARTS / f".valid.{name}").exists():
            _run(name, codes, out)
    source, target = (out / _PARTS / f"{name}.{side[0]}" for side in sides)
    return source, target


def _run(name: str, codes: tuple[str, ...], out: Path) -> None:
    if importlib.util.find_spec("mtdata") is None:
        raise ConfigError(
            f"{PREFIX}{name} needs mtdata: run pip install 'hvd_nmt[mtdata]' in this environment."
        )
    print_line(f"mtdata reads {name} from its cache; what is not there needs the network ...")
    pair = "-".join(codes)
    words = ["--no-pbar", "get", "-l", pair, "-tr", name, "-o", str(out)]
    command = [sys.executable, "-m", "mtdata", *words]
    done = subprocess.run(command, capture_output=True, text=True, errors="replace")
    if done.returncode == 0:
        return
    reason = (done.stderr.strip().splitlines() or ["it gave no reason"])[-1]
    if "Could not find" in reason:
        known = f"python -m mtdata list -id -l {pair}"
        raise ConfigError(f"mtdata has no corpus {name}: `{known}` shows those that it has.")
    raise DataError(
        f"mtdata cannot get {name} ({reason.partition(' (Caused by')[0]}): see that the network "
        "is there, and run the same command again."
    )
