"""Does Ray count the GPU, and do eight actors share it? Prints what each of them sees.

python benchmarks/gpu/ray_gpu.py [--device cpu]
"""

import argparse
import os
import time

os.environ |= {"RAY_AUTH_MODE": "disabled", "RAY_USAGE_STATS_ENABLED": "0"}

import ray

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--device", default="cuda", choices=("cpu", "cuda"))
share = 0.125 if parser.parse_args().device == "cuda" else 0
n_actors = 8 if share else 2
started = time.monotonic()
ray.init(address="local", num_cpus=n_actors, include_dashboard=False, log_to_driver=False)
counted = ray.cluster_resources().get("GPU", 0)
print(f"ray {ray.__version__}: {counted:g} GPUs counted after {time.monotonic() - started:.1f} s")


@ray.remote(num_cpus=1, num_gpus=share)
class Actor:
    """Multiplies on its device."""

    def look(self) -> tuple[str | None, bool, int]:
        """Return the visible devices, whether a product is right, and the free memory in MB."""
        import torch

        device = "cuda" if share else "cpu"
        x = torch.randn(512, 512, device=device)
        free = torch.cuda.mem_get_info()[0] >> 20 if share else 0
        right = torch.allclose((x @ x).sum(0), x.sum(0) @ x, rtol=1e-2, atol=1e-1)
        return os.environ.get("CUDA_VISIBLE_DEVICES"), right, free


actors = [Actor.remote() for _ in range(n_actors)]
print(ray.get([actor.look.remote() for actor in actors], timeout=90))
ray.shutdown()
