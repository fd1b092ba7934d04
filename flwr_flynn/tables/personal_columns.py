"""Columns that may name persons: ids, names, and texts that nearly all differ."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence

import numpy as np

from flwr_flynn._types import Array, Floats

PERSONAL = {
    "id": "integers of many values, each in few rows, as ids are",
    "name": "texts that look like names of persons",
    "text": "texts that nearly all differ, or repeat as ids do",
}

# Values of a column that is looked at, at least; and shares of different texts, the
# second for longer ones.
_FEW = 30

_NEARLY_ALL = 0.8

_SOME = 0.2

_LONG = 40

OFTEN = 5  # rows that share a text of a column whose texts nearly all differ

_PER_ID = 12  # rows of one id, at most

# Values that stand twice, in each pair of neighbours on the number line: one half to
# one of independent draws, whatever their density.
_PAIRED = (0.2, 1.3)

# Names of ids, of whoever has them; those of the group are of counts, too.
_ID_NAME = re.compile(
    r"(case|fall|nr|no|nummer|(?:.*[\W_])?(?:visit|stay|hospital|sample|study)s?[\W_]*"
    r"(?:nr|no|num|number|nummer))"
    r"|pat|patient|subject|person|participant"
    r"|(?:.*[\W_])?(?:id|pid|mrn|ssn|plz|zip|zipcode|post(?:al)?[\W_]?code|phone)"
    r"|(?:.*[\W_])?(?:pat|patient|subject|person|participant|case|fall|visit|encounter"
    r"|admission|stay|hospital|record|sample|study|account|member|customer)"
    r"(?:en|s)?[\W_]*(?:id|nr|no|num|number|nummer|key|code)"
)

_NO_COUNT = 1000  # the least of values that are no counts

_CHI_SQUARE = 28.0  # of ten even digits: beyond, once in a thousand


def nearly_all_differ(levels: Mapping[str | None, int], n_texts: int) -> bool:
    """True for texts of a column that nearly all differ, from the rows of each."""
    if n_texts < _FEW:
        return False
    most = _NEARLY_ALL
    if sum(len(text or "") * k for text, k in levels.items()) > _LONG * n_texts:
        most = _SOME
    return len(levels) > most * n_texts


def are_text_ids(levels: Mapping[str | None, int], n_texts: int) -> bool:
    """True for many different texts with digits, each in a few rows."""
    counts = np.array([*levels.values()])
    digits = [sum(map(str.isdigit, text)) for text in _some(levels)]
    return (
        _are_few_each(counts, n_texts)
        and float(np.mean(np.array(digits) > 3)) > _NEARLY_ALL
    )


def _some(levels: Mapping[str | None, int]) -> list[str]:
    """At most two thousand of the texts, whatever the order of the rows."""
    texts = sorted(filter(None, levels))
    return texts[:: 1 + len(texts) // 2000]


def _are_few_each(counts: Array, n: int) -> bool:
    """True for at least thirty values, each in a few of so many rows."""
    often = counts[counts > _PER_ID].sum()
    return len(counts) >= max(_FEW, n / _PER_ID) and bool(often <= n / 10)


def are_ids(values: Floats, others: Sequence[Array] = (), name: str = "") -> bool:
    """True for integers that name rows or persons, and measure nothing.

    They nearly all differ, or have many digits and as many each, or each is in few
    rows: the column has a name of ids (with large values, if counts have it, too), or
    far more repeated values than chance makes of so many neighbours, or none; or the
    labels of a value are alike and those of the next are not. `others` are the labels
    of the values, or texts that would follow from ids as these do.
    """
    n = len(values)
    if n < _FEW or (values < 0).any() or (values % 1 != 0).any():
        return False
    # Beyond, floats are no exact integers.
    if values.max() >= 2.0**53:
        return False
    different, places, counts = np.unique(
        values, return_inverse=True, return_counts=True
    )
    if _nearly_all_are(different, n, values):
        return True
    digits = np.floor(np.log10(np.maximum(different, 1)))
    are_as_long = (digits == np.median(digits)).mean() > 0.95
    if different[0] >= 10**8 and are_as_long and len(different) > OFTEN:
        return True
    if not _are_few_each(counts, n):
        return False
    match = _ID_NAME.fullmatch(name.casefold())
    is_named = match is not None and (match[1] is None or different[0] >= _NO_COUNT)
    return (
        is_named
        or _are_apart(different, counts)
        or any(_label_persons(places, counts, labels) for labels in others)
    )


def _nearly_all_are(different: Floats, n: int, values: Floats) -> bool:
    """True for integers that nearly all differ, and are no measurements.

    Of a small range ids are more different than integers drawn by chance, and of a
    large one they are spread evenly; measurements are negative, round, or nearer to the
    middle. A few ids may stand twice.
    """
    n_different = len(different)
    size = values.max() - values.min() + 1
    if n_different < _NEARLY_ALL * n:
        return False
    missed = np.exp(-n / size)  # share of the range that chance leaves out
    deviation = np.sqrt(max(size * missed * (1 - (1 + n / size) * missed), 0.0))
    if n_different > size * (1 - missed) + 4 * deviation and deviation > 0.5:
        return True
    if size < 10 * n:
        return False
    shares = (np.sort(values) - values.min()) / (size - 1)
    # Kolmogorov and Smirnov test it like this.
    is_even = np.abs(shares - np.linspace(0, 1, n)).max() < 1.6 / np.sqrt(n)
    return bool((values % 10 == 0).mean() < 0.25 and is_even)


def _are_apart(different: Floats, counts: Array) -> bool:
    """True for values of which far too many, or too few, stand twice by chance.

    Rounded values, which lack some of the last digits, are none of these.
    """
    steps = np.diff(different)
    unit = np.gcd.reduce(steps.astype(np.int64))
    n_neighbours = int((steps == unit).sum())
    n_twice = int((counts > 1).sum())
    least, most = _PAIRED
    if n_neighbours >= 20 and n_twice < least * n_neighbours:
        return True
    digits = np.bincount((different // unit % 10).astype(np.int64), minlength=10)
    even = len(different) / 10
    are_round = ((digits - even) ** 2 / even).sum() > _CHI_SQUARE
    # Of a converted number the steps are alike.
    others, often = np.unique(steps[steps != unit], return_counts=True)
    is_lattice = len(others) > 0 and often.max() > len(steps) / 3
    return (
        not (are_round or is_lattice)
        and n_twice >= max(15, len(different) / 10)
        and n_twice > most * n_neighbours + 3.5 * np.sqrt(n_neighbours)
    )


def _label_persons(places: Array, counts: Array, labels: Array) -> bool:
    """True where rows of one value have the same label, and those of the next another.

    Labels that follow from a measurement are alike at its neighbours, too.
    """
    codes = np.unique(labels.astype(str), return_inverse=True)[1]
    order = np.argsort(places, kind="stable")
    at = places[order]
    is_alike = np.diff(codes[order]) == 0
    is_within = np.diff(at) == 0
    n_within = int(is_within.sum())
    n_between = int((~is_within).sum())
    if (counts > 1).sum() < 15 or n_between < 15:
        return False
    within = is_alike[is_within].mean()
    between = is_alike[~is_within].mean()
    error = np.sqrt(between * (1 - between) * (1 / n_within + 1 / n_between))
    chance = ((np.bincount(codes) / len(codes)) ** 2).sum()
    are_unlike = chance / 2 < between < within - max(3.5 * error, 0.2)
    return bool(within > 0.95 and are_unlike)


_TITLE = re.compile(
    r"^(?:(?i:dr|prof|mr|mrs|ms|miss|frau|herr|hr|fr|dott|ssa|dra|sig|sigra|mme|mlle|"
    r"pd|sra|sr|don|doctor|doktor|professor|sister|nurse|schwester|pfleger)\b\.?[ -]*)"
    r"(?:(?i:dr|prof|med|mag|ing|pd)\b\.?[ -]*)*(?=[^\W\d_a-z])"
    r"|,? (?:MD|M\.D\.|PhD|RN|FMH|MBBS)$"
)
_NAME = r"(?:[^\W\d_a-z][^\W\d_A-Z]*(?:[\x27\u2019-][^\W\d_][^\W\d_]*)*)"
_PARTICLE = "(?:(?:van|von|der|den|de|del|della|di|da|la|le|al|el|bin|zu|y|e) )*"
_WORD = re.compile(f"{_PARTICLE}{_NAME}")
_WHOLE = re.compile(
    f"{_PARTICLE}{_NAME}(?:,? (?:{_PARTICLE}{_NAME}|[A-Z]\\.?)){{1,3}}"
    f"|(?:[A-Z]\\. ?)+{_PARTICLE}{_NAME}"
)
_INITIALS = re.compile(
    f"(?:[A-Z]\\. ?)+{_PARTICLE}{_NAME}|{_PARTICLE}{_NAME},? (?:[A-Z]\\. ?)+"
)

_COMMON_TEXT = (
    "aaron abdul adam adrian ahmed aisha alan albert alberto alejandro alessandro "
    "alexander alexandra ali alice alicia amanda amelie amina amy ana anders "
    "andrea andreas andrew andrzej angela anita ann anna anne antoine antonio "
    "arthur astrid barbara beat beatrice ben benjamin bernard bernd birgit björn "
    "bob brian bruno camille carla carlo carlos carmen carol caroline catherine "
    "cecilia chang charles charlotte chen chiara chloé christian christina "
    "christine christoph claire clara claudia claudio craig cristina daniel "
    "daniela dario david deborah denis denise diana diego dieter dmitri dominik "
    "donald dorothy edward elena elias elif elisabeth elizabeth ella ellen emil "
    "emily emma eric erica erik esther eva evelyn fabio fatima felix fernando "
    "florian francesca francesco francisco francois frank franz frédéric gabriel "
    "gabriela george gerhard giorgio giovanni giulia giuseppe greta guido hans "
    "hannah hassan heidi heinz helen helena helga henri henry hiroshi hugo ibrahim "
    "ida igor ingrid irene irina isabel isabelle ivan jack jacques jakob "
    "james jan jane janet javier jean jennifer jessica joan joanna joao johan "
    "johann johannes john jonas jorge jose josef joseph juan judith julia julie "
    "jürgen karen karin karl katarina katharina katherine kathrin katja kenji "
    "kevin khalid klaus kurt lars laura lea lena leo leon leonie li liam linda "
    "lisa lorenzo louis louise luc luca lucas lucia luis luisa luise lukas "
    "magdalena manuel manuela marc marco margaret maria mariam marie marina mario "
    "marion mark markus marta martha martin martina mary matteo matthew matthias "
    "max maya mehmet mia michael michel michele miguel mohamed mohammed monica "
    "monika monique nadia nancy natalia nathalie nicholas nico nicolas nicole "
    "nikolai nina noah nora olga oliver olivia omar oscar pablo paola paolo "
    "patricia patrick paul paula pauline pedro peter petra philipp philippe pierre "
    "pietro piotr priya rachel rafael ralf raul rebecca regina renate ricardo "
    "richard rita robert roberto roger roland roman rosa ruth samuel sandra sara "
    "sarah sergio silvia simon simone sofia sonia sophia sophie stefan stefano "
    "stephanie stephen steven susan susanne svetlana sven tanja teresa theo thomas "
    "tim tina tobias tom tomas ulrich urs ursula valentina vera verena victor "
    "victoria vincent walter wei werner wilhelm william wolfgang yan yuki yusuf "
    "yves zoe müller mueller schmidt schneider fischer weber meyer wagner becker "
    "schulz hoffmann schröder neumann zimmermann krüger hofmann hartmann schmitt "
    "werner krause meier lehmann schmid schulze maier köhler herrmann walter mayer "
    "huber peters scholz möller schubert friedrich keller günther frank berger "
    "winkler roth beck lorenz baumann franke albrecht simon ludwig böhm kraus "
    "martin krämer vogt otto seidel heinrich brandt haas graf schulte dietrich "
    "ziegler kuhn kühn pohl bergmann brunner moser frei gerber wyss lüthi zürcher "
    "steiner bianchi rossi ferrari russo esposito romano colombo ricci marino "
    "greco bruno gallo conti de luca costa giordano smith johnson williams jones "
    "garcia miller davis rodriguez martinez hernandez lopez gonzalez anderson "
    "thomas taylor moore jackson lee perez thompson harris sanchez clark ramirez "
    "lewis robinson walker allen wright scott torres nguyen hill flores adams "
    "nelson baker hall rivera campbell mitchell carter roberts gomez phillips "
    "evans turner diaz parker cruz edwards collins reyes stewart morris morales "
    "murphy cook rogers gutierrez ortiz morgan cooper peterson bailey reed kelly "
    "howard ramos kim cox ward richardson watson brooks chavez wood bennett "
    "mendoza ruiz hughes price alvarez castillo sanders patel myers ross dubois "
    "durand leroy moreau laurent lefebvre michel bertrand roux fournier girard "
    "bonnet dupont lambert fontaine rousseau jansen de vries bakker visser hansen "
    "johansen olsen larsen andersen pedersen nilsen johansson andersson karlsson "
    "nilsson eriksson novak kowalski nowak wang zhang liu chen yang huang zhao wu "
    "zhou singh kumar sharma khan yilmaz kaya demir silva santos oliveira souza "
    "ferreira pereira almeida carvalho tanaka suzuki sato ito watanabe"
)
_COMMON = frozenset(_COMMON_TEXT.split())
"""Common first names and surnames, in small letters."""


_PLACES_TEXT = (
    "Alabama Alaska Albania Algeria Argentina Arizona Arkansas Australia Austria "
    "Belgium Bolivia Brazil Bulgaria California Canada Chile China Colombia Colorado "
    "Connecticut Croatia Cuba Delaware Denmark Ecuador Egypt England Ethiopia Finland "
    "Florida France Germany Ghana Greece Guatemala Hawaii Honduras Hungary Iceland Idaho "
    "Illinois India Indiana Indonesia Iowa Iran Iraq Ireland Israel Italy Jamaica Japan "
    "Kansas Kentucky Kenya Korea Louisiana Maine Malaysia Maryland Massachusetts Mexico "
    "Michigan Minnesota Mississippi Missouri Montana Morocco Nebraska Netherlands Nevada "
    "Nigeria Norway Ohio Oklahoma Oregon Pakistan Pennsylvania Peru Philippines Poland "
    "Portugal Romania Russia Scotland Serbia Singapore Slovakia Slovenia Spain Sweden "
    "Switzerland Taiwan Tennessee Texas Thailand Tunisia Turkey Ukraine Utah Vermont "
    "Vietnam Washington Wisconsin Wyoming Amsterdam Athens Barcelona Basel Berlin Bern "
    "Boston Brussels Budapest Chicago Cologne Copenhagen Dallas Delhi Denver Dublin "
    "Geneva Hamburg Helsinki Houston Istanbul Köln Lisbon London Madrid Manchester Milan "
    "Moscow München Munich Naples Oslo Paris Philadelphia Prague Rome Seattle Seoul "
    "Saint San Santa Los Shanghai Stockholm Sydney Tokyo Toronto Vienna Warsaw Wien Zurich Zürich"
)
_PLACES = frozenset(_PLACES_TEXT.split())
"""Countries, states and cities, which are as many words with capitals."""


def _capitalised(text: str) -> str:
    """A text with capitals as names have them, where it has none or these alone."""
    if text.isupper() or (text.islower() and re.search("[ ._]", text)):
        return re.sub("[._]+", " ", text).title()
    return text


def are_names(levels: Mapping[str | None, int]) -> bool:
    """True for texts, with their rows, most of which look like names of persons.

    They have titles or initials, are common names, or are many words with capitals and
    about as many rows each.
    """
    texts = _some(levels)
    n = len(texts)
    # Notes have names among other words.
    n_notes = sum(len(text) > 60 or bool(re.search(r"\d", text)) for text in texts)
    if n < 2 or n_notes > n / 4:
        return False
    bare = [_TITLE.sub("", _capitalised(text)) for text in texts]
    if sum("@" in text or bool(_TITLE.search(text)) for text in texts) > 0.7 * n:
        return True
    words = Counter(word for text in bare for word in {*re.split(r"\W+", text)})
    if max(words.values()) > max(2, n / 2) or len(_PLACES & {*words}) > n / 8:
        return False
    whole = [text for text in bare if _WHOLE.fullmatch(text)]
    known = [text for text in bare if _COMMON & {*re.split(r"[\W_]+", text.lower())}]
    are_words = sum(map(bool, map(_WORD.fullmatch, bare))) + len(whole) > 0.8 * n
    n_initials = sum(map(bool, map(_INITIALS.fullmatch, texts)))
    if n_initials > n / 2:
        return True
    if not are_words:
        return False
    most = max(levels.values())
    is_even = most < 4 * sum(levels.values()) / len(levels)
    if len(known) > n / 4 and (n > 4 or min(len(known), len(whole)) > n / 2):
        return True
    return n >= 40 and is_even and len({text[:1] for text in bare}) > 8
