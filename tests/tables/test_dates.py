"""Dates in columns: their parts, time zones, what is missing, in all libraries and in files."""

import datetime
import zoneinfo

import numpy as np
import pytest

import caffelite as cl
from caffelite.tables import dates
from tests.reference import assert_same_bits

pandas = pytest.importorskip("pandas")
polars = pytest.importorskip("polars")

BERLIN = "Europe/Berlin"
MOMENTS = pandas.date_range("2021-03-26 22:30", periods=60, freq="5h17min", tz="UTC")  # beyond the start of summer time


def libraries(stamps):
    """Return the same dates in every library."""
    series = pandas.Series(stamps, name="when")
    return {
        "pandas": pandas.DataFrame({"when": series}),
        "polars": polars.from_pandas(pandas.DataFrame({"when": series})),
        "dict of series": {"when": series},
        "objects": {"when": np.array([stamp.to_pydatetime() for stamp in series], object)},
    }


def expected_parts(moments):
    """By Python's datetime, one by one."""
    found = []
    for x in moments:
        day, hour = x.timetuple().tm_yday - 1, x.hour + x.minute / 60 + x.second / 3600
        cycles = [(x.month - 1, 12), (day, 365.25), (x.weekday(), 7), (hour, 24)]
        waves = [f(2 * np.pi * value / period) for value, period in cycles for f in (np.sin, np.cos)]
        found.append(
            [x.year, *waves, x.timestamp() if x.tzinfo else x.replace(tzinfo=datetime.timezone.utc).timestamp()]
        )
    return np.array(found)


@pytest.mark.parametrize("zone", [None, "UTC", BERLIN, "America/St_Johns"])
@pytest.mark.parametrize("library", libraries(MOMENTS))
def test_dates_become_their_parts_on_the_clocks_of_their_zone(zone, library):
    stamps = MOMENTS.tz_localize(None) if zone is None else MOMENTS.tz_convert(zone)
    long = stamps.union(stamps + pandas.Timedelta(days=400))
    columns = cl.Columns(libraries(long)[library])
    (numbers,) = columns.arrays(libraries(long)[library])
    expected = expected_parts([x.to_pydatetime() for x in long])
    expected[:, -1] -= expected[:, -1].min()
    np.testing.assert_allclose(numbers, expected, rtol=1e-9, atol=1e-9)
    assert columns.numbers[:3] == ["when, year", "when, month, sine", "when, month, cosine"]
    assert columns.numbers[-1] == "when, seconds"


@pytest.mark.parametrize("other", ["UTC", "Asia/Kolkata"])
@pytest.mark.parametrize("library", libraries(MOMENTS))
def test_the_same_moments_in_another_zone_have_the_same_features(library, other):
    learned = pandas.DataFrame({"when": MOMENTS.tz_convert(BERLIN)})
    columns = cl.Columns(learned)
    found = columns.arrays(libraries(MOMENTS.tz_convert(other))[library])[0]
    assert_same_bits(found, columns.arrays(learned)[0])


@pytest.mark.parametrize("as_array", [np.array, pandas.Series])
def test_a_zone_without_a_name_will_do(as_array):
    zone = datetime.timezone(datetime.timedelta(hours=-3, minutes=-30))
    moments = [x.to_pydatetime() for x in MOMENTS.tz_convert(zone)]
    frame = {"when": as_array(moments)}
    (numbers,) = cl.Columns(frame).arrays(frame)
    assert cl.Columns(frame).columns[0].zone == "UTC-03:30"
    np.testing.assert_allclose(numbers[:, -3], expected_parts(moments)[:, -3], rtol=1e-9)  # the hour's sine


def test_a_column_with_the_name_of_a_part_is_named():
    frame = {"when": MOMENTS, "when, seconds": np.arange(60.0)}
    with pytest.raises(ValueError, match="a part of a date has the name of a column, 'when, seconds'"):
        cl.Columns(frame)


def test_only_parts_that_vary_are_features():
    days = pandas.date_range("2021-05-03", periods=5, freq="D")
    assert cl.Columns({"d": days}).numbers == [
        *[
            "d, day of the year, sine",
            "d, day of the year, cosine",
            "d, weekday, sine",
            "d, weekday, cosine",
            "d, seconds",
        ]
    ]
    assert cl.Columns({"d": days[:1]}).numbers == ["d, seconds"]
    assert cl.Columns({"d": [datetime.date(2020, 1, 1), datetime.date(2021, 1, 1)]}).numbers == [
        *["d, year", "d, weekday, sine", "d, weekday, cosine", "d, seconds"]
    ]


@pytest.mark.parametrize("library", libraries(MOMENTS))
def test_missing_dates_are_the_mean_and_one_feature_reports_it(library):
    stamps = MOMENTS.tz_convert(BERLIN).to_series(index=range(60))
    with_gaps = stamps.where(~np.isin(np.arange(60), [0, 7]))
    if library == "objects":
        frame = {"when": np.array([None if x is pandas.NaT else x for x in with_gaps], object)}
    else:
        frame = libraries(with_gaps)[library]
    columns = cl.Columns({"n": np.arange(60.0), "when": frame["when"]})
    assert len(columns.gaps) == 1
    (numbers,) = columns.arrays({"n": np.arange(60.0), "when": frame["when"]})
    assert np.flatnonzero(np.isnan(numbers[:, 1])).tolist() == [0, 7]
    y = cl.Model([columns]).predict({"n": np.arange(60.0), "when": frame["when"]})
    assert np.isfinite(y).all()
    assert np.flatnonzero(y[:, -1]).tolist() == [0, 7]
    assert (y[[0, 7], 1:-1] == 0).all()


def test_a_column_that_is_all_missing_later_is_taken_for_missing_dates():
    columns = cl.Columns({"when": MOMENTS})
    for frame in (
        {"when": [None, None]},
        pandas.DataFrame({"when": [None, None]}),
        polars.DataFrame({"when": [None, None]}),
    ):
        assert np.isnan(columns.arrays(frame)[0]).all()
    assert (cl.Model([columns]).predict({"when": [None]}) == 0).all()


def test_dates_with_and_without_a_time_zone_are_not_mixed():
    aware, naive = MOMENTS[0].to_pydatetime(), datetime.datetime(2021, 1, 1)
    with pytest.raises(TypeError, match="column 'when' has dates with a time zone and dates without one"):
        cl.Columns({"when": np.array([aware, naive], object)})
    with pytest.raises(
        TypeError, match="column 'when' has no time zone, and had the time zone UTC in the frame that was learned"
    ):
        cl.Columns({"when": MOMENTS}).arrays({"when": np.array([naive], object)})
    with pytest.raises(TypeError, match="column 'when' has 3 in row 1; expected a date"):
        cl.Columns({"when": np.array([naive, 3], object)})


def test_a_model_of_dates_is_saved_and_copied(tmp_path):
    frame = pandas.DataFrame({"when": MOMENTS.tz_convert(BERLIN), "n": np.arange(60.0)})
    model = cl.Model([cl.Columns(frame), cl.Linear(cl.Columns(frame).features, 2)], seed=0)
    model.save(tmp_path / "m.safetensors")
    loaded = cl.load(tmp_path / "m.safetensors")
    later = frame.assign(when=frame["when"].dt.tz_convert("UTC") + pandas.Timedelta(days=1000))
    assert_same_bits(loaded.predict(later), model.predict(later))


@pytest.mark.parametrize(
    "described",
    [
        {"gaps": 1, "zone": None, "parts": ["year"], "first": 0.0},
        {"gaps": False, "zone": 3, "parts": ["year"], "first": 0.0},
        {"gaps": False, "zone": None, "parts": ["century"], "first": 0.0},
        {"gaps": False, "zone": None, "parts": [], "first": 0.0},
        {"gaps": False, "zone": None, "parts": ["year", "year"], "first": 0.0},
        {"gaps": False, "zone": None, "parts": ["year"], "first": "0"},
        {"gaps": True, "other": 1},
        {"gaps": True, "notation": "day"},
        {"gaps": True, "notation": ["."]},
        {"gaps": False, "zone": None, "parts": ["year"], "first": 0.0, "notation": "$."},
        7,
    ],
)
def test_impossible_descriptions_raise(described):
    with pytest.raises((ValueError, TypeError), match=r"Columns: expected .*column 'when'"):
        cl.Columns([("when", described)])


@pytest.mark.parametrize(("minutes", "name"), [(0, "UTC"), (120, "UTC+02:00"), (-210, "UTC-03:30")])
def test_zones_without_names_have_their_offset(minutes, name):
    zone = datetime.timezone(datetime.timedelta(minutes=minutes))
    assert dates.zone_name(zone, "x") == name
    assert dates.find_zone(name) == zone
    assert dates.zone_name(zoneinfo.ZoneInfo(BERLIN), "x") == BERLIN


def test_an_unknown_zone_is_named():
    with pytest.raises(ValueError, match="does not know the time zone 'Mars/Olympus'"):
        dates.find_zone("Mars/Olympus")
