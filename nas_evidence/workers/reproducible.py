"""Settings of a worker's process under which a GPU gives the same bits for the same trial.

Without them cuBLAS may split sums differently between two runs, and cuDNN choose another kernel.
A CPU needs none.
"""

import os

import torch


def make_reproducible(device: torch.device) -> None:
    """Choose deterministic kernels for all later work of this process on a GPU.

    Call it before the first product: cuBLAS reads its setting once. An operator without a
    deterministic kernel runs with a warning.
    """
    torch.backends.cudnn.benchmark = False
    if device.type != "cuda":
        return
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.backends.cudnn.deterministic = True
    torch.use_deterministic_algorithms(True, warn_only=True)
    # Nothing here reads memory that it has not written; filling it is a launch for each tensor.
    torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]
