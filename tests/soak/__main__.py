import os

os.environ |= {"OMP_NUM_THREADS": "1", "RAY_USAGE_STATS_ENABLED": "0"}
os.environ |= {"RAY_AUTH_MODE": "disabled", "RAY_raylet_start_wait_time_s": "120"}
os.fsync = lambda descriptor: None  # no campaign cuts the power

from soak.harness import main  # noqa: E402

main()
