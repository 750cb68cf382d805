"""Pools of words that carry their inflections, and sentence frames with slots for them.

A frame is a pair of templates such as

    "{who} flew to {country} on {date}."    "{who} flog am {date} {country.to}."

A slot is named after its pool, with a digit if the pool is needed twice (`{who}`, `{who2}`; two
slots of one pool never get the same entry). `.to` asks for a form of the entry; without it the
form is `text`. `{job@who}` asks for the form that agrees with the gender of another slot's entry
(`text_m`, `text_f`, ...). The first letter of a sentence is capitalised.
"""

import random
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

_SLOT = re.compile(r"\{([a-z]+\d?)(?:\.([a-z_]+))?(?:@([a-z]+\d?))?\}")


class Entry(NamedTuple):
    """One word or phrase in both languages: form name -> text."""

    english: Mapping[str, str]
    german: Mapping[str, str]


def same(english: str, german: str) -> Entry:
    """An entry that has one form only, `text`."""
    return Entry({"text": english}, {"text": german})


def joined(**entries: Entry) -> Entry:
    """An entry whose forms are the texts of others."""
    return Entry(
        {form: entry.english["text"] for form, entry in entries.items()},
        {form: entry.german["text"] for form, entry in entries.items()},
    )


@dataclass(frozen=True, eq=False)
class Pool:
    """Entries numbered from 0, made when first drawn because CLDR formatting is slow."""

    size: int
    """Number of entries."""
    make: Callable[[int], Entry]
    """Index -> entry; must be a pure function."""
    skew: float = 1.0
    """Above 1, low indices (short and common things, by convention) are drawn more often."""
    _made: dict[int, Entry] = field(default_factory=dict)

    def draw(self, rng: random.Random) -> int:
        """An index in [0, size).

        Only `random()` is called: its sequence is the one that Python promises to keep.
        """
        return int(self.size * rng.random() ** self.skew)

    def entry(self, index: int) -> Entry:
        """The entry of an index in [0, size), always the same object for the same index."""
        if index not in self._made:
            self._made[index] = self.make(index)
        return self._made[index]


def pool_of(entries: Sequence[Entry], skew: float = 1.0) -> Pool:
    """A pool of at least one entry; for `skew` see `Pool`."""
    return Pool(len(entries), entries.__getitem__, skew)


class _Hole(NamedTuple):
    """A place in a template: which slot, which form, and which slot it agrees with (or -1)."""

    slot: int
    form: str
    agrees_with: int


@dataclass(frozen=True)
class Frame:
    """A sentence pair with slots, compiled from two templates by `compile_frame`."""

    pools: tuple[Pool, ...]
    """One pool per slot."""
    english: tuple[str | _Hole, ...]
    german: tuple[str | _Hole, ...]

    def draw(self, rng: random.Random) -> tuple[str, str]:
        """Fills the slots at random; returns the English and the German sentence."""
        indices: list[int] = []
        for pool in self.pools:
            index = pool.draw(rng)
            while (pool, index) in zip(self.pools, indices, strict=False):
                index = pool.draw(rng)
            indices.append(index)
        return self.fill(indices)

    def fill(self, indices: Sequence[int]) -> tuple[str, str]:
        """Fills the slots with the entries of these indices into their pools; returns as `draw`."""
        entries = [pool.entry(index) for pool, index in zip(self.pools, indices, strict=True)]
        german = [entry.german for entry in entries]
        return (
            _render(self.english, [entry.english for entry in entries], german),
            _render(self.german, german, german),
        )


def _render(
    pieces: Sequence[str | _Hole],
    forms: Sequence[Mapping[str, str]],
    german: Sequence[Mapping[str, str]],
) -> str:
    words = []
    for piece in pieces:
        if isinstance(piece, str):
            words.append(piece)
        elif piece.agrees_with < 0:
            words.append(forms[piece.slot][piece.form])
        else:
            words.append(forms[piece.slot][f"{piece.form}_{german[piece.agrees_with]['gender']}"])
    sentence = "".join(words)
    return sentence[0].upper() + sentence[1:]


def compile_frame(english: str, german: str, pools: Mapping[str, Pool]) -> Frame:
    """Compiles two templates.

    Args:
        english: the English template.
        german: the German one, with the same slots: one English sentence determines one German.
        pools: by their names.
    """
    slots = list(dict.fromkeys(match[1] for match in _SLOT.finditer(english)))
    return Frame(
        tuple(pools[slot.rstrip("23")] for slot in slots),
        _split(english, slots),
        _split(german, slots),
    )


def _split(template: str, slots: Sequence[str]) -> tuple[str | _Hole, ...]:
    pieces: list[str | _Hole] = []
    end = 0
    for match in _SLOT.finditer(template):
        pieces.append(template[end : match.start()])
        agrees_with = slots.index(match[3]) if match[3] else -1
        pieces.append(_Hole(slots.index(match[1]), match[2] or "text", agrees_with))
        end = match.end()
    pieces.append(template[end:])
    return tuple(piece for piece in pieces if piece != "")
