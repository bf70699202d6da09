"""Whether networks of your own family can be trained as a study asks; found before it begins.

The smallest, the largest and a network between them are built and tried on four random data.
"""

import json
from collections.abc import Collection, Iterable, Mapping

import torch
from torch import Tensor, nn

from nas_evidence.curvature.capture import undisturbed
from nas_evidence.curvature.coverage import Coverage, coverage
from nas_evidence.curvature.memory import DoesNotFitError
from nas_evidence.curvature.refusals import BatchStatisticsError, refuse_batch_statistics
from nas_evidence.curvature.rows_alone import check_rows
from nas_evidence.evidence.last_layer import last_layer_of
from nas_evidence.maths.constants import free_parameters
from nas_evidence.models import build, infeasible
from nas_evidence.plumbing.user_error import UserError
from nas_evidence.spec.domains import Domain
from nas_evidence.spec.registry import curvatures_of, declared, is_outside
from nas_evidence.spec.schedule import learns
from nas_evidence.spec.study import ArchitectureSpec, StudySpec

_ROWS = 4
#: The score that needs the last layer.
_LAST_LAYER = "conditional_evidence"
#: Places in each domain where a network is tried: its first member, the middle, its last.
_PLACES = (0.0, 0.5, 0.999)


def check_own_families(study: StudySpec, input_shape: tuple[int, ...], n_outputs: int) -> None:
    """Check that networks of the families from outside the package take a first step.

    Raises:
        ValueError: if a family builds no network, or one that cannot be trained as the study
            asks; one sentence with the cause and what to change.
    """
    for family, domains in study.family.items():
        if is_outside(family):
            for model in tried_networks(family, domains, input_shape, n_outputs):
                _check_curvatures(study, family, coverage(model, input_shape, n_outputs))
                if _LAST_LAYER in study.estimators:
                    _check_last_layer(study, family, model, input_shape)


def tried_networks(
    family: str, domains: Mapping[str, Domain], input_shape: tuple[int, ...], n_outputs: int
) -> list[nn.Module]:
    """Return networks of a family that map random data to one row of outputs each.

    Raises:
        ValueError: if none can be built, or one does not fit the data.
    """
    found, reasons = [], []
    for place in _PLACES if domains else _PLACES[:1]:
        values = {name: domain.at(place) for name, domain in domains.items()}
        architecture = ArchitectureSpec(family=family, values=values)
        if reason := infeasible(architecture, input_shape, n_outputs):
            reasons.append(reason)
            continue
        try:
            model = build(architecture, input_shape, n_outputs, torch.Generator().manual_seed(0))
        except Exception as error:  # any code may stand there
            reasons.append(f"{architecture} cannot be built: {_first_line(error)}")
            continue
        check_first_step(str(architecture), model, input_shape, n_outputs)
        found.append(model)
    if not found:
        raise UserError(
            "family-impossible", f"{reasons[0]}; correct `build` or the domains of {family}"
        )
    return found


def check_first_step(
    name: str, model: nn.Module, input_shape: tuple[int, ...], n_outputs: int
) -> None:
    """Check that a network maps data [n, *input_shape] to [n, n_outputs] and has gradients.

    Raises:
        ValueError: if it does not; names the cause and the remedy.
    """
    inputs = torch.randn(_ROWS, *input_shape, generator=torch.Generator().manual_seed(0))
    shape = f"[n, {', '.join(map(str, input_shape))}]"
    try:
        refuse_batch_statistics(model)
        outputs = model(inputs.clone())
    except BatchStatisticsError as error:
        raise UserError("family-not-trained", f"{name} cannot be trained here: {error}") from None
    except Exception as error:
        raise UserError(
            "family-fails-on-inputs",
            f"{name} fails on inputs {shape}: {_first_line(error)}; build it from `input_shape`, "
            "which is that of one example",
        ) from None
    if not isinstance(outputs, Tensor) or outputs.shape != (_ROWS, n_outputs):
        gave = list(outputs.shape) if isinstance(outputs, Tensor) else type(outputs).__name__
        raise UserError(
            "family-output-shape",
            f"{name} must return a tensor [{_ROWS}, {n_outputs}] for {_ROWS} examples, but gave "
            f"{gave}; return one row of outputs for each example",
        )
    try:
        with undisturbed(model):
            check_rows(model, inputs)
    except UserError as error:
        raise UserError(
            "family-rows-not-alone", f"{name} cannot be trained here: {error}"
        ) from error
    if not outputs.requires_grad:
        raise UserError(
            "family-without-parameters",
            f"{name} has outputs that depend on no free parameter; let `forward` use an "
            "nn.Parameter with requires_grad=True",
        )


def _check_curvatures(study: StudySpec, family: str, tried: Iterable[Coverage]) -> None:
    """Refuse a study that asks for a kind of curvature that does not cover a network."""
    online = {study.plan.online.curvature} if learns(study.plan) else set()
    failed = {one.kind: one.reason for one in tried if not one.covered}
    if lacking := sorted((online | curvatures_of(study.estimators)) & failed.keys()):
        raise UserError(
            "scores-not-computable",
            f"{', '.join(lacking)} cannot be computed for {family}: {failed[lacking[0]]}. "
            f"Set {' and '.join(_remedy(study, failed))}",
        )


def _check_last_layer(
    study: StudySpec, family: str, model: nn.Module, input_shape: tuple[int, ...]
) -> None:
    """Refuse a study that asks for the evidence of a last layer that is not free, or not last."""
    inputs = torch.randn(_ROWS, *input_shape, generator=torch.Generator().manual_seed(0))
    try:
        last_layer_of(model, inputs, torch.ones(len(free_parameters(model))))
    except DoesNotFitError:
        return
    except UserError as error:
        keys = _without(study, [name for name in study.estimators if name != _LAST_LAYER])
        raise UserError(
            "last-layer-not-computable",
            f"{_LAST_LAYER} cannot be computed for {family}: {error}. Set {' and '.join(keys)}",
        ) from error


def _remedy(study: StudySpec, failed: Collection[str]) -> list[str]:
    """Return the settings with which a study computes only kinds that have not failed."""
    kept = [name for name in study.estimators if (declared(name).curvature or "") not in failed]
    keys = _without(study, kept)
    if not learns(study.plan) or study.plan.online.curvature not in failed:
        return keys
    fitting = [kind for kind in ("diag_ggn_mc", "diag_ggn", "diag_ef") if kind not in failed]
    if fitting:
        return [f'plan.online.curvature="{fitting[0]}"', *keys]
    return ['plan.online.every="never"', "plan.settle=0", *keys]


def _without(study: StudySpec, kept: list[str]) -> list[str]:
    """Return the settings with which a study computes only some of its scores."""
    kept = kept or ["two_fold"]
    keys = [f"estimators={json.dumps(kept)}"]
    return keys if study.objective in kept else [*keys, f'objective="{kept[-1]}"']


def _first_line(error: Exception) -> str:
    return " ".join((f"{type(error).__name__}:", *str(error).strip().splitlines()[:1]))
