"""The sentence frames. `frame.py` explains the notation."""

import functools

from hvd_nmt.preparation.embedded import amounts, dates, people, places, things
from hvd_nmt.preparation.embedded.frame import Frame, Pool, compile_frame

# One frame is two lines, English then German; an English sentence determines its German one.
# By what they are about: travel, people, languages, dates, things, numbers.
_TEMPLATES = """
{who} flew to {country} on {date}.
{who} flog am {date} {country.to}.
On {fulldate}, {who} will fly from {city} to {city2}.
Am {fulldate}, wird {who} von {city} nach {city2} fliegen.
The train to {station} leaves at {time}.
Der Zug nach {station} fährt um {time} Uhr ab.
The flight from {city} to {city2} takes {duration}.
Der Flug von {city} nach {city2} dauert {duration}.
If the train is on time, we will be in {station} at {time}.
Wenn der Zug pünktlich ist, sind wir um {time} Uhr in {station}.
Because of the snow, the train from {station} arrived {minutes} late.
Wegen des Schnees kam der Zug aus {station} {minutes.acc} zu spät an.
{who} would like to spend {weeks} in {country}.
{who} möchte {weeks.acc} {country.in} verbringen.
Were you also in {country} in {month} {year}?
Waren Sie im {month} {year} auch {country.in}?
{who} has never been to {country}, but {who.he} would like to go there in {month}.
{who} war noch nie {country.in}, aber {who.er} möchte im {month} dorthin reisen.
{name} comes from {country} and has lived in {city} for {years}.
{name} kommt {country.from} und lebt seit {years.dat} in {city}.
In {month}, {who} is traveling to {country} with {who2}.
Im {month} reist {who} mit {who2.dat} {country.to}.
{who} had to wait for {span} before {who.he} got a visa for {country}.
{who} musste {span.acc} warten, bevor {who.er} ein Visum für {country.acc} bekam.
{who} collects stamps from {country} and {country2}.
{who} sammelt Briefmarken {country.from} und {country2.from}.
The parcel from {country} arrived in {city} after {days}.
Das Paket {country.from} kam nach {days.dat} in {city} an.
We drove {kilometers} on {weekday} and spent the night in {city}.
Wir sind am {weekday} {kilometers} gefahren und haben in {city} übernachtet.
{who} asked {who2} when the next train to {station} leaves.
{who} fragte {who2.acc}, wann der nächste Zug nach {station} fährt.
Have you been waiting for {who} since {clock}?
Warten Sie seit {clock} auf {who.acc}?
The flight from {city} landed {minutes} early.
Der Flug aus {city} landete {minutes.acc} zu früh.
The {vehicle} can travel at up to {speed}.
{vehicle} kann bis zu {speed} schnell fahren.

{who} lives in {city}.
{who} wohnt in {city}.
{name} is {age} years old and works as {job} in {city}.
{name} ist {age} Jahre alt und arbeitet als {job@name} in {city}.
{name} is {years} older than {name2}.
{name} ist {years.acc} älter als {name2}.
{name} was born in {spot}, in {spot.country}, on {date}.
{name} wurde am {date} in {spot} {spot.in} geboren.
{who} wants to become {job} and is therefore studying in {city}.
{who} will {job@who} werden und studiert deshalb in {city}.
I do not know whether {who} still works as {job} in {city}.
Ich weiß nicht, ob {who} noch als {job@who} in {city} arbeitet.
{span} ago, {who} was still living in {city}.
Vor {span.dat} lebte {who} noch in {city}.
In {span}, {who} will start as {job} in {city}.
In {span.dat} fängt {who} als {job@who} in {city} an.
{name} celebrated {name.his} {birthday} birthday on {day} in {city}.
{name} feierte am {day} in {city} {name.seinen} {birthday.acc} Geburtstag.
{name.gen} birthday is on {day}.
{name.gen} Geburtstag ist am {day}.
It is {clock}, and {who} is still asleep.
Es ist {clock}, und {who} schläft noch.
{who} gets up at {clock} every {weekday}.
{who} steht jeden {weekday} um {clock} auf.
Although {who} had slept for only {hours}, {who.he} was awake at {clock}.
Obwohl {who} nur {hours.acc} geschlafen hatte, war {who.er} um {clock} wach.
{who} cycled {kilometers} in {duration}.
{who} fuhr mit dem Fahrrad {kilometers} in {duration}.
{who} won the race for the {ordinal} time in {year}.
{who} gewann das Rennen im Jahr {year} zum {ordinal.dat} Mal.

{who} speaks {language} better than {language2}.
{who} spricht besser {language} als {language2}.
When {who} moved to {city} in {year}, {who.he} did not speak a word of {language}.
Als {who} im Jahr {year} nach {city} zog, sprach {who.er} kein Wort {language}.
{who} is learning {speech} because {who.he} wants to move to {speech.country} in {month}.
{who} lernt {speech}, weil {who.er} im {month} {speech.to} ziehen will.
{who} told me that {speech} is spoken in {speech.country}.
{who} hat mir erzählt, dass {speech.in} {speech} gesprochen wird.
{who} translates books from {language} into {language2}.
{who} übersetzt Bücher {language.from} {language2.into}.
The instructions are available in {language}, {language2}, and {language3}.
Die Anleitung ist auf {language}, {language2} und {language3} erhältlich.

The {event} on {weekday} begins at {period.start} and ends at {period.end}.
{event} am {weekday} beginnt um {period.start} Uhr und endet um {period.end} Uhr.
The museum in {city} is open daily from {opening.start} to {opening.end}.
Das Museum in {city} ist täglich von {opening.start} bis {opening.end} Uhr geöffnet.
We have been waiting for {who} for {minutes}.
Wir warten seit {minutes.dat} auf {who.acc}.
The {paper} is valid until {deadline}.
{paper} gilt bis zum {deadline}.
The {event} in {city} was postponed from {day} to {day2}.
{event} in {city} wurde vom {day} auf den {day2} verschoben.
Please be at the airport by {time} on {weekday}.
Bitte seien Sie am {weekday} bis {time} Uhr am Flughafen.
In {month} {year}, it rained in {city} for {days}.
Im {month} {year} regnete es in {city} {days.acc} lang.
On {weekday}, nobody answered the phone between {period.start} and {period.end}.
Am {weekday} ging zwischen {period.start} und {period.end} Uhr niemand ans Telefon.
{who} did not come to the {event} because {who.he} had been ill since {weekday}.
{who} kam nicht {event.zu}, weil {who.er} seit {weekday} krank war.
The file is {megabytes} in size and was last changed on {recent}.
Die Datei ist {megabytes} groß und wurde zuletzt am {recent} geändert.

There {goods.is} {goods} {room.in}.
{room.in} {goods.ist} {goods}.
{who} bought {goods} and {food}.
{who} hat {goods.acc} und {food.acc} gekauft.
For the cake, {who} needs {food} and {quantity}.
{who} braucht für den Kuchen {food.acc} und {quantity}.
How many {thing.pl} did {who} sell in {month}?
Wie viele {thing.pl} hat {who} im {month} verkauft?
The {adj} {thing} costs {price}.
{adj.the@thing} {thing.noun} kostet {price}.
{who} bought {adj.a} {thing} because it only cost {price}.
{who} kaufte {adj.a_acc@thing} {thing.noun}, weil {thing.er} nur {price} kostete.
The {thing} is {price} more expensive than the {thing2}.
{thing} ist {price} teurer als {thing2}.
{who} gave {who2} {adj.a} {thing} for {who2.his} birthday.
{who} schenkte {who2.dat} {adj.a_acc@thing} {thing.noun} zum Geburtstag.
The {adj} {thing} does not belong to {who}.
{adj.the@thing} {thing.noun} gehört {who.dat} nicht.
{who} has been looking for the {adj} {thing} since {weekday}.
{who} sucht seit {weekday} {adj.the_acc@thing} {thing.noun}.
{who} did not sell the {thing} but gave it to {who2}.
{who} hat {thing.acc} nicht verkauft, sondern {thing.ihn} {who2.dat} geschenkt.
Who left the {adj} {thing} {room.in}?
Wer hat {adj.the_acc@thing} {thing.noun} {room.in} gelassen?
{who} carried the {adj} {thing} {room.into}.
{who} trug {adj.the_acc@thing} {thing.noun} {room.into}.
{who} saw {who2} with the {adj} {thing} {room.in}.
{who} sah {who2.acc} mit {adj.the_dat@thing} {thing.noun} {room.in}.
The {load} weighs {kilograms}, so {who} cannot carry it alone.
{load} wiegt {kilograms}, deshalb kann {who} {load.ihn} nicht allein tragen.
Add {quantity} and stir for {minutes}.
Geben Sie {quantity} hinzu und rühren Sie {minutes.acc} lang.

In {local.country}, {who} paid {local} for {adj.a} {thing}.
{local.in} zahlte {who} {local} für {adj.a_acc@thing} {thing.noun}.
{who} would like to change {exchange} into {exchange.into}.
{who} möchte {exchange} in {exchange.into} wechseln.
In {country}, {figure} {trend} by {percent} in {year}.
{country.in} {trend} {figure} im Jahr {year} um {percent}.
About {million} people visited {country} in {year}.
Etwa {million} Menschen besuchten im Jahr {year} {country.acc}.
More than {big} people came to the {show} in {city}.
Mehr als {big} Menschen kamen {show.zu} in {city}.
The answer is not {number}, but {number2}.
Die Antwort ist nicht {number}, sondern {number2}.
{name} calculates: {sum.task} is {sum.result}.
{name} rechnet: {sum.task} ist {sum.result}.
The {ordinal} chapter of the book begins on page {pages}.
Das {ordinal} Kapitel des Buches beginnt auf Seite {pages}.
The {building} in {station} was built in the {century} century.
{building} in {station} wurde im {century.dat} Jahrhundert erbaut.
The {structure} in {city} is {size.long} long, but only {size.wide} wide.
{structure} in {city} ist {size.long} lang, aber nur {size.wide} breit.
The {building} in {city} is {meters} taller than the {building2}.
{building} in {city} ist {meters} höher als {building2}.
On {weekday}, it will be {degrees} in {city} and {degrees2} in {city2}.
Am {weekday} werden es {degrees} in {city} und {degrees2} in {city2}.
{who} bought an apartment in {city} that has {area}.
{who} kaufte in {city} eine Wohnung, die {area} hat.
{country} and {country2} signed the treaty on {date}.
{country} und {country2} unterzeichneten den Vertrag am {date}.
{country} exports more {stuff} than {country2}.
{country} {country.exportiert} mehr {stuff} als {country2}.
{who} owes {who2} {money}.
{who} schuldet {who2.dat} {money}.
"""


@functools.cache
def all_frames() -> tuple[Frame, ...]:
    """All frames, in the order of this file; made once per process."""
    pools = all_pools()
    return tuple(compile_frame(english, german, pools) for english, german in templates())


@functools.cache
def all_pools() -> dict[str, Pool]:
    """The pools of all modules by their names; made once per process."""
    return people.pools() | places.pools() | dates.pools() | things.pools() | amounts.pools()


def templates() -> list[tuple[str, str]]:
    """The sentence frames as they are written: (English, German)."""
    lines = [line for line in _TEMPLATES.splitlines() if line]
    return list(zip(lines[::2], lines[1::2], strict=True))
