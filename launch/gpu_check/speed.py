"""Training of each preset in each precision, as a graph and with XLA, what matters most first.

A process that dies, of memory or in XLA, has lost one row: the next one takes the rest.
"""

import gc
import itertools
import statistics
import time

from check import ENV, PRECISIONS, PRESETS, STEPS, energy, started
from results import Results, described

from hvd_nmt.common.units import data_size, flop_rate, percent
from hvd_nmt.training import benchmark, devices
from hvd_nmt.training.horovod import Rank
from training import Training

PART = "speed"
ceilings: dict[str, float] = {}
"""precision -> FLOP/s of the best large product, as measured in this process"""


def main() -> None:
    """Measure, a row at a time."""
    results, rank = Results(PART), started()
    results.table(
        "Training", "model", "tokens/s", "s/step", "model FLOP/s", "MFU", "peak memory",
        "energy of 1,000 tokens", "power", "XLA against the graph",
    )  # fmt: skip
    for xla, precision, preset in itertools.product(ENV["COMPILE"].split(), PRECISIONS, PRESETS):
        name = f"{preset}, {precision}, XLA {xla}"
        if results.records(part=PART, begun=name):
            continue
        results.record(begun=name)
        try:
            trained(results, rank, name, (preset, precision, xla))
        except Exception as error:  # the other rows are worth having
            results.row(name, described(error), failed=True)
        gc.collect()


def trained(results: Results, rank: Rank, name: str, key: tuple[str, str, str]) -> None:
    """One row: measured steps of a preset, a precision, and a graph or programs of XLA."""
    preset, precision, xla = key
    training = Training(rank, preset, precision, xla == "on")
    energy_j, began_s = energy(), time.perf_counter()
    steps = training.steps(STEPS)
    took_s = time.perf_counter() - began_s
    used_j = None if energy_j is None else (energy() or 0.0) - energy_j
    tokens = [step.source_tokens + step.target_tokens for step in steps]
    rate = sum(tokens) / sum(step.step_s for step in steps)
    flop_per_s = sum(map(training.plan.flops, steps)) / sum(step.step_s for step in steps)
    ceiling = ceilings.setdefault(precision, 0.0) or benchmark.best_product_flop_per_s(precision)
    ceilings[precision] = ceiling
    is_common = [shape == training.common for shape in training.shapes[-STEPS:]]
    seconds = sum(step.step_s for step, common in zip(steps, is_common, strict=True) if common)
    of_common = sum(itertools.compress(tokens, is_common)) / seconds if seconds else None
    graph = results.records(part=PART, row=f"{preset}, {precision}, XLA off")
    base = graph[-1].get("common_tokens_per_s") if graph and xla == "on" else None
    peak_bytes = devices.peak_memory_bytes()
    results.row(
        name, f"{rate:,.0f}", f"{statistics.median(step.step_s for step in steps):.4f}",
        flop_rate(flop_per_s), percent(flop_per_s / ceiling), data_size(peak_bytes),
        "" if used_j is None else f"{1000 * used_j / sum(tokens):.2f} J",
        "" if used_j is None else f"{used_j / took_s:.0f} W",
        f"x {rate / base:.2f}" if base else "",
        preset=preset, precision=precision, xla=xla, tokens_per_s=rate,
        common_tokens_per_s=of_common, common_steps=sum(is_common), flop_per_s=flop_per_s,
        ceiling_flop_per_s=ceiling, mfu=flop_per_s / ceiling, peak_bytes=peak_bytes,
        held_before_bytes=training.held_bytes, energy_j=used_j, tokens=sum(tokens), took_s=took_s,
        step_s=[round(step.step_s, 5) for step in steps], parameters=training.plan.parameters,
        start_s=round(training.start_s, 1), slices=training.plan.slices,
    )  # fmt: skip


if __name__ == "__main__":
    main()
