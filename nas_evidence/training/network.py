"""A network in training: weights, hyperparameters, data, plan and seed, and how far it is.

The main training of a trial, trainings without a fold and those that are repeated are all of this
type; `life.advance` takes them from one stop to the next.
"""

import math
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

import torch
from torch import Tensor, nn

from nas_evidence.data.tensors import TensorData
from nas_evidence.likelihoods import Likelihood, likelihood
from nas_evidence.likelihoods.gaussian import Gaussian
from nas_evidence.spec.likelihoods import declared
from nas_evidence.spec.record import CurvePoint
from nas_evidence.spec.study import TrainingPlan, derive_seed
from nas_evidence.training.optimiser import Optimiser
from nas_evidence.training.quasi_newton import History


@dataclass(frozen=True)
class Hyper:
    """The hyperparameters of a network.

    precision  of the prior, one per parameter tensor [G], float64, > 0
    scale      the noise σ of standardised targets, the geometric mean of several, or the
               temperature T of labels; 1 where the noise is an output of the network
    unit       σ_c / σ of each of several targets, see `Gaussian`; empty for 1
    """

    precision: Tensor
    scale: float
    unit: tuple[float, ...] = ()


class Trained(NamedTuple):
    """Parameters θ [P], float64, and hyperparameters of a network."""

    theta: Tensor
    hyper: Hyper


@dataclass
class Settling:
    """Where the settling of a network stands; the last four are its results, once it is `done`.

    The network itself settles: it has the hyperparameters of the last round and θ, rounded to its
    dtype. In the end it has the state that is kept.

    scheduled  the state after the last epoch
    theta     θ [P], float64
    history   of the L-BFGS
    cost      of a full-batch gradient, as a fraction of a scheduled epoch's
    budget    work that is allowed, in epochs of the scheduled training
    work      done so far, in the same unit
    rounds    of (a) and (b)
    double    float64 is needed
    trial     short rounds left of it, before the settling begins
    reported  somebody asks how far from a mode the state is that is kept
    first     θ of the mode at the scheduled hyperparameters [P], once it is found
    moved     largest move of a log hyperparameter in the last round
    scheduled_evidence, first_evidence, evidence  of the three states, nats; None if not finite
    scheduled_decrement  of the scheduled state, nats, once it is asked for
    converged  the hyperparameters moved and came to rest, and the state that is kept is at a mode
    kept      the state that the network has in the end
    decrement_per_datum  of that state, nats; None with no budget
    seconds   spent so far
    """

    scheduled: Trained
    theta: Tensor
    history: History
    cost: float
    budget: float
    work: float = 0.0
    rounds: int = 0
    double: bool = False
    trial: int = 0
    reported: bool = True
    first: Tensor | None = None
    moved: float = math.inf
    scheduled_evidence: float | None = None
    first_evidence: float | None = None
    scheduled_decrement: float | None = None
    evidence: float | None = None
    done: bool = False
    converged: bool = False
    kept: Literal["settled", "scheduled"] = "scheduled"
    decrement_per_datum: float | None = None
    seconds: float = 0.0


@dataclass
class Network:
    """A network in training.

    data            it is trained on, on its device
    plan            of its training
    seed            of all its random streams
    family          of its architecture; empty for a network of the user's own loop
    epoch           epochs so far
    curve           a point for each of them
    settling        after the last epoch; None before, and with a plan that has none
    best_evidence   largest evidence of the online curvature so far, nats, found at `best_epoch`
    constant_noise  up to which the noise, or that of each output, may rise while the network is no
                    better than a constant prediction; 0 for targets of unit variance, whose noise
                    starts at 1
    """

    model: nn.Module
    optimiser: Optimiser
    hyper: Hyper
    data: TensorData
    plan: TrainingPlan
    seed: int
    family: str = ""
    epoch: int = 0
    curve: list[CurvePoint] = field(default_factory=list)
    settling: Settling | None = None
    best_epoch: int | None = None
    best_evidence: float | None = None
    train_seconds: float = 0.0
    evidence_seconds: float = 0.0
    constant_noise: tuple[float, ...] = (0.0,)

    @property
    def is_over(self) -> bool:
        """Whether the epochs are over, and the settling if there is one."""
        settled = self.settling is None or self.settling.done
        return settled and self.epoch >= self.plan.epochs

    @property
    def likelihood(self) -> Likelihood:
        """The likelihood with the current noise or temperature."""
        if self.hyper.unit:
            return Gaussian(self.hyper.scale, self.hyper.unit)
        return likelihood(self.plan.likelihood, self.hyper.scale)

    @property
    def prior_precision(self) -> Tensor:
        """The precision of the prior, for scores of the user's; see `Hyper`."""
        return self.hyper.precision

    @property
    def noise_std(self) -> float:
        """The noise of real targets, for scores of the user's; see `Hyper.scale`."""
        return self.hyper.scale

    def derived_seed(self, purpose: str, counter: int = 0) -> int:
        """Return the seed of one random stream."""
        return derive_seed(self.seed, purpose, counter)


def begin(
    model: nn.Module, data: TensorData, plan: TrainingPlan, seed: int, *, family: str = ""
) -> Network:
    """Return a network before its first epoch, with the optimiser of the plan."""
    # Fixup scalars use a tenth of the learning rate (Zhang et al. 2019, section 4).
    scalars = {
        id(p)
        for module in model.modules()
        if hasattr(module, "elementwise_affine_scalar")
        for p in module.parameters(recurse=False)
    }
    parameters = list(model.parameters())
    relative = [0.1 if id(p) in scalars else 1.0 for p in parameters]
    precision = torch.full((len(parameters),), plan.prior_precision, dtype=torch.float64)
    hyper = Hyper(precision, first_scale(plan))
    return Network(model, Optimiser(parameters, relative), hyper, data, plan, seed, family)


def first_scale(plan: TrainingPlan) -> float:
    """Return the noise σ or the temperature T before the first update; see `Hyper`.

    >>> first_scale(TrainingPlan(likelihood="gaussian", noise_std=0.5))
    0.5
    """
    key = declared(plan.likelihood).scale
    return 1.0 if key is None else float(getattr(plan, key))
