"""Runs as MLflow and Weights & Biases have them, read from their own files on this machine."""

from __future__ import annotations

import importlib.util
import json
import os
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pytest
import yaml

LIBRARIES = ("mlflow", "wandb")


def require(library: str) -> None:
    """Skip where a library is not installed."""
    if importlib.util.find_spec(library) is None:
        pytest.skip(f"needs {library}: pip install 'hvd_nmt[{library}]'")


@dataclass
class Shown:
    """What a library shows of one run."""

    run_id: str
    values: dict[str, list[tuple[int, float]]]
    """tag -> (step, value), in the order of arrival"""
    config: dict[str, Any]
    files: set[str]
    finished: bool


@dataclass
class Library:
    """A library and where it keeps runs, without a network."""

    name: str
    folder: Path

    @property
    def environment(self) -> dict[str, str]:
        """The variables that say where."""
        if self.name == "mlflow":
            uri = (self.folder / "store").as_uri()
            return {"MLFLOW_TRACKING_URI": uri, "MLFLOW_ALLOW_FILE_STORE": "true"}
        return {"WANDB_MODE": "offline", "WANDB_DIR": os.fspath(self.folder)}

    def runs(self) -> list[Shown]:
        """The runs that it shows."""
        return (_mlflow_runs if self.name == "mlflow" else _wandb_runs)(self.folder)


def _mlflow_runs(folder: Path) -> list[Shown]:
    """MLflow's file store: a folder per experiment and run, a file per tag."""
    found = []
    for path in sorted((folder / "store").glob("*/*/meta.yaml")):
        run, meta = path.parent, yaml.safe_load(path.read_text())
        values = {}
        for file in (run / "metrics").rglob("*"):
            if file.is_file():
                rows = [line.split() for line in file.read_text().splitlines()]
                tag = os.fspath(file.relative_to(run / "metrics"))
                values[tag] = [(int(step), float(value)) for _, value, step in rows]
        config = {
            os.fspath(file.relative_to(run / kind)): file.read_text()
            for kind in ("params", "tags") for file in (run / kind).iterdir()
        }  # fmt: skip
        artifacts = Path(unquote(meta["artifact_uri"]).removeprefix("file://"))
        files = {os.fspath(f.relative_to(artifacts)) for f in artifacts.rglob("*") if f.is_file()}
        found.append(Shown(meta["run_id"], values, config, files, meta["status"] == 3))
    return found


def _wandb_runs(folder: Path) -> list[Shown]:
    """The offline files of Weights & Biases: one folder per start, joined as `wandb sync` does."""
    found: dict[str, Shown] = {}
    for path in sorted(folder.glob("wandb/offline-run-*/*.wandb")):
        shown = found.setdefault(path.stem, Shown(path.stem, {}, {}, set(), False))
        shown.files |= {os.fspath(f.relative_to(path.parent / "files"))
                        for f in (path.parent / "files").rglob("*") if f.is_file()}  # fmt: skip
        for record in _wandb_records(path):
            kind = record.WhichOneof("record_type")
            if kind in ("run", "config"):
                config = record.run.config if kind == "run" else record.config
                shown.config |= {
                    item.key or ".".join(item.nested_key): json.loads(item.value_json)
                    for item in config.update
                }
            elif kind == "history":
                row = {
                    item.key or item.nested_key[0]: json.loads(item.value_json)
                    for item in record.history.item if len(item.nested_key) < 2
                }  # fmt: skip
                for tag, value in row.items():
                    if tag != "step" and not tag.startswith("_"):
                        shown.values.setdefault(tag, []).append((row["step"], value))
            elif kind == "exit":
                shown.finished = record.exit.exit_code == 0
    return list(found.values())


def _wandb_records(path: Path) -> Iterator[Any]:
    """The records of a .wandb file: LevelDB's log format, in blocks of 32 KiB, after 7 bytes."""
    from wandb.proto import wandb_internal_pb2

    data, at, whole = path.read_bytes(), 7, b""
    while at + 7 <= len(data):
        left = 32768 - at % 32768
        if left < 7:
            at += left
            continue
        _, n_bytes, kind = struct.unpack("<IHB", data[at : at + 7])
        part = data[at + 7 : at + 7 + n_bytes]
        whole = part if kind in (1, 2) else whole + part
        at += 7 + n_bytes
        if kind in (1, 4):
            record = wandb_internal_pb2.Record()
            record.ParseFromString(whole)
            yield record
