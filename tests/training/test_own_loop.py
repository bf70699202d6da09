"""Online Laplace in your own loop: the service's own numbers, closed forms, refusals."""

import copy
import math
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import reference
import torch
from lone_trials import tensors_of
from messages import refused
from own_loops import looped
from torch import Tensor, nn
from torch.nn import functional
from torch.testing import assert_close
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.data import DataLoader, TensorDataset

import nas_evidence
from nas_evidence.spec.schedule import updates_after
from nas_evidence.spec.study import ArchitectureSpec, Assignment, DatasetSpec, TrainingPlan
from nas_evidence.training.loop import train_epoch
from nas_evidence.training.network import begin
from nas_evidence.training.online import update_and_follow
from nas_evidence.training.own_loop import OnlineLaplace

EPOCHS, BATCH, RATE = 6, 8, 0.02


def problem(likelihood: str) -> tuple[nn.Module, Tensor, Tensor]:
    random = torch.Generator().manual_seed(1)
    x = torch.randn(30, 4, generator=random).double()
    truth = x @ torch.randn(4, 2, generator=random).double()
    noise = 0.2 * torch.randn(30, 2, generator=random).double()
    y = (truth + noise).argmax(1) if likelihood == "categorical" else torch.sin(truth) + noise
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 2)).double()
    return model, x, y


@pytest.fixture(autouse=True)
def _without_clipping(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("nas_evidence.training.together.GRADIENT_CLIP", 0.0)


def assignment(likelihood: str, online: dict[str, object], **plan: object) -> Assignment:
    return Assignment(
        trial_id=0, attempt=1, replicate=0, seed=7, estimators=(),
        architecture=ArchitectureSpec(family="mlp", values={"depth": 1, "width": 5}),
        dataset=DatasetSpec(name="digits"),
        plan=TrainingPlan.model_validate({
            "epochs": EPOCHS, "batch_size": BATCH, "learning_rate": RATE, "schedule": "constant",
            "likelihood": likelihood, "online": online, **plan,
        }),
    )  # fmt: skip


@pytest.mark.slow
@pytest.mark.crossed
@pytest.mark.parametrize("curvature", ["kfac_ggn", "diag_ef", "kfac_ggn_mc"])
@pytest.mark.parametrize(
    ("likelihood", "more"),
    [
        ("categorical", {}),
        ("gaussian", {}),
        ("gaussian", {"prior_groups": "scalar", "burn_in": 2}),
    ],
)
def test_steps_and_updates_are_those_of_a_trial(
    likelihood: str, more: dict[str, object], curvature: str
) -> None:
    online = {"every": 2, "curvature": curvature, **more}
    given = assignment(likelihood, online, likelihood_power=0.5)
    model, x, y = problem(likelihood)
    own = copy.deepcopy(model)
    state = begin(model, tensors_of(x, y, n_outputs=2), given.plan, given.seed)
    expected = []
    for epoch in range(1, EPOCHS + 1):
        train_epoch(state)
        due = updates_after(given.plan, epoch)
        passes = update_and_follow(state, due=due)
        value = passes.estimate(curvature, passes.of(curvature)[0]).value
        noises = state.likelihood.each_scale
        expected.append((value, state.prior_precision.clone(), noises))

    optimiser = torch.optim.SGD(own.parameters(), lr=RATE, momentum=0.9)
    laplace = nas_evidence.online_laplace(
        own, optimiser, (x, y), likelihood=likelihood, seed=7, likelihood_power=0.5, **online
    )
    updates = 0
    for epoch in range(1, EPOCHS + 1):
        seed = given.derived_seed("order", epoch)
        order = torch.randperm(len(x), generator=torch.Generator().manual_seed(seed))
        for rows in order.split(BATCH):
            optimiser.zero_grad()
            laplace.loss(own(x[rows]), y[rows]).backward()
            optimiser.step()
        value = laplace.after_epoch()
        wanted, precision, noises = expected[epoch - 1]
        assert (value is None) == (epoch % 2 != 0 or epoch <= online.get("burn_in", 0))
        if value is not None:
            updates += 1
            assert value == pytest.approx(wanted, rel=1e-9)
        found = torch.tensor(list(laplace.prior_precision.values())).double()
        assert_close(found, precision, rtol=1e-6, atol=0)
        assert np.atleast_1d(laplace.noise_std) == pytest.approx(noises, rel=1e-6)
    assert updates == len(laplace.history) >= 2
    for one, other in zip(own.parameters(), model.parameters(), strict=True):
        assert_close(one, other, rtol=1e-7, atol=1e-9)


def test_the_value_is_the_laplace_evidence_taken_by_brute_force() -> None:
    model, x, y = problem("gaussian")
    optimiser = torch.optim.Adam(model.parameters(), lr=0.01)
    laplace = nas_evidence.online_laplace(
        model, optimiser, (x, y), likelihood="gaussian", every=1, curvature="block_ggn"
    )
    for _ in range(3):
        for _ in range(5):
            optimiser.zero_grad()
            (functional.mse_loss(model(x), y, reduction="sum") / 2 / len(x)).backward()
            optimiser.step()
        value = laplace.after_epoch()
    blocks = reference.tensor_blocks(reference.full_ggn(model, x, laplace.noise_std), model)
    delta = list(laplace.prior_precision.values())
    expected = reference.log_evidence(model, x, y, laplace.noise_std, delta, blocks)
    assert value == pytest.approx(expected, rel=1e-8)
    assert laplace.log_evidence() == pytest.approx(expected, rel=1e-8)


class Tokens(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words, self.head = nn.Embedding(5, 3), nn.Linear(3, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.words(x).sum(1))


def test_whole_numbers_as_inputs_stay_whole_numbers() -> None:
    x = torch.randint(0, 5, (20, 4), generator=torch.Generator().manual_seed(0))
    model = Tokens()
    optimiser = torch.optim.SGD(model.parameters(), lr=0.1)
    laplace = looped(model, x, x[:, 0] % 2, optimiser, epochs=1, every=1)
    assert math.isfinite(laplace.history[-1][1])


@pytest.mark.slow
def test_learned_noise_and_prior_of_a_linear_model_satisfy_mackays_equations() -> None:
    """δ = γ / ‖θ‖², s² = RSS / (N − Σγ), γ = Σ λ / (λ + δ)  (MacKay 1992)."""
    _, x, y = problem("gaussian")
    model, y = nn.Linear(4, 1, bias=False).double(), y[:, :1]
    optimiser = torch.optim.SGD(model.parameters(), lr=0.05)
    laplace = looped(model, x, y, optimiser, epochs=25, n_steps=10, every=1, curvature="kfac_ggn")
    (delta,), s2 = laplace.prior_precision.values(), laplace.noise_std**2
    norm = float(model.weight.detach().square().sum())
    eigenvalues = torch.linalg.eigvalsh(x.T @ x) / s2
    effective = float((eigenvalues / (eigenvalues + delta)).sum())
    rss = float((y - model(x).detach()).square().sum())
    assert delta == pytest.approx(effective / norm, rel=1e-3)
    assert s2 == pytest.approx(rss / (y.numel() - effective), rel=1e-3)


def test_a_loader_a_dataset_and_tensors_give_the_same_values() -> None:
    values = []
    for form in ("loader", "dataset", "tensors"):
        model, x, y = problem("categorical")
        dataset = TensorDataset(x, y)
        data = {"loader": DataLoader(dataset, 7, shuffle=True), "dataset": dataset,
                "tensors": (x, y)}[form]  # fmt: skip
        before = torch.get_rng_state()
        laplace = nas_evidence.online_laplace(
            model, torch.optim.Adam(model.parameters()), data, likelihood="categorical"
        )
        assert torch.equal(torch.get_rng_state(), before)
        values.append(laplace.log_evidence())
    assert len(set(values)) == 1


def test_a_stored_state_continues() -> None:
    model, x, y = problem("categorical")
    one, two = (looped(model, x, y, every=1, curvature="diag_ggn") for _ in range(2))
    one.after_epoch()
    two.load_state_dict(one.state_dict())
    assert (two.epoch, two.prior_precision) == (1, one.prior_precision)
    assert two.history == one.history
    with pytest.raises(ValueError, match="made for"):
        two.load_state_dict(one.state_dict() | {"prior_precision": torch.ones(3)})


def _norm() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3), nn.Linear(3, 2)).double()


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"optimiser": lambda m: torch.optim.AdamW(m.parameters())}, "weight_decay 0.01"),
        ({"optimiser": lambda m: torch.optim.SGD([m[0].weight], lr=0.1)}, "not `0.bias`"),
        ({"optimiser": lambda m: torch.optim.LBFGS(m.parameters())}, "use SGD or Adam"),
        ({"curvature": "kfac"}, "online.curvature|`curvature`"),
        ({"every": 0}, "`every`.*got 0"),
        ({"model": _norm}, "`1` of type BatchNorm1d"),
        ({"data": lambda x, y: iter([x])}, "must be a DataLoader"),
        ({"data": lambda x, y: (x, y[:3])}, "same number of rows"),
        ({"data": lambda x, y: (x, y.double())}, "must be int64"),
    ],
)
def test_what_cannot_work_is_one_sentence_before_training(
    change: dict[str, object], says: str
) -> None:
    model, x, y = problem("categorical")
    model = change.pop("model", lambda: model)()
    optimiser = change.pop("optimiser", lambda m: torch.optim.SGD(m.parameters(), lr=0.1))(model)
    data = change.pop("data", lambda x, y: (x, y))(x, y)
    with pytest.raises(ValueError, match=says):
        nas_evidence.online_laplace(model, optimiser, data, likelihood="categorical", **change)


@pytest.mark.long
@pytest.mark.slow
def test_it_needs_neither_ray_nor_optuna() -> None:
    code = (
        "import sys, nas_evidence; nas_evidence.online_laplace; "
        "assert not {'ray', 'optuna'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.slow
def test_the_page_about_it_runs_as_it_stands(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = Path(__file__).resolve().parents[2] / "docs" / "how-to" / "online-laplace.md"
    monkeypatch.chdir(tmp_path)
    blocks = re.findall(r"```python\n(.*?)```", page.read_text(encoding="utf-8"), re.DOTALL)
    assert len(blocks) == 3
    names: dict[str, Any] = {}
    with torch.random.fork_rng():
        for block in blocks:
            exec(block, names)
    said = capsys.readouterr().out
    values = [float(v) for v in re.findall(r"log evidence (-\d+) nats", said)]
    assert len(values) == 4
    assert values[0] < values[2]  # labels: it rises with training
    assert 0.5 < float(re.findall(r"noise (\d\.\d+)", said)[0]) < 0.9
    assert names["again"].prior_precision == names["posterior"].prior_precision
    assert "std_model" in said


@pytest.mark.slow
def test_a_noise_of_each_row_is_learned_as_an_output() -> None:
    random = torch.Generator().manual_seed(0)
    x = torch.randn(200, 2, generator=random)
    y = (0.2 + (x[:, 1:] > 0)) * torch.randn(200, 1, generator=random)
    torch.manual_seed(0)
    model = nn.Linear(2, 2)
    optimiser = torch.optim.Adam(model.parameters(), lr=0.05)
    laplace = looped(
        model, x, y, optimiser, epochs=200, likelihood="heteroscedastic", every=10,
        curvature="full_ggn",
    )  # fmt: skip
    assert laplace.history[-1][1] > laplace.history[0][1]
    falls = float(model.weight.detach()[1, 1])  # of the precision, where the noise is larger
    assert falls < -1
    assert (laplace.noise_std, laplace.temperature) == (1.0, 1.0)


class _Operators(TorchDispatchMode):
    """Names of the operators called."""

    def __init__(self) -> None:
        super().__init__()
        self.names: Counter[str] = Counter()

    def __torch_dispatch__(self, function: Any, _: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.names[function._overloadpacket.__name__] += 1
        return function(*args, **(kwargs or {}))


def test_a_step_makes_no_factor_of_the_prior_unless_one_has_changed() -> None:
    model, x, y = problem("categorical")
    optimiser = torch.optim.SGD(model.parameters(), lr=0.1)
    laplace = looped(model, x, y, optimiser, curvature="diag_ef")
    made = []

    def step() -> None:
        optimiser.zero_grad()
        laplace.loss(model(x), y).backward()
        with _Operators() as called:
            laplace._steps.before_step(optimiser, (), {})
        made.append(called.names["full_like"])
        assert called.names["_foreach_addcmul"] == 1
        optimiser.zero_grad()

    n = len(list(model.parameters()))
    step()
    step()
    state = laplace.state_dict()
    laplace.load_state_dict(state | {"prior_precision": 2 * state["prior_precision"]})
    step()
    step()
    optimiser.param_groups[0]["lr"] = 1e9  # beyond the limit of the factors
    step()
    assert laplace._steps._factors is not None
    assert laplace._steps._factors[0].tolist() == n * [0.5 / 1e9]
    model.float()
    x = x.float()
    step()
    assert made == [n, 0, n, 0, n, n]


# --- a loop of one's own with a part of the parameters: the frozen ones are constants


def with_a_frozen_trunk(labels: bool) -> tuple[nn.Module, Tensor, Tensor]:
    random = torch.Generator().manual_seed(1)
    x = torch.randn(30, 4, generator=random).double()
    y = torch.sin(x @ torch.randn(4, 2, generator=random).double())
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Tanh(), nn.Linear(6, 2))
    model.double()[1].running_mean.normal_(generator=random)
    model[0].requires_grad_(False)
    model[1].requires_grad_(False)
    return model.eval(), x, y.argmax(1) if labels else y


def trained(
    model: nn.Module, given: object, x: Tensor, y: Tensor, **more: object
) -> OnlineLaplace:
    optimiser = torch.optim.SGD(given, lr=0.05, momentum=0.9)
    return looped(model, x, y, optimiser, epochs=6, batch=10, every=2, **more)


@pytest.mark.parametrize("labels", [True, False])
@pytest.mark.parametrize("kind", ["kfac_ggn_mc", "full_ggn", "diag_ef"])
def test_a_frozen_trunk_is_as_if_its_features_were_the_data(kind: str, labels: bool) -> None:
    model, x, y = with_a_frozen_trunk(labels)
    before, head = copy.deepcopy(model.state_dict()), copy.deepcopy(model[3])
    with torch.no_grad():
        features = model[:3](x)
    found = trained(model, model.parameters(), x, y, curvature=kind)
    expected = trained(head, head.parameters(), features, y, curvature=kind)
    assert [*found.prior_precision] == ["3.weight", "3.bias"]
    one, other = (
        [*it.prior_precision.values(), *np.atleast_1d(it.noise_std)] for it in (found, expected)
    )
    assert one == pytest.approx(other, rel=1e-7)
    assert dict(found.history) == pytest.approx(dict(expected.history), rel=1e-9)
    assert found.log_evidence() == pytest.approx(expected.log_evidence(), rel=1e-9)
    assert_close(model[3].state_dict(), head.state_dict(), rtol=1e-8, atol=1e-10)
    assert not torch.equal(model[3].weight, before["3.weight"])
    for name in list(before)[:-2]:  # the trunk with its statistics
        assert_close(model.state_dict()[name], before[name], rtol=0, atol=0)
    again = trained(model, model[3].parameters(), x, y, curvature=kind)  # an optimiser of the head
    again.load_state_dict(found.state_dict())
    assert again.prior_precision == found.prior_precision


def test_a_free_parameter_that_no_optimiser_steps_is_refused() -> None:
    model, x, y = with_a_frozen_trunk(labels=True)
    with refused("own-loop-parameter-missing", "3.bias"):
        trained(model, [model[3].weight], x, y)


def test_normalisation_put_into_training_mode_is_refused_at_the_step() -> None:
    model, x, y = with_a_frozen_trunk(labels=True)
    optimiser = torch.optim.SGD(model.parameters(), lr=0.05)
    laplace = looped(model, x, y, optimiser)
    model.train()
    laplace.loss(model(x), y).backward()
    with refused("batch-statistics", "BatchNorm1d", "training"):
        optimiser.step()


@pytest.mark.parametrize("name", ["3.bias", "0.bias"])
def test_freezing_or_freeing_on_the_way_is_refused_by_name(name: str) -> None:
    model, x, y = with_a_frozen_trunk(labels=True)
    optimiser = torch.optim.SGD(model.parameters(), lr=0.05)
    laplace = looped(model, x, y, optimiser, every=1, curvature="diag_ggn")
    laplace.after_epoch()
    parameter = model.get_parameter(name)
    parameter.requires_grad_(not parameter.requires_grad)
    laplace.loss(model(x), y).backward()
    optimiser.step()
    with refused("own-loop-free-changed", name):
        laplace.after_epoch()
