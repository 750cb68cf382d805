"""What a run does about NaN and Inf: the step is skipped, its sentences are named, many end it."""

import time
from collections.abc import Sequence
from typing import Any

from hvd_nmt.checkpoints.run_files import NOT_FINITE
from hvd_nmt.common.errors import DivergedError
from hvd_nmt.common.units import count
from hvd_nmt.data import batches
from hvd_nmt.model.tokenizer import Tokenizers
from hvd_nmt.telemetry import jsonl
from hvd_nmt.training import horovod
from hvd_nmt.training.callbacks import StepCallback
from hvd_nmt.training.setup import RunSetup
from hvd_nmt.training.step import LOWEST_LOSS_SCALE

MOST_IN_A_ROW, MOST_IN_AN_EPOCH = 3, 10
"""steps with NaN or Inf that end the run, in one start of it"""


class NotFiniteGuard(StepCallback):
    """Names the sentences of a step whose gradient is NaN or Inf; after too many the run ends.

    The optimizer has skipped such a step on every rank, with islands on those of the host. In
    float16 an overflow halves the loss scale, as it should; one at the lowest scale counts as NaN.
    """

    def __init__(self, start_step: int, run_setup: RunSetup) -> None:
        super().__init__(start_step)
        self._setup, self._rank = run_setup, run_setup.rank
        self._path = run_setup.config.run_dir / NOT_FINITE
        self._epoch, self._in_epoch, self._in_a_row = 0, 0, 0

    def after_step(self, step: int, logs: dict[str, Any]) -> None:
        """Decide from values that are equal on all ranks."""
        if not logs["left_out"]:
            self._in_a_row = 0
            return
        by_rank = horovod.gather([self._rank.host, logs["own_not_finite"]])
        ranks = [index for index, (_, not_finite) in enumerate(by_rank) if not_finite]
        named = ", ".join(f"rank {index} ({by_rank[index][0]})" for index in ranks)
        what = (
            f"the loss became NaN or Inf on {named}" if ranks else "the gradient became NaN or Inf"
        )
        with horovod.raise_on_all_ranks():
            if self._rank.is_first:
                self._name_sentences(step, what, ranks or range(self._rank.size))
        epoch = self._setup.batch_plan.position(step - 1).epoch
        self._in_epoch = self._in_epoch + 1 if epoch == self._epoch else 1
        self._epoch = epoch
        self._in_a_row += 1
        if self._in_a_row < MOST_IN_A_ROW and self._in_epoch < MOST_IN_AN_EPOCH:
            return
        times = f"step {self._in_a_row} in a row"
        if self._in_a_row < MOST_IN_A_ROW:
            times = f"step {self._in_epoch} of this epoch"
        scale, advice = "", "set training.clip_norm"
        if logs["loss_scale"]:
            scale = f" at a loss scale of {LOWEST_LOSS_SCALE:.0f}, the lowest"
            advice = "train in another training.precision"
        raise DivergedError(
            f"At step {step} {what}{scale}, {times}. It was skipped, as those before; the "
            f"checkpoints are good. See {self._path}, lower training.learning_rate or {advice}."
        )

    def _name_sentences(self, step: int, what: str, ranks: Sequence[int]) -> None:
        """Each sentence that these ranks were fed in a step, as a line of `NOT_FINITE`."""
        setup, position = self._setup, self._setup.batch_plan.position(step - 1)
        of_step = setup.batch_plan.epoch(position.epoch).sentences(position.step)
        tokenizers = Tokenizers.of(setup.data.source_spm_path, setup.data.spm_path)
        sides = setup.data.epochs.source, setup.data.epochs.target
        lines = []
        for rank in ranks:
            own = batches.dealt(of_step, rank, self._rank.size).tolist()
            texts = (
                tokenizer.decode(side[index] for index in own)
                for tokenizer, side in zip(tokenizers, sides, strict=True)
            )
            lines += [
                {
                    "time_s": time.time(), "step": step, "epoch": position.epoch + 1, "rank": rank,
                    "host": setup.hosts[rank], "sentence": index // setup.batch_plan.copies,
                    "source": source,
                    "target": target,
                }
                for index, source, target in zip(own, *texts, strict=True)
            ]  # fmt: skip
        file = jsonl.JsonlFile(self._path)
        for line in lines:
            file.append(line)
        file.close()
        print(
            f"not finite  step {step:,}: {what}; it is skipped. Its "
            f"{count(len(lines), 'sentence')} are in {self._path}, the first of them is "
            f"{lines[0]['sentence']:,}: {lines[0]['source']!r}",
            flush=True,
        )
