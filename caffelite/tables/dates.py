"""Dates of a frame's column as numbers: the year, the month, the weekday, … and the seconds since the first date."""

from __future__ import annotations

import datetime
import re
import zoneinfo
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from caffelite._support.extras import pip_command
from caffelite.data.frames import find_library, is_instance, is_missing

SECOND = np.timedelta64(1, "s")
QUARTER = 900  # seconds: a time zone changes its offset at a multiple of 15 minutes
FIXED_OFFSET = re.compile(r"UTC[+-]\d\d:\d\d")  # a zone without a name
MAX_YEAR = 290_000  # of microseconds in int64
MIN_SECONDS, MAX_SECONDS = -62_135_510_400, 253_402_214_400  # since 1970: the second of January 1 … December 31, 9999
PARTS = ("year", "month", "day of the year", "weekday", "hour", "seconds")
CYCLES = {"month": 12.0, "day of the year": 365.25, "weekday": 7.0, "hour": 24.0}


class Dates(NamedTuple):
    """A column of dates: microseconds in UTC, or on the wall clock if the dates have no time zone. NaT is missing."""

    stamps: np.ndarray  # (n,) datetime64[us]
    zone: str | None


def is_date_column(column: Any) -> bool:
    """Return whether a column holds dates, with or without times of the day. Some may be missing."""
    if library := find_library(column):
        return column.dtype in (library.Date, library.Datetime)
    if not hasattr(column, "dtype"):
        return False
    if column.dtype != object:
        return column.dtype.kind == "M"
    first = next((x for x in column if not is_missing(x)), None)
    return isinstance(first, datetime.date)


def to_dates(column: Any, what: Any) -> Dates:
    """Return the dates of a column. TypeError, beginning with `what`, if some have a time zone and others have none."""
    if find_library(column):
        zone = getattr(column.dtype, "time_zone", None)
        zone = f"UTC{zone}" if zone and zone[0] in "+-" else zone
        return Dates(_to_microseconds(column.to_numpy(), what), zone)  # in UTC
    if str(column.dtype).startswith(("date32", "date64")):
        return _from_objects(column.tolist(), what)
    if is_instance(column, "pandas", "Series") and column.dtype != object:
        zone = column.dt.tz
        if zone is not None:
            column = column.dt.tz_convert("UTC").dt.tz_localize(None)
        return Dates(_to_microseconds(column.to_numpy(), what), None if zone is None else zone_name(zone, what))
    if column.dtype != object:
        return Dates(_to_microseconds(column, what), None)
    return _from_objects(list(column), what)


def _to_microseconds(stamps: np.ndarray, what: Any) -> np.ndarray:
    """Return datetime64 in microseconds. ValueError for a year out of its range."""
    years = stamps.astype("datetime64[Y]").astype(np.int64) + 1970
    bad = ~np.isnat(stamps) & (np.abs(years) > MAX_YEAR)
    if bad.any():
        row = int(bad.argmax())
        raise ValueError(f"{what} has a date in the year {years[row]} in row {row}; expected years up to {MAX_YEAR}")
    return stamps.astype("datetime64[us]")


def _from_objects(values: list[Any], what: Any) -> Dates:
    stamps, zones = np.full(len(values), "NaT", "datetime64[us]"), set()
    for i, x in enumerate(values):
        if is_missing(x):
            continue
        if not isinstance(x, datetime.date):
            raise TypeError(f"{what} has {x!r} in row {i}; expected a date")
        zone = getattr(x, "tzinfo", None)
        zones.add(None if zone is None else zone_name(zone, what))
        if isinstance(x, datetime.datetime) and (offset := x.utcoffset()) is not None:
            stamps[i] = np.datetime64(x.replace(tzinfo=None)) - np.timedelta64(offset)
        else:
            stamps[i] = x
    if None in zones and len(zones) > 1:
        raise TypeError(f"{what} has dates with a time zone and dates without one")
    return Dates(stamps, min(zones, default=None, key=str))


# ---- time zones -----------------------------------------------------------------------------------------------------


def zone_name(zone: datetime.tzinfo, what: Any) -> str:
    """Return the name of a time zone, "Europe/Berlin", or its offset, "UTC+02:00"."""
    name = getattr(zone, "key", None) or getattr(zone, "zone", None)
    if name:
        return str(name)
    offset = zone.utcoffset(None)
    if offset is None:
        raise TypeError(f"{what} has the time zone {zone!r}, which has no name")
    whole_minutes = datetime.timedelta(minutes=round(offset.total_seconds() / 60))
    return str(datetime.timezone(whole_minutes))


def find_zone(name: str) -> datetime.tzinfo:
    """Return the time zone of a `zone_name`. ValueError if this machine does not know it."""
    if name == "UTC":
        return datetime.timezone.utc
    if FIXED_OFFSET.fullmatch(name):
        return datetime.datetime.strptime(name, "UTC%z").tzinfo  # type: ignore[return-value]
    try:
        return zoneinfo.ZoneInfo(name)
    except (zoneinfo.ZoneInfoNotFoundError, ValueError, OSError):
        raise ValueError(
            f"this machine does not know the time zone {name!r}; `{pip_command('tzdata')}` may help"
        ) from None


def to_local_time(stamps: np.ndarray, zone: str | None) -> np.ndarray:
    """Return the local times of a zone at these moments of UTC; the same times for None."""
    if zone is None or len(stamps) == 0:
        return stamps
    timezone, offsets_by_quarter = find_zone(zone), {}
    seconds = stamps.astype("datetime64[s]")
    quarters = np.where(np.isnat(stamps), 0, seconds.astype(np.int64) // QUARTER)
    distinct, positions = np.unique(quarters, return_inverse=True)
    epoch = datetime.datetime(1970, 1, 1, tzinfo=datetime.timezone.utc)
    for quarter in distinct.tolist():
        # Python's dates end with the years 1 and 9999; a date outside has the offset of the nearest one inside.
        seconds_since_epoch = min(max(quarter * QUARTER, MIN_SECONDS), MAX_SECONDS)
        moment = (epoch + datetime.timedelta(seconds=seconds_since_epoch)).astimezone(timezone)
        offsets_by_quarter[quarter] = round(moment.utcoffset().total_seconds())  # type: ignore[union-attr]
    offsets = np.array([offsets_by_quarter[quarter] for quarter in distinct.tolist()], np.int64)
    return stamps + offsets[positions].astype("timedelta64[s]")


# ---- numbers --------------------------------------------------------------------------------------------------------


def varying_parts(wall: np.ndarray) -> tuple[str, ...]:
    """Return the parts in which these dates on the wall clock differ, and always "seconds"."""
    present = wall[~np.isnat(wall)]
    return tuple(
        [part for part in PARTS[:-1] if len(present) and (x := get_part(present, part)).min() < x.max()] + ["seconds"]
    )


def get_part(wall: np.ndarray, part: str) -> np.ndarray:
    """Return a part of dates on the wall clock, counted from 0, except for the year. Hours have fractions."""
    days = wall.astype("datetime64[D]")
    if part == "year":
        return wall.astype("datetime64[Y]").astype(np.int64) + 1970
    if part == "month":
        return wall.astype("datetime64[M]").astype(np.int64) % 12
    if part == "day of the year":
        return (days - wall.astype("datetime64[Y]").astype("datetime64[D]")).astype(np.int64)
    if part == "weekday":
        return (days.astype(np.int64) + 3) % 7  # the first of January 1970 was a Thursday
    return (wall - days) / SECOND / 3600


def feature_names(parts: Sequence[str]) -> list[str]:
    """Return the names of the numbers that `features` makes."""
    return [name for part in parts for name in ([f"{part}, sine", f"{part}, cosine"] if part in CYCLES else [part])]


def features(dates: Dates, zone: str | None, parts: Sequence[str], first: float) -> np.ndarray:
    """Return the parts of dates, as local times of a zone, as numbers (n, features) float64. NaN is missing.

    A cyclic part, such as the weekday, becomes a sine and a cosine. "seconds" are those since `first`, which is in
    seconds since 1970.
    """
    numbers = np.full((len(dates.stamps), len(feature_names(parts))), np.nan)
    present = ~np.isnat(dates.stamps)
    wall = to_local_time(dates.stamps[present], zone)
    columns: list[np.ndarray] = []
    for part in parts:
        if part == "seconds":
            columns.append(to_seconds(dates.stamps[present]) - first)
        elif part in CYCLES:
            angle = 2 * np.pi / CYCLES[part] * get_part(wall, part)
            columns += [np.sin(angle), np.cos(angle)]
        else:
            columns.append(get_part(wall, part))
    numbers[present] = np.stack(columns, axis=1)
    return numbers


def to_seconds(stamps: np.ndarray) -> np.ndarray:
    """Return dates as seconds since 1970, float64."""
    return stamps.astype(np.int64) / 1e6
