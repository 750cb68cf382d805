"""The libraries that show runs, each with an empty folder of its own."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from trackers import LIBRARIES, Library, require


@pytest.fixture(params=LIBRARIES)
def library(request: pytest.FixtureRequest, tmp_path: Path) -> Library:
    """Each of them, in an empty folder."""
    require(request.param)
    folder = tmp_path / "library"
    folder.mkdir()
    return Library(request.param, folder)


@pytest.fixture
def use(monkeypatch: pytest.MonkeyPatch) -> Callable[[Mapping[str, str]], None]:
    """Sets variables of the environment, from no others of these libraries."""

    def set_variables(environment: Mapping[str, str]) -> None:
        for name in os.environ:
            if name.startswith(("MLFLOW_", "WANDB_")):
                monkeypatch.delenv(name)
        for name, value in environment.items():
            monkeypatch.setenv(name, value)

    return set_variables
