"""What a study comes from whose architectures were found by another one, as both keep it."""

import json
from dataclasses import asdict, dataclass

from nas_evidence.plumbing.parsing import parsed_json
from nas_evidence.plumbing.user_error import UserError


@dataclass(frozen=True)
class Origin:
    """The study whose best architectures are trained again, and on which rows.

    place          the study, as its user named it
    trials         that represent the architectures there, the best first
    architectures  in words
    own_rows       whether the rows are those of that study, all of them
    data           what the rows are called
    n_rows         rows to train on
    n_tested       rows on which that study was tested
    n_before       rows that it trained on, 0 if that is not known
    n_finished     trials that it had finished
    n_trials       trials that it was asked for
    """

    place: str
    trials: tuple[int, ...]
    architectures: tuple[str, ...]
    own_rows: bool
    data: str
    n_rows: int
    n_tested: int
    n_before: int
    n_finished: int
    n_trials: int

    @property
    def sentence(self) -> str:
        """Return it in one sentence."""
        ids = ", ".join(map(str, self.trials))
        what = f"trial {ids} of {self.place} ({self.architectures[0]})"
        if len(self.trials) > 1:
            what = f"the {len(self.trials)} best architectures of {self.place} (trials {ids})"
        instead = f", in place of its {self.n_before} training rows" if self.n_before else ""
        rows = f"{self.n_rows} rows of {self.data}{instead}"
        if self.own_rows:
            tested = f", its {self.n_tested} test rows among them" if self.n_tested else ""
            rows = f"all its {self.n_rows} rows{tested}"
        part = (
            f"; it had finished {self.n_finished} of {self.n_trials} trials"
            if self.n_finished < self.n_trials
            else ""
        )
        return f"refit of {what} on {rows}{part}"

    def to_json(self) -> str:
        """Return it as JSON."""
        return json.dumps(asdict(self), indent=1)

    @classmethod
    def from_json(cls, text: str) -> "Origin":
        """Return what `to_json` wrote.

        Raises:
            ValueError: if it did not.
        """
        stored = parsed_json(text)
        try:
            lists = {key: tuple(stored[key]) for key in ("trials", "architectures")}
            return cls(**{**stored, **lists})
        except (KeyError, TypeError) as error:
            raise UserError(
                "origin-damaged", f"it does not say what a study comes from: {error!r}"
            ) from None
