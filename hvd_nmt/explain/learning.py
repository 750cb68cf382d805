"""What the curves say of training, overfitting, learning rate and end; intervals are 90 %."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import get_args

import numpy as np

from hvd_nmt.checkpoints.names import badness
from hvd_nmt.common.units import count
from hvd_nmt.config import EvaluationConfig
from hvd_nmt.config.schedule import Schedule
from hvd_nmt.config.schema import Decay
from hvd_nmt.explain import durations
from hvd_nmt.explain.estimates import Estimate, student_t
from hvd_nmt.records.record import Evaluation, Interval, Run

FEWEST_EVALUATIONS = 5
GAIN_THAT_COUNTS = {"BLEU": 0.5, "validation loss": 0.02, "training loss": 0.02}
"""points or nats per token from twice the steps; a run that gains less is trained"""
COOLED_DOWN = 0.05
"""share of its peak below which the learning rate has cooled down"""

_EXPONENTS_C = np.geomspace(0.05, 6.0, 2400)
_DRAWS = 4_000
_FEWEST_DRAWS = 200  # number of curves within the bounds; with fewer, all are cut off there
_FEWEST_ROBUST = 8  # fewer points cannot tell an outlier from the curve
_BINS = 24  # training losses are averaged into so many points
_BOUNDS = {"BLEU": (0.0, 100.0)}  # what a measure can be; a loss is at least 0
_LOSS_GAIN = 1e-4  # share of the validation loss by which it must fall to count as a gain
_SCORES = {"val_loss": "the validation loss", "bleu": "BLEU", "chrf": "chrF"}
_SCHEDULE = ("learning_rate", "warmup_steps", "cooldown_steps", "max_steps", "max_learning_rate")

CANNOT_TELL = "cannot tell"
Points = tuple[tuple[int, float], ...]
"""(step, value)"""


@dataclass(frozen=True)
class Gain:
    """What more steps are expected to bring."""

    steps: int
    seconds: float | None
    """seconds at the run's pace, evaluations included; None without times"""
    gain: Estimate
    """gain in the measure; above zero is better for each measure"""


@dataclass(frozen=True)
class FullyTrained:
    """Whether more steps would help, from the curve y = a + b step^-c through the points."""

    verdict: str
    """verdict: trained, not trained, or cannot tell"""
    measure: str | None = None
    """"BLEU", "validation loss" or "training loss"; None within the warm-up"""
    points: Points = ()
    rate_share: float | None = None
    """the last learning rate over the highest"""
    asymptote: Estimate | None = None
    """value a of the measure, after endless steps"""
    gains: tuple[Gain, ...] = ()
    """gains of 10 % and of 100 % more steps"""
    curve: tuple[tuple[int, Estimate], ...] = ()
    """step and estimate, from the first point to twice the steps"""


def fully_trained(run: Run) -> FullyTrained:
    """Judges from a fitted curve whether the run has learned what its recipe can give.

    The curve is a + b step^-c: BLEU if there are enough evaluations, else the validation loss, else
    the training loss, without the warm-up. Each c of a grid gets a weighted linear fit, and a
    weight by how well it fits; draws over all of them give the intervals. The run is trained if
    twice the steps surely gain less than `GAIN_THAT_COUNTS`, not trained if surely more.

    With fewer than four points after the warm-up the verdict is "cannot tell".
    """
    warmup = warmup_steps(run)
    if 0 < run.steps_done < warmup:
        return FullyTrained("not trained")
    measure, points = _measure(run, warmup)
    rates = [i.learning_rate for i in run.intervals if i.learning_rate is not None]
    rate_share = rates[-1] / max(rates) if rates and max(rates) > 0 else None
    if len(points) < FEWEST_EVALUATIONS - 1:
        return FullyTrained(CANNOT_TELL, measure, points, rate_share)
    done = max(run.steps_done, points[-1][0])
    training_s, sign = durations.training_s(run), 1 if measure == "BLEU" else -1
    steps_timed = sum(i.steps for i in run.intervals if i.step_s is not None)
    evaluations_s = sum(e.seconds or 0.0 for e in run.evaluations)
    pace_s = None if training_s is None else (training_s + evaluations_s) / steps_timed
    curve = _fit(points, *_BOUNDS.get(measure, (0.0, math.inf)))
    gains = tuple(
        Gain(more, pace_s and pace_s * more, _estimate(sign * (curve(done + more) - curve(done))))
        for more in (max(1, round(0.1 * done)), done)
    )
    enough, doubled = GAIN_THAT_COUNTS[measure], gains[-1].gain
    verdict = "not trained" if doubled.low > enough else CANNOT_TELL
    if doubled.high < min(enough, max(0.0, doubled.low + 2 * enough)):  # level, or surely worse
        verdict = "trained"
    steps = np.unique(np.geomspace(points[0][0], 2 * done, 40).astype(int)).tolist()
    return FullyTrained(
        verdict, measure, points, rate_share, _estimate(curve(math.inf)), gains,
        tuple((step, _estimate(curve(step))) for step in steps),
    )  # fmt: skip


def warmup_steps(run: Run) -> float:
    """Steps of the warm-up of the learning rate; 0 if the configuration does not tell."""
    return float(run.config.get("training", {}).get("warmup_steps", 0))


def _measure(run: Run, warmup_steps: float) -> tuple[str, Points]:
    """The best measure that has enough values, and its values after the warm-up."""
    for measure, field in (("BLEU", "bleu"), ("validation loss", "loss")):
        points = series(run.evaluations, field)
        late = _late(points, warmup_steps)
        if len(points) >= FEWEST_EVALUATIONS and len(late) >= FEWEST_EVALUATIONS - 1:
            return measure, late
    training = _late(series(run.intervals, "loss"), warmup_steps)
    parts = np.array_split(np.array(training), min(_BINS, len(training))) if training else []
    binned = tuple((round(part[:, 0].mean()), float(part[:, 1].mean())) for part in parts)
    return "training loss", binned


def _late(points: Points, warmup_steps: float) -> Points:
    """Without the warm-up and the first tenth, where no power law holds yet."""
    begin = max(warmup_steps, 0.1 * points[-1][0]) if points else 0.0
    return tuple(point for point in points if point[0] >= begin)


def series(rows: Sequence[Interval] | Sequence[Evaluation], field: str) -> Points:
    """The steps and values of the rows whose value is known and finite."""
    values = ((row.step, getattr(row, field)) for row in rows)
    return tuple((step, y) for step, y in values if y is not None and math.isfinite(y))


def _fit(points: Points, least: float, most: float) -> Callable[[float], np.ndarray]:
    """Draws of curves a + b (step/last)^-c that the points allow; no value leaves the bounds.

    Returns what gives the values of all draws at a step, `math.inf` included.
    Priors are flat in a, b, log c and log noise; outliers weigh less (Huber 1964). N points, C
    exponents, D draws.
    """
    steps_N, y_N = np.array(points, float).T
    x_CN = (steps_N / steps_N[-1]) ** -_EXPONENTS_C[:, None]
    floor = (1e-4 * (np.ptp(y_N) + 1e-3 * abs(y_N).max() + 1e-12)) ** 2
    w_N = np.ones_like(y_N)
    for _ in range(10):
        weight, freedom = w_N.sum(), w_N.sum() - 2
        x_mean_C, y_mean = x_CN @ w_N / weight, y_N @ w_N / weight
        dx_CN = x_CN - x_mean_C[:, None]
        spread_C = dx_CN**2 @ w_N
        b_C = dx_CN @ (w_N * (y_N - y_mean)) / spread_C
        residual_CN = y_N - y_mean - b_C[:, None] * dx_CN
        squares_C = residual_CN**2 @ w_N + weight * floor
        if len(y_N) < _FEWEST_ROBUST:
            break
        best_N = abs(residual_CN[squares_C.argmin()])
        limit = 2.5 * max(np.median(best_N) / 0.6745, floor**0.5)
        w_N = limit / np.maximum(best_N, limit)
    log_weight_C = -freedom / 2 * np.log(squares_C)
    share_C = np.exp(log_weight_C - log_weight_C.max())
    random = np.random.default_rng(0)
    chosen_D = random.choice(len(share_C), _DRAWS, p=share_C / share_C.sum())
    noise_D = np.sqrt(squares_C[chosen_D] / random.chisquare(max(freedom, 1.0), _DRAWS))
    b_D = b_C[chosen_D] + noise_D / np.sqrt(spread_C[chosen_D]) * random.standard_normal(_DRAWS)
    mean_D = y_mean + noise_D / math.sqrt(weight) * random.standard_normal(_DRAWS)
    a_D = mean_D - b_D * x_mean_C[chosen_D]
    c_D = _EXPONENTS_C[chosen_D]
    # A curve is monotone: it stays within the bounds if its first value and its limit do.
    first_D = a_D + b_D * (steps_N[0] / steps_N[-1]) ** -c_D
    possible_D = (np.minimum(a_D, first_D) >= least) & (np.maximum(a_D, first_D) <= most)
    if possible_D.sum() >= _FEWEST_DRAWS:
        a_D, b_D, c_D = a_D[possible_D], b_D[possible_D], c_D[possible_D]
    return lambda step: np.clip(a_D + b_D * (step / steps_N[-1]) ** -c_D, least, most)


def _estimate(draws: np.ndarray) -> Estimate:
    low, middle, high = np.quantile(draws, (0.05, 0.5, 0.95))
    return Estimate(float(middle), float(low), float(high))


@dataclass(frozen=True)
class Overfitting:
    """Whether the validation loss rises while the training loss falls."""

    verdict: str
    """overfitting, not overfitting, or cannot tell"""
    losses: Points
    tail: Points = ()
    """the validation losses of the last third, of which the trend is"""
    best: tuple[int, float] | None = None
    """step and value of the lowest validation loss"""
    validation_trend: Estimate | None = None
    """nats per 1,000 steps, over the last third; so is the training trend"""
    training_trend: Estimate | None = None


def overfitting(run: Run) -> Overfitting:
    """Judges from the last third of the run whether the validation loss rises.

    It overfits if a line through these losses (four at least) surely rises, and more than the
    training loss, or if they lie far above an earlier lowest one. It does not if the line surely
    rises by less than `GAIN_THAT_COUNTS`. With fewer than five evaluations: "cannot tell".
    """
    points = series(run.evaluations, "loss")
    if len(points) < FEWEST_EVALUATIONS:
        return Overfitting(CANNOT_TELL, points)
    best, last = min(points, key=lambda point: (point[1], point[0])), points[-1]
    late = sum(step >= last[0] * 2 / 3 for step, _ in points)
    tail = points[-max(late, FEWEST_EVALUATIONS - 1) :]
    trend, noise = _trend(tail)
    losses = series(run.intervals, "loss")
    training = tuple(point for point in losses if tail[0][0] <= point[0] <= tail[-1][0])
    training_trend = _trend(training)[0] if len(training) >= FEWEST_EVALUATIONS - 1 else None
    move = trend.high * (tail[-1][0] - tail[0][0]) / 1000
    # The lowest of many is low by luck, too: by some 2 times the noise. Second differences take
    # bends of the curve for noise, and so err to the careful side.
    values = np.array([loss for _, loss in points])
    noise = max(noise, float(np.std(np.diff(values[len(values) // 4 :], 2))) / math.sqrt(6))
    above = float(values[-len(tail) :].mean()) - best[1]
    counts = GAIN_THAT_COUNTS["validation loss"]
    learns = training_trend is None or training_trend.value < max(0.0, trend.value)
    verdict = CANNOT_TELL
    if learns and best[0] < tail[0][0] and above > max(5 * noise, counts):
        verdict = "overfitting"
    elif move < counts:
        verdict = "not overfitting"
    elif learns and trend.low > 0:
        verdict = "overfitting"
    return Overfitting(verdict, points, tail, best, trend, training_trend)


def _trend(points: Points) -> tuple[Estimate, float]:
    """Slope per 1,000 steps by least squares with its t interval, and the noise around the line."""
    steps_N, y_N = np.array(points, float).T
    x_N = (steps_N - steps_N.mean()) / 1000
    slope = x_N @ y_N / (x_N @ x_N)
    freedom = len(x_N) - 2
    noise = math.sqrt(((y_N - y_N.mean() - slope * x_N) ** 2).sum() / freedom)
    margin = student_t(0.95, freedom) * noise / math.sqrt(x_N @ x_N)
    return Estimate(float(slope), float(slope - margin), float(slope + margin)), noise


def schedule(run: Run) -> Schedule | None:
    """Schedule of the learning rate in the run's configuration; None if that has no known one."""
    training = run.config.get("training", {})
    factor, warmup, cooldown, last, cap = (training.get(name) for name in _SCHEDULE)
    width = training.get("schedule_width", run.config.get("model", {}).get("width"))
    decay = training.get("decay", "transformer_policy")
    if not (factor and warmup and width) or decay not in get_args(Decay):
        return None
    return Schedule(factor, width, warmup, cooldown or 0, last or math.inf, cap or math.inf, decay)


def largest_deviation(schedule: Schedule, recorded: Points) -> tuple[int, float] | None:
    """Step, the N-th update, and recorded rate over formula minus 1; None if none is recorded."""
    rates = [(step, rate, schedule.rate(step - 1)) for step, rate in recorded]
    off = [(step, rate / wanted - 1) for step, rate, wanted in rates if wanted > 0]
    return max(off, key=lambda point: abs(point[1]), default=None)


def ends_early(run: Run, config: EvaluationConfig) -> tuple[str, str] | None:
    """Option that ends a run after its newest evaluation, and the reason; None: it continues."""
    if 0 < config.stop_after <= _without_gain(run.evaluations, config.best_by):
        evaluations = count(config.stop_after, "evaluation")
        name = _SCORES[config.best_by]
        return "evaluation.stop_after", f"{evaluations} in a row brought no gain in {name}"
    if config.stop_when_trained:
        fit = fully_trained(run)  # a curve of losses says little about translations
        if fit.measure == "BLEU" and fit.verdict == "trained":
            because = "twice the steps would surely bring less than"
            return "evaluation.stop_when_trained", f"{because} {GAIN_THAT_COUNTS['BLEU']:g} BLEU"
    return None


def _without_gain(evaluations: Sequence[Evaluation], best_by: str) -> int:
    """How many of the newest evaluations in a row brought no gain.

    A gain beats the value of the last gain by more than chance: for BLEU and chrF by the half
    width of the 95 % interval, for the validation loss by `_LOSS_GAIN` of it.
    """
    best, fruitless = -math.inf, 0
    field = "loss" if best_by == "val_loss" else best_by
    for evaluation in evaluations:
        value = getattr(evaluation, field)
        margin = getattr(evaluation, f"{field}_margin", _LOSS_GAIN * abs(value or 0.0)) or 0.0
        fruitless += 1
        if value is not None and -badness(best_by, value) > best + margin:
            best, fruitless = -badness(best_by, value), 0
    return fruitless
