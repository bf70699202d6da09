"""Is the first screen true? Default searches without a test split, checked on rows held out.

    python benchmarks/first_screen.py [--trials 6] [--finalists 2] [--sets NAME ...] [--draw 0]
                                      [--home DIR] [--to FILE]

A search sees the training rows alone, so its first screen speaks by the halves of `two_fold`. The
rows held out then say whether its sentences hold. Simple models are fitted on all training rows,
networks predict with their stored weights; e is the standard error of a difference over the rows.

    worth    yes: the winner's log loss is lower there; no: that of the simple model it names is;
             not clearly: the difference is what was said, within 2 e of both together
    sure     with 90 % or more: no other that was tried is ahead by more than 2 e. Less is no
             prediction of a single case; stated beside it is whether the winner is first there
    cost     the winner is behind the best of all tried by no more than said, within 2 e
    measured accuracy by the halves: no more than there, within 2 e of both (a half trains on less)
    unknown  RMSE is said to be unknown without a test split, and is in no stored file
    load     the three lines run, and predict as many rows as given
    settled  the counts are those of the stored trials

With 6 trials there is no race by default; `--finalists` asks for one. `--draw` chooses other rows
to train on, of generated sets other rows altogether. Sets already in the file are run again,
others stay. With `--home` a study that is there is read, not run again.
"""

import argparse
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from _common import RESULTS, hardware, read_json, show, versions, write_json
from _sets import raw, split
from sklearn.datasets import make_classification, make_moons

import nas_evidence
from nas_evidence.baselines.comparison import read_comparison
from nas_evidence.baselines.models import predict_test
from nas_evidence.data.arrays import ArrayData
from nas_evidence.reporting.certainty import certainty_of
from nas_evidence.reporting.contents import report_on
from nas_evidence.reporting.headline import rival_of
from nas_evidence.reporting.study_tables import load_study_tables

#: Training rows of each set; all others are held out.
SETS = {"correlated": 480, "imbalanced": 120, "moons": 300, "diabetes": 300, "digits": 1297}


def drawn(name: str, draw: int) -> ArrayData:
    """Return a draw of a set with its one split; the held-out rows stand as its test rows."""
    if name == "correlated":  # most features are mixtures of others, 5 % of labels are wrong
        options = {"n_informative": 6, "n_redundant": 10, "flip_y": 0.05}
        x, y = make_classification(5480, 20, **options, random_state=draw)
    elif name == "imbalanced":
        x, y = make_classification(5120, 10, weights=[0.9], class_sep=1.5, random_state=draw)
    elif name == "moons":
        x, y = make_moons(5300, noise=0.25, random_state=draw)
    else:
        x, y = raw(name, Path())
    labels = np.issubdtype(y.dtype, np.integer)
    x, y = x.astype(np.float32), y.astype(np.int64) if labels else y
    order = np.random.default_rng(1 + draw).permutation(len(y))
    return split(name, x, y, order[: SETS[name]], order[SETS[name] :])


def paired_difference(losses: np.ndarray, others: np.ndarray) -> tuple[float, float]:
    """Return mean and standard error of `losses` - `others` [n] over the same data."""
    gap = losses - others
    return float(gap.mean()), float(gap.std(ddof=1) / np.sqrt(len(gap)))


def own_losses(study: Any, arrays: ArrayData, trial_id: int) -> np.ndarray:
    """Return the log loss of each held-out row by a trial, nats; real targets are standardised."""
    said = study.predict(arrays.x_test, method="map", trial_id=trial_id)
    return np.asarray(said.losses(arrays.y_test))


Statement = dict[str, Any]


def statements(study: Any, arrays: ArrayData) -> list[Statement]:
    """Return what else the first screen says, what is found, and whether it holds."""
    judged, tables = read_comparison(study.folder), load_study_tables(study.folder)
    metric = "accuracy" if arrays.task == "labels" else "rmse"
    screen = report_on(tables, judged, place=study.folder, metric=metric).headline
    ranked = [one for one in tables.ranking if one.rank is not None]
    by_row = [own_losses(study, arrays, one.trial_id) for one in ranked]
    best = int(np.argmin([own.mean() for own in by_row]))
    behind, error = paired_difference(by_row[0], by_row[best]) if best else (0.0, 0.0)
    found, sure = list[Statement](), certainty_of(tables)
    if sure is not None and sure.best is not None:
        holds = sure.best[0] < 0.9 or behind <= 2 * error
        text = f"rank {best + 1} of {len(ranked)} is the best, by {behind:.3f} ± {error:.3f}"
        found.append(
            {"about": "sure", "said": screen.sure, "claim": sure.best[0], "found": text}
            | {"first_there": best == 0, "holds": bool(holds)}
        )
        assert sure.expected_loss is not None
        found.append(
            {"about": "cost", "said": screen.cost, "found": f"{behind:.3f} ± {error:.3f}"}
            | {"holds": bool(behind <= sure.expected_loss + 2 * error)}
        )
    said = study.predict(arrays.x_test, method="map")
    if metric == "accuracy":
        there = float((said.probabilities.argmax(1) == arrays.y_test).mean())
        words = screen.measured.partition("accuracy: ")[2].split()
        here, own = float(words[0]), float(words[2].rstrip(";."))
        noise = np.hypot(own, np.sqrt(there * (1 - there) / len(arrays.y_test)))
        found.append(
            {"about": "measured", "said": screen.measured, "found": f"{there:.3f} ± {noise:.3f}"}
            | {"holds": bool(here <= there + 2 * noise)}
        )
    else:
        assert judged is not None
        unknown = metric not in judged.metrics and "not known" in screen.measured
        found.append(
            {"about": "unknown", "said": screen.measured, "found": "stored: "
             + ", ".join(judged.metrics), "holds": unknown}
        )  # fmt: skip
    spoken: dict[str, Any] = {"X": arrays.x_test}
    exec("\n".join((*screen.load[:-1], "said = " + screen.load[-1])), spoken)
    n = len(spoken["said"].mean if arrays.task == "real" else spoken["said"].probabilities)
    found.append(
        {"about": "load", "said": screen.load[-1], "found": f"{n} predictions"}
        | {"holds": n == len(arrays.x_test)}
    )
    trials = tables.complete
    at_mode = int(trials["converged"].fillna(False).astype(bool).sum())
    counts = screen.settled.startswith(f"{at_mode} of {len(trials)} networks settled")
    found.append(
        {"about": "settled", "said": screen.settled}
        | {"found": f"{at_mode} at a mode", "holds": counts}
    )
    return found


def checked(
    name: str, n_trials: int, finalists: int, *, draw: int, home: Path | None
) -> dict[str, Any]:
    """Run the search of a set, unless it is in `home` already, and check its first screen."""
    arrays = drawn(name, draw)
    with tempfile.TemporaryDirectory() as passing:
        folder = (home or Path(passing)) / name
        if folder.exists():
            study = nas_evidence.load(folder)
        else:
            study = nas_evidence.search(
                arrays.x_train, arrays.y_train, n_trials=n_trials, out=folder,
                settings={"finalists": finalists, "race.trials": 2 * finalists},
                task="regression" if arrays.task == "real" else "classification", progress=False,
            )  # fmt: skip
        study.report()
        judged = read_comparison(study.folder)
        assert judged is not None
        tables = load_study_tables(study.folder)
        screen = report_on(tables, judged).headline
        first, second = tables.ranking[:2]
        ours = own_losses(study, arrays, first.trial_id)
        other = own_losses(study, arrays, second.trial_id)
        others = statements(study, arrays)
    simple = {key: found.losses(arrays.y_test) for key, found in predict_test(arrays)}
    rival = rival_of(judged)
    assert rival is not None
    named, (low, high) = rival.model, rival.interval
    behind, error = paired_difference(simple[named.name], ours)
    verdict = next(w for w in ("Yes", "No clear gain", "No:") if screen.worth.startswith(w))
    said_error = (high - low) / (2 * 1.96)
    as_said = abs(behind - named.behind) <= 2 * np.hypot(error, said_error)
    holds = {"Yes": behind > 0, "No:": behind < 0, "No clear gain": as_said}[verdict]
    lead, lead_error = paired_difference(other, ours)
    return {
        "set": name,
        "n_train": arrays.n_train,
        "n_held_out": len(arrays.x_test),
        "winner": first.architecture,
        "two_fold": first.objective,
        "log_loss": float(ours.mean()),
        "simple": {key: float(found.mean()) for key, found in simple.items()},
        "said": screen.worth,
        "verdict": verdict,
        "named": named.name,
        "behind_said": named.behind,
        "behind_said_error": said_error,
        "behind": behind,
        "behind_error": error,
        "holds": bool(holds),
        "statements": others,
        "second_behind": lead,
        "second_behind_error": lead_error,
    }


def main() -> None:
    """Check, print and store the rows."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--trials", type=int, default=6)
    parser.add_argument("--finalists", type=int, default=2)
    parser.add_argument("--sets", nargs="*", default=list(SETS))
    parser.add_argument("--draw", type=int, default=0)
    parser.add_argument("--home", type=Path, help="keeps the studies")
    parser.add_argument("--to", type=Path, default=RESULTS / "first_screen_cpu.json")
    given = parser.parse_args()
    result: dict[str, Any] = {
        "hardware": hardware("one thread, shared"),
        "versions": versions("torch", "scikit-learn", "numpy"),
        "n_trials": given.trials,
        "finalists": given.finalists,
        "draw": given.draw,
        "rows": [],
    }
    before = read_json(given.to, {"finalists": None, "draw": None})
    if (before["finalists"], before["draw"]) == (given.finalists, given.draw):
        result["rows"] = [row for row in before["rows"] if row["set"] not in given.sets]
    for name in given.sets:
        row = checked(name, given.trials, given.finalists, draw=given.draw, home=given.home)
        result["rows"].append(show(row))
        write_json(given.to, result)


if __name__ == "__main__":
    main()
