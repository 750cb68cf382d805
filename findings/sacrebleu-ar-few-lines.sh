#!/usr/bin/env bash
# sacreBLEU 2.6.0: --paired-ar calls one different line of a hundred significant, and a copy of the system too.
#
# Guess: the p-value of approximate randomization is the part of the trials that differ by as much as the systems do.
#   So it is 1 for a copy and where one line differs (exchanging it only changes the sign), and with four lines, all
#   better, about 2 / 2^4 = 0.125.
# Seen:  0.0001, the least there is, in all three: only trials that differ by more are counted, and there are none.
#   (For the copy the source says that it is meant so.) --paired-bs gives 0.001 for the copy, and 0.08 for one line.
# What follows: two decoders that differ in a line or two (batch size, int8, another release) are "significantly"
#   different, and a star in the table says nothing before the lines that differ have been counted.
#
# Needs Python 3 and PyPI; installs into a temporary folder. Ends with 1 if this is no longer so.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install -q sacrebleu==2.6.0
"$work/venv/bin/python" - <<'END'
import sacrebleu
from sacrebleu.significance import PairedTest

references = [f"the {i} of line {i + 1} is {i + 2} and no more" for i in range(100)]
baseline = [line.replace("and", "or") for line in references]
p_values = {}
for better in (0, 1, 4):
    system = references[:better] + baseline[better:]
    for kind, trials in (("ar", 10_000), ("bs", 1000)):
        systems = [("baseline", baseline), ("system", system)]
        test = PairedTest(systems, {"BLEU": sacrebleu.BLEU()}, [references], kind, trials)
        p_values[kind, better] = round(test()[1]["BLEU"][1].p_value, 4)
print("sacrebleu", sacrebleu.__version__, p_values)
assert {p_values["ar", better] for better in (0, 1, 4)} == {0.0001}, "it has changed"
assert p_values["bs", 0] == 0.001 and p_values["bs", 1] > 0.05, "it has changed"
END
