"""How words write numbers and dates: `$1,234.50`, `12 %`, `31/1/2020`. A column is read so if all its words fit."""

from __future__ import annotations

import datetime
import re
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, NamedTuple

import numpy as np

MISSING_WORDS = frozenset({"", "?", "na", "n/a", "#n/a", "<na>", "nan", "null"})  # in lower case
MISSING_NUMBERS = MISSING_WORDS | {"none"}  # which may be a word like others
MANY_WORDS = 20  # of a column: fewer may be categories, such as 1, 2 and 3+
DATE_PARTS = ("year", "month", "day", "hour", "minute", "second")
SECOND, ZONE = r"(?::(?P<second>\d\d)(?P<fraction>\.\d+)?)?", r"(?:\s?(?P<zone>Z|[+-]\d\d:?\d\d))?"
TIME = rf"(?:[T ](?P<hour>\d{{1,2}}):(?P<minute>\d\d){SECOND}{ZONE})?"
YEAR_FIRST = re.compile(rf"(?P<year>\d{{4}})([-/.])(?P<month>\d{{1,2}})\2(?P<day>\d{{1,2}}){TIME}")
POINTS = re.compile(rf"(?P<day>\d{{1,2}})\.(?P<month>\d{{1,2}})\.(?P<year>\d{{4}}){TIME}")
DAY_FIRST = re.compile(rf"(?P<day>\d{{1,2}})([-/])(?P<month>\d{{1,2}})\2(?P<year>\d{{4}}){TIME}")
MONTH_FIRST = re.compile(rf"(?P<month>\d{{1,2}})([-/])(?P<day>\d{{1,2}})\2(?P<year>\d{{4}}){TIME}")
AMBIGUOUS = re.compile(r"\d{1,2}([-/])\d{1,2}\1(\d\d|\d{4})(\D.*)?")
SPACE, SIGN, UNITS = "[ \u00a0\u2009\u202f]", "[-+\u2212]?", "$€£¥₹%"


def _number_pattern(decimal: str, comma: str) -> re.Pattern:
    """Return the pattern of numbers with this decimal sign. The other sign, a blank or ' may part the thousands."""
    whole = rf"[1-9]\d{{0,2}}(?P<comma>[{comma}'\u2019]|{SPACE})\d{{3}}(?:(?P=comma)\d{{3}})*|\d*"
    number = rf"(?P<whole>{whole})(?:[{decimal}](?P<fraction>\d*))?(?P<exponent>(?:e[-+]?\d+)?)"
    before = rf"(?P<sign>{SIGN})(?P<unit>[{UNITS[:-1]}]?){SPACE}?(?P<inner>{SIGN})"
    return re.compile(rf"{before}{number}{SPACE}?(?P<last>[{UNITS}]?)", re.IGNORECASE)


DATES = {"year": (YEAR_FIRST, POINTS)} | {
    name: (YEAR_FIRST, POINTS, pattern) for name, pattern in (("day", DAY_FIRST), ("month", MONTH_FIRST))
}
DECIMALS = {".": _number_pattern(".", ","), ",": _number_pattern(",", ".")}
NUMBERS = {"bool": None} | {unit + sign: pattern for unit in ("", *UNITS) for sign, pattern in DECIMALS.items()}


class Reading(NamedTuple):
    """Words as numbers or dates, (words + 1,): the last one is missing.

    The notation of dates is the part that comes first. That of numbers is "bool", or their unit and decimal sign: "$.".
    """

    values: np.ndarray
    notation: str

    def describe(self) -> str:
        """Return how the words were read, for a report: "; in €, with a decimal comma"."""
        if self.notation in ("bool", *DATES):
            return {"bool": "; true is 1", "year": ""}.get(self.notation, f"; the {self.notation} is first")
        unit = f" in {self.notation[0]}," if self.notation[:-1] else ""
        return f";{unit} with a decimal {'comma' if self.notation[-1] == ',' else 'point'}"


def find_readings(words: Sequence[str], notations: Sequence[str] = (*DATES, *NUMBERS)) -> list[Reading]:
    """Return the different readings of words. There are two if no word tells what 1,234 or 1/2/2020 means."""
    readings: list[Reading] = []
    for notation in notations:
        with suppress(ValueError):
            readings.append(Reading(_parse_words(words, notation), notation))
            if notation in ("year", "bool"):
                break
    if len(readings) < 2 or readings[0].notation in DATES:
        return readings
    is_same = np.array_equal(readings[0].values, readings[1].values, equal_nan=True)
    return readings[:1] if is_same or "," not in "".join(words) else readings  # a point alone is decimal, as elsewhere


def read_words(words: Sequence[str]) -> Reading | None:
    """Return the reading of words; None if there is none or several. Words that are all plain, such as 01, stay."""
    with suppress(ValueError):
        all(float(word) is not None for word in words if word.lower() not in MISSING_NUMBERS)
        return None
    readings = find_readings(words)
    return readings[0] if len(readings) == 1 else None


def read_as_learned(words: Sequence[str], learned: str) -> np.ndarray:
    """Return words as numbers or dates, in the notation learned in training. If none was needed, these words show it.

    Raise ValueError with a word that does not fit, "numbers" or "dates", and a reason, which may be "".
    """
    free = [x for x in NUMBERS if "%" not in x] if learned == "" else DATES  # 12% may be 12 or 0.12
    notations = tuple(free) if learned in ("", "year") else (learned,)
    kind, difference = ("dates", "time zone") if learned in DATES else ("numbers", "unit")
    readings, problem = find_readings(words, notations), ""
    if len(readings) == 1:
        return readings[0].values
    bad = next((word for word in words if not any(_is_readable(word, x) for x in notations)), None)
    if bad is None:
        problem = f": {describe_problem(words) or f'not all have the same {difference}'}"
    raise ValueError(bad or words[0], kind, problem)


def describe_problem(words: Sequence[str]) -> str:
    """Return why words that look like numbers or dates are not read as such; "" for others."""
    readings = find_readings(words)
    if words and (all(map(AMBIGUOUS.fullmatch, words)) or (len(readings) == 2 and readings[0].notation in DATES)):
        word = next(filter(AMBIGUOUS.fullmatch, words))
        return f"dates that do not say which number is the day, such as {word}: write 2020-01-31"
    if len(readings) == 2:
        i = int(np.argmax(np.abs(readings[0].values - readings[1].values) > 0))
        first, second = (f"{reading.values[i]:.12g}" for reading in readings)
        return f"no cell tells whether {words[i]} is {first} or {second}: write one of these"
    if len(words) <= MANY_WORDS:
        return ""
    sample = words[:1000]
    fits = {x: [word for word in sample if _is_readable(word, x)] for x in (*DATES, *NUMBERS)}
    notation = max(fits, key=lambda x: len(fits[x]))
    bad = next((word for word in words if not _is_readable(word, notation)), None)
    if 2 * len(fits[notation]) < len(sample) or bad is None:
        return ""
    return f"{bad!r} is not a {'date' if notation in DATES else 'number'} like {fits[notation][0]!r}"


def _is_readable(word: str, notation: str) -> bool:
    try:
        _parse(word, notation)
    except ValueError:
        return False
    return True


def _parse_words(words: Sequence[str], notation: str) -> np.ndarray:
    """Return words as float64, datetime64, or objects if dates have a time zone. The last one is missing."""
    values = [*[_parse(word, notation) for word in words], None]
    if notation in NUMBERS:
        return np.array(values, np.float64)
    zones = {x.tzinfo is None for x in values if x is not None}
    if len(zones) > 1:
        raise ValueError
    return np.array(values, object if False in zones else "datetime64[us]")


def _parse(word: str, notation: str) -> Any:
    """Return a word as a number or a date, None if it is missing. Raise ValueError for other words."""
    if word.lower() in MISSING_NUMBERS:
        return None
    if notation == "bool":
        return ("false", "true").index(word.lower())
    if notation in DATES:
        return _parse_date(word, notation)
    match = DECIMALS[notation[-1]].fullmatch(word)
    if match is None or match["unit"] + match["last"] != notation[:-1]:
        raise ValueError
    if notation in ("$,", "£,", "¥,", "₹,") and len(match["fraction"] or "") == 3:  # $1,234 does not mean $1.234
        raise ValueError
    sign, whole = (match["sign"] + match["inner"]).replace("\u2212", "-"), re.sub(r"\D", "", match["whole"])
    return float(f"{sign}{whole}.{match['fraction'] or ''}{match['exponent']}")


def _parse_date(word: str, notation: str) -> datetime.datetime:
    match = next(filter(None, [pattern.fullmatch(word) for pattern in DATES[notation]]), None)
    if match is None:
        raise ValueError
    year, month, day, hour, minute, second = [int(match[name] or 0) for name in DATE_PARTS]
    fraction, zone = f"{match['fraction'] or '.':0<7.7}", (match["zone"] or "").replace("Z", "+00:00")
    time = f"{hour:02}:{minute:02}:{second:02}{fraction}{zone and f'{zone[:3]}:{zone[-2:]}'}"
    return datetime.datetime.fromisoformat(f"{year:04}-{month:02}-{day:02}T{time}")
