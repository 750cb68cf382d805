"""What TensorBoard shows besides scalars: charts that belong together, and the hyperparameters."""

from __future__ import annotations

from typing import Any

from tensorboard.compat.proto import summary_pb2
from tensorboard.plugins.custom_scalar import layout_pb2
from tensorboard.plugins.custom_scalar import summary as custom_scalar
from tensorboard.plugins.hparams import summary as hparams

from hvd_nmt.config import Config, as_plain
from hvd_nmt.training.step_log import LOSS_SCALE_TAG, SKIPPED_STEPS_TAG

_CHARTS = {
    "Learning": {
        "loss, nats per target token": ["train_loss", "eval_loss"],
        "learning rate": ["learning_rate"],
        "gradient norm": ["Loss_Optimization/global_gradient_norm"],
    },
    "Quality": {
        "sacreBLEU, chrF": ["sacrebleu", "chrf"],
        "the recipe's pseudo-BLEU: no measure of translation quality": ["Eval_BLEU_Score"],
    },
    "Time": {
        "where a step's seconds go": ["step_time/.*"],
        "source and target tokens per second": ["tokens_per_s"],
    },
    "Hosts": {
        "GPU use, %": ["gpu/.*/utilisation_percent", "gpu/.*/memory_activity_percent"],
        "GPU power, W": ["gpu/.*/power_w"],
        "network, MB/s": ["nic/.*/(sent|received)_MB_per_s"],
        "CPU, %": ["host/cpu_percent", "host/steal_percent"],
    },
}
"""category, chart, regular expressions of tags; those of the hosts' own event files too"""
_FLOAT16 = {"loss scale": [LOSS_SCALE_TAG], "skipped steps": [SKIPPED_STEPS_TAG]}
"""charts of learning in float16"""
_TER = {"TER, %: lower is better": ["ter"]}
"""chart of quality where it is computed"""
_ISLANDS = {
    "how far an exchange moved the common weights: norm": ["exchange/outer_delta_norm"],
    "divergence between hosts before an exchange": ["exchange/divergence"],
}
"""charts of weights that hosts exchange"""
_HPARAMS = ("model", "training", "data")


def summaries(config: Config, ranks: int, precision: str) -> list[summary_pb2.Summary]:
    """What to write once at the start of a run.

    Args:
        config: of the run.
        ranks: their number.
        precision: of the computation.
    """
    all_charts = dict(_CHARTS)
    if precision == "float16":
        all_charts["Learning"] = {**_CHARTS["Learning"], **_FLOAT16}
    if config.evaluation.with_ter:
        all_charts["Quality"] = {**_CHARTS["Quality"], **_TER}
    if ranks > 1 and config.training.islands != "off":
        all_charts["Islands"] = _ISLANDS
    categories = [
        layout_pb2.Category(
            title=category,
            chart=[
                layout_pb2.Chart(title=title, multiline=layout_pb2.MultilineChartContent(tag=tags))
                for title, tags in charts.items()
            ],
        )
        for category, charts in all_charts.items()
    ]
    values = {"ranks": ranks, "precision": precision} | _hyperparameters(config)
    made = [
        custom_scalar.pb(layout_pb2.Layout(category=categories)),
        hparams.session_start_pb(values),
    ]
    # TensorBoard and TensorFlow have a class each for the same bytes; the plugins choose by whim.
    return [summary_pb2.Summary.FromString(summary.SerializeToString()) for summary in made]


def _hyperparameters(config: Config) -> dict[str, Any]:
    plain = as_plain(config)
    return {
        f"{section}.{name}": value if isinstance(value, (bool, int, float)) else str(value)
        for section in _HPARAMS
        for name, value in plain[section].items()
    }
