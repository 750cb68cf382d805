"""The questions about what the run read and wrote: training set, checkpoint."""

from __future__ import annotations

from hvd_nmt.checkpoints import contents
from hvd_nmt.checkpoints.run_files import NOT_FINITE
from hvd_nmt.common.units import count, data_size, percent
from hvd_nmt.reporting.answer import Answer, Facts, Table

_FLOAT_BYTES = 4


def training_set(facts: Facts) -> Answer:
    """Question 7."""
    manifest = facts.run.manifest
    train = manifest.get("parts", {}).get("train")
    if not train:
        return _unknown_training_set(facts)
    source, target = train["source"], train["target"]
    kept = source["kept_text_bytes"] + target["kept_text_bytes"]
    tokens = source["tokens"] + target["tokens"]
    answer = (
        f"{data_size(kept)} of text in {train['pairs']:,} sentence pairs, that is "
        f"{train['pairs']:,} lines on each side; {tokens / 1e6:,.2f} million tokens."
    )
    rules = ", ".join(f"{n:,} by {rule}" for rule, n in train["removed"].items() if n)
    removed = f"; removed: {rules}." if rules else " and none removed."
    evidence = [
        f"{train['pairs_read']:,} pairs were read{removed}",
        f"{count(train['truncated'], 'pair')} cut to {manifest['max_length']} tokens.",
    ]
    files = manifest.get("files", {})
    on_disk = sum(file["n_bytes"] for name, file in files.items() if name.startswith("train."))
    if on_disk:
        evidence.append(f"Encoded on disk (ids and offsets): {data_size(on_disk)}.")
    epochs = next((i.epoch for i in reversed(facts.run.intervals) if i.epoch is not None), None)
    if epochs is not None and not facts.run.config.get("data", {}).get("stages"):
        evidence.append(f"The run has seen it {epochs:.2f} times (epochs).")
    if steps := facts.run.not_finite:
        evidence.append(
            f"{count(len(steps), 'step')} changed no weight, because of NaN or Inf: "
            f"{', '.join(f'{step:,}' for step in steps)}; their sentences are in {NOT_FINITE}."
        )
    languages = manifest["source_language"], manifest["target_language"]
    rows = tuple(
        (f"{part}, {name}" + f" ({language})" * (language != name), f"{content['pairs']:,}",
         data_size(content[name]["kept_text_bytes"]),
         f"{content[name]['tokens']:,}" if content[name]["tokens"] else "not encoded")
        for part, content in manifest["parts"].items()
        for name, language in zip(("source", "target"), languages, strict=True)
    )  # fmt: skip
    table = Table("The prepared data", ("part", "lines", "text", "tokens"), rows)
    several = _corpora(facts)
    return Answer(answer, tuple(evidence), (table, *([several] if several else [])))


def _corpora(facts: Facts) -> Table | None:
    """What the run was fed of each of several corpora, and how it does on their dev sentences."""
    known = facts.run.manifest.get("corpora", [])
    if not known:
        return None
    fed = [interval for interval in facts.run.intervals if interval.corpora]
    steps = sum(interval.steps for interval in fed)
    sentences = sum(interval.sentences or 0 for interval in fed)
    scored = next((e.by_corpus for e in reversed(facts.run.evaluations) if e.by_corpus), {})
    rows = []
    for corpus in known:
        name, pairs = corpus["name"], corpus["pairs"]["train"]
        share = sum(i.corpora.get(name, 0.0) * i.steps for i in fed) / steps if steps else None
        loss, bleu = scored.get(name, (None, None))
        rows.append((
            name, f"{corpus['source_language']}-{corpus['target_language']}",
            " ".join(corpus["tags"]), corpus["date"], str(corpus["weight"]), f"{pairs:,}",
            "unknown" if share is None else percent(share),
            "unknown" if share is None or not pairs else f"{share * sentences / pairs:.2f}",
            "" if loss is None else f"{loss:.4f}", "" if bleu is None else f"{bleu:.2f}",
        ))  # fmt: skip
    head = ("corpus", "languages", "tags", "date", "weight in the data", "pairs",
            "share of the sentences", "times seen", "validation loss", "BLEU")  # fmt: skip
    return Table("The corpora, over the whole run", head, tuple(rows))


def _unknown_training_set(facts: Facts) -> Answer:
    run = facts.run
    if run.source == "hvd_nmt":
        place = run.config.get("data", {}).get("directory", "the data directory")
        answer = (
            f"Not known here: the manifest of {place} is not on this machine. Copy its "
            "manifest.json beside where the run was started, or make the report there."
        )
        return Answer(answer, known=False)
    layer = run.config.get("openseq2seq", {}).get("data_layer_params", {})
    files = [str(layer[key]) for key in ("source_file", "target_file") if layer.get(key)]
    named = f"The configuration names {' and '.join(files)}. " if files else ""
    return Answer(
        f"The log does not say. {named}Missing: the files themselves; `wc -lc` on the two training "
        "files gives lines and bytes.",
        known=False,
    )


def checkpoint_files(facts: Facts) -> Answer:
    """Question 8."""
    found = facts.anatomy
    if found is None:
        return Answer("In general: .data holds the values of all variables, .index says "
                      "where each of them lies, .meta holds the graph, and the file `checkpoint` "
                      f"points to the newest. Of this run none was read: {facts.anatomy_problem}",
                      known=False)  # fmt: skip
    rows = tuple((file.name, f"{file.n_bytes:,}", file.purpose) for file in found.files)
    step = f" (step {found.step:,})" if found.step is not None else ""
    return Answer(
        f"{found.prefix.name}{step} is made of {count(len(found.files), 'file')}: "
        + ", ".join(f.name.removeprefix(found.prefix.name) or f.name for f in found.files) + ".",
        (f"It holds {count(len(found.variables), 'variable')}, of which {found.parameters:,} "
         "values are the weights of the model.",),
        (Table("Files", ("file", "bytes", "what is in it"), rows),),
    )  # fmt: skip


def checkpoint_size(facts: Facts) -> Answer:
    """Question 9."""
    found = facts.anatomy
    if found is None:
        return _predicted_size(facts)
    groups = found.groups()
    weights, adam, average = (
        sum(group.n_bytes for group in groups if group.name in names)
        for names in (contents.WEIGHTS, ("Adam m", "Adam v"), (contents.AVERAGE,))
    )
    rest = found.data_bytes - weights - adam
    total = sum(file.n_bytes for file in found.files)
    answer = (
        f"{data_size(found.data_bytes)} ({found.data_bytes:,} bytes) of values, {data_size(total)} "
        f"with all its files: {weights:,} bytes of weights + {adam:,} of Adam's two moments + "
        f"{rest:,} of everything else."
    )
    evidence = []
    if found.predicted_bytes is not None:
        off = found.model_bytes - found.predicted_bytes
        says = "equal to the byte" if off == 0 else f"{off:+,} bytes off"
        evidence.append(
            f"Predicted {found.predicted_bytes:,} bytes of weights and moments, found "
            f"{found.model_bytes:,}: {says}."
        )
    trained = adam // (2 * _FLOAT_BYTES)
    moments = (
        "each has two moments of the same size, so training triples the file"
        if trained in (0, found.parameters)
        else f"{trained:,} of them are trained and have two moments of the same size"
    )
    evidence.append(
        f"{found.parameters:,} weights x 4 bytes = {found.parameters * _FLOAT_BYTES:,} bytes; "
        f"{moments}."
    )
    if average:
        evidence.append(f"The moving average of the weights takes {average:,} bytes more.")
    rows = [
        (group.name, f"{group.variables:,}", f"{group.count:,}", f"{group.n_bytes:,}",
         percent(group.share))
        for group in groups
    ]  # fmt: skip
    if found.other_bytes:
        rows.append(("of no variable", "", "", f"{found.other_bytes:,}", ""))
    rows.append(("sum", f"{len(found.variables):,}", "", f"{found.data_bytes:,}", "100 %"))
    head = ("group", "variables", "values", "bytes", "share")
    table = Table("Where each byte of the data file goes", head, tuple(rows))
    return Answer(answer, tuple(evidence), (table,))


def _predicted_size(facts: Facts) -> Answer:
    parameters = facts.run.parameters
    if parameters is None:
        return Answer(f"Not known: {facts.anatomy_problem}", known=False)
    whole = 3 * parameters * _FLOAT_BYTES
    return Answer(
        f"About {data_size(whole)}: (weights + Adam m + Adam v) x 4 bytes = 3 x {parameters:,} x 4 "
        f"= {whole:,} bytes, and a few counters. Not compared with a file: {facts.anatomy_problem}",
        known=False,
    )
