"""A process does not stay in the working directory that Ray has unpacked for its job.

Ray's nodes on one host share that folder, and each removes it and unpacks it again before the
first worker that it starts for the job. A process that stays there is in no folder at all, where
torch cannot be imported.
"""

import atexit
import os
import shutil
import tempfile
from pathlib import Path

#: Ray sets it in the driver of a job.
_JOB = "RAY_JOB_CONFIG_JSON_ENV_VAR"


def leave_unpacked(*, with_files: bool) -> Path | None:
    """Leave a working directory that Ray has unpacked; return the new one.

    Args:
        with_files: take its files along, in a folder that ends with this process; else go to the
            folder of temporary files.

    Raises:
        FileNotFoundError: if the folder was removed and this is no process of Ray: what it writes
            would be in a folder that nobody named.
    """
    try:
        there = Path.cwd()
        if there.parent.name != "working_dir_files":  # Ray's name
            return None
    except FileNotFoundError:  # it is removed already
        if with_files and _JOB not in os.environ:
            raise
        with_files = False
    new = Path(tempfile.gettempdir())
    if with_files:
        new = Path(tempfile.mkdtemp(prefix="nas-evidence-job-"))
        atexit.register(shutil.rmtree, new, ignore_errors=True)
        shutil.copytree(there, new, dirs_exist_ok=True)
    os.chdir(new)
    return new
