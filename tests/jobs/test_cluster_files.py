"""The files in cluster/: each says what its reader expects, and its entry command runs.

No cloud is needed: the schema is Ray's own, Kubernetes and Docker are read as text, and `srun` and
`scontrol` are fakes. What they would start is started, on a cluster of this machine.
"""

import contextlib
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import tempfile
import time
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import typer
import yaml
from commands import SCRIPT, environment, run, study_text, write_study
from packaging.specifiers import SpecifierSet

from nas_evidence.cli.main import app
from nas_evidence.storage.tables import read_table

ROOT = Path(__file__).resolve().parents[2]
CLUSTER = ROOT / "cluster"
#: Each folder, and its section on the page of clusters.
FOLDERS = {
    "docker": "Docker", "kuberay": "Kubernetes", "ray-up": "`ray up`", "skypilot": "SkyPilot",
    "slurm": "Slurm",
}  # fmt: skip
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
PROJECT = PYPROJECT["project"]
IMAGE = f"nas-evidence:{PROJECT['version']}"
SBATCH = CLUSTER / "slurm" / "study.sbatch"


def pinned(package: str) -> str:
    pins = dict(
        line.split("==")
        for line in (ROOT / "constraints.txt").read_text().splitlines()
        if "==" in line
    )
    return pins[package]


def section(folder: str) -> str:
    page = (ROOT / "docs" / "how-to" / "cluster.md").read_text()
    return page.partition(f"\n## {FOLDERS[folder]}\n\n")[2].partition("\n## ")[0]


# --- all of them


@pytest.mark.parametrize("folder", FOLDERS)
def test_commands_of_a_section_are_shell_and_name_files_that_exist(folder: str) -> None:
    blocks = re.findall(r"```bash[^\n]*\n(.*?)```", section(folder), flags=re.DOTALL)
    assert blocks
    for block in blocks:
        subprocess.run(["bash", "-n"], input=block, text=True, check=True)
        for path in re.findall(r"\bcluster/[\w./-]+", block):
            assert (ROOT / path).exists(), path


@pytest.mark.parametrize("folder", FOLDERS)
def test_no_file_holds_a_secret_or_opens_a_dashboard_to_the_world(folder: str) -> None:
    for path in (CLUSTER / folder).iterdir():
        text = path.read_text()
        assert "0.0.0.0" not in text, path
        assert not re.search(r"(?i)(password|secret_key|auth_token)\s*[=:]\s*[\w\"']{8,}", text), (
            path
        )


@pytest.mark.parametrize("folder", FOLDERS)
def test_each_file_and_section_says_at_its_head_whether_it_was_ever_run(folder: str) -> None:
    files = [path for path in (CLUSTER / folder).iterdir() if path.suffix != ".dockerignore"]
    for text in (section(folder), *(path.read_text() for path in files)):
        head = text.removeprefix("#!/usr/bin/env bash\n").partition("\n")[0]
        assert re.search(r"[Nn]ever (built|run)\b|\bRun on\b", head), head


# --- facts of the files, and the options of their commands


def documents(name: str) -> dict[str, Any]:
    """Return the documents of a file, by kind."""
    found = yaml.safe_load_all((CLUSTER / name).read_text())
    return {document.get("kind", ""): document for document in found}


def at(value: Any, path: str) -> Any:
    """Return what stands at `a.b.0.c`."""
    for key in path.split("."):
        value = value[int(key)] if isinstance(value, list) else value[key]
    return value


RAY_JOB = {
    "apiVersion": "ray.io/v1",
    "spec.shutdownAfterJobFinishes": True,
    "spec.rayClusterSpec.rayVersion": pinned("ray"),
    "spec.rayClusterSpec.authOptions": {"mode": "token"},
    "spec.rayClusterSpec.enableInTreeAutoscaling": True,
    # The driver has its room on a head that runs no trial.
    "spec.entrypointNumCpus": 0,
    "spec.rayClusterSpec.headGroupSpec.rayStartParams.num-cpus": "0",
}
RAY_JOBS = ("kuberay/rayjob.yaml", "kuberay/own-table.yaml", "kuberay/own-s3.yaml")
MANIFESTS = (*RAY_JOBS, "kuberay/own-data.yaml")
#: Of the fields of a pod and of a container those that the files may use.
POD = {
    "containers", "imagePullSecrets", "initContainers", "nodeSelector", "restartPolicy",
    "securityContext", "tolerations", "volumes",
}  # fmt: skip
CONTAINER = {
    "command", "envFrom", "image", "name", "ports", "resources", "securityContext", "volumeMounts",
}  # fmt: skip


def pods(name: str) -> list[dict[str, Any]]:
    """Return the pods of a file; those of a RayJob are its head and its workers."""
    found = documents(name)
    if "RayJob" not in found:
        return [at(found["Job"], "spec.template.spec")]
    cluster = found["RayJob"]["spec"]["rayClusterSpec"]
    groups = [cluster["headGroupSpec"], *cluster["workerGroupSpecs"]]
    return [at(group, "template.spec") for group in groups]


def volume_at(pod: dict[str, Any], place: str) -> dict[str, Any]:
    mounts = {m["mountPath"]: m["name"] for m in at(pod, "containers.0.volumeMounts")}
    return {volume["name"]: volume for volume in pod["volumes"]}[mounts[place]]


@pytest.mark.parametrize("name", RAY_JOBS)
def test_a_rayjob_is_of_the_pinned_versions_and_tries_again(name: str) -> None:
    job = documents(name)["RayJob"]
    assert {path: at(job, path) for path in RAY_JOB} == RAY_JOB
    assert job["spec"]["backoffLimit"] > 0
    group = at(job, "spec.rayClusterSpec.workerGroupSpecs.0")
    assert group["minReplicas"] <= group["replicas"] < group["maxReplicas"]
    for pod in pods(name):
        assert pod["securityContext"]["runAsNonRoot"] is True
        memory = volume_at(pod, "/dev/shm")["emptyDir"]
        assert memory["medium"] == "Memory"
        limits = at(pod, "containers.0.resources.limits")
        assert gibibytes(memory["sizeLimit"]) < gibibytes(limits["memory"])


def gibibytes(quantity: str) -> int:
    return int(quantity.removesuffix("Gi"))


@pytest.mark.parametrize("name", MANIFESTS)
def test_a_pod_mounts_what_it_declares_as_an_ordinary_user(name: str) -> None:
    for pod in pods(name):
        assert set(pod) <= POD
        assert pod["securityContext"]["runAsUser"] == 1000
        assert ("imagePullSecrets" in pod) == ("own" in name)
        containers = [*pod["containers"], *pod.get("initContainers", [])]
        assert all(set(container) <= CONTAINER for container in containers)
        assert {container["image"] for container in containers} == {IMAGE}
        mounted = {mount["name"] for one in containers for mount in one["volumeMounts"]}
        assert mounted == {volume["name"] for volume in pod["volumes"]}
        for one in pod.get("initContainers", []):
            if one["command"][0] == "sh":
                subprocess.run(["sh", "-n"], input=one["command"][2], text=True, check=True)


def test_the_pods_of_the_rayjobs_have_their_stores_their_gpus_and_their_nodes() -> None:
    found, (head, worker) = documents(RAY_JOBS[0]), pods(RAY_JOBS[0])
    assert at(found, "PersistentVolumeClaim.spec.accessModes") == ["ReadWriteMany"]
    claim = {"claimName": at(found, "PersistentVolumeClaim.metadata.name")}
    assert [volume_at(pod, "/store")["persistentVolumeClaim"] for pod in (head, worker)] == [
        claim,
        claim,
    ]
    assert at(head, "containers.0.resources.requests") == {"cpu": "2", "memory": "8Gi"}
    gpus = int(at(worker, "containers.0.resources.limits")["nvidia.com/gpu"])
    most = at(found, "RayJob.spec.rayClusterSpec.workerGroupSpecs.0.maxReplicas")
    assert int(value_of("--workers", entry("kuberay"))) == most * gpus
    for name, secret in (("own-table", None), ("own-s3", [{"secretRef": {"name": "mine-s3"}}])):
        head, worker = pods(f"kuberay/{name}.yaml")
        assert worker["tolerations"]
        assert worker["nodeSelector"]
        assert [at(pod, "containers.0").get("envFrom") for pod in (head, worker)] == [secret] * 2


def test_the_study_file_of_the_configmap_is_valid_and_lies_where_the_rayjob_reads_it(
    tmp_path: Path,
) -> None:
    from nas_evidence.spec.toml import load_study

    data, job = documents("kuberay/own-data.yaml"), documents("kuberay/own-table.yaml")["RayJob"]
    ((name, text),) = data["ConfigMap"]["data"].items()
    (tmp_path / name).write_text(text)
    study = load_study(tmp_path / name)
    assert study.resources.gpus == 0
    head = pods("kuberay/own-table.yaml")[0]
    assert shlex.split(job["spec"]["entrypoint"])[2] == f"/study/{name}"
    named = {"name": at(data, "ConfigMap.metadata.name")}
    assert volume_at(head, "/study")["configMap"] == named
    claim = {"claimName": at(data, "PersistentVolumeClaim.metadata.name")}
    assert volume_at(head, "/store")["persistentVolumeClaim"] == claim
    assert str(study.dataset.path) == "/store/data/mine.csv"
    assert f":{study.dataset.path}" in section("kuberay")


def test_every_command_of_a_file_has_a_verb_and_options_that_exist() -> None:
    """Those of the pages are tested with all other pages."""
    task = documents("skypilot/study.yaml")[""]
    entries = [documents(name)["RayJob"]["spec"]["entrypoint"] for name in RAY_JOBS]
    for text in (*entries, *re.findall(r"^nas-evidence .*", task["run"], flags=re.MULTILINE)):
        program, verb, _, *words = shlex.split(text)
        known = {o for p in typer.main.get_command(app).commands[verb].params for o in p.opts}
        assert program == "nas-evidence"
        assert {word for word in words if word.startswith("--")} <= known
        assert {"--out", "--address", "--steal"} <= {*words}


@pytest.mark.parametrize("name", ["aws.yaml", "machines.yaml"])
def test_ray_up_files_satisfy_rays_own_schema_and_their_heads_count_no_cpus(name: str) -> None:
    import ray.autoscaler

    schema = json.loads((Path(ray.autoscaler.__file__).parent / "ray-schema.json").read_text())
    text = (CLUSTER / "ray-up" / name).read_text()
    config = yaml.safe_load(text)
    optional = r"# ((?:ssh_private_key|KeyName|IamInstanceProfile): )"
    uncommented, n = re.subn(optional, r"\1", text)
    assert n == (5 if name == "aws.yaml" else 0)
    for one in (config, yaml.safe_load(uncommented)):
        jsonschema.validate(one, schema)
    head, worker = config["head_start_ray_commands"], config["worker_start_ray_commands"]
    for command in (head[-1], worker[-1]):
        assert command.startswith("RAY_AUTH_MODE=token ray start ")
    types = config.get("available_node_types")
    counted = types[config["head_node_type"]]["resources"] if types else {}
    assert counted.get("CPU") == 0 or "--num-cpus=0" in head[-1]
    assert "~/.ray/auth_token" in config["file_mounts"]
    assert config.get("docker", {"image": IMAGE})["image"] == IMAGE


def test_the_aws_file_asks_for_as_many_workers_as_its_command() -> None:
    config = documents("ray-up/aws.yaml")[""]
    types = config["available_node_types"]
    assert set(types) == {config["head_node_type"], "gpu"}
    assert value_of("--workers", entry("ray-up")) == str(types["gpu"]["max_workers"])
    assert types["gpu"]["min_workers"] < types["gpu"]["max_workers"] <= config["max_workers"]


def test_the_skypilot_task_is_shell_and_has_all_that_it_names() -> None:
    task = documents("skypilot/study.yaml")[""]
    for part in ("setup", "run"):
        subprocess.run(["bash", "-n"], input=task[part], text=True, check=True)
    assert "constraints.txt" in task["setup"]
    assert "RAY_AUTH_MODE=token" in task["run"]
    named = set(re.findall(r"\$([A-Z_]+)", task["run"])) - {"PATH"}
    given = {*task["envs"], *task["secrets"]}
    assert {name for name in named if not name.startswith("SKYPILOT_")} <= given
    asked = re.findall(r"--(?:env|secret) ([A-Z_]+)", section("skypilot"))
    assert {"RAY_AUTH_TOKEN"} <= {*asked} <= given


def test_the_image_has_a_pinned_python_and_pins_and_ends_as_an_ordinary_user() -> None:
    text = (CLUSTER / "docker" / "Dockerfile").read_text().replace("\\\n", " ")
    lines = [line.split(None, 1) for line in text.splitlines() if line and line[0] != "#"]
    said = {word: [what for one, what in lines if one == word] for word, _ in lines}
    found = re.fullmatch(r"python:(3\.\d+\.\d+)-slim-\w+", said["FROM"][0])
    assert found, said["FROM"]
    assert SpecifierSet(PROJECT["requires-python"]).contains(found[1])
    assert said["USER"] == ["search"]
    assert any("pip install" in what and "-c constraints.txt" in what for what in said["RUN"])
    words = [word for word, _ in lines]
    assert words.index("USER") > max(i for i, word in enumerate(words) if word == "RUN")
    ignored = (CLUSTER / "docker" / "Dockerfile.dockerignore").read_text().splitlines()
    sources = {source for what in said["COPY"] for source in what.split()[:-1]}
    assert "*" in ignored
    assert sources == {line[1:] for line in ignored if line.startswith("!")}
    assert all((ROOT / source).exists() for source in sources)
    wheel = PYPROJECT["tool"]["hatch"]["build"]["targets"]["wheel"]
    needed = {PROJECT["readme"], "pyproject.toml", *wheel["packages"], *wheel["force-include"]}
    assert needed <= sources, "the wheel cannot be built in the image"


# --- the entry commands, executed


def entry(folder: str) -> list[str]:
    """Return the command of the RayJob, or the first `nas-evidence search ...` of a section."""
    if folder == "kuberay":
        return shlex.split(documents(RAY_JOBS[0])["RayJob"]["spec"]["entrypoint"])
    found = re.search(r"nas-evidence search [^'\n]+", section(folder).replace("\\\n", " "))
    assert found, folder
    return shlex.split(found[0])


def value_of(option: str, command: list[str]) -> str:
    return command[command.index(option) + 1]


def here(command: list[str], study: Path, store: Path) -> list[str]:
    """Return an entry command for a tiny study in `store`; all other options stay."""
    with_values = {"--out": str(store), "--workers": "2", "--data-root": str(store.parent)}
    for option in with_values.keys() & set(command):
        command[command.index(option) + 1] = with_values[option]
    return [*command[:2], str(study), *command[3:]]


@pytest.fixture(scope="module")
def cluster_address() -> Iterator[str]:
    from ray.cluster_utils import Cluster

    cluster = Cluster()
    try:
        cluster.add_node(
            num_cpus=2,
            num_gpus=0,
            include_dashboard=False,
            include_log_monitor=False,
            object_store_memory=80 * 1024**2,
        )
        yield cluster.address
    finally:
        cluster.shutdown()


def search(command: list[str], folder: Path, **more: str) -> str:
    """Run an entry command to its end and return what it printed."""
    done = subprocess.run(
        command,
        cwd=folder,
        env=environment(**more),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=900,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.ray
@pytest.mark.parametrize("folder", ["kuberay", pytest.param("ray-up", marks=pytest.mark.soak)])
def test_the_entry_command_searches_on_the_cluster_that_is_there(
    folder: str, cluster_address: str, tmp_path: Path
) -> None:
    command = here(entry(folder), write_study(tmp_path), tmp_path / "study")
    assert value_of("--address", command) == "auto"
    assert "4 trials" in search(command, tmp_path, RAY_ADDRESS=cluster_address)
    assert set(read_table(tmp_path / "study", "trials")["status"]) == {"complete"}


@pytest.mark.soak
@pytest.mark.slow
@pytest.mark.ray
def test_the_containers_command_searches_and_started_again_finds_all_done(tmp_path: Path) -> None:
    command = here(entry("docker"), write_study(tmp_path), tmp_path / "study")
    assert "4 trials" in search(command, tmp_path)
    assert set(read_table(tmp_path / "study", "trials")["status"]) == {"complete"}
    assert "all 4 trials are finished" in search(command, tmp_path)


# --- Slurm

N_TRIALS = 4
LONG = study_text("long", 60, n_trials=N_TRIALS)

FAKES = {
    "srun": """\
echo "srun $*" >> "$CALLS"
while [[ $1 == --* ]]; do shift; done
export SLURM_NODEID=0
exec "$@"
""",
    "scontrol": """\
echo "scontrol $*" >> "$CALLS"
if [[ $1 == show ]]; then echo 127.0.0.1; fi
""",
}


def pretend(home: Path, fakes: dict[str, str]) -> None:
    """Put programs into `bin`, by the bodies of their scripts."""
    (home / "bin").mkdir()
    for name, body in fakes.items():
        fake = home / "bin" / name
        fake.write_text(f"#!/usr/bin/env bash\n{body}")
        fake.chmod(0o755)


def test_the_sbatch_script_is_shell_and_asks_to_be_signalled_and_requeued() -> None:
    subprocess.run(["bash", "-n", SBATCH], check=True)
    assert os.access(SBATCH, os.X_OK)
    asked = re.findall(r"^#SBATCH --([\w-]+)(?:=(.+))?$", SBATCH.read_text(), flags=re.MULTILINE)
    options = dict(asked)
    assert {"requeue", "exclusive"} <= options.keys()
    assert options["ntasks-per-node"] == "1"
    assert re.fullmatch(r"B:USR1@\d+", options["signal"])
    assert options["open-mode"] == "append"


def test_the_sbatch_script_names_what_it_was_not_given() -> None:
    bare = {"PATH": os.environ["PATH"], "SLURM_JOB_ID": "1", "STUDY": "digits"}
    done = subprocess.run(["bash", SBATCH], env=bare, capture_output=True, text=True)
    assert done.returncode != 0
    assert "STORE: a folder that every node sees" in done.stderr


def run_without_ray(home: Path, **given: str) -> tuple[str, list[str]]:
    """Run the script with stand-ins for all that it starts; return its output and their calls."""
    skip_options = "while [[ $1 == --* ]]; do [[ $1 == --bind ]] && shift; shift; done"
    fakes = FAKES | {
        "apptainer": f'echo "apptainer $*" >> "$CALLS"\nshift\n{skip_options}\nshift\nexec "$@"\n',
        "ray": 'echo "ray $1" >> "$CALLS"\nuntil [[ $1 == -- ]]; do shift; done\nshift\n"$@"\n',
        "nas-evidence": 'echo "nas-evidence $* MODULE=${MODULE-} $SLURM_EXPORT_ENV" >> "$CALLS"\n',
    }
    pretend(home, fakes)
    done = subprocess.run(
        ["bash", SBATCH, "--target", "price"],
        env={
            "PATH": f"{home}/bin:{os.environ['PATH']}", "CALLS": str(home / "calls"),
            "STUDY": "mine.csv", "STORE": str(home / "shared" / "mine"), "SLURM_JOB_ID": "4242",
            "SLURM_JOB_NODELIST": "here", "SLURM_NNODES": "1", "SLURM_EXPORT_ENV": "NONE",
            "RAY_TMPDIR": "", "NODE_TMP": str(home), **given,
        },
        stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout + done.stderr, (home / "calls").read_text().splitlines()


def test_a_slurm_job_reads_its_modules_and_hands_its_environment_to_the_steps(
    tmp_path: Path,
) -> None:
    setup = tmp_path / "setup.sh"
    setup.write_text("false\n[[ $NOT_SET ]]\nexport MODULE=loaded\n")
    _, calls = run_without_ray(tmp_path, SETUP=str(setup))
    search = f"nas-evidence search mine.csv --out {tmp_path}/shared/mine --address auto --steal"
    assert calls[-1] == f"{search} --target price MODULE=loaded ALL"
    assert not any(call.startswith("apptainer") for call in calls)


def test_a_slurm_job_with_an_image_starts_ray_in_it_and_shows_it_the_shared_folder(
    tmp_path: Path,
) -> None:
    _, calls = run_without_ray(tmp_path, IMAGE="nas.sif", BIND="/scratch,/data")
    names = [call.split()[0] for call in calls]
    assert names == ["scontrol", "srun", "apptainer", "ray", "nas-evidence"]
    bound = f"{tmp_path}/shared,{tmp_path},/scratch,/data"
    assert calls[2].startswith(f"apptainer exec --nv --bind {bound} nas.sif ray symmetric-run ")
    script = SBATCH.read_text()
    assert len(re.findall(r'"\$\{inside\[@\]\}" (?:ray|bash) ', script)) == 2, (
        "also on other nodes"
    )


#: A process that sees only what it started.
ALONE = ("unshare", "--pid", "--fork", "--mount-proc")


class Slurm:
    """Runs the script as a Slurm job of one node would, with processes of its own only.

    `ray symmetric-run` ends with `ray stop`, which ends every Ray of the machine: here the script
    sees no other process, and with it all that it started goes.
    """

    def __init__(self, home: Path) -> None:
        self.home, self.store, self.calls = home, home / "store" / "long", home / "calls"
        pretend(home, FAKES)
        (home / "long.toml").write_text(LONG)

    @contextlib.contextmanager
    def job(self) -> Iterator[subprocess.Popen[str]]:
        given = environment(
            PATH=f"{self.home}/bin:{SCRIPT.parent}:{os.environ['PATH']}",
            HOME=str(self.home),
            CALLS=str(self.calls),
            STUDY=str(self.home / "long.toml"),
            STORE=str(self.store),
            NODE_TMP=str(self.home),
            SLURM_JOB_ID="4242",
            SLURM_JOB_NODELIST="here",
            SLURM_NNODES="1",
        )
        with (self.home / "log").open("a") as log:
            job = subprocess.Popen(
                [*ALONE, "--kill-child", "bash", SBATCH, "--workers", "2"],
                cwd=self.home,
                env=given,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                text=True,
            )
        try:
            yield job
        finally:
            job.kill()
            job.wait()

    def signal_batch_shell(self, job: subprocess.Popen[str]) -> None:
        """Send what `--signal=B:USR1@...` sends, to the shell alone."""
        children = Path(f"/proc/{job.pid}/task/{job.pid}/children").read_text().split()
        os.kill(int(children[0]), signal.SIGUSR1)

    def log(self) -> str:
        return (self.home / "log").read_text()

    def n_stored(self) -> int:
        return len(list((self.store / "trials").glob("*.parquet")))

    def n_requeued(self) -> int:
        return self.calls.read_text().count("scontrol requeue 4242")


@pytest.fixture
def slurm() -> Iterator[Slurm]:
    trial = [*ALONE, "true"]
    if not shutil.which("unshare") or subprocess.run(trial, capture_output=True).returncode:
        pytest.skip("`unshare --pid` must be allowed: the script ends every Ray that it sees")
    with tempfile.TemporaryDirectory(prefix="nas") as home:  # short: it holds sockets
        yield Slurm(Path(home))


@pytest.mark.soak
@pytest.mark.slow
@pytest.mark.ray
def test_a_signalled_slurm_job_parks_the_study_is_requeued_and_then_finishes_it(
    slurm: Slurm,
) -> None:
    with slurm.job() as job:
        end = time.monotonic() + 600
        while not slurm.n_stored():
            assert job.poll() is None, slurm.log()
            assert time.monotonic() < end, slurm.log()
            time.sleep(0.05)
        slurm.signal_batch_shell(job)
        assert job.wait(timeout=600) == 0, slurm.log()
    assert slurm.n_requeued() == 1, slurm.log()
    assert 1 <= slurm.n_stored() < N_TRIALS
    stands = json.loads(run("status", slurm.store, "--json", folder=slurm.home).stdout)
    assert stands["state"] == "stopped"
    assert "Traceback" not in slurm.log()

    with slurm.job() as job:
        assert job.wait(timeout=900) == 0, slurm.log()
    assert slurm.n_requeued() == 1
    trials = read_table(slurm.store, "trials")
    assert list(trials["trial_id"]) == [*range(N_TRIALS)]
    assert set(trials["status"]) == {"complete"}
    assert list(slurm.store.parent.glob("*.token-*")) == []
