"""A run that meets NaN or Inf names the sentences, goes back once, and leaves the step out."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from hvd_nmt.checkpoints.find import step_to_resume
from hvd_nmt.checkpoints.run_files import NOT_FINITE
from hvd_nmt.common.units import count
from hvd_nmt.data import batches
from hvd_nmt.model.tokenizer import Tokenizers
from hvd_nmt.records import left_out
from hvd_nmt.records.left_out import LeftOut, WentBack, numbered
from hvd_nmt.telemetry import jsonl
from hvd_nmt.training import horovod
from hvd_nmt.training.setup import RunSetup
from hvd_nmt.training.step_callback import StepCallback


class GoBack(Exception):
    """All ranks go back to the last checkpoint: no error, and raised on all of them alike."""


class GoingBack:
    """What a run does when a gradient becomes NaN or Inf for the first time in an epoch.

    A collective to make: what rank 0 finds in the run directory counts.

    Args:
        run_dir: run directory.
        run_setup: what all ranks have agreed on.
    """

    def __init__(self, run_dir: Path, run_setup: RunSetup) -> None:
        self._run_dir, self._setup = run_dir, run_setup
        is_first = run_setup.rank.is_first
        with horovod.raise_on_all_ranks():
            found = left_out.read(run_dir) if is_first else LeftOut()
        self.left_out = LeftOut.recorded(horovod.gather(found.record())[0])
        """what the run leaves out, equal on all ranks"""
        self.settle: Callable[[], None] = lambda: None
        """called before it goes back: what is being saved is waited for, on all ranks"""
        self.happened = False
        """whether this process has gone back"""

    def before(self, step: int) -> WentBack | None:
        """Whether the run has gone back in the epoch of this step: then it does not again."""
        return self.left_out.in_epoch(self._epoch(step))

    def go_back(self, step: int, what: str, ranks: Sequence[int]) -> None:
        """Write down the sentences of a step and that it is left out from now on; a collective.

        Args:
            step: the step that went wrong.
            what: words that say so.
            ranks: those whose loss it was; none: it cannot be told whose.

        Raises:
            GoBack: always; on all ranks the state of the last checkpoint has to be restored.
        """
        self.settle()
        with horovod.raise_on_all_ranks():
            event = None
            if self._setup.rank.is_first:
                event = self._noted(step, what, ranks)
        recorded = None if event is None else LeftOut((event,)).record()
        (event,) = LeftOut.recorded(horovod.gather(recorded)[0]).events
        self.left_out = LeftOut((*self.left_out.events, event))
        self.happened = True
        raise GoBack

    def _noted(self, step: int, what: str, ranks: Sequence[int]) -> WentBack:
        sentences = self._sentences(step, ranks or range(self._setup.rank.size))
        path = self._run_dir / NOT_FINITE
        file = jsonl.JsonlFile(path)
        for sentence in sentences:
            file.append(sentence)
        file.close()
        done = max(0, step_to_resume(self._run_dir))
        steps = tuple(each for each in (step - 1, step, step + 1) if each > done)
        event = WentBack(step, self._epoch(step), tuple(ranks), steps)
        left_out.write(self._run_dir, LeftOut((*self.left_out.events, event)))
        whose = "" if ranks else " of all ranks, for it cannot be told whose it was,"
        print(
            f"not finite  step {step:,}: {what}. The {count(len(sentences), 'sentence')}{whose} "
            f"are in {path}, the first of them is {sentences[0]['sentence']:,}: "
            f"{sentences[0]['source']!r}. The run goes back to step {done:,} and leaves out "
            f"{numbered('step', steps)}",
            flush=True,
        )
        return event

    def _sentences(self, step: int, ranks: Sequence[int]) -> list[dict[str, Any]]:
        """Each sentence that these ranks were fed in a step, as a line of `NOT_FINITE`."""
        setup, position = self._setup, self._setup.batch_plan.position(step - 1)
        of_step = setup.batch_plan.epoch(position.epoch).sentences(position.step)
        tokenizers = Tokenizers.of(setup.data.source_spm_path, setup.data.spm_path)
        corpus, found = setup.data.train, []
        for rank in ranks:
            own = batches.dealt(of_step, rank, setup.rank.size).tolist()
            texts = (
                tokenizer.decode(side[index] for index in own)
                for tokenizer, side in zip(tokenizers, (corpus.source, corpus.target), strict=True)
            )
            found += [
                {
                    "time_s": time.time(), "step": step, "epoch": position.epoch + 1, "rank": rank,
                    "host": setup.hosts[rank], "sentence": index, "source": source,
                    "target": target,
                }
                for index, source, target in zip(own, *texts, strict=True)
            ]  # fmt: skip
        return found

    def _epoch(self, step: int) -> int:
        return self._setup.batch_plan.position(step - 1).epoch + 1


class LeaveOut(StepCallback):
    """Tells the model before each step whether its update is left out.

    Args:
        start_step: steps done before `fit`.
        left_out: of the run.
    """

    def __init__(self, start_step: int, left_out: LeftOut) -> None:
        super().__init__(start_step)
        self._steps = left_out.steps

    def on_train_batch_begin(self, batch: int, logs: dict[str, Any] | None = None) -> None:
        """Tell it."""
        self.model.leave_out(self._start_step + batch + 1 in self._steps)
