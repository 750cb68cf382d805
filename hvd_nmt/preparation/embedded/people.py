"""People: given names, members of a family, professions."""

from hvd_nmt.preparation.embedded.frame import Entry, Pool, pool_of

# No name ends in s, x or z: their German genitive is an apostrophe that many get wrong.
_WOMEN = (
    "Anna Clara Emma Greta Hannah Ida Julia Laura Lena Maria Martha Nina Paula Sarah Sophie Vera"
)
_MEN = "Ben Daniel David Emil Jan Karl Leon Martin Oskar Paul Peter Robert Simon Stefan Tim Walter"

_KIN = {
    "my mother": "f Mutter", "my sister": "f Schwester", "my grandmother": "f Großmutter",
    "my wife": "f Frau", "our aunt": "f Tante", "our daughter": "f Tochter",
    "our granddaughter": "f Enkelin", "my father": "m Vater", "my brother": "m Bruder",
    "my grandfather": "m Großvater", "my husband": "m Mann", "our uncle": "m Onkel",
    "our son": "m Sohn", "our grandson": "m Enkel",
}  # fmt: skip

_JOBS = """
a doctor|Arzt|Ärztin
a teacher|Lehrer|Lehrerin
a nurse|Krankenpfleger|Krankenpflegerin
an engineer|Ingenieur|Ingenieurin
a lawyer|Anwalt|Anwältin
a cook|Koch|Köchin
a baker|Bäcker|Bäckerin
a gardener|Gärtner|Gärtnerin
a painter|Maler|Malerin
a pilot|Pilot|Pilotin
a judge|Richter|Richterin
a librarian|Bibliothekar|Bibliothekarin
an architect|Architekt|Architektin
a journalist|Journalist|Journalistin
a musician|Musiker|Musikerin
a photographer|Fotograf|Fotografin
a carpenter|Tischler|Tischlerin
a butcher|Metzger|Metzgerin
a farmer|Landwirt|Landwirtin
a pharmacist|Apotheker|Apothekerin
a programmer|Programmierer|Programmiererin
a translator|Übersetzer|Übersetzerin
a hairdresser|Friseur|Friseurin
a bookseller|Buchhändler|Buchhändlerin
a tailor|Schneider|Schneiderin
a dentist|Zahnarzt|Zahnärztin
a police officer|Polizist|Polizistin
a biologist|Biologe|Biologin
a historian|Historiker|Historikerin
a watchmaker|Uhrmacher|Uhrmacherin
"""


def pools() -> dict[str, Pool]:
    """The pools of this module, by name.

    `name`: given names. `who`: given names and family. `job`: professions, whose German form
    agrees with a person.
    """
    names = [_name(name, "f") for name in _WOMEN.split()]
    names += [_name(name, "m") for name in _MEN.split()]
    family = [_kin(english, *german.split()) for english, german in _KIN.items()]
    jobs = [line.split("|") for line in _JOBS.strip().splitlines()]
    return {
        "name": pool_of(names),
        "who": pool_of(names + family),
        "job": pool_of([Entry({"text": e}, {"text_m": m, "text_f": f}) for e, m, f in jobs]),
    }


def _person(english: str, text: str, acc: str, dat: str, gender: str) -> Entry:
    male = gender == "m"
    his = "sein" if male else "ihr"
    return Entry(
        {"text": english, "he": "he" if male else "she",
         "his": "his" if male else "her"},
        {"text": text, "acc": acc, "dat": dat, "gender": gender,
         "er": "er" if male else "sie", "seinen": f"{his}en"},
    )  # fmt: skip


def _name(name: str, gender: str) -> Entry:
    english, german = _person(name, name, name, name, gender)
    return Entry({**english, "gen": f"{name}'s"}, {**german, "gen": f"{name}s"})


def _kin(english: str, gender: str, noun: str) -> Entry:
    stem = "mein" if english.startswith("my ") else "unser"
    text, acc, dat = ("", "en", "em") if gender == "m" else ("e", "e", "er")
    return _person(
        english, f"{stem}{text} {noun}", f"{stem}{acc} {noun}", f"{stem}{dat} {noun}", gender
    )
