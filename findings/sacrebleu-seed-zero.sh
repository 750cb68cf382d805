#!/usr/bin/env bash
# sacreBLEU 2.6.0: SACREBLEU_SEED=0 does not fix the seed of a paired test, and the signature says seed:0.
#
# Guess: SACREBLEU_SEED=0 is a seed as any other: two paired tests of the same files give the same p-value. Only "none"
#   asks for another one each time.
# Seen:  with 1 the p-values of two tests are equal, with 0 they are not, under a signature with seed:0. In
#   sacrebleu/significance.py a seed of 0 counts as none. The interval of a single system is the same each time with 0.
# What follows: who publishes a p-value with seed 0 publishes one that nobody can repeat; 1 can be repeated.
#
# Needs Python 3 and PyPI; installs into a temporary folder. Ends with 1 if this is no longer so.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install -q sacrebleu==2.6.0
"$work/venv/bin/python" - <<'END'
import os
import random

import sacrebleu
from sacrebleu.significance import PairedTest

chance = random.Random(1)
words = ["red", "house", "tree", "river", "old", "man", "sees", "a", "the", "green"]
reference = [" ".join(chance.choices(words, k=12)) for _ in range(60)]


def with_mistakes(share):
    """The reference with that share of its words drawn again."""
    return [
        " ".join(chance.choice(words) if chance.random() < share else word for word in line.split())
        for line in reference
    ]


systems = [("baseline", with_mistakes(0.3)), ("other", with_mistakes(0.28))]


def tests(seed, kind):
    """P-values of five tests of the same systems, and the seeds in their signatures."""
    os.environ["SACREBLEU_SEED"] = seed
    p_values, seeds = set(), set()
    for _ in range(5):
        metric = sacrebleu.BLEU(references=[reference])
        test = PairedTest(systems, {"BLEU": metric}, references=None, test_type=kind, n_samples=500)
        signatures, results = test()
        p_values.add(results["BLEU"][1].p_value)
        seeds.add(signatures["BLEU"].info["seed"])
    return len(p_values), seeds


def intervals(seed):
    os.environ["SACREBLEU_SEED"] = seed
    return len({
        sacrebleu.BLEU().corpus_score(systems[0][1], [reference], n_bootstrap=500)._ci
        for _ in range(5)
    })


for kind in ("bs", "ar"):
    seen = {seed: tests(seed, kind) for seed in ("1", "0")}
    print("sacrebleu", sacrebleu.__version__, kind, "different p-values of five, seed:", seen)
    assert seen["1"] == (1, {"1"}), "it has changed"
    assert seen["0"][0] > 1 and seen["0"][1] == {"0"}, "it has changed"
assert intervals("0") == 1, "it has changed"
END
