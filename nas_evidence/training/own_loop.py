"""Online Laplace for your own training loop, in plain torch (Immer et al. 2021).

    step    ∇ loss + d θ,    d = σ² δ_l / (κ N), see `prior_in_steps`       loss = σ² nll_mean
    update  log q(y) = κ l − ½ θᵀΔθ − ½ log|κ H + Δ| / |Δ|, maximised over Δ and σ at fixed θ

    δ_l  prior precision of tensor l [G], on the diagonal of Δ      N  training data
    σ    noise of real targets, 1 for labels                        κ  likelihood power
                                                                    l, H  as in `online`

It is what the trials of a study do after an epoch, by the same functions (`online`, `refit`).
"""

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from pydantic import ValidationError
from torch import Tensor, nn

from nas_evidence.curvature import check_kind, curvature_pass
from nas_evidence.curvature.refusals import refuse_batch_statistics
from nas_evidence.curvature.wide import too_large_online
from nas_evidence.data.loaders import visited_rows
from nas_evidence.data.tensors import TensorData
from nas_evidence.evidence.estimate import checked_likelihood, noise_of_numbers
from nas_evidence.evidence.joint import LOG_VARIANCE_RANGE, PriorGroups, noise_of
from nas_evidence.maths.constants import constants_aside, free_parameters
from nas_evidence.plumbing.user_error import UserError, meant
from nas_evidence.spec.likelihoods import LIKELIHOODS, declared
from nas_evidence.spec.record import EvidenceEstimate
from nas_evidence.spec.registry import CURVATURES
from nas_evidence.spec.schedule import updates_after
from nas_evidence.spec.study import OnlinePlan, TrainingPlan
from nas_evidence.training.loop import likelihood_of
from nas_evidence.training.network import Hyper, Network, begin
from nas_evidence.training.online import Passes, passes_of, update_and_follow
from nas_evidence.training.prior_in_steps import PriorInSteps, check_optimiser

#: Noises in a sentence.
_MOST_SHOWN = 6


@dataclass
class OnlineLaplace:
    """Prior precisions and noise that are learned during a training; see `online_laplace`.

    estimate  the last evidence with its terms; None before the first update
    history   (epoch, log evidence in nats) of each update
    """

    _network: Network
    estimate: EvidenceEstimate | None = None
    history: list[tuple[int, float]] = field(default_factory=list)
    _names: tuple[str, ...] = field(init=False)  # of the parameters with a prior
    _steps: PriorInSteps = field(init=False)

    def __post_init__(self) -> None:
        self._names = tuple(free_parameters(self._network.model))
        self._steps = PriorInSteps(self._network.model, self._names, self._decay)

    @property
    def prior_precision(self) -> dict[str, float]:
        """Return δ of each free parameter tensor by name."""
        return dict(zip(self._names, self._network.hyper.precision.tolist(), strict=True))

    @property
    def noise_std(self) -> float | tuple[float, ...]:
        """Return the standard deviation of the noise in the unit of the targets.

        It is one for each output if it was given so, or once it is learned of several.
        """
        common = self._network.hyper.scale
        return tuple(common * unit for unit in self._network.hyper.unit) or common

    @property
    def temperature(self) -> float:
        """Return the softmax temperature: 1."""
        return self._network.plan.temperature

    @property
    def epoch(self) -> int:
        """Return the number of epochs so far."""
        return self._network.epoch

    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Return the loss of a minibatch [], to be minimised without the prior.

        For labels it is the mean cross entropy (at temperature 1 that of torch); for real targets
        half the squared error, summed over outputs, mean over data, plus a constant. Either is the
        mean negative log likelihood times T² or σ², so that one learning rate fits all noises.
        """
        likelihood = self._network.likelihood
        return likelihood.scale**2 * likelihood.nll_mean(outputs, targets)

    def after_epoch(self) -> float | None:
        """Count an epoch; if an update is due, learn the hyperparameters.

        Returns:
            The log marginal likelihood in nats, summed over the data, at the new hyperparameters;
            None if no update is due.

        Raises:
            DivergedError: if the log likelihood or the curvature is not finite.
        """
        self._steps.count_steps()
        self._network.epoch += 1
        if not updates_after(self._network.plan, self._network.epoch):
            return None
        with constants_aside(self._network.model):
            passes = update_and_follow(self._network)
            self.estimate = self._judged(passes)
        self.history.append((self._network.epoch, self.estimate.value))
        return self.estimate.value

    def log_evidence(self) -> float:
        """Return the log marginal likelihood in nats at the present parameters; no update."""
        with constants_aside(self._network.model):
            return passes_of(self._network).followed.value

    def state_dict(self) -> dict[str, Any]:
        """Return what a resumed training needs, beside the model and the optimiser.

        With a noise for each output `noise_std` is their common factor, and `noise_unit` the
        ratios.
        """
        hyper = self._network.hyper
        return {
            "prior_precision": hyper.precision.clone(),
            "noise_std": hyper.scale,
            "noise_unit": hyper.unit,
            "epoch": self._network.epoch,
            "history": list(self.history),
        }

    def load_state_dict(self, stored: Mapping[str, Any]) -> None:
        """Continue from `state_dict()`.

        Raises:
            ValueError: if it belongs to a network with other parameters, or other outputs.
        """
        found = stored["prior_precision"]
        if found.shape != self._network.hyper.precision.shape:
            raise UserError(
                "own-loop-state",
                f"the stored state has {len(found)} prior precisions, but the model has "
                f"{len(self._network.hyper.precision)}; load it with the model it was made for",
            )
        scale, unit = float(stored["noise_std"]), tuple(map(float, stored.get("noise_unit", ())))
        if unit and len(unit) != self._network.data.n_outputs:
            noises = tuple(scale * one for one in unit)
            raise UserError(
                "own-loop-state-noise",
                f"the stored state has the noise {_shown(noises)}, but the model has "
                f"{self._network.data.n_outputs} outputs; load it with the model it was made for",
            )
        self._network.hyper = Hyper(found.double().clone(), scale, unit)
        self._network.epoch = int(stored["epoch"])
        self.history = [(int(epoch), float(value)) for epoch, value in stored["history"]]

    def _judged(self, passes: Passes) -> EvidenceEstimate:
        """Return the evidence, invalid with the reason where its noise is not a maximum."""
        found, plan = passes.followed, self._network.plan
        if not (declared(plan.likelihood).learned and plan.online.learn_noise):
            return found
        doubt = self._doubt_of_noise(passes, found)
        note = "; ".join(filter(None, (found.note, doubt)))
        return found.model_copy(update={"note": note, "valid": found.valid and not doubt})

    def _doubt_of_noise(self, passes: Passes, found: EvidenceEstimate) -> str:
        """Return why the noise does not maximise the evidence, or ""."""
        noise, plan = self._network.hyper.scale, self._network.plan
        each = self._network.likelihood.each_scale
        shown = _shown(self.noise_std)
        least, most = (math.exp(0.5 * bound) for bound in LOG_VARIANCE_RANGE)
        if min(each) <= least * (1 + 1e-6):
            return (
                f"the noise is at its lower bound, {shown}: the network predicts the targets "
                "exactly, and the evidence rises without end as the noise falls"
            )
        if max(each) >= most * (1 - 1e-6):
            return f"the noise is at its upper bound, {shown}; standardise the targets"
        pass_ = passes.of(plan.online.curvature)[0]
        terms = noise_of(plan.online.curvature, pass_, noise)
        effective = sum(t.value for t in found.terms if t.term == "effective_parameters")
        power = passes.power
        count = power * terms.n_targets
        # 2 ∂ log q(y) / ∂ log σ², zero at a maximum; see `joint`.
        slope = power * terms.squared_error / noise**2 - count + terms.exponent * effective
        if slope <= 0.02 * count + 1:
            return ""
        return (
            f"the noise is held at {shown}, below its maximum of the evidence, because the "
            "network fits the data no better than a constant; train it longer, or standardise "
            "the targets"
        )

    def _decay(self) -> Tensor:
        """Return σ² δ / (κ N) of each parameter tensor [G]."""
        network = self._network
        count = network.plan.likelihood_power * len(network.data.x_train)
        return network.hyper.precision * (network.hyper.scale**2 / count)


def _shown(noise_std: float | tuple[float, ...]) -> str:
    """Return a noise, or those of the first outputs, for a sentence.

    >>> _shown(0.25), _shown((1.0658, 76.92))
    ('0.25', '(1.07, 76.9)')
    """
    if not isinstance(noise_std, tuple):
        return f"{noise_std:.3g}"
    first = ", ".join(f"{one:.3g}" for one in noise_std[:_MOST_SHOWN])
    return f"({first}{', ...' * (len(noise_std) > _MOST_SHOWN)})"


def online_laplace(
    model: nn.Module,
    optimiser: torch.optim.Optimizer,
    data: Any,
    *,
    likelihood: str,
    every: int = 5,
    burn_in: int = 0,
    curvature: str = "kfac_ggn_mc",
    prior_groups: PriorGroups = "tensor",
    prior_precision: float = 1.0,
    noise_std: float | Sequence[float] = 1.0,
    learn_noise: bool = True,
    likelihood_power: float = 1.0,
    seed: int = 0,
) -> OnlineLaplace:
    """Return what learns prior precisions and noise in a training loop of your own.

    It adds the gradient of the prior before each step of `optimiser`; call `after_epoch()` after
    each epoch. The steps and the updates are those of a study's trials.

    Args:
        model: any network whose outputs are [n, C] and that does not normalise over the batch:
            `BatchNorm` must be in evaluation mode, in the steps too. Parameters with
            requires_grad=False are constants.
        optimiser: of its free parameters, without weight decay.
        data: the training data: a DataLoader, which is read as it is, a Dataset or list of pairs,
            or tensors (x, y); see `nas_evidence.data.loaders`. Without augmentation; kept on the
            device of the model.
        likelihood: "categorical" for labels, "gaussian" for real targets with one noise,
            "heteroscedastic" for those with 2 C outputs, see `curvature.likelihood`.
        every: epochs between updates (F).
        burn_in: first epochs, without updates (B).
        curvature: of the evidence; see `nas_evidence.curvature.KINDS`.
        prior_groups: parameters that share a precision: those of a "tensor", or all ("scalar").
        prior_precision: before the first update.
        noise_std: the same for the noise, in the unit of the targets; from any start it finds its
            maximum, or the estimate is not valid and says why. A list, tuple, array or tensor has
            one number for each output, such as the standard deviations of the targets. That of
            each output is learned, whatever is given.
        learn_noise: whether updates learn the noise.
        likelihood_power: κ on the likelihood.
        seed: of the Monte-Carlo kinds.

    Raises:
        ValueError: for an impossible setting, an optimiser that would add a second prior or steps
            over other parameters, data that do not fit, or a model that the curvature does not
            support; before any training.
    """
    if not isinstance(every, int) or every < 1:  # the number of epochs is not known here
        raise UserError("own-loop-every", f"`every` must be an integer >= 1, but got {every!r}")
    check_kind(curvature)
    online = {
        "every": every,
        "burn_in": burn_in,
        "curvature": curvature,
        "prior_groups": prior_groups,
        "learn_noise": learn_noise,
    }
    noise = None
    if likelihood in LIKELIHOODS and declared(likelihood).scale == "noise_std":
        given = noise_of_numbers(noise_std)
        noise_std, noise = given.noise_std, given if given.unit else None
    elif not (isinstance(noise_std, int | float) and noise_std == 1):
        checked_likelihood(likelihood, noise_std, 1.0)  # says that it has none
    try:
        plan = TrainingPlan(
            likelihood=likelihood,
            prior_precision=prior_precision,
            noise_std=noise_std,
            likelihood_power=likelihood_power,
            online=OnlinePlan.model_validate(online),
        )
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(map(str, first["loc"])) or "settings"
        options = re.findall(r"'([^']+)'", str(first.get("ctx", {}).get("expected", "")))
        hint = meant(first["input"], options)
        raise UserError(
            "own-loop-plan", f"`{place}`: {first['msg']}, but got {first['input']!r}{hint}"
        ) from None
    check_optimiser(model, optimiser)
    refuse_batch_statistics(model)
    free = free_parameters(model)
    parameter = next(iter(free.values()))
    x, y = (part.to(parameter.device) for part in visited_rows(data))
    asked = noise or likelihood_of(plan, plan.noise_std)
    y = asked.shaped(y)
    if not declared(likelihood).kind.classes:
        y = y.to(parameter.dtype)
    # Says now, and not after the first epochs, what model, data and curvature do not support.
    tried = curvature_pass(
        curvature, model, x[:128], y[:128], asked,
        batch_size=128, generator=torch.Generator().manual_seed(0),
    )  # fmt: skip
    n_rows = len(x) * (1 if CURVATURES[curvature].columns == "residual" else tried.n_outputs)
    n_parameters = sum(p.numel() for p in free.values())
    if too_large := too_large_online(curvature, n_parameters, n_rows):
        raise UserError(
            "own-loop-curvature-too-large", too_large.replace("plan.online.curvature", "curvature")
        )
    data, constant = _tensor_data(x, y, tried.n_outputs), (0.0,)
    if declared(likelihood).learned:
        # Twice the variance about the mean: where half of the targets go into parameters.
        errors = y.double() - y.double().mean(0)
        constant = tuple((2 * errors.square().mean(0)).sqrt().tolist())
    with constants_aside(model):
        network = begin(model, data, plan, seed)
    network.constant_noise = constant
    if noise is not None:
        network.hyper = replace(network.hyper, unit=noise.unit)
    laplace = OnlineLaplace(network)
    laplace._steps.join(optimiser)
    return laplace


def _tensor_data(x: Tensor, y: Tensor, n_outputs: int) -> TensorData:
    n_outputs = y.shape[1] if y.is_floating_point() else n_outputs
    return TensorData(
        x_train=x,
        y_train=y,
        x_test=x[:0],
        y_test=y[:0],
        task="real" if y.is_floating_point() else "labels",
        n_outputs=n_outputs,
        input_shape=tuple(x.shape[1:]),
        y_mean=torch.zeros(n_outputs, dtype=torch.float64),
        y_std=torch.ones(n_outputs, dtype=torch.float64),
    )
