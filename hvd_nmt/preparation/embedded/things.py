"""Things: furniture and tools with gender and plural, food, rooms, buildings, events, papers."""

from collections.abc import Sequence

from hvd_nmt.preparation.embedded.frame import Entry, Pool, pool_of, same
from hvd_nmt.preparation.embedded.words import DEFINITE, ONE, cardinal, declined

# English singular and plural, German gender, singular and plural.
_THINGS = """
lamp|lamps|f|Lampe|Lampen
chair|chairs|m|Stuhl|Stühle
table|tables|m|Tisch|Tische
book|books|n|Buch|Bücher
bicycle|bicycles|n|Fahrrad|Fahrräder
carpet|carpets|m|Teppich|Teppiche
mirror|mirrors|m|Spiegel|Spiegel
bottle|bottles|f|Flasche|Flaschen
plate|plates|m|Teller|Teller
cup|cups|f|Tasse|Tassen
knife|knives|n|Messer|Messer
spoon|spoons|m|Löffel|Löffel
coat|coats|m|Mantel|Mäntel
hat|hats|m|Hut|Hüte
shirt|shirts|n|Hemd|Hemden
skirt|skirts|m|Rock|Röcke
scarf|scarves|m|Schal|Schals
suitcase|suitcases|m|Koffer|Koffer
umbrella|umbrellas|m|Regenschirm|Regenschirme
camera|cameras|f|Kamera|Kameras
picture|pictures|n|Bild|Bilder
guitar|guitars|f|Gitarre|Gitarren
bed|beds|n|Bett|Betten
basket|baskets|m|Korb|Körbe
key|keys|m|Schlüssel|Schlüssel
newspaper|newspapers|f|Zeitung|Zeitungen
pencil|pencils|m|Bleistift|Bleistifte
doll|dolls|f|Puppe|Puppen
ball|balls|m|Ball|Bälle
boat|boats|n|Boot|Boote
tent|tents|n|Zelt|Zelte
radio|radios|n|Radio|Radios
candle|candles|f|Kerze|Kerzen
pillow|pillows|n|Kissen|Kissen
blanket|blankets|f|Decke|Decken
bucket|buckets|m|Eimer|Eimer
vase|vases|f|Vase|Vasen
drum|drums|f|Trommel|Trommeln
violin|violins|f|Geige|Geigen
ladder|ladders|f|Leiter|Leitern
"""

_FOOD = """
apple|apples|m|Apfel|Äpfel
egg|eggs|n|Ei|Eier
lemon|lemons|f|Zitrone|Zitronen
tomato|tomatoes|f|Tomate|Tomaten
potato|potatoes|f|Kartoffel|Kartoffeln
carrot|carrots|f|Karotte|Karotten
pear|pears|f|Birne|Birnen
onion|onions|f|Zwiebel|Zwiebeln
orange|oranges|f|Orange|Orangen
cucumber|cucumbers|f|Gurke|Gurken
peach|peaches|m|Pfirsich|Pfirsiche
banana|bananas|f|Banane|Bananen
mushroom|mushrooms|m|Pilz|Pilze
"""

# English and the German stem that takes an ending.
_ADJECTIVES = (
    "red:rot blue:blau green:grün white:weiß black:schwarz yellow:gelb brown:braun gray:grau "
    "old:alt new:neu small:klein large:groß beautiful:schön strange:seltsam ugly:hässlich "
    "colorful:bunt"
)

_ROOMS = {
    "in": "kitchen:f:Küche garden:m:Garten cellar:m:Keller garage:f:Garage "
    "bedroom:n:Schlafzimmer living_room:n:Wohnzimmer bathroom:n:Badezimmer office:n:Büro "
    "library:f:Bibliothek workshop:f:Werkstatt hall:m:Flur",
    "on": "balcony:m:Balkon terrace:f:Terrasse roof:n:Dach",
}

_LISTS = {
    "load": "suitcase:m:Koffer table:m:Tisch box:f:Kiste piano:n:Klavier cupboard:m:Schrank "
    "parcel:n:Paket barrel:n:Fass sack:m:Sack stone:m:Stein machine:f:Maschine statue:f:Statue",
    "structure": "bridge:f:Brücke tunnel:m:Tunnel street:f:Straße garden:m:Garten hall:f:Halle "
    "ship:n:Schiff field:n:Feld beach:m:Strand lake:m:See canal:m:Kanal",
    "building": "tower:m:Turm church:f:Kirche town_hall:n:Rathaus castle:n:Schloss hotel:n:Hotel "
    "monument:n:Denkmal lighthouse:m:Leuchtturm cathedral:m:Dom palace:m:Palast mill:f:Mühle",
    "event": "concert:n:Konzert exam:f:Prüfung wedding:f:Hochzeit meeting:f:Sitzung "
    "game:n:Spiel lecture:m:Vortrag party:f:Feier exhibition:f:Ausstellung reading:f:Lesung "
    "flea_market:m:Flohmarkt race:n:Rennen performance:f:Vorstellung",
    "show": "concert:n:Konzert game:n:Spiel exhibition:f:Ausstellung race:n:Rennen "
    "flea_market:m:Flohmarkt performance:f:Vorstellung festival:n:Festival market:m:Markt",
    "paper": "contract:m:Vertrag passport:m:Pass ticket:f:Fahrkarte offer:n:Angebot visa:n:Visum "
    "voucher:m:Gutschein identity_card:m:Ausweis price_list:f:Preisliste",
    "figure": "unemployment:f:Arbeitslosigkeit industrial_production:f:Industrieproduktion "
    "the_number_of_visitors:f:Zahl_der_Besucher energy_consumption:m:Energieverbrauch "
    "water_consumption:m:Wasserverbrauch the_average_wage:m:Durchschnittslohn "
    "the_birth_rate:f:Geburtenrate the_price_of_bread:m:Brotpreis the_price_of_milk:m:Milchpreis "
    "the_price_of_coffee:m:Kaffeepreis the_price_of_electricity:m:Strompreis",
    "vehicle": "train:m:Zug bus:m:Bus ship:n:Schiff car:n:Auto truck:m:Lastwagen "
    "motorcycle:n:Motorrad tram:f:Straßenbahn ferry:f:Fähre",
}  # fmt: skip

_STUFF = (
    "coffee:Kaffee tea:Tee rice:Reis cheese:Käse wood:Holz wheat:Weizen paper:Papier fish:Fisch "
    "cotton:Baumwolle steel:Stahl wine:Wein chocolate:Schokolade glass:Glas salt:Salz copper:Kupfer"
)


def pools() -> dict[str, Pool]:
    """The pools of this module, by name.

    `thing` and `adj`, `goods` (a number of things) and `food` (a number of fruit or the like),
    `room`, `stuff`, `trend`, and the nouns of `_LISTS`.
    """
    things, food = _rows(_THINGS), _rows(_FOOD)
    adjectives = [pair.split(":") for pair in _ADJECTIVES.split()]
    found = {
        "thing": pool_of([_thing(*row) for row in things]),
        "adj": pool_of([_adjective(english, stem) for english, stem in adjectives]),
        "goods": _counted(things, 40),
        "food": _counted(food, 30),
        "room": pool_of([_room(on, *row) for on, nouns in _ROOMS.items() for row in _nouns(nouns)]),
        "stuff": pool_of([same(*pair.split(":")) for pair in _STUFF.split()]),
        "trend": pool_of([same("rose", "stieg"), same("fell", "sank")]),
    }
    for name, nouns in _LISTS.items():
        rows = _nouns(nouns)
        found[name] = pool_of(
            [Entry({"text": english}, declined(gender, german)) for english, gender, german in rows]
        )
    return found


def _nouns(table: str) -> list[list[str]]:
    """English, German gender and noun."""
    return [noun.replace("_", " ").split(":") for noun in table.split()]


def _rows(table: str) -> list[list[str]]:
    return [line.split("|") for line in table.strip().splitlines()]


def _thing(english: str, english_plural: str, gender: str, noun: str, plural: str) -> Entry:
    return Entry({"text": english, "pl": english_plural}, declined(gender, noun) | {"pl": plural})


def _adjective(english: str, stem: str) -> Entry:
    """Makes an adjective with its article: `a` and `the`, then case, then gender of the noun."""
    a = "an" if english[0] in "aeiou" else "a"
    german = {}
    for gender, nominative in (("m", "er"), ("f", "e"), ("n", "es")):
        accusative = "en" if gender == "m" else nominative
        german[f"a_{gender}"] = f"{ONE['text'][gender]} {stem}{nominative}"
        german[f"a_acc_{gender}"] = f"{ONE['acc'][gender]} {stem}{accusative}"
        german[f"the_{gender}"] = f"{DEFINITE['text'][gender]} {stem}e"
        german[f"the_acc_{gender}"] = (
            f"{DEFINITE['acc'][gender]} {stem}{'en' if gender == 'm' else 'e'}"
        )
        german[f"the_dat_{gender}"] = f"{DEFINITE['dat'][gender]} {stem}en"
    return Entry({"text": english, "a": f"{a} {english}"}, german)


def _counted(rows: Sequence[Sequence[str]], most: int) -> Pool:
    """Makes "twenty-one apples", from one to `most`, small numbers drawn more often."""

    def make(index: int) -> Entry:
        count = 1 + index // len(rows)
        one, many, gender, noun, plural = rows[index % len(rows)]
        english, german = cardinal(count)
        if count == 1:
            forms = {case: f"{ONE[case][gender]} {noun}" for case in ("text", "acc")}
            return Entry({"text": f"{english} {one}", "is": "is"}, forms | {"ist": "ist"})
        text = f"{german} {plural}"
        return Entry(
            {"text": f"{english} {many}", "is": "are"}, {"text": text, "acc": text, "ist": "sind"}
        )

    return Pool(most * len(rows), make, skew=1.6)


def _room(at: str, english: str, gender: str, noun: str) -> Entry:
    german = "auf" if at == "on" else "in"
    dative = f"{german} {DEFINITE['dat'][gender]} {noun}".replace("in dem ", "im ")
    accusative = f"{german} {DEFINITE['acc'][gender]} {noun}".replace("in das ", "ins ")
    return Entry(
        {"in": f"{at} the {english}", "into": f"{at}to the {english}"},
        {"in": dative, "into": accusative},
    )
