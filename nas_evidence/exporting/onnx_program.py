"""The exported network in the ONNX format, checked with onnxruntime; the extra `onnx`.

    model.onnx    input "inputs" float32 [batch, ...], raw; output as of model.pt2: logits, log
                  probabilities of an ensemble, or predictions of real targets in their own unit

Every other runtime of ONNX takes the same file. The default domain of opset 18 and later is all it
uses.
"""

import contextlib
import copy
import io
import logging
import warnings
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import torch

from nas_evidence.data import ArrayData
from nas_evidence.exporting.program import Exported, Mixed, compared
from nas_evidence.plumbing.user_error import UserError

_NEEDED = ("onnx", "onnxruntime", "onnxscript")


def check_installed() -> None:
    """Check that the extra is installed.

    Raises:
        ValueError: if a package is missing; says how to install it.
    """
    missing = [name for name in _NEEDED if find_spec(name) is None]
    if missing:
        raise UserError(
            "onnx-needs-packages",
            f"`onnx` needs {', '.join(missing)}: install it with `pip install '.[onnx]'` in a "
            "clone.",
        )


def write_onnx(exported: Exported | Mixed, path: Path, arrays: ArrayData) -> float:
    """Write a network as ONNX, run it with onnxruntime and return the largest difference.

    Args:
        exported: one network, or several as one module.
        path: of the file.
        arrays: the training data; some are examples of inputs.

    Returns:
        The difference of the outputs, in logits or in standard deviations of the targets.

    Raises:
        ValueError: if the extra is not installed.
        ArithmeticError: if it is more than `OUTPUT_TOLERANCE`.
    """
    check_installed()
    import onnxruntime

    plain = copy.deepcopy(exported).eval()
    example = torch.from_numpy(arrays.x_train[:2].copy()).float()
    with _quiet():
        program = torch.onnx.export(
            plain,
            (example,),
            dynamo=True,
            input_names=["inputs"],
            output_names=["outputs"],
            dynamic_shapes=({0: torch.export.Dim("batch")},),
            verbose=False,
        )
        assert program is not None
        program.save(path, external_data=False)
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])

    def run(inputs: torch.Tensor) -> torch.Tensor:
        return torch.from_numpy(session.run(["outputs"], {"inputs": inputs.float().numpy()})[0])

    return compared(run, exported, path, arrays)


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Keep the exporter's progress and the warnings of its own code to itself."""
    level = logging.getLogger("torch.onnx").level
    logging.getLogger("torch.onnx").setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.getLogger("torch.onnx").setLevel(level)
