"""The questions about what the run read and wrote: training set, checkpoint."""

from typing import Any

from hvd_nmt.checkpoints import contents
from hvd_nmt.checkpoints.run_files import RunDirectory
from hvd_nmt.checkpoints.sizes import FLOAT_BYTES
from hvd_nmt.common.units import count, data_size, percent
from hvd_nmt.records.record import Run
from hvd_nmt.reporting.answer import Answer, Table
from hvd_nmt.reporting.run_facts import RunFacts


def training_set(facts: RunFacts) -> Answer:
    """From the manifest that `hvd_nmt.prepare` wrote: UTF-8 bytes and lines of the kept pairs, with
    one byte for each line end. One MB is 1e6 bytes.
    """
    run = facts.record
    manifest = run.manifest
    train = manifest.get("parts", {}).get("train")
    if not train:
        return Answer(_no_training_set(run), known=False)
    sides = train["source"], train["target"]
    kept, tokens = (sum(side[name] for side in sides) for name in ("kept_text_bytes", "tokens"))
    answer = (
        f"{data_size(kept)} of text in {train['pairs']:,} sentence pairs, that is "
        f"{train['pairs']:,} lines on each side; {tokens / 1e6:,.2f} million tokens."
    )
    removed = ", ".join(f"{n:,} by {rule}" for rule, n in train["removed"].items() if n) or "none"
    evidence = [
        f"{train['pairs_read']:,} pairs were read; removed: {removed}.",
        f"{count(train['truncated'], 'pair')} cut to {manifest['max_length']} tokens.",
    ]
    files = manifest.get("files", {}).items()
    if on_disk := sum(file["n_bytes"] for name, file in files if name.startswith("train.")):
        evidence.append(f"Encoded on disk (ids and offsets): {data_size(on_disk)}.")
    epochs = next((i.epoch for i in reversed(run.intervals) if i.epoch is not None), None)
    if epochs is not None and not run.config.get("data", {}).get("stages"):
        evidence.append(f"The run has seen it {epochs:.2f} times (epochs).")
    if steps := run.not_finite:
        evidence.append(
            f"{count(len(steps), 'step')} changed no weight, because of NaN or Inf: "
            f"{', '.join(f'{step:,}' for step in steps)}; their sentences are in "
            f"{RunDirectory(run.path).not_finite.name}."
        )
    rows = tuple(
        (f"{part}, {side} ({manifest[f'{side}_language']})", f"{content['pairs']:,}",
         data_size(content[side]["kept_text_bytes"]),
         f"{content[side]['tokens']:,}" if content[side]["tokens"] else "not encoded")
        for part, content in manifest["parts"].items() for side in ("source", "target")
    )  # fmt: skip
    tables = [Table("The prepared data", ("part", "lines", "text", "tokens"), rows)]
    if manifest.get("corpora"):
        tables.append(_corpora(run))
    return Answer(answer, tuple(evidence), tuple(tables))


def _no_training_set(run: Run) -> str:
    if run.source == "hvd_nmt":
        place = run.config.get("data", {}).get("directory", "the data directory")
        return (
            f"Not known here: the manifest of {place} is not on this machine. Copy its "
            "manifest.json to the same path here, or make the report where the run was started."
        )
    layer = run.config.get("openseq2seq", {}).get("data_layer_params", {})
    files = [str(layer[key]) for key in ("source_file", "target_file") if layer.get(key)]
    return (
        f"The log does not say. `wc -lc` on the two training files "
        f"({' and '.join(files) or 'which it does not name'}) gives lines and bytes."
    )


def _corpora(run: Run) -> Table:
    """What the run was fed of each of several corpora, and how it does on their dev sentences."""
    fed = [interval for interval in run.intervals if interval.corpora]
    steps = sum(interval.steps for interval in fed)
    sentences = sum(interval.sentences or 0 for interval in fed)
    scored = next((e.by_corpus for e in reversed(run.evaluations) if e.by_corpus), {})

    def row(corpus: dict[str, Any]) -> tuple[str, ...]:
        name, pairs = corpus["name"], corpus["pairs"]["train"]
        share = sum(i.corpora.get(name, 0.0) * i.steps for i in fed) / steps if steps else None
        loss, bleu, _ = scored.get(name, (None, None, None))
        return (
            name, f"{corpus['source_language']}-{corpus['target_language']}",
            " ".join(corpus["tags"]), corpus["date"], str(corpus["weight"]), f"{pairs:,}",
            "unknown" if share is None else percent(share),
            "unknown" if share is None or not pairs else f"{share * sentences / pairs:.2f}",
            "" if loss is None else f"{loss:.4f}",
            "" if bleu is None else f"{bleu:.2f}{run.bleu(name).removeprefix('BLEU')}",
        )  # fmt: skip

    head = ("corpus", "languages", "tags", "date", "weight in the data", "pairs",
            "share of the sentences", "times seen", "validation loss", "BLEU")  # fmt: skip
    return Table("The corpora, over the whole run", head, [*map(row, run.manifest["corpora"])])


def checkpoint_files(facts: RunFacts) -> Answer:
    """The files that begin with the checkpoint's prefix, and the table of its variables."""
    anatomy = facts.anatomy
    if isinstance(anatomy, str):
        return Answer(
            "In general: .data has the values of all variables, .index has the place of each of "
            "them, .meta has the graph, and the file `checkpoint` points to the newest. Of this "
            f"run none was read: {anatomy}",
            known=False,
        )
    rows = tuple((file.name, f"{file.n_bytes:,}", file.purpose) for file in anatomy.files)
    step = f" (step {anatomy.step:,})" if anatomy.step is not None else ""
    name = anatomy.prefix.name
    return Answer(
        f"{name}{step} is made of {count(len(anatomy.files), 'file')}: "
        + ", ".join(f.name.removeprefix(name) or f.name for f in anatomy.files) + ".",
        (f"It holds {count(len(anatomy.variables), 'variable')}, of which {anatomy.parameters:,} "
         "values are the weights of the model.",),
        (Table("Files", ("file", "bytes", "what is in it"), rows),),
    )  # fmt: skip


def checkpoint_size(facts: RunFacts) -> Answer:
    """The bytes of a variable are its number of values times the size of its type. Predicted from
    the sizes of the model alone, x 4 bytes: weights x 3 (the weight itself and Adam's two moments),
    or with Muon less, which keeps no second moments of matrices.
    """
    anatomy, parameters = facts.anatomy, facts.record.parameters
    if isinstance(anatomy, str):
        if parameters is None:
            return Answer(f"Not known: {anatomy}", known=False)
        whole = 3 * parameters * FLOAT_BYTES
        return Answer(
            f"About {data_size(whole)}: (weights + Adam m + Adam v) x 4 bytes = 3 x {parameters:,} "
            f"x 4 = {whole:,} bytes, and a few counters. Not compared with a file: {anatomy}",
            known=False,
        )
    groups = anatomy.groups()
    weights, kept = (
        sum(group.n_bytes for group in groups if group.name in names)
        for names in (contents.WEIGHTS, contents.SLOTS)
    )
    counts = {group.name: group.count for group in groups}
    first, second = counts.get("Adam m", 0), counts.get("Adam v", 0)
    is_adam = first == second
    total, data_bytes = sum(file.n_bytes for file in anatomy.files), anatomy.data_bytes
    answer = (
        f"{data_size(data_bytes)} ({data_bytes:,} bytes) of values, {data_size(total)} "
        f"with all its files: {weights:,} bytes of weights + {kept:,} of "
        f"{'Adam' if is_adam else 'the optimizer'}'s {'two ' if is_adam else ''}moments + "
        f"{data_bytes - weights - kept:,} of everything else."
    )
    evidence = []
    if anatomy.predicted_bytes is not None:
        off = anatomy.model_bytes - anatomy.predicted_bytes
        says = "equal to the byte" if off == 0 else f"{off:+,} bytes off"
        evidence.append(
            f"Predicted {anatomy.predicted_bytes:,} bytes of weights and moments, read "
            f"{anatomy.model_bytes:,}: {says}."
        )
    needed = f"{first:,} of them have two moments of the same size, which training needs"
    if not is_adam:
        needed = f"training needs first moments of {first:,} of them, second ones of {second:,}"
    evidence.append(
        f"{anatomy.parameters:,} weights x 4 bytes = {anatomy.parameters * FLOAT_BYTES:,} bytes; "
        f"{needed}."
    )
    rows = [
        (group.name, f"{group.variables:,}", f"{group.count:,}", f"{group.n_bytes:,}",
         percent(group.share))
        for group in groups
    ]  # fmt: skip
    if rest := data_bytes - sum(group.n_bytes for group in groups):
        rows.append(("of no variable", "", "", f"{rest:,}", ""))
    rows.append(("sum", f"{len(anatomy.variables):,}", "", f"{data_bytes:,}", "100 %"))
    head = ("group", "variables", "values", "bytes", "share")
    table = Table("Where each byte of the data file goes", head, tuple(rows))
    return Answer(answer, tuple(evidence), (table,))
