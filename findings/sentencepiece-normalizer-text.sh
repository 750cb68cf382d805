#!/usr/bin/env bash
# sentencepiece 0.2.0, 0.2.1: a normalizer's model cannot be read back; 0.2.2 and 0.2.3: as bytes.
#
# Guess: SentencePieceNormalizer(rule_name="nmt_nfkc").serialized_model_proto() gives bytes, as the method of the same
#   name of SentencePieceProcessor does in every release.
# Seen:  in 0.2.0 and 0.2.1 it is to be text, and the compiled rule is no UTF-8: UnicodeDecodeError. From 0.2.2 on it
#   is bytes. So a compiled rule can be moved into another model from 0.2.2 on.
#
# Needs Python 3.11 or 3.12 and PyPI; installs into a temporary folder. Ends with 1 if this is no longer so.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cat >"$work/look.py" <<'END'
import sentencepiece

made = sentencepiece.SentencePieceNormalizer(rule_name="nmt_nfkc")
try:
    kind = type(made.serialized_model_proto()).__name__
except UnicodeDecodeError:
    kind = "UnicodeDecodeError"
print("sentencepiece", sentencepiece.__version__, kind)
END
for release in 0.2.0 0.2.1 0.2.2 0.2.3; do
    python3 -m venv "$work/$release"
    "$work/$release/bin/pip" install -q "sentencepiece==$release"
    "$work/$release/bin/python" "$work/look.py"
done | tee "$work/seen"
diff "$work/seen" - <<'END'
sentencepiece 0.2.0 UnicodeDecodeError
sentencepiece 0.2.1 UnicodeDecodeError
sentencepiece 0.2.2 bytes
sentencepiece 0.2.3 bytes
END
