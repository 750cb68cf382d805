"""sacreBLEU's metrics, by the tokenizer that separates the words of a language."""

from typing import TYPE_CHECKING, Any

from hvd_nmt.common.errors import ConfigError
from hvd_nmt.config.schema import AUTO
from hvd_nmt.data import language
from hvd_nmt.data.corpus import DataManifest

if TYPE_CHECKING:
    import sacrebleu

USUAL = "13a"
"""the tokenizer of languages with blanks between words; scores name any other"""
_SPLIT_BY_TER = ("zh", "ja-mecab", "char")


def tokenizers(wanted: str, manifest: DataManifest) -> dict[str, str]:
    """Tokenizers of several corpora by name, and "" for all text; auto: by the target language.

    All text has the tokenizer of its corpora, or the usual one where they have several.
    """

    def of(target_language: str) -> str:
        return language.bleu_tokenizer(target_language) if wanted == AUTO else wanted

    by_corpus = {corpus.name: of(corpus.target_language) for corpus in manifest.corpora}
    kinds = {*by_corpus.values()} or {of(manifest.target_language)}
    return {"": kinds.pop() if len(kinds) == 1 else USUAL} | by_corpus


def name(tokenizer: str) -> str:
    """BLEU, with a tokenizer that is not the usual one."""
    return "BLEU" if tokenizer == USUAL else f"BLEU[{tokenizer}]"


def metric(tokenizer: str, **more: Any) -> "sacrebleu.BLEU":
    """BLEU by a tokenizer; ConfigError: it is not installed."""
    import sacrebleu  # late, for it is slow to load

    try:
        return sacrebleu.BLEU(tokenize=tokenizer, **more)
    except (RuntimeError, AssertionError):  # no MeCab, or a dictionary of other words
        raise ConfigError(
            f"sacreBLEU's tokenizer {tokenizer} needs MeCab with the dictionary that sacreBLEU "
            f"uses: run pip install 'sacrebleu[{tokenizer[:2]}]'."
        ) from None


def ter(tokenizer: str, **more: Any) -> "sacrebleu.TER":
    """TER, which sees words between blanks; Chinese and Japanese are split before, and marks."""
    import sacrebleu

    splits = tokenizer in _SPLIT_BY_TER
    return sacrebleu.TER(normalized=splits, asian_support=splits, **more)
