"""The proxies of notebooks/ against closed forms, and a search that ranks by them."""

import functools
import math
import runpy
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from fake_gpu import FakeGpu
from lone_trials import run
from records import asked, mlp
from torch import Tensor, nn

import nas_evidence
from nas_evidence.data import load
from nas_evidence.data.tensors import to_tensors
from nas_evidence.models import build
from nas_evidence.scores.protocol import Context
from nas_evidence.spec.study import ArchitectureSpec, DatasetSpec
from nas_evidence.storage.outside_code import code_of
from nas_evidence.storage.tables import read_table
from nas_evidence.training.network import begin

EXAMPLES = Path(__file__).resolve().parents[2] / "notebooks"
FOUND = runpy.run_path(str(EXAMPLES / "zero_cost_proxies.py"))
log_synflow: Callable[[nn.Module, Tensor], Any] = FOUND["log_synflow"]
log_snip: Callable[[nn.Module, Tensor], Any] = FOUND["log_snip"]
NETWORKS = [
    ("linear", {}), ("mlp", {"depth": 2, "width": 5, "shape": "constant"}),
    ("cnn", {"depth": 2, "width": 3}), ("resnet", {"depth": 8, "width": 4}),
]  # fmt: skip


def linear_network(*widths: int) -> nn.Sequential:
    layers = [nn.Linear(a, b, bias=False).double() for a, b in pairwise(widths)]
    return nn.Sequential(*layers)


def context_of(family: str, values: dict[str, Any], seed: int = 0) -> Any:
    """The context of a trial before its first step, on random images 8x8 of three classes."""
    random = torch.Generator().manual_seed(seed)
    model = build(ArchitectureSpec(family=family, values=values), (1, 8, 8), 3, random)
    assignment = asked(ArchitectureSpec(family=family, values=values), (), epochs=1)
    data: Any = type("Data", (), {})()
    data.x_train = torch.randn(20, 1, 8, 8, generator=random)
    data.y_train = torch.arange(20) % 3
    return Context(begin(model, data, assignment.plan, assignment.seed), assignment)


def test_synflow_of_a_linear_network_is_depth_times_the_product_of_absolute_weights() -> None:
    torch.manual_seed(0)
    model = linear_network(4, 3, 5, 2)
    a, b, c = (layer.weight.detach().abs() for layer in model)
    by_hand = 3 * float((c @ b @ a).sum())  # each layer contributes R
    assert log_synflow(model, torch.ones(1, 4).double()) == pytest.approx(math.log(by_hand))


@pytest.mark.parametrize(("family", "values"), NETWORKS)
def test_synflow_is_positively_homogeneous_in_a_layer(family: str, values: dict[str, Any]) -> None:
    """R and all its parts are linear in the head, so that log synflow rises by log c."""
    ones = torch.ones(1, 1, 8, 8).double()
    before = log_synflow(FOUND["network_of"](context_of(family, values)), ones)
    model = FOUND["network_of"](context_of(family, values))
    with torch.no_grad():
        model.head.weight.mul_(-2.5)
    assert log_synflow(model, ones) == pytest.approx(before + math.log(2.5))


def test_synflow_reads_no_data() -> None:
    one, other = (context_of("cnn", {"depth": 1, "width": 2}) for _ in range(2))
    other.data.x_train = other.data.x_train + 3
    assert FOUND["synflow"](one) == FOUND["synflow"](other)


def test_snip_of_a_linear_classifier_is_what_the_gradient_by_hand_gives() -> None:
    torch.manual_seed(0)
    model, x, y = linear_network(4, 3), torch.randn(6, 4).double(), torch.arange(6) % 3
    weight = model[0].weight.detach()
    off = (x @ weight.T).softmax(1) - nn.functional.one_hot(y, 3)
    by_hand = float((off.T @ x / 6 * weight).abs().sum())
    found = log_snip(model, nn.functional.cross_entropy(model(x), y))
    assert found == pytest.approx(math.log(by_hand))


def test_snip_does_not_change_where_a_factor_moves_to_the_next_layer() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 5, bias=False), nn.ReLU(), nn.Linear(5, 3)).double()
    x, y = torch.randn(6, 4).double(), torch.arange(6) % 3
    before = log_snip(model, nn.functional.cross_entropy(model(x), y))
    with torch.no_grad():
        model[0].weight.mul_(4)
        model[2].weight.div_(4)
    assert log_snip(model, nn.functional.cross_entropy(model(x), y)) == pytest.approx(before)


@pytest.mark.parametrize("proxy", ["synflow", "snip"])
@pytest.mark.parametrize(("family", "values"), NETWORKS)
def test_a_proxy_has_a_value_for_every_family_and_the_same_for_the_same_seed(
    proxy: str, family: str, values: dict[str, Any]
) -> None:
    one, other = (FOUND[proxy](context_of(family, values)) for _ in range(2))
    assert one == other
    assert math.isfinite(one)
    assert FOUND[proxy](context_of(family, values, seed=1)) != one


def test_a_trial_on_a_gpu_has_the_values_of_one_on_a_cpu(tmp_path: Path) -> None:
    names = ("zero_cost_proxies:SYNFLOW", "zero_cost_proxies:SNIP")
    assignment = asked(mlp(depth=1, width=4), names, epochs=1)
    arrays = load(DatasetSpec(name="digits", max_train=40, max_test=10), seed=0)
    with code_of(names, [EXAMPLES]).in_use():
        on_cpu = run(assignment, to_tensors(arrays, "cpu"), tmp_path / "cpu")
        with FakeGpu():
            on_gpu = run(assignment, to_tensors(arrays, "cuda"), tmp_path / "gpu")
    for name in names:
        one, other = (record.final_estimate(name) for record in (on_cpu, on_gpu))
        assert one is not None
        assert other is not None
        assert one.value == other.value


def test_a_network_without_any_flow_has_no_value() -> None:
    dead = linear_network(2, 2)
    nn.init.zeros_(dead[0].weight)
    found = log_synflow(dead, torch.ones(1, 2).double())
    assert not found.valid
    assert found.value == -math.inf


@pytest.mark.long
@pytest.mark.slow
def test_the_example_ranks_a_search_by_a_proxy_taken_before_training(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def short(*given: Any, settings: dict[str, Any], **more: Any) -> nas_evidence.Study:
        few = {
            "plan.epochs": 2,
            "dataset.max_train": 120,
            "finalists": 0,
            "pruning.rule": "median",
        }
        return search(*given, settings=settings | few, n_trials=6, families=["mlp", "cnn"], **more)

    search = functools.partial(nas_evidence.search, out=tmp_path / "study")
    monkeypatch.setattr(nas_evidence, "search", short)
    monkeypatch.chdir(EXAMPLES)
    study = runpy.run_path("zero_cost_proxies.py", run_name="__main__")["study"]
    name = study.spec.objective
    evidence = read_table(tmp_path / "study", "evidence").query("estimator == @name")
    assert len(evidence) == 6
    assert set(evidence["epoch"]) == {0}
    complete = read_table(tmp_path / "study", "trials").query("status == 'complete'")["trial_id"]
    ranked = evidence[evidence["trial_id"].isin(complete)].sort_values("value", ascending=False)
    assert study.leaderboard()["score"].dropna().tolist() == pytest.approx(
        ranked["value"].tolist()
    )
    correlations = study.correlations
    assert {"zero_cost_proxies:SNIP", name, "sotl", "kfac_ggn"} <= {*correlations["score"]}
