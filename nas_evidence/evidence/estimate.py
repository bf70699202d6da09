"""The evidence of one trained model, in one call."""

import math
from collections.abc import Collection, Mapping, Sequence
from numbers import Integral, Real
from typing import Any, Literal

import torch
from torch import Tensor, nn

from nas_evidence.curvature import (
    CurvaturePass,
    check_kind,
    curvature_pass,
    curvature_passes,
    trace_ratios,
)
from nas_evidence.data.loaders import visited_rows
from nas_evidence.evidence.joint import LOG_PRECISION_RANGE, MeanOfDraws, fit_prior, members_of
from nas_evidence.evidence.laplace import (
    checked_precision,
    laplace_estimate,
    mean_estimate,
    squared_norms,
    with_trace_ratios,
)
from nas_evidence.likelihoods import Likelihood
from nas_evidence.likelihoods import likelihood as make_likelihood
from nas_evidence.likelihoods.gaussian import Gaussian, gaussian
from nas_evidence.maths.constants import free_parameters
from nas_evidence.plumbing.foreign_text import shortened
from nas_evidence.plumbing.user_error import UserError, meant
from nas_evidence.spec.estimates import EvidenceEstimate, Term
from nas_evidence.spec.likelihoods import LIKELIHOODS, declared
from nas_evidence.spec.registry import CURVATURES, MC_DRAWS
from nas_evidence.spec.study import EVIDENCE_BATCH

#: One number, one per free parameter tensor in order or by name, or "fit".
PriorPrecision = float | Sequence[float] | Mapping[str, float] | Tensor | Literal["fit"]


def estimate_evidence(
    model: nn.Module,
    inputs: Any,
    targets: Tensor | None = None,
    *,
    likelihood: str,
    curvature: str,
    prior_precision: PriorPrecision,
    noise_std: float | Sequence[float] | None = None,
    temperature: float = 1.0,
    likelihood_power: float = 1.0,
    at_mode_correction: bool = False,
    diagnose: bool = True,
    trace_ratio: bool = False,
    kfac_reduce: Collection[str] = (),
    batch_size: int | None = None,
    generator: torch.Generator | None = None,
    seed: int = 0,
    n_draws: int = MC_DRAWS,
) -> EvidenceEstimate:
    """Return the Laplace log evidence of a trained model, `.value` in nats, larger is better.

    The parameters of the model are assumed to be the mode. The model is left exactly as it was.
    Parameters with requires_grad=False are constants: they have no prior and no curvature.

    Args:
        model: any module that does not normalise over the batch; `forward` may do anything.
            `BatchNorm` must be in evaluation mode, where its running statistics are constants.
            Kronecker kinds need each module that holds parameters to be called once, with one
            tensor in and out; see `nas_evidence.curvature.curvature_pass`.
        inputs: training inputs [n, ...], on the device of the model; or, without `targets`, a
            DataLoader, which is read as it is, a Dataset or a list of pairs.
        targets: integer labels [n] ("categorical") or real values [n, C] ("gaussian"); [n] if the
            model has one output. "heteroscedastic" has 2 C outputs, see
            `nas_evidence.likelihoods.Heteroscedastic`.
        likelihood: "categorical" (softmax), "gaussian" or "heteroscedastic".
        curvature: a name in `nas_evidence.curvature.KINDS`.
        prior_precision: > 0; one number, or one per free tensor of `model.parameters()`, in their
            order or by name. "fit" takes those that maximise this evidence at the trained weights,
            without `at_mode_correction`; they are among the terms, and a note says which are at a
            bound.
        noise_std: standard deviation of the noise, or one for each output; "gaussian" needs it.
        temperature: divisor of the logits; "categorical" only.
        likelihood_power: κ on the likelihood; values with different κ cannot be compared.
        at_mode_correction: add ½ gᵀ(H + Δ)⁻¹g with g the gradient of the negative log joint.
        diagnose: report gᵀ(H + Δ)⁻¹g, at the cost of one forward and backward pass.
        trace_ratio: report tr(KFAC) / tr(exact diagonal) of each tensor, Kronecker kinds only,
            at the cost of one pass for that diagonal.
        kfac_reduce: paths of weight layers before a global pooling, Kronecker kinds only; see
            `nas_evidence.curvature.curvature_pass`.
        batch_size: rows at a time; the result does not depend on it beyond rounding.
        generator: random numbers for the Monte-Carlo kinds; overrides `seed`.
        seed: for the Monte-Carlo kinds.
        n_draws: for the Monte-Carlo kinds: passes to average over; with two or more the estimate
            has a standard error.

    Raises:
        ValueError: for an unknown name, a missing or impossible number, or an unsupported layer;
            says what and where.
    """
    check_model(model)
    check_kind(curvature)
    exact_diagonal = _exact_diagonal(curvature) if trace_ratio else None
    if targets is None:
        inputs, targets = _loaded(model, inputs)
    check_data(inputs, targets)
    _check_reduced(curvature, kfac_reduce)
    rows = _whole("batch_size", EVIDENCE_BATCH if batch_size is None else batch_size)
    draws_asked = _whole("n_draws", n_draws)
    random = torch.Generator().manual_seed(seed) if generator is None else generator
    noise = checked_likelihood(likelihood, noise_std, temperature)
    check_prior_word(prior_precision)
    fit = isinstance(prior_precision, str)
    start = 1.0 if isinstance(prior_precision, str) else prior_precision
    precision = checked_precision(tuple(free_parameters(model)), start)
    kappa = positive("likelihood_power", likelihood_power)
    passes = curvature_passes(
        curvature,
        model,
        inputs,
        noise.shaped(targets),
        noise,
        batch_size=rows,
        n_draws=draws_asked if CURVATURES[curvature].approximates else 1,
        generator=random,
        diagnose=diagnose or at_mode_correction,
        kfac_reduce=kfac_reduce,
    )
    note = ""
    if fit:
        precision, note = fitted_precision(passes, model, precision, kappa)
        if at_mode_correction:
            without = "the prior precision maximises the evidence without at_mode_correction"
            note = "; ".join(filter(None, (note, without)))
    draws = [
        laplace_estimate(
            curvature,
            passed,
            model,
            precision,
            likelihood_power=kappa,
            at_mode_correction=at_mode_correction,
        )
        for passed in passes
    ]
    estimate = _with_note(mean_estimate(draws), note)
    if exact_diagonal is not None:
        exact = curvature_pass(
            exact_diagonal,
            model,
            inputs,
            noise.shaped(targets),
            noise,
            batch_size=rows,
        )
        estimate = with_trace_ratios(estimate, trace_ratios(passes[0], exact))
    if kfac_reduce:
        estimate = _with_note(estimate, f"kfac_reduce on {', '.join(sorted(kfac_reduce))}")
    if not estimate.valid:
        bad = [n for n, p in model.named_parameters() if not bool(p.isfinite().all())]
        return _with_note(estimate, f"not finite: {', '.join(bad)}") if bad else estimate
    if temperature == 1:
        return estimate
    term = Term(term="temperature", group="all", value=temperature)
    estimate = estimate.model_copy(update={"terms": (*estimate.terms, term)})
    return _with_note(estimate, f"softmax temperature {temperature:g}")


def fitted_precision(
    passes: Sequence[CurvaturePass], model: nn.Module, start: Tensor, likelihood_power: float
) -> tuple[Tensor, str]:
    """Return the prior precisions [G] of the highest evidence at fixed weights, and a note.

    The evidence is the mean over the passes, draws of one kind over the same data. The note names
    tensors whose precision is at a bound, because their weights or their curvature are zero.
    """
    draws = tuple(one.curvature for one in passes)
    curvature = draws[0] if len(draws) == 1 else MeanOfDraws(draws)
    if not all(map(math.isfinite, curvature.trace().tolist())):
        return start, ""  # the estimate says which
    members = members_of("tensor", len(start))
    norms = squared_norms(model)
    found = fit_prior(curvature, norms, start, members=members, curvature_scale=likelihood_power)
    low, high = (math.exp(bound) for bound in LOG_PRECISION_RANGE)
    at = [
        name
        for name, delta in zip(draws[0].names, found.tolist(), strict=True)
        if not low * (1 + 1e-6) < delta < high * (1 - 1e-6)
    ]
    return found, f"the prior precision is at a bound for {', '.join(at)}" if at else ""


def check_prior_word(given: object) -> None:
    """Do nothing for a prior precision that is no text, or is "fit".

    Raises:
        ValueError: for another text.
    """
    if isinstance(given, str) and given != "fit":
        raise UserError(
            "prior-precision-word",
            "`prior_precision` must be a number, one number for each free parameter tensor, or "
            f'"fit" for those that maximise the evidence, but got {given!r}',
        )


def _loaded(model: nn.Module, data: Any) -> tuple[Tensor, Tensor]:
    """Return the rows of a loader or a data set on the device of the model."""
    if isinstance(data, Tensor):
        raise UserError(
            "targets-missing",
            "`targets` must be given with a tensor of inputs; only a DataLoader, a Dataset or a "
            "list of pairs has both",
        )
    (x, y), parameter = visited_rows(data), next(model.parameters(), torch.zeros(0))
    return x.to(parameter.device), y.to(parameter.device)


def _exact_diagonal(kind: str) -> str:
    trace = CURVATURES[kind].trace
    if trace is None:
        raise UserError(
            "trace-ratio-kind",
            f"`trace_ratio` is for the kinds kfac_*, but got curvature = {kind!r}",
        )
    return trace


def _with_note(estimate: EvidenceEstimate, note: str) -> EvidenceEstimate:
    return estimate.model_copy(update={"note": "; ".join(filter(None, (estimate.note, note)))})


def checked_likelihood(
    name: str, noise_std: float | Sequence[float] | None, temperature: float
) -> Likelihood:
    """Return a likelihood by its name, with what it needs.

    Raises:
        ValueError: for an unknown name, or a number that is missing, impossible or not for it.
    """
    if name not in LIKELIHOODS:
        *others, last = (f'"{one}"' for one in LIKELIHOODS)
        raise UserError(
            "unknown-likelihood",
            f"`likelihood` must be {', '.join(others)} or {last}, but got {name!r}"
            f"{meant(name, LIKELIHOODS)}",
        )
    of = declared(name)
    given = {"noise_std": noise_std is not None, "temperature": temperature != 1}
    for key in (key for key, is_given in given.items() if is_given and key != of.scale):
        its = " or ".join(f'"{one}"' for one, other in LIKELIHOODS.items() if other.scale == key)
        raise UserError(
            "scale-of-another-likelihood", f'`{key}` is for likelihood = {its}, not "{name}"'
        )
    if of.scale != "noise_std":
        return make_likelihood(name, positive("temperature", temperature))
    if noise_std is None:
        raise UserError(
            "noise-std-missing", f'`noise_std` must be given for likelihood = "{name}"'
        )
    return noise_of_numbers(noise_std)


def noise_of_numbers(noise_std: Any) -> Gaussian:
    """Return the likelihood for a noise that the user gives: a number, or one for each output.

    Args:
        noise_std: a number; or a list, tuple, array or tensor of numbers.

    Raises:
        ValueError: if it is neither, or a number is not finite and positive.
    """
    given = noise_std.tolist() if hasattr(noise_std, "tolist") else noise_std
    several = isinstance(given, list | tuple)
    values = [
        one.item() if hasattr(one, "item") else one for one in (given if several else [given])
    ]
    if not values or any(isinstance(v, bool) or not isinstance(v, Real) for v in values):
        raise UserError(
            "noise-std-no-number",
            "`noise_std` must be a number, or a list of one number for each output, but got "
            f"{shortened(repr(noise_std))}",
        )
    numbers = [positive("noise_std", value) for value in values]
    return gaussian(numbers) if several else Gaussian(numbers[0])


def check_model(model: object) -> None:
    """Do nothing for a torch.nn.Module.

    Raises:
        ValueError: for anything else.
    """
    if not isinstance(model, nn.Module):
        raise UserError(
            "model-not-a-module",
            f"`model` must be a torch.nn.Module, but got a {type(model).__name__}",
        )


def check_data(inputs: Tensor, targets: Tensor) -> None:
    """Do nothing for finite tensors of as many rows.

    Raises:
        ValueError: for anything else; says which rows are not finite.
    """
    for name, given in (("inputs", inputs), ("targets", targets)):
        if not isinstance(given, Tensor) or given.ndim == 0:
            raise UserError(
                "not-a-tensor",
                f"`{name}` must be a tensor with one row per datum, but got "
                f"{'a single number' if isinstance(given, Tensor) else type(given).__name__}; "
                "torch.as_tensor converts an array or a list",
            )
        # The sum is fast, and is finite only if all values are.
        if given.is_floating_point() and not bool(given.detach().sum().isfinite()):
            bad = (
                (~given.detach().flatten(1).isfinite()).any(1)
                if given.ndim > 1
                else ~given.isfinite()
            )
            if bool(bad.any()):
                raise UserError(
                    "tensor-not-finite",
                    f"`{name}` must be finite, but {int(bad.sum())} rows are not, the first at "
                    f"row {int(bad.nonzero()[0])}; remove or fix them",
                )

    if len(inputs) != len(targets) or len(inputs) == 0:
        raise UserError(
            "rows-differ",
            f"`inputs` and `targets` must have the same number of rows, at least one, but have "
            f"{len(inputs)} and {len(targets)}",
        )


def _check_reduced(kind: str, paths: Collection[str]) -> None:
    if isinstance(paths, str):
        raise UserError(
            "kfac-reduce-not-paths",
            f"`kfac_reduce` must be a list of module paths, but got {paths!r}",
        )
    if paths and not CURVATURES[kind].is_factored:
        raise UserError(
            "kfac-reduce-kind",
            f"`kfac_reduce` is for the Kronecker kinds, but the kind is {kind!r}",
        )


def _whole(name: str, value: Any) -> int:
    if not isinstance(value, Integral) or value < 1:
        raise UserError(
            "not-a-count", f"`{name} >= 1` must hold for a whole number, but got {value!r}"
        )
    return int(value)


def positive(name: str, value: Any) -> float:
    """Return a finite number > 0.

    Raises:
        ValueError: if it is none; says which.
    """
    try:
        number = float(value)
    except (TypeError, ValueError):
        number = math.nan
    if not (number > 0 and math.isfinite(number)):
        raise UserError(
            "not-positive", f"`{name} > 0` must hold for a finite number, but got {value!r}"
        )
    return number
