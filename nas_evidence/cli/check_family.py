"""The verb that checks your own family before a search."""

from pathlib import Path
from typing import Annotated

import typer

from nas_evidence.cli.options import AllowCode
from nas_evidence.cli.terminal import out, print_rows
from nas_evidence.plumbing.user_error import UserError


def check_family(
    reference: Annotated[str, typer.Argument(metavar="MODULE:NAME", help="The family.")],
    input_shape: Annotated[
        str, typer.Option("--input", metavar="SHAPE", help="Shape of one example: 12, or 3x32x32.")
    ],
    outputs: Annotated[
        int, typer.Option("--outputs", min=1, help="Number of classes or targets.")
    ] = 3,
    allow_code: AllowCode = False,
) -> None:
    """Build networks of a family of your own and say which curvature kinds cover which layer.

    Example: nas-evidence check-family my_nets:Wide --input 12 --allow-code
    """
    if not allow_code:
        raise UserError(
            "check-family-needs-allow-code",
            f"{reference} is code from outside nas-evidence, which runs only with --allow-code.",
        )
    if ":" not in reference:
        raise UserError(
            "check-family-name", f"the family must be named as MODULE:NAME, but got {reference}."
        )
    try:
        shape = tuple(int(length) for length in input_shape.split("x"))
    except ValueError:
        raise UserError(
            "input-shape-form", f"--input must be like 12 or 3x32x32, but got {input_shape}."
        ) from None
    from nas_evidence.storage.outside_code import code_of

    with code_of([reference], [Path.cwd()]).in_use():
        _print_coverage(reference, input_shape, shape, outputs)


def _print_coverage(
    reference: str, input_shape: str, shape: tuple[int, ...], outputs: int
) -> None:
    import torch

    from nas_evidence.curvature.coverage import coverage, coverage_of_layers
    from nas_evidence.models import build
    from nas_evidence.spec.families import domains_of
    from nas_evidence.spec.study import ArchitectureSpec
    from nas_evidence.training.own_family import check_first_step

    domains = domains_of(reference)
    rows, layers, covering = [], [], None
    for unit in (0.0, 0.999):  # the first and the last member of each domain
        values = {name: domain.at(unit) for name, domain in domains.items()}
        architecture = ArchitectureSpec(family=reference, values=values)
        model = build(architecture, shape, outputs, torch.Generator().manual_seed(0))
        check_first_step(str(architecture), model, shape, outputs)
        size = sum(p.numel() for p in model.parameters())
        found = coverage(model, shape, outputs)
        own = {one.kind for one in found if one.covered}
        covering = own if covering is None else covering & own
        rows += [
            (str(architecture), str(size), one.kind, "yes" if one.covered else "no", one.reason)
            for one in found
        ]
        layers = [
            (one.path, one.type, str(one.n_parameters), one.diagonal, one.kronecker, one.dense,
             one.remedy)
            for one in coverage_of_layers(model, shape, outputs)
        ]  # fmt: skip
        if not domains:
            break
    header = ("architecture", "parameters", "curvature", "covered", "why not")
    print_rows(f"{reference} on inputs {input_shape}", header, rows)
    columns = ("layer", "type", "parameters", "diagonal", "Kronecker", "dense", "remedy")
    print_rows(f"layers of the largest, {architecture}", columns, layers)
    if not covering:
        raise UserError(
            "family-without-curvature",
            f"no curvature covers {reference}: {rows[-1][-1]}. Without one it can be ranked by "
            'cross-validation: estimators = ["two_fold"], objective = "two_fold", '
            'plan.online.every = "never" and plan.settle = 0.',
        )
    out.print(f"estimators that cover it: {', '.join(sorted(covering))}")
