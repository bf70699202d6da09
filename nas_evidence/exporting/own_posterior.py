"""The posterior of a network of your own: predictions, draws of its weights, a file.

    p(θ | y) ≈ N(θ*, (κ H + Δ)⁻¹)      H, Δ and its structures: `evidence/posterior.py`

Predictions are those of an export, by the same functions (`predictor.py`): of the outputs
linearised at θ*, with the noise or the temperature that is given.
"""

import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from numbers import Integral
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
import torch
from torch import Tensor, nn

from nas_evidence.curvature.capture import undisturbed
from nas_evidence.curvature.refusals import UnsupportedLayerError
from nas_evidence.data.loaders import visited_rows
from nas_evidence.evidence.estimate import (
    PriorPrecision,
    check_data,
    check_model,
    check_prior_word,
    checked_likelihood,
    fitted_precision,
    positive,
)
from nas_evidence.evidence.laplace import checked_precision
from nas_evidence.evidence.posterior import (
    MOST_FULL,
    MOST_STORED,
    Posterior,
    fit_posterior,
    posterior_pass,
)
from nas_evidence.exporting.predicted import Prediction, check_quantiles
from nas_evidence.exporting.predictor import Method, check_method
from nas_evidence.likelihoods import Likelihood
from nas_evidence.likelihoods.predictive import Predictive, joined
from nas_evidence.maths.constants import free_parameters
from nas_evidence.maths.full_precision import full_precision
from nas_evidence.maths.metrics import LEVEL
from nas_evidence.maths.target_scale import unscaled
from nas_evidence.plumbing.no_memory import is_memory_full
from nas_evidence.plumbing.parsing import parsed_json
from nas_evidence.plumbing.seals import DamagedError
from nas_evidence.plumbing.user_error import UserError, meant, no_such_file
from nas_evidence.spec.likelihoods import LIKELIHOODS, LikelihoodName, declared, imported

Structure = Literal["auto", "full", "kronecker", "last_layer"]
STRUCTURES = get_args(Structure)
#: Rows predicted at once.
_ROWS = 1024


@dataclass(frozen=True)
class ModelPosterior:
    """The Laplace posterior of a trained network; see `nas_evidence.posterior`.

    model            the network itself, no copy; it must stay as it was
    posterior        the covariance, on the device of the network
    likelihood       with its noise or temperature
    prior_precision  of each free parameter tensor, by name
    note             of a prior precision that was fitted: the tensors where it is at a bound
    """

    model: nn.Module
    posterior: Posterior
    likelihood: Likelihood
    prior_precision: Mapping[str, float]
    _state: str  # digest of the network at the posterior
    note: str = ""

    @property
    def structure(self) -> str:
        """Return "full", "kronecker" or "last_layer"."""
        return self.posterior.structure

    def predict(
        self,
        inputs: Any,
        *,
        method: Method = "probit",
        level: float = LEVEL,
        quantiles: Sequence[float] = (),
        seed: int = 0,
    ) -> Prediction:
        """Return predictions with uncertainty, in the unit of the targets.

        Args:
            inputs: a tensor or array [n, ...], as the network takes them.
            method: "probit" (closed form), "mc" (draws) or "map" (without the posterior); real
                targets have the closed form or "map".
            level: probability of the intervals of real targets.
            quantiles: probabilities of quantiles of real targets, columns of the table.
            seed: of the draws of "mc".

        Returns:
            Its `probabilities` [n, C], or `mean`, `std` and `std_model` [n, C] of real targets.

        Raises:
            ValueError: for an unknown method, a level, a seed or inputs that cannot be, or a
                network that has changed.
        """
        check_method(method, level)
        kind = declared(self.likelihood.name).kind
        check_quantiles(quantiles, classes=kind.classes)
        self._check_state()
        x, generator = _inputs(self.model, inputs), _seeded(seed)
        drawn = generator if method == "mc" else None
        parts = [
            self._part(x[i : i + _ROWS], method).averaged(drawn)
            for i in range(0, max(1, len(x)), _ROWS)
        ]
        whole = joined(parts)
        n_targets = whole.outputs.shape[1]
        found = whole.delivered(unscaled(n_targets))
        if found.density is None:
            return Prediction(classes=tuple(range(n_targets)), **vars(found))
        return Prediction(
            targets=tuple(f"y{k}" for k in range(n_targets)),
            level=level,
            quantiles=tuple(dict.fromkeys(map(float, quantiles))),
            unit=np.ones(n_targets),
            **vars(found),
        )

    def _part(self, x: Tensor, method: str) -> Predictive:
        with undisturbed(self.model):
            with torch.no_grad(), full_precision():
                outputs = _outputs(self.model, x).double()
            if method == "map":
                covariance = None
            else:
                covariance = self.posterior.output_covariance(self.model, x).cpu()
        return self.likelihood.predictive(outputs.cpu(), covariance)

    def sample(self, n: int = 1, *, seed: int = 0) -> dict[str, Tensor]:
        """Return draws of the weights [n, *shape] by name, in their dtype.

        Those of a tensor that the posterior leaves fixed are not among them. For outputs of a draw
        use `torch.func.functional_call(model, {name: w[k] for name, w in draws.items()}, x)`.

        Raises:
            ValueError: for a network that has changed, or a number that is none.
        """
        if not isinstance(n, Integral) or isinstance(n, bool) or n < 1:
            raise UserError(
                "draws-not-a-count", f"`n >= 1` must hold for a whole number, but got {n!r}"
            )
        n, generator = int(n), _seeded(seed)
        self._check_state()
        parameters = dict(self.model.named_parameters())
        named = {name: parameters[name].detach() for name in self.posterior.names}
        sizes = [p.numel() for p in named.values()]
        moved = self.posterior.draws(n, sizes, generator)
        return {
            name: (p.double() + moved[name].view(n, *p.shape)).to(p.dtype)
            for name, p in named.items()
        }

    def save(self, path: str | Path) -> None:
        """Write the posterior as safetensors, all bits of it, without the weights of the network.

        Save these beside it, as `torch.save(model.state_dict(), ...)` does.

        Raises:
            ValueError: for a network that has changed, or a path that is no file of a folder.
        """
        path = Path(path)
        if path.is_dir() or not path.parent.is_dir():
            raise UserError(
                "posterior-path",
                f"`path` must name a file in a folder that exists, but got {path}",
            )
        self._check_state()
        kind = type(self.likelihood).__name__
        more = {
            "likelihood": json.dumps({"kind": kind, **vars(self.likelihood)}),
            "prior_precision": json.dumps(dict(self.prior_precision)),
            "network": self._state,
            **({"note": self.note} if self.note else {}),
        }
        self.posterior.save(path, dtype=torch.float64, more=more)

    @classmethod
    def load(cls, path: str | Path, model: nn.Module) -> "ModelPosterior":
        """Return what `save` wrote, for the same network.

        Args:
            path: of the file.
            model: with the weights that it had; on any device.

        Raises:
            DamagedError: the file does not match its checksum, or is no such file.
            ValueError: if there is no such file, or the network has other weights.
        """
        check_model(model)
        path = Path(path)
        if not path.is_file():
            raise no_such_file(path)
        found, header = Posterior.of_file(path)
        try:
            given = parsed_json(header["likelihood"])
            given |= {"unit": tuple(given["unit"])} if "unit" in given else {}
            likelihood = _made(given.pop("kind"), given)
            prior, state = parsed_json(header["prior_precision"]), header["network"]
        except (LookupError, TypeError, ValueError, AttributeError):
            raise DamagedError(
                "not-a-posterior",
                f"{path} is no posterior of `nas_evidence.posterior`; write one with its `save`.",
            ) from None
        device = next(model.parameters(), torch.zeros(0)).device
        loaded = cls(model, found.to(device), likelihood, prior, state, header.get("note", ""))
        loaded._check_state()
        return loaded

    def _check_state(self) -> None:
        if _digest(self.model) != self._state:
            raise UserError(
                "posterior-of-other-weights",
                "the network has other weights than those that the posterior is of; make a new "
                "one with `nas_evidence.posterior`, or load the weights that were saved with it",
            )


def posterior(
    model: nn.Module,
    data: Any,
    *,
    likelihood: LikelihoodName,
    prior_precision: PriorPrecision = "fit",
    noise_std: float | Sequence[float] | None = None,
    temperature: float = 1.0,
    likelihood_power: float = 1.0,
    structure: Structure = "auto",
) -> ModelPosterior:
    """Return the Laplace posterior of a trained network, which predicts with uncertainty.

    The parameters of the model are assumed to be the mode. Those with requires_grad=False are
    constants. The model is left exactly as it was.

    Args:
        model: any network whose outputs are [n, C] and that does not normalise over the batch.
        data: the training data: a DataLoader, which is read as it is, a Dataset or list of (x, y),
            or tensors (x, y); see `nas_evidence.data.loaders`.
        likelihood: "categorical" (softmax), "gaussian" or "heteroscedastic".
        prior_precision: that of the training, one number or one per free parameter tensor, such as
            `prior_precision` of `online_laplace`; or "fit", the maximum of the evidence;
            then `note` names the tensors where it is at a bound.
        noise_std: standard deviation of the noise, or one for each output; "gaussian" needs it.
        temperature: divisor of the logits; "categorical" only.
        likelihood_power: κ on the likelihood.
        structure: "full", all of the covariance; "kronecker", factors for each weight;
            "last_layer", factors of the last layer alone, the others fixed; "auto" is the first of
            these that is small enough: up to 500 parameters, up to 16 million numbers.

    Raises:
        ValueError: for an unknown name, a missing or impossible number, or an unsupported layer;
            says what and where.

    Example:
        found = nas_evidence.posterior(model, loader, likelihood="categorical")
        found.predict(x_new).probabilities
        found.save("posterior.safetensors")
    """
    if structure not in STRUCTURES:
        raise UserError(
            "unknown-structure",
            f"`structure` must be one of {', '.join(STRUCTURES)}, but got {structure!r}"
            f"{meant(structure, STRUCTURES)}",
        )
    check_model(model)
    noise = checked_likelihood(likelihood, noise_std, temperature)
    power = positive("likelihood_power", likelihood_power)
    free, (x, y) = free_parameters(model), visited_rows(data)
    names, sizes = tuple(free), tuple(p.numel() for p in free.values())
    x = _inputs(model, x)
    check_data(x, y)
    y = noise.shaped(y).to(x.device)
    if bad := [name for name, p in model.named_parameters() if not bool(p.isfinite().all())]:
        raise UserError(
            "posterior-weights-not-finite",
            f"the weights of the model must be finite, but not all of {', '.join(bad)} are; train "
            "it again with a lower learning rate",
        )
    check_prior_word(prior_precision)
    fit = isinstance(prior_precision, str)
    start = 1.0 if isinstance(prior_precision, str) else prior_precision
    precision = checked_precision(names, start)
    few = structure == "full" or (
        structure == "auto" and sum(sizes) <= MOST_FULL and len(x) <= 100_000
    )
    try:
        passed = posterior_pass("full_ggn" if few else "kfac_ggn", model, x, y, noise)
    except UnsupportedLayerError as error:
        raise UserError(
            "posterior-without-factors",
            f"the posterior needs Kronecker factors: {error}; with few parameters "
            'structure="full" takes any layer',
        ) from None
    note = ""
    if fit:
        precision, note = fitted_precision([passed], model, precision, power)
    most = {"auto": MOST_STORED, "kronecker": math.inf, "last_layer": -1}.get(structure, 0)
    covariance = fit_posterior(
        model,
        x,
        y,
        noise,
        dict(zip(names, precision[:, None].unbind(), strict=True)),
        likelihood_power=power,
        most_stored=most,
        passed=passed,
    )
    # As a file has them: products of tensors of another layout may differ in the last bits.
    plain = {name: tensor.contiguous() for name, tensor in covariance.tensors.items()}
    covariance = replace(covariance, tensors=plain)
    by_name = dict(zip(names, precision.tolist(), strict=True))
    return ModelPosterior(model, covariance, noise, by_name, _digest(model), note)


def _made(kind: str, fields: Mapping[str, Any]) -> Likelihood:
    """Return a likelihood by the name of its class.

    Raises:
        KeyError: if none has this name.
    """
    by_class = {
        name.partition(":")[2]: name for name in (of.implementation for of in LIKELIHOODS.values())
    }
    found: Likelihood = imported(by_class[kind])(**fields)
    return found


def _inputs(model: nn.Module, given: Any) -> Tensor:
    """Return inputs on the device of the model, real numbers in its dtype."""
    try:
        x = torch.as_tensor(given)
    except (TypeError, ValueError, RuntimeError):
        raise UserError(
            "inputs-not-a-tensor",
            f"inputs must be a tensor or an array [n, ...], but got a {type(given).__name__}",
        ) from None
    parameter = next(model.parameters())
    return x.detach().to(parameter.device, parameter.dtype if x.is_floating_point() else x.dtype)


def _outputs(model: nn.Module, x: Tensor) -> Tensor:
    """Return the outputs [n, C] for inputs that may be of another shape or type.

    Raises:
        ValueError: if the network cannot process them.
    """
    cause: Exception | None = None
    try:
        outputs: Tensor = model(x.clone())
    except torch.OutOfMemoryError:
        raise
    except (RuntimeError, ValueError, TypeError, IndexError) as error:
        if is_memory_full(error):
            raise
        cause, why = error, (str(error).strip().splitlines() or [type(error).__name__])[0]
    else:
        if outputs.ndim == 2 and len(outputs) == len(x):
            return outputs
        why = f"it returns {list(outputs.shape)}"
    raise UserError(
        "posterior-inputs",
        f"the model cannot process inputs {list(x.shape)} of {x.dtype}: {why}; give rows "
        "[n, ...] like those of the training",
    ) from cause


def _seeded(seed: object) -> torch.Generator:
    """Return random numbers from a whole number.

    Raises:
        ValueError: for anything else, or a number of more than 63 bits.
    """
    whole = int(seed) if isinstance(seed, Integral) and not isinstance(seed, bool) else -1
    if not 0 <= whole < 2**63:
        raise UserError(
            "posterior-seed", f"`seed` must be a whole number from 0, but got {seed!r}"
        )
    return torch.Generator().manual_seed(whole)


def _digest(model: nn.Module) -> str:
    """Return a digest of the parameters and buffers with their names."""
    found = hashlib.blake2b(digest_size=16)
    state = {**dict(model.named_parameters()), **dict(model.named_buffers())}
    for name, tensor in sorted(state.items()):
        plain = tensor.detach().cpu().contiguous()
        found.update(f"|{name}|{plain.dtype}|{tuple(plain.shape)}|".encode())
        found.update(plain.reshape(-1).view(torch.uint8).numpy().tobytes())
    return found.hexdigest()
