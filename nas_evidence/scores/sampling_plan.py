"""Plans of the sampling estimators, with their defaults.

These estimators are for tiny networks, where they provide reference values for the others; a study
may request them with these defaults (scores/sampling.py).
"""

from typing import Annotated

from pydantic import Field

from nas_evidence.spec.domains import Frozen


class LadderPlan(Frozen):
    """How `temperature_ladder_evidence` samples; a trajectory moves all replicas at once."""

    n_ladders: Annotated[int, Field(ge=2)] = 6  # independent; their spread gives the error
    n_nodes: Annotated[int, Field(ge=3)] = 20  # inverse temperatures of one ladder
    n_burn_in: Annotated[int, Field(ge=1)] = 200  # trajectories
    n_samples: Annotated[int, Field(ge=2)] = 200  # trajectories
    n_leapfrog: Annotated[int, Field(ge=1)] = 8  # gradients per trajectory


class SweepPlan(Frozen):
    """How `thermodynamic_evidence` samples; each chain visits the nodes in order."""

    n_chains: Annotated[int, Field(ge=2)] = 6  # independent chains in each direction
    n_nodes: Annotated[int, Field(ge=2)] = 16  # nodes of the Gauss-Legendre quadrature
    n_burn_in: Annotated[int, Field(ge=1)] = 200  # trajectories in the posterior, discarded
    n_settle: Annotated[int, Field(ge=1)] = 10  # trajectories per node, discarded
    n_samples: Annotated[int, Field(ge=2)] = 30  # trajectories per node
    n_leapfrog: Annotated[int, Field(ge=1)] = 8  # gradients per trajectory


class EntropyPlan(Frozen):
    """The descent whose entropy `sgd_entropy_bound` tracks."""

    learning_rate: Annotated[float, Field(gt=0)] = 0.05  # for the mean nll per datum
    n_steps: Annotated[int, Field(ge=1)] = 200
    batch_size: Annotated[int, Field(ge=1)] | None = None  # None for all data
    n_seeds: Annotated[int, Field(ge=4)] = 16  # independent draws and descents
    n_probes: Annotated[int, Field(ge=1)] = 1  # per seed and step
    exact: bool = False  # log determinants from whole Hessians, for small networks
    threshold: Annotated[float, Field(gt=0)] | None = None  # g0, entropy-friendly descent
    stop: bool = True  # once the mean bound has clearly passed its maximum
    n_checks: Annotated[int, Field(ge=1)] = 50  # steps whose largest eigenvalue is bounded above


class EnsemblePlan(Frozen):
    """The ensembles whose predictions `sample_then_optimise_evidence` averages."""

    n_runs: Annotated[int, Field(ge=2)] = 4  # independent, each in its own order of the data
    n_draws: Annotated[int, Field(ge=1)] = 4  # members of one ensemble
    n_chunks: Annotated[int, Field(ge=1)] = 16  # of equal size, after doublings up to the first
    n_iterations: Annotated[int, Field(ge=1)] = 50  # of L-BFGS, for each member and chunk


LADDER, SWEEP, ENTROPY, ENSEMBLE = LadderPlan(), SweepPlan(), EntropyPlan(), EnsemblePlan()
