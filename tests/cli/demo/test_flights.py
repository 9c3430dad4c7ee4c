"""The data set as the demo plays it: complete, in order, with the figures everybody gets."""

from __future__ import annotations

import json
import zipfile
from typing import TYPE_CHECKING

import pytest

from headrace.cli.demo.replay import FlightYear, load_year

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture(scope="module")
def year() -> FlightYear:
    return load_year()


def test_the_year_is_complete(year: FlightYear) -> None:
    assert year.flights == 336_776
    assert len(year.days) == 366  # New York's last evening is already January in UTC
    assert [day.date for day in year.days] == sorted(day.date for day in year.days)


def test_the_figures_of_the_data_set(year: FlightYear) -> None:
    figures = {name: (d.flights, d.departed, round(d.mean_delay, 3)) for name, d in year.by_origin.items()}
    assert figures == {
        "EWR": (120_835, 117_596, 15.108),
        "JFK": (111_279, 109_416, 12.112),
        "LGA": (104_662, 101_509, 10.347),
    }
    assert len(year.by_carrier) == 16
    assert sum(d.departed for d in year.by_carrier.values()) == sum(d.departed for d in year.by_origin.values())
    assert max(year.days, key=lambda day: day.delay_minutes / len(day.values)).date == "2013-03-08"


def test_a_record(year: FlightYear) -> None:
    first = json.loads(year.days[0].values[0])
    assert (first["origin"], first["carrier"], first["dep_delay"]) == ("EWR", "UA", 2)
    assert first["time_hour"] == "2013-01-01T10:00:00Z"
    hours = [json.loads(value)["time_hour"] for value in year.days[200].values]
    assert hours == sorted(hours)


def test_missing_values_are_null(tmp_path: Path) -> None:
    header = "year,month,day,dep_delay,carrier,flight,tailnum,origin,dest,time_hour"
    rows = ["2013,1,1,NA,UA,1,NA,JFK,LAX,2013-01-01T10:00:00Z", "2013,1,1,-3,UA,2,N1,JFK,LAX,2013-01-01T09:00:00Z"]
    with zipfile.ZipFile(tmp_path / "flights.csv.zip", "w") as archive:
        archive.writestr("flights.csv", "\n".join([header, *rows]) + "\n")
    year = load_year(tmp_path / "flights.csv.zip")
    early, late = (json.loads(value) for value in year.days[0].values)
    assert (early["dep_delay"], early["tailnum"]) == (-3, "N1")
    assert (late["dep_delay"], late["tailnum"]) == (None, None)
    assert year.by_origin["JFK"].departed == 1
    assert year.by_origin["JFK"].mean_delay == -3
