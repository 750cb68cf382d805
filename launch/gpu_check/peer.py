"""Hugging Face Marian in PyTorch, of the same size, on the same batches, for launch/gpu-check.sh.

    python launch/gpu_check/peer.py train | search

Needs torch and transformers, and nothing of hvd_nmt. The environment is that of batches.py, which
wrote WORK/batches.npz. Weights and optimizer are float32, as ours are; products run in the first of
PRECISIONS by autocast. Attention is PyTorch's fused one, AdamW is fused, and the host never waits
for a step: its best case.
"""

import json
import os
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from results import Results, described
from torch.nn import functional

# Libraries may import modules, where there are any, by names that our files beside this one have.
sys.path.remove(str(Path(__file__).resolve().parent))

ENV = os.environ
ON_GPU = torch.cuda.is_available() and "--training.device cpu" not in ENV["OPTIONS"]
DEVICE = "cuda" if ON_GPU else "cpu"
PRECISION = ENV["PRECISIONS"].split()[0]
DTYPE = {"bfloat16": torch.bfloat16, "float16": torch.float16}.get(PRECISION, torch.float32)
PAD, EOS, BOS = 0, 1, 2
NAME = f"Marian of transformers {transformers.__version__}, PyTorch {torch.__version__}"
Batch = tuple[torch.Tensor, torch.Tensor]
"""source and target ids, int64 on the device"""


def main() -> None:
    """Measure training or search."""
    torch.manual_seed(1)
    torch.set_float32_matmul_precision("high")  # TF32, as TensorFlow does by itself
    with np.load(Path(ENV["WORK"]) / "batches.npz") as arrays:
        meta = json.loads(str(arrays["meta"]))
        {"train": train, "search": search}[sys.argv[1]](meta, arrays)


def train(meta: dict[str, Any], arrays: Any) -> None:
    """Tokens a second, as it is and by torch.compile, beside ours on the same batches."""
    results = Results("peer")
    results.table(
        "Training of a peer", "program", "tokens/s", "peak memory", "energy of 1,000 tokens",
        "ours in tokens/s", "our memory",
    )  # fmt: skip
    # A program is compiled for one shape, as XLA's is, which takes long enough.
    for name, kind, compiled in (
        ("", "all", False), (", commonest shape", "common", False),
        (", commonest shape, torch.compile", "common", True),
    ):  # fmt: skip
        try:
            facts = trained(meta, pairs(arrays, kind), compiled)
        except Exception as error:  # the other rows are worth having
            results.row(f"{NAME}{name}", described(error), failed=True)
            continue
        field = "tokens_per_s" if kind == "all" else "common_tokens_per_s"
        own = {"part": "speed", "row": f"{meta['preset']}, {PRECISION}, XLA off"}
        ours = [one for one in results.records(**own) if one.get(field)]
        rate, peak = facts["tokens_per_s"], facts["peak_bytes"]
        joules = facts["energy_j"]
        results.row(
            f"{NAME}{name}", f"{rate:,.0f}", f"{peak / 1e9:.1f} GB",
            "" if joules is None else f"{1000 * joules / facts['tokens']:.2f} J",
            f"x {ours[-1][field] / rate:.2f}" if ours else "",
            f"x {ours[-1]['peak_bytes'] / peak:.2f}" if ours else "",
            kind=kind, compiled=compiled, precision=PRECISION, **facts,
        )  # fmt: skip


def trained(meta: dict[str, Any], batches: Sequence[Batch], compiled: bool) -> dict[str, Any]:
    """What training on these batches took, the first ones left out."""
    reset_memory()
    model = marian(meta).train()
    parameters = sum(weight.numel() for weight in model.parameters())
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, betas=(0.9, 0.98), fused=True)
    scaler = torch.amp.GradScaler(DEVICE, enabled=PRECISION == "float16")
    forward: Callable[[Batch], torch.Tensor] = lambda batch: loss(model, batch, meta)
    forward = torch.compile(forward) if compiled else forward

    def step(batch: Batch) -> torch.Tensor:
        with torch.autocast(DEVICE, DTYPE, enabled=PRECISION != "float32"):
            smoothed = forward(batch)
        scaler.scale(smoothed).backward()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad(set_to_none=True)
        return smoothed

    began_s = time.perf_counter()
    warm, measured = batches[: meta["warmup_steps"]], batches[meta["warmup_steps"] :]
    for batch in warm:
        first = float(step(batch).detach())
    warmed_s, energy_j = time.perf_counter(), energy()
    for batch in measured:
        last = step(batch)
    last = float(last.detach())  # a GPU has then made all of them, one after the other
    took_s = time.perf_counter() - warmed_s
    tokens = sum(int((side != PAD).sum()) for batch in measured for side in batch)
    return {
        "tokens_per_s": tokens / took_s, "tokens": tokens, "took_s": took_s,
        "start_s": round(warmed_s - began_s, 1), "parameters": parameters,
        "peak_bytes": peak_bytes(), "losses": [first, last],
        "energy_j": None if energy_j is None else (energy() or 0.0) - energy_j,
    }  # fmt: skip


def loss(model: Any, batch: Batch, meta: dict[str, Any]) -> torch.Tensor:
    """Label-smoothed cross-entropy of a token in nats, a mean over real tokens, as ours."""
    source, target = batch
    shifted = torch.nn.functional.pad(target[:, :-1], (1, 0), value=BOS)
    # Padding only follows the real tokens of a target, so that no real one can look at it.
    logits = model(
        input_ids=source, attention_mask=(source != PAD).long(), decoder_input_ids=shifted,
        use_cache=False,
    ).logits  # fmt: skip
    return functional.cross_entropy(
        logits.flatten(0, 1), target.flatten(), ignore_index=PAD,
        label_smoothing=meta["label_smoothing"],
    )  # fmt: skip


def search(meta: dict[str, Any], arrays: Any) -> None:
    """Sentences a second of generate(), on the same sentences in the same batches."""
    results, length = Results("search"), int(ENV["LENGTH"])
    results.table(
        "Beam search", "program", "sentences/s", "tokens a batch", "peak memory", "ratio to ours"
    )
    model = marian(meta).eval().to(DTYPE)
    reset_memory()
    for tokens in meta["search_tokens"]:
        names = sorted(name for name in arrays.files if name.startswith(f"search_{tokens}_"))
        batches = [tensor(arrays[name]) for name in names]
        options = {"num_beams": 4, "min_new_tokens": length, "max_new_tokens": length}

        def searched(batch: torch.Tensor, options: dict[str, Any] = options) -> None:
            with torch.inference_mode():
                found = model.generate(batch, attention_mask=(batch != PAD).long(), **options)
                found.cpu()

        searched(batches[0])
        began_s = time.perf_counter()
        for batch in batches:
            searched(batch)
        rate = sum(map(len, batches)) / (time.perf_counter() - began_s)
        own = results.records(part="search", tokens=tokens, ours=True)
        results.row(
            f"{NAME}, generate, {PRECISION}", f"{rate:,.1f}", f"{tokens:,}",
            f"{peak_bytes() / 1e9:.1f} GB",
            f"ours is x {own[-1]['sentences_per_s'] / rate:.2f}" if own else "",
            tokens=tokens, sentences_per_s=rate, peak_bytes=peak_bytes(), ours=False,
        )  # fmt: skip


def marian(meta: dict[str, Any]) -> Any:
    """A model of the same size, with weights as they begin, on the device."""
    ours = meta["model"]
    config = transformers.MarianConfig(
        vocab_size=meta["vocabulary"], d_model=ours["width"],
        max_position_embeddings=ours["max_length"], activation_function=ours["activation"],
        encoder_layers=ours["encoder_layers"], decoder_layers=ours["decoder_layers"],
        encoder_attention_heads=ours["heads"], decoder_attention_heads=ours["heads"],
        encoder_ffn_dim=ours["feed_forward_width"], decoder_ffn_dim=ours["feed_forward_width"],
        dropout=ours["dropout"], attention_dropout=ours["attention_dropout"],
        activation_dropout=ours["feed_forward_dropout"], scale_embedding=True,
        pad_token_id=PAD, eos_token_id=EOS, forced_eos_token_id=None, bos_token_id=BOS,
        decoder_start_token_id=BOS, attn_implementation="sdpa",
    )  # fmt: skip
    model = transformers.MarianMTModel(config)
    assert model.config._attn_implementation == "sdpa"
    return model.to(DEVICE)


def pairs(arrays: Any, kind: str) -> list[Batch]:
    """The training batches of a kind, in order."""
    count = sum(name.startswith(f"{kind}_") for name in arrays.files) // 2
    sides = ("source", "target")
    return [tuple(tensor(arrays[f"{kind}_{i}_{side}"]) for side in sides) for i in range(count)]


def tensor(ids: np.ndarray) -> torch.Tensor:
    """Ids on the device."""
    return torch.from_numpy(ids.astype(np.int64)).to(DEVICE)


def reset_memory() -> None:
    """Forget what was the most memory until now."""
    if ON_GPU:
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()


def peak_bytes() -> int:
    """The most that tensors held on the GPU; on a processor the most of this process."""
    if ON_GPU:
        return torch.cuda.max_memory_allocated()
    import resource

    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def energy() -> float | None:
    """Joules that the GPU in use has drawn since the driver was loaded; None if it does not say."""
    if not ON_GPU:
        return None
    try:
        import pynvml

        pynvml.nvmlInit()
        uuid = f"GPU-{torch.cuda.get_device_properties(0).uuid}"
        handle = pynvml.nvmlDeviceGetHandleByUUID(uuid.encode())
        return pynvml.nvmlDeviceGetTotalEnergyConsumption(handle) / 1000
    except Exception:  # no nvidia-ml-py, an old card: the rest is worth having
        return None


if __name__ == "__main__":
    main()
