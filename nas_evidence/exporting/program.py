"""A trained model with its preprocessing inside, as a module and as a torch.export program."""

import copy
import io
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor, nn

from nas_evidence.data import ArrayData
from nas_evidence.exporting.soundness import check_code, check_files
from nas_evidence.likelihoods import Likelihood, likelihood
from nas_evidence.maths.metrics import Floats
from nas_evidence.maths.target_scale import CURVES
from nas_evidence.models import build
from nas_evidence.plumbing.own_modules import Code, code_in_use
from nas_evidence.plumbing.parsing import parsed_toml
from nas_evidence.plumbing.seals import DamagedError
from nas_evidence.plumbing.tensor_seals import KEPT_PREFIX, n_numbers, read_tensors
from nas_evidence.plumbing.user_error import UserError
from nas_evidence.spec.registry import has_outside, is_outside
from nas_evidence.spec.study import ArchitectureSpec
from nas_evidence.storage.outside_code import code_of, known_code, read_code

#: Largest absolute difference between the outputs of the model and of the exported program, in
#: logits or in standard deviations of the targets.
OUTPUT_TOLERANCE = 1e-5
#: Rows of the check: not only those of the example, whose number must not be built in.
ROWS = (1, 2, 7)


#: Errors of code that say themselves what to do.
_OF_CODE = (
    "export-code-not-allowed", "reference-not-imported", "own-file-not-copied",
    "own-code-compiled", "import-not-followed", "imported-past-the-copy", "export-damaged",
    "encoded-numbers",
)  # fmt: skip
#: What an export holds beside the network.
BUFFERS = ("mean", "std", "scale", "shift", "curve_parameters", "lowest", "highest")


class Exported(nn.Module):
    """A trained model with its preprocessing inside: raw inputs [n, ...] in, outputs [n, C] out.

    Outputs are logits, divided by the learned temperature, or predictions of real targets in
    their own unit: the means that the likelihood finds in the network's outputs. If given, `scale`
    [C] or [] multiplies the network's outputs and `shift` is added; they are held between `lowest`
    and `highest` [C]; the inverse of the target's scale, `curve` with `curve_parameters` [P, C],
    comes last, so that its outputs are medians of the targets.
    """

    mean: Tensor
    std: Tensor
    scale: Tensor | None
    shift: Tensor | None
    curve_parameters: Tensor | None
    lowest: Tensor | None
    highest: Tensor | None

    def __init__(
        self,
        model: nn.Module,
        mean: Tensor,
        std: Tensor,
        curve: str = "identity",
        likelihood: Likelihood | None = None,
        **others: Tensor,
    ) -> None:
        super().__init__()
        self.model, self.curve, self.likelihood = model, curve, likelihood
        self.own_code = code_in_use() or Code()  # the classes of the network may be from there
        for name in BUFFERS:
            self.register_buffer(name, {"mean": mean, "std": std, **others}.get(name))

    def __reduce_ex__(self, protocol: Any) -> Any:
        """Return what a pickle holds: the code of an own family comes before its network."""
        made, arguments, *rest = cast("tuple[Any, ...]", super().__reduce_ex__(protocol))
        return (_with_its_code, (self.own_code, made, arguments), *rest)

    def forward(self, inputs: Tensor) -> Tensor:
        """Return the outputs [n, C] of raw inputs [n, ...] in the data set's own units."""
        return self.from_scale(self.on_scale(inputs))

    def from_scale(self, outputs: Tensor) -> Tensor:
        """Return predictions on the scale of the targets [n, C] in their own unit."""
        if self.curve == "identity":
            return outputs
        # In float64: exponents of yeo_johnson may be small.
        found: Tensor = CURVES[self.curve].inverse(outputs.double(), self.curve_parameters, torch)
        return found.to(outputs.dtype)

    def slope(self, outputs: Tensor) -> Tensor:
        """Return the derivative of the scale at predictions in their own unit [n, C]."""
        if self.curve == "identity":
            return torch.ones_like(outputs)
        logs: Tensor = CURVES[self.curve].log_slope(outputs.double(), self.curve_parameters, torch)
        return logs.exp().to(outputs.dtype)

    def on_scale(self, inputs: Tensor) -> Tensor:
        """Return the outputs [n, C] of raw inputs, real targets on their scale."""
        outputs: Tensor = self.model((inputs.to(self.mean.dtype) - self.mean) / self.std)
        if self.likelihood is not None:
            outputs = self.likelihood.mean(outputs)
        if self.scale is not None:
            outputs = outputs * self.scale
        if self.shift is not None:
            outputs = outputs + self.shift
        return outputs if self.lowest is None else outputs.clamp(self.lowest, self.highest)


def _with_its_code(code: Code, made: Callable[..., Any], arguments: tuple[Any, ...]) -> Any:
    return made(*arguments)


class Mixed(nn.Module):
    """All members as one module: raw inputs in; log Σ_k w_k p_k out, or Σ_k w_k f_k.

    Predictions f_k are averaged on the scale of the targets.
    """

    weights: Tensor
    scale: Tensor | None
    shift: Tensor | None

    def __init__(self, members: Sequence[Exported], weights: Floats) -> None:
        super().__init__()
        self.members = nn.ModuleList(members)
        self.register_buffer("weights", torch.from_numpy(np.array(weights)).float())
        self.scale, self.shift = members[0].scale, members[0].shift

    @property
    def _first(self) -> Exported:
        return cast(Exported, self.members[0])

    def slope(self, outputs: Tensor) -> Tensor:
        """Return what `Exported.slope` does."""
        return self._first.slope(outputs)

    def forward(self, inputs: Tensor) -> Tensor:
        """Return log probabilities or predictions [n, C] of raw inputs [n, ...]."""
        outputs = torch.stack([cast(Exported, one).on_scale(inputs) for one in self.members])
        if self.shift is not None:
            return self._first.from_scale(torch.einsum("k,knc->nc", self.weights, outputs))
        logs: Tensor = outputs.log_softmax(-1) + self.weights.log()[:, None, None]
        return logs.logsumexp(0)


def load_exported(folder: str | Path, *, allow_code: bool = False) -> Exported:
    """Return the model of an export folder, in evaluation mode, with raw inputs as its inputs.

    Args:
        folder: of the export.
        allow_code: let code that the export names as module:NAME run, a family of your own.

    Raises:
        ValueError: if a file is missing, damaged, or does not fit the architecture, or for code
            that is not allowed.
    """
    folder = Path(folder)
    names = ("architecture.toml", "model.safetensors")
    if not any((folder / name).is_file() for name in names):
        raise UserError(
            "not-an-export", f"{folder} is not an export folder: it has no {names[1]}."
        )
    check_files(folder, *names)
    try:
        code = _code_of_export(folder, allowed=allow_code)
        with code.in_use():
            return read_exported(folder)
    except DamagedError:
        raise
    except UserError as error:
        if error.code in _OF_CODE:
            raise
        raise _not_sound(folder, error) from None
    except Exception as error:  # whatever a damaged description may lead to
        raise _not_sound(folder, error) from None


def _not_sound(folder: Path, error: Exception) -> UserError:
    why = (str(error).strip().splitlines() or [type(error).__name__])[0]
    return UserError(
        "export-not-sound",
        f"{folder} is not a sound export: its files do not fit together ({why}); export the "
        "trial again.",
    )


def read_exported(folder: Path) -> Exported:
    """Return the same of files that have just been written, which have no checksums yet."""
    described = parsed_toml((folder / "architecture.toml").read_text(encoding="utf-8"))
    architecture = ArchitectureSpec(family=described["family"], values=described["values"])
    state = network_only(read_tensors(folder / "model.safetensors")[0])
    width = described["n_classes" if "n_classes" in described else "n_outputs"]
    if not _is_small(described, state):
        raise UserError(
            "weights-of-another-architecture", "the weights are not those of this architecture"
        )
    if "model.numbers.low" in state and not is_outside(architecture.family):
        raise UserError(
            "encoded-numbers",
            f"{folder}: its network encodes numbers, which is no longer offered; nas-evidence of "
            "commit 52e6435a predicts with it",
        )
    shape, generator = tuple(described["input_shape"]), torch.Generator().manual_seed(0)
    model = build(architecture, shape, width, generator)
    buffers = {name: torch.empty_like(state[name]) for name in BUFFERS if name in state}
    name = described.get("likelihood", "")
    if not name and "shift" in state and width > len(state["shift"]):
        name = "heteroscedastic"  # which earlier versions left to be seen
    exported = Exported(
        model,
        curve=described.get("target_scale", "identity"),
        likelihood=likelihood(name) if name else None,
        **buffers,
    )
    exported.load_state_dict(state)
    return exported.eval()


def _is_small(described: dict[str, Any], state: dict[str, Tensor]) -> bool:
    """Return whether an architecture has as many numbers as are stored, before it is built.

    A damaged description may name a network larger than memory.
    """
    stored = n_numbers(t for name, t in state.items() if name.startswith("model."))
    return int(described["n_parameters"]) + int(described.get("n_constants", 0)) == stored


def _code_of_export(folder: Path, *, allowed: bool) -> Code:
    """Return the code of the family of an export, imported; empty for a family of the package.

    That of the study whose export it is, or that was allowed in this process before, is taken; so
    the same bytes need to be allowed once.

    Raises:
        ValueError: if it is not allowed, damaged, or cannot be imported from `code/` of the
            export, the current folder, or what is installed.
    """
    family = parsed_toml((folder / "architecture.toml").read_text(encoding="utf-8"))["family"]
    if not is_outside(family):
        return Code()
    check_code(folder)
    kept, current = read_code(folder / "code"), code_in_use()
    in_it = current is not None and kept.files.items() <= current.files.items()
    if current is not None and in_it and has_outside(current, family):
        return current
    if (known := known_code([family], kept)) is not None:
        return known
    if not allowed:
        raise UserError(
            "export-code-not-allowed",
            f"{folder} has the family {family}: code from outside nas-evidence, which runs only "
            "with allow_code=True.",
        )
    return code_of([family], [Path.cwd()], kept)


def unit_of(exported: Exported | Mixed, outputs: Tensor) -> Tensor:
    """Return the unit of outputs [n, C]: 1 for classes, else that of a standardised target."""
    if exported.shift is None or exported.scale is None:
        return torch.ones(())
    return exported.scale / exported.slope(outputs)


def write_program(exported: Exported | Mixed, path: Path, arrays: ArrayData) -> float:
    """Write the program, load it back and return the largest difference of its outputs.

    Args:
        exported: one network, or several as one module.
        path: of the program.
        arrays: the training data; some are examples of inputs.

    Raises:
        ArithmeticError: if the outputs differ by more than `OUTPUT_TOLERANCE`.
    """
    # In float64, so that the cast is part of the program; any other type is cast just as well.
    example = torch.from_numpy(arrays.x_train[:2].copy()).double()
    batch = torch.export.Dim("batch")
    plain = copy.deepcopy(exported)  # torch stores tensors of another layout with a warning
    for parameter in plain.parameters():
        parameter.data = parameter.data.contiguous()
    program = torch.export.export(plain, (example,), dynamic_shapes=({0: batch},))
    _accept_any_dtype(program)
    content = io.BytesIO()  # torch's own writer ends the process where a disk is full
    torch.export.save(program, content)
    path.write_bytes(content.getbuffer())
    content.seek(0)
    return compared(torch.export.load(content).module(), exported, path, arrays)


def compared(
    loaded: Callable[[Tensor], Tensor], exported: Exported | Mixed, path: Path, arrays: ArrayData
) -> float:
    """Return the largest difference between the outputs of what `path` holds and of the model.

    Raises:
        ArithmeticError: if it is more than `OUTPUT_TOLERANCE`.
    """
    difference = 0.0
    for n in ROWS:
        inputs = torch.from_numpy(arrays.x_train[:n].copy())
        with torch.no_grad():
            expected = exported(inputs)
            gap = (loaded(inputs) - expected) / unit_of(exported, expected)
        difference = float(gap.abs().max().clamp(min=difference))
    if not difference <= OUTPUT_TOLERANCE:
        raise ArithmeticError(f"the outputs of {path} differ from the model's by {difference}.")
    return difference


def _accept_any_dtype(program: torch.export.ExportedProgram) -> None:
    """Remove the assertions that inputs have the type of the example."""
    graph = program.graph_module.graph
    for node in list(graph.nodes):
        if node.target is torch.ops.aten._assert_tensor_metadata.default:
            graph.erase_node(node)
    program.graph_module.recompile()


def network_only(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Return the tensors of a network, without what else is stored beside its weights."""
    return {name: t for name, t in tensors.items() if not name.startswith(KEPT_PREFIX)}
