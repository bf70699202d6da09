"""The winner of a study beside simple models, from the study folder or computed and kept there."""

from pathlib import Path

from nas_evidence.best import Standings
from nas_evidence.codec import load_study
from nas_evidence.judgement import Judgement, read_judgement, write_judgement
from nas_evidence.store import read_tables, rows_of


def kept_judgement(folder: Path, data_root: Path | None = None) -> Judgement | None:
    """Return the winner of a study beside its yardsticks; torch is needed only if it is new.

    Raises:
        ValueError: if the data are missing or do not fit.
    """
    study, stored = load_study(folder / "study.toml"), read_judgement(folder)
    tables, _ = read_tables(folder, ["trials", "evidence"])
    best = Standings(study.objective, rows_of(tables["trials"], tables["evidence"])).best
    if best is None or (stored is not None and stored.trial_id == best.trial_id):
        return stored
    from nas_evidence.data import load
    from nas_evidence.exporting.judging import judge

    root = None if data_root is None else str(data_root)
    arrays = load(study.dataset, seed=study.seed, data_root=root, base=folder.resolve())
    found = judge(folder, arrays)
    if found is not None:
        write_judgement(folder, found)
    return found
