"""Beam search with weights as they begin, and so to a fixed length.

Untrained weights end a sentence anywhere or nowhere. With one length for all, this program and its
peer make the same number of steps for the same sentences; what ending early saves is not in it.
"""

import time

from check import ENV, PRECISIONS, PRESETS, SEARCH_TOKENS, config_of, sentences, started, vocabulary
from results import Results

from hvd_nmt.common.units import data_size
from hvd_nmt.data import corpus
from hvd_nmt.model.decoding import Decoding
from hvd_nmt.model.transformer import build_transformer
from hvd_nmt.model.translator import Translator
from hvd_nmt.training import devices


def main() -> None:
    """Measure, a row for each size of batch."""
    results = Results("search")
    started()
    preset, precision = PRESETS[0], PRECISIONS[0]
    config, length = config_of(preset), int(ENV["LENGTH"])
    data = corpus.load(config.data.directory)
    transformer = build_transformer(config.model, vocabulary(data), precision)
    decoding = Decoding(beam_size=4, min_length=length, max_length=length)
    translator, sources = Translator(transformer, decoding), sentences(data)
    results.table(
        "Beam search", "program", "sentences/s", "tokens a batch", "peak memory", "ratio to ours"
    )
    for tokens in SEARCH_TOKENS:
        list(translator.translate(sources, tokens))  # the graph, and what a GPU tunes
        began_s = time.perf_counter()
        found = list(translator.translate(sources, tokens))
        rate = len(found) / (time.perf_counter() - began_s)
        peak = devices.peak_memory_bytes()
        name = f"hvd_nmt, {preset}, {precision}, beam 4, {length} tokens"
        results.row(name, f"{rate:,.1f}", f"{tokens:,}", data_size(peak), "1",
                    tokens=tokens, sentences_per_s=rate, peak_bytes=peak, ours=True)  # fmt: skip


if __name__ == "__main__":
    main()
