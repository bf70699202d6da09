"""Online Laplace in your own loop: the service's own numbers, closed forms, refusals."""

import copy
import math
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import reference
import torch
from lone_trials import tensors_of
from messages import refused
from own_loops import looped
from records import asked
from scipy.optimize import minimize
from torch import Tensor, nn
from torch.nn import functional
from torch.testing import assert_close
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.data import DataLoader, TensorDataset

import nas_evidence
from nas_evidence.likelihoods.gaussian import Gaussian, gaussian
from nas_evidence.plumbing.user_error import UserError
from nas_evidence.spec.schedule import updates_after
from nas_evidence.spec.study import Assignment
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


def assignment(likelihood: str, online: dict[str, object], **plan: object) -> Assignment:
    given = {"epochs": EPOCHS, "batch_size": BATCH, "learning_rate": RATE, "schedule": "constant"}
    return asked(seed=7, **given, likelihood=likelihood, online=online, **plan)


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
    likelihood: str, more: dict[str, object], curvature: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("nas_evidence.training.together.GRADIENT_CLIP", 0.0)
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


# --- the noise of your own loop, or one for each output: its maximum, or no valid estimate


STDS = (0.3, 2.0)


def linear_problem() -> tuple[nn.Module, Tensor, Tensor]:
    random = torch.Generator().manual_seed(2)
    x = torch.randn(50, 3, generator=random).double()
    noise = torch.randn(50, 2, generator=random).double() * torch.tensor(STDS, dtype=torch.float64)
    y = torch.stack([x[:, 0], 8 * x[:, 1]], 1) + noise
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return nn.Linear(3, 2).double(), x, y


def log_evidence(
    model: nn.Module, x: Tensor, y: Tensor, delta: list[float], stds: Tensor
) -> float:
    """Laplace evidence of a linear model, the curvature of each output by itself."""
    design = torch.cat([x, torch.ones(len(x), 1)], 1)
    diagonal = torch.tensor([*[delta[0]] * 3, delta[1]]).double()
    total = 0.0
    for c, std in enumerate(stds.tolist()):
        theta = torch.cat([model.weight[c], model.bias[c : c + 1]]).detach()
        error = y[:, c] - design @ theta
        h = design.T @ design / std**2
        log_det = torch.logdet(h + diagonal.diag()) - diagonal.log().sum()
        total += float(
            -0.5 * error.square().sum() / std**2 - len(x) * math.log(std * math.sqrt(2 * math.pi))
            - 0.5 * (diagonal * theta.square()).sum() - 0.5 * log_det
        )  # fmt: skip
    return total


def test_the_likelihood_is_that_of_torch_for_each_output() -> None:
    _, x, y = linear_problem()
    outputs = x[:, :2].clone().requires_grad_()
    normal = torch.distributions.Normal(outputs, torch.tensor(STDS, dtype=torch.float64))
    expected = normal.log_prob(y).sum()
    found = gaussian(STDS)
    assert_close(found.log_likelihood(outputs, y), expected)
    assert_close(-len(y) * found.nll_mean(outputs, y), expected)
    assert_close(found.residual(outputs, y), torch.autograd.grad(expected, outputs)[0])
    roots = found.hessian_roots(outputs)
    wanted = torch.tensor(STDS, dtype=torch.float64).pow(-2).diag()
    assert_close(torch.einsum("knc,knd->ncd", roots, roots)[0], wanted)
    signs = torch.ones(2, len(y), dtype=torch.int8)
    assert_close(found.signed_root(outputs, signs)[0, 0], wanted.diagonal().sqrt())
    assert gaussian([0.5, 0.5]).unit == (1.0, 1.0)


@pytest.mark.parametrize("kind", ["full_ggn", "full_ef", "kfac_ggn", "diag_ggn"])
def test_an_evidence_with_equal_noises_is_that_of_one_noise(kind: str) -> None:
    model, x, y = linear_problem()
    given = {"likelihood": "gaussian", "curvature": kind, "prior_precision": [0.5, 2.0]}
    one, each, other = (
        nas_evidence.estimate_evidence(model, x, y, noise_std=noise, **given).value
        for noise in (0.7, [0.7, 0.7], [0.7, 0.8])
    )
    assert each == pytest.approx(one, rel=1e-12)
    assert abs(other - one) > 0.1


def test_the_evidence_with_a_noise_of_each_output_is_the_closed_form() -> None:
    model, x, y = linear_problem()
    found = nas_evidence.estimate_evidence(
        model, x, y, likelihood="gaussian", curvature="full_ggn", prior_precision=[0.5, 2.0],
        noise_std=STDS,
    )  # fmt: skip
    expected = log_evidence(model, x, y, [0.5, 2.0], torch.tensor(STDS, dtype=torch.float64))
    assert found.value == pytest.approx(expected, rel=1e-10)


def test_a_loop_learns_the_noises_that_maximise_the_evidence() -> None:
    model, x, y = linear_problem()
    optimiser = torch.optim.Adam(model.parameters(), lr=0.1)
    given = [5 * std for std in STDS]
    how = {"curvature": "full_ggn", "noise_std": given}
    laplace = looped(model, x, y, optimiser, epochs=200, every=20, **how)
    stds = torch.tensor(laplace.noise_std).double()
    np.testing.assert_allclose(stds, STDS, rtol=0.2)
    delta = [*laplace.prior_precision.values()]
    assert laplace.estimate.valid
    assert laplace.history[-1][1] == pytest.approx(
        log_evidence(model, x, y, delta, stds), rel=1e-9
    )

    def loss(z: np.ndarray) -> float:
        delta, each = np.exp(z[:2]).tolist(), torch.from_numpy(np.exp(z[2:]))
        return -log_evidence(model, x, y, delta, each)

    start = [*np.log(delta), *np.log(laplace.noise_std)]
    best = minimize(loss, start, method="Nelder-Mead", options={"fatol": 1e-9})
    assert laplace.history[-1][1] == pytest.approx(-best.fun, abs=1e-4)
    again = looped(model, x, y, optimiser, **how)
    again.load_state_dict(laplace.state_dict())
    assert again.noise_std == pytest.approx(laplace.noise_std)

    posterior = nas_evidence.posterior(
        model, (x, y), likelihood="gaussian", prior_precision=laplace.prior_precision,
        noise_std=laplace.noise_std,
    )  # fmt: skip
    plain = posterior.predict(x[:3], method="map").std
    np.testing.assert_allclose(plain, np.tile(laplace.noise_std, (3, 1)))


def test_what_a_network_gains_over_a_constant_is_counted_in_the_units_of_the_noise() -> None:
    model, x, y = linear_problem()
    stds = torch.tensor([0.01, 100.0]).double()
    noise = torch.randn(y.shape, generator=torch.Generator().manual_seed(5)).double() * stds
    with torch.no_grad():
        model.weight.mul_(1e-4)
        model.bias.zero_()
    how = {"every": 1, "curvature": "full_ggn", "noise_std": stds.tolist()}
    laplace = looped(model, x, noise, epochs=1, n_steps=0, **how)
    assert max(laplace.prior_precision.values()) <= 1.0  # nothing is learned, so none may rise


@pytest.mark.parametrize("noise", [(1.0, 2.0, 3.0), (1.0,)])
def test_another_number_of_noises_than_outputs_is_refused(noise: tuple[float, ...]) -> None:
    model, x, y = linear_problem()
    with refused("noise-std-per-output", len(noise)):
        looped(model, x, y, noise_std=noise)
    with refused("noise-std-per-output"):
        nas_evidence.estimate_evidence(
            model, x, y, likelihood="gaussian", curvature="diag_ef", prior_precision=1.0,
            noise_std=noise,
        )  # fmt: skip


def test_a_noise_that_is_none_is_refused() -> None:
    for noise in ((1.0, -1.0), (math.nan, 1.0)):
        with refused("noise-std-not-positive"):
            Gaussian(1.0, noise)


def loop(noise: Any, likelihood: str = "gaussian", bias: float = 0.0) -> OnlineLaplace:
    model, x, y = linear_problem()
    model.bias.data.add_(bias)
    targets = {"categorical": y.argmax(1), "heteroscedastic": y[:, :1]}.get(likelihood, y)
    how = {"curvature": "full_ggn", "every": 1, "noise_std": noise}
    return looped(model, x, targets, likelihood=likelihood, **how)


def evidence(noise: Any) -> float:
    model, x, y = linear_problem()
    return nas_evidence.estimate_evidence(
        model, x, y, likelihood="gaussian", curvature="diag_ef", prior_precision=1.0,
        noise_std=noise,
    ).value  # fmt: skip


@pytest.mark.parametrize(
    "wrong",
    ["ab", "1", {"a": 1}, [[1, 2]], (1, "2"), [True, 1], True, [], None, [None, 1], 1j,
     [1.0, 0.0], [1.0, math.inf], -1.0, math.nan, torch.zeros(2), np.ones((1, 2))],
    ids=repr,
)  # fmt: skip
def test_what_is_no_noise_is_one_sentence_and_the_same_one_in_a_loop_and_alone(wrong: Any) -> None:
    said = []
    for call in (loop, evidence):
        with pytest.raises(UserError, match="`noise_std") as raised:
            call(wrong)
        said.append(str(raised.value))
    assert wrong is None or said[0] == said[1]


@pytest.mark.parametrize(
    "noise",
    [(0.5, 2), [np.float32(0.5), np.int64(2)], np.array([0.5, 2]), torch.tensor([0.5, 2.0]),
     [torch.tensor(0.5), Fraction(2)], pd.Series([0.5, 2.0])],
    ids=lambda noise: type(noise).__name__,
)  # fmt: skip
def test_a_loop_and_an_estimate_take_the_same_types_of_noises(noise: Any) -> None:
    assert loop(noise).noise_std == pytest.approx((0.5, 2.0))
    assert evidence(noise) == evidence([0.5, 2.0])
    assert loop(np.float64(0.5)).noise_std == 0.5
    assert evidence(np.array(0.5)) == evidence(0.5)


@pytest.mark.parametrize("likelihood", ["categorical", "heteroscedastic"])
@pytest.mark.parametrize("noise", [0.5, [1.0, 2.0], "ab"])
def test_a_noise_where_there_is_none_to_give_is_refused(likelihood: str, noise: Any) -> None:
    with refused("scale-of-another-likelihood", "noise_std", likelihood):
        loop(noise, likelihood)


def test_a_state_of_noises_of_another_number_of_outputs_is_refused() -> None:
    state = loop(1.0).state_dict() | {"noise_unit": (1.0, 2.0, 3.0)}
    with refused("own-loop-state-noise", "(1, 2, 3)", "2 outputs"):
        loop(1.0).load_state_dict(state)


@pytest.mark.parametrize("noise", [[0.1, 0.7], 0.3])
def test_a_state_of_noises_is_loaded_to_the_bit_also_by_a_loop_that_begins_with_them(
    noise: Any,
) -> None:
    state = loop(noise).state_dict()
    state["noise_std"] *= 1.7
    for one in (loop(noise), loop(np.multiply(noise, 3).tolist()), loop(1.0), loop([7.0, 0.1])):
        one.load_state_dict(state)
        assert one.state_dict()["noise_std"] == state["noise_std"]
        assert one.noise_std == pytest.approx(np.multiply(noise, 1.7), rel=1e-12)
    old = {name: value for name, value in state.items() if name != "noise_unit"}
    if isinstance(noise, float):  # of an older version
        loop(noise).load_state_dict(old)


def test_a_note_about_the_noise_says_that_of_each_output() -> None:
    laplace = loop([0.5, 2.0], bias=100.0)
    laplace.after_epoch()
    shown = ", ".join(f"{one:.3g}" for one in laplace.noise_std)
    assert not laplace.estimate.valid
    assert f"the noise is held at ({shown}), below" in laplace.estimate.note


# --- the noise of your own loop: its maximum from any start, or an estimate that is not valid


def weak(seed: int, r2: float) -> tuple[Tensor, Tensor]:
    """Inputs [80, 3] and targets [80, 1] with sd 5, of which a linear function explains R²."""
    random = torch.Generator().manual_seed(seed)
    x = torch.randn(80, 3, generator=random).double()
    signal = x @ torch.tensor([[1.0], [-1.0], [0.5]]).double()
    signal *= 5 * math.sqrt(r2) / signal.std()
    return x, signal + 5 * math.sqrt(1 - r2) * torch.randn(80, 1, generator=random).double()


def learned(
    x: Tensor, y: Tensor, start: float, epochs: int = 100
) -> tuple[nn.Linear, OnlineLaplace]:
    torch.manual_seed(0)
    model = nn.Linear(3, 1).double()
    optimiser = torch.optim.Adam(model.parameters(), lr=0.05)
    how = {"epochs": epochs, "every": 5, "noise_std": start, "curvature": "full_ggn"}
    return model, looped(model, x, y, optimiser, **how)


@pytest.mark.slow
@pytest.mark.crossed
@pytest.mark.parametrize("r2", [0.0, 0.04, 0.2])
@pytest.mark.parametrize("seed", range(6))
def test_the_noise_satisfies_mackays_equation_from_any_start(seed: int, r2: float) -> None:
    """s² = RSS / (N − γ), γ = Σ λ / (λ + δ) by a dense inverse; one evidence for all starts."""
    x, y = weak(seed, r2)
    found = []
    for start in (0.01, 1.0, 5.0):
        model, laplace = learned(x, y, start)
        assert laplace.estimate is not None
        assert laplace.estimate.valid, laplace.estimate.note
        design = torch.cat([x, torch.ones(80, 1).double()], 1)
        curvature = design.T @ design / laplace.noise_std**2
        weight, bias = laplace.prior_precision.values()
        prior = torch.tensor([weight] * 3 + [bias]).double()
        posterior = torch.linalg.inv(curvature + prior.diag())
        effective = float((curvature @ posterior).trace())
        rss = float((y - model(x).detach()).square().sum())
        assert laplace.noise_std**2 == pytest.approx(rss / (80 - effective), rel=0.03)
        found.append(laplace.history[-1][1])
    assert max(found) - min(found) < 1.5


def test_a_noise_at_its_bound_is_said() -> None:
    x, _ = weak(0, 0.0)
    for y in (x @ torch.tensor([[1.0], [2.0], [3.0]]).double(), torch.full((80, 1), 2.0).double()):
        model = nn.Linear(3, 1).double()
        with torch.no_grad():
            design = torch.cat([x, torch.ones(80, 1).double()], 1)
            solution = torch.linalg.lstsq(design, y).solution
            model.weight.copy_(solution[:3].T)
            model.bias.copy_(solution[3])
        laplace = looped(model, x, y, epochs=3, n_steps=0, curvature="full_ggn", every=1)
        assert laplace.noise_std == pytest.approx(math.exp(-15))
        assert laplace.estimate is not None
        assert not laplace.estimate.valid
        assert "lower bound, 3.06e-07" in laplace.estimate.note


def test_a_noise_that_is_held_below_its_maximum_is_said() -> None:
    """The network is far worse than a constant, so its noise may not rise to its residuals."""
    x, y = weak(0, 0.2)
    model = nn.Linear(3, 1).double()
    with torch.no_grad():
        model.bias.fill_(200.0)
    laplace = looped(model, x, y, epochs=1, n_steps=0, curvature="full_ggn", every=1)
    assert laplace.noise_std == pytest.approx(2**0.5 * float(y.std(correction=0)), rel=1e-6)
    assert laplace.estimate is not None
    assert not laplace.estimate.valid
    assert "held at" in laplace.estimate.note


def test_fixed_noise_and_labels_have_no_word_of_it() -> None:
    x, y = weak(1, 0.0)
    for more in ({"learn_noise": False, "curvature": "full_ggn"}, {}):
        model = nn.Linear(3, 1 if more else 2).double()
        targets = y if more else (y[:, 0] > 0).long()
        laplace = looped(model, x, targets, epochs=1, n_steps=0, every=1, **more)
        assert laplace.estimate is not None
        assert laplace.estimate.valid
        assert laplace.estimate.note == ""


# --- the prior of your own loop: whatever the optimiser does, the weights are those of ridge


NOISE, PRIOR = 0.7, 100.0
#: A loop: takes the model, its optimiser, the loss of a batch, the data and the number of steps.
Loop = Callable[[nn.Module, Any, Callable[[Tensor, Tensor], Tensor], Tensor, Tensor, int], None]


def ridge_problem() -> tuple[Tensor, Tensor, Tensor]:
    """Inputs [60, 3], targets [60, 1], and the ridge solution [3] for PRIOR and NOISE."""
    random = torch.Generator().manual_seed(3)
    x = torch.randn(60, 3, generator=random).double()
    y = x @ torch.tensor([[-0.7], [1.5], [2.0]]).double()
    y += NOISE * torch.randn(60, 1, generator=random).double()
    ridge = torch.linalg.solve(x.T @ x + NOISE**2 * PRIOR * torch.eye(3).double(), x.T @ y)[:, 0]
    return x, y, ridge


def plain_loop(model: Any, optimiser: Any, loss: Any, x: Tensor, y: Tensor, steps: int) -> None:
    for _ in settling(optimiser, steps):
        optimiser.zero_grad()
        loss(model(x), y).backward()
        optimiser.step()


def settling(optimiser: torch.optim.Optimizer, steps: int) -> Iterator[int]:
    """Steps with a learning rate that falls to nothing, for optimisers that never stand still."""
    rates = [float(group["lr"]) for group in optimiser.param_groups]
    for step in range(steps):
        for group, rate in zip(optimiser.param_groups, rates, strict=True):
            now = rate * (1 - step / steps) ** 2
            if isinstance(group["lr"], Tensor):
                group["lr"].fill_(now)
            else:
                group["lr"] = now
        yield step


def closure_of(
    model: Any, optimiser: Any, loss: Any, x: Tensor, y: Tensor
) -> Callable[[], Tensor]:
    def closure() -> Tensor:
        optimiser.zero_grad()
        found = loss(model(x), y)
        found.backward()
        return found

    return closure


def by_closure(model: Any, optimiser: Any, loss: Any, x: Tensor, y: Tensor, steps: int) -> None:
    for _ in settling(optimiser, steps):
        optimiser.step(closure_of(model, optimiser, loss, x, y))


def by_keyword(model: Any, optimiser: Any, loss: Any, x: Tensor, y: Tensor, steps: int) -> None:
    for _ in settling(optimiser, steps):
        optimiser.step(closure=closure_of(model, optimiser, loss, x, y))


def zeros_kept(model: Any, optimiser: Any, loss: Any, x: Tensor, y: Tensor, steps: int) -> None:
    for _ in settling(optimiser, steps):
        optimiser.zero_grad(set_to_none=False)
        optimiser.step(lambda: loss(model(x), y).backward())


def accumulated(model: Any, optimiser: Any, loss: Any, x: Tensor, y: Tensor, steps: int) -> None:
    for _ in settling(optimiser, steps):
        model.zero_grad()
        for rows in torch.arange(len(x)).split(20):
            (loss(model(x[rows]), y[rows]) / 3).backward()
        optimiser.step()


def scaled(model: Any, optimiser: Any, loss: Any, x: Tensor, y: Tensor, steps: int) -> None:
    scaler = torch.amp.GradScaler("cpu", growth_interval=50)
    for _ in settling(optimiser, steps):
        optimiser.zero_grad()
        scaler.scale(loss(model(x), y)).backward()
        scaler.step(optimiser)
        scaler.update()


def unscaled(model: Any, optimiser: Any, loss: Any, x: Tensor, y: Tensor, steps: int) -> None:
    scaler = torch.amp.GradScaler("cpu", growth_interval=50)
    for _ in settling(optimiser, steps):
        optimiser.zero_grad()
        scaler.scale(loss(model(x), y)).backward()
        scaler.unscale_(optimiser)
        nn.utils.clip_grad_norm_(model.parameters(), 1e6)
        scaler.step(optimiser)
        scaler.update()


def ascending(model: Any, optimiser: Any, loss: Any, x: Tensor, y: Tensor, steps: int) -> None:
    plain_loop(model, optimiser, lambda f, target: -loss(f, target), x, y, steps)


def retaken(model: Any, optimiser: Any, loss: Any, x: Tensor, y: Tensor, steps: int) -> None:
    """Each step is tried, taken back and taken again with the same gradients."""
    for _ in settling(optimiser, steps):
        optimiser.zero_grad()
        loss(model(x), y).backward()
        before = copy.deepcopy(model.state_dict())
        optimiser.step()
        model.load_state_dict(before)
        optimiser.step()


def weights(loop: Loop, make: Callable[[nn.Module], Any], steps: int) -> Tensor:
    x, y, _ = ridge_problem()
    torch.manual_seed(0)
    model = nn.Linear(3, 1, bias=False).double()
    optimiser = make(model)
    laplace = nas_evidence.online_laplace(
        model, optimiser, (x, y), likelihood="gaussian", curvature="full_ggn", every=10**6,
        prior_precision=PRIOR, noise_std=NOISE, learn_noise=False,
    )  # fmt: skip
    loop(model, optimiser, laplace.loss, x, y, steps)
    laplace.after_epoch()
    return model.weight.detach()[0]


class Twice(torch.optim.SGD):
    """Calls its closure twice in each step, as methods with an inner step do."""

    def step(self, closure: Any = None) -> Any:
        with torch.enable_grad():
            closure()
        return super().step(closure)


class Child(torch.optim.SGD):
    """Calls the step of its parent, which runs the hooks a second time."""

    def step(self, closure: Any = None) -> Any:
        loss = None if closure is None else torch.enable_grad()(closure)()
        super().step()
        return loss


def _sgd(model: nn.Module, **more: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), **({"lr": 0.3} | more))


def _child(model: nn.Module) -> torch.optim.Optimizer:
    _sgd(model)  # from the first one on the step of the parent runs hooks, too
    return Child(model.parameters(), lr=0.3)


def _groups(model: nn.Module) -> torch.optim.Optimizer:
    optimiser = torch.optim.SGD([{"params": [], "lr": 0.01}], lr=0.2)
    optimiser.add_param_group({"params": list(model.parameters()), "lr": 0.3})
    return optimiser


QUICK: dict[str, tuple[Loop, Callable[[nn.Module], Any], int]] = {
    "plain": (plain_loop, _sgd, 150),
    "closure": (by_closure, _sgd, 150),
    "closure by keyword": (by_keyword, _sgd, 150),
    "closure twice": (by_closure, lambda m: Twice(m.parameters(), lr=0.3), 150),
    "subclass": (plain_loop, _child, 150),
    "subclass, closure": (by_closure, _child, 150),
    "zeros kept": (zeros_kept, _sgd, 150),
    "accumulated": (accumulated, _sgd, 150),
    "maximize": (ascending, lambda m: _sgd(m, maximize=True), 150),
    "maximize, closure": (
        lambda m, o, loss, *rest: by_closure(m, o, lambda f, t: -loss(f, t), *rest),
        lambda m: _sgd(m, maximize=True),
        150,
    ),
    "scaled": (scaled, _sgd, 150),
    "fused and scaled": (scaled, lambda m: _sgd(m, fused=True), 150),
    "fused and unscaled": (unscaled, lambda m: _sgd(m, fused=True), 150),
    "fused, scaled, maximize": (
        lambda m, o, loss, *rest: scaled(m, o, lambda f, t: -loss(f, t), *rest),
        lambda m: _sgd(m, fused=True, maximize=True),
        150,
    ),
    "fused": (plain_loop, lambda m: _sgd(m, fused=True), 150),
    "foreach": (plain_loop, lambda m: _sgd(m, foreach=True), 150),
    "one by one": (plain_loop, lambda m: _sgd(m, foreach=False), 150),
    "momentum": (plain_loop, lambda m: _sgd(m, lr=0.1, momentum=0.8, nesterov=True), 200),
    "groups": (by_closure, _groups, 150),
    "rate is a tensor": (plain_loop, lambda m: _sgd(m, lr=torch.tensor(0.3)), 150),
    "retaken": (retaken, _sgd, 150),
    "asgd": (by_closure, lambda m: torch.optim.ASGD(m.parameters(), lr=0.3, lambd=0.0), 200),
}  # fmt: skip


@pytest.mark.parametrize("name", QUICK)
def test_the_weights_are_the_ridge_solution(name: str) -> None:
    assert_close(weights(*QUICK[name]), ridge_problem()[2], rtol=0, atol=1e-4)


#: Optimisers of torch that find the mode in 1,500 steps.
MAKERS: dict[str, Callable[[nn.Module], Any]] = {
    "Adam": lambda m: torch.optim.Adam(m.parameters(), lr=0.05),
    "amsgrad": lambda m: torch.optim.Adam(m.parameters(), lr=0.05, amsgrad=True),
    "AdamW": lambda m: torch.optim.AdamW(m.parameters(), lr=0.05, weight_decay=0),
    "NAdam": lambda m: torch.optim.NAdam(m.parameters(), lr=0.05),
    "RAdam": lambda m: torch.optim.RAdam(m.parameters(), lr=0.05),
    "Adamax": lambda m: torch.optim.Adamax(m.parameters(), lr=0.05),
    "RMSprop": lambda m: torch.optim.RMSprop(m.parameters(), lr=0.05),
    "Rprop": lambda m: torch.optim.Rprop(m.parameters(), lr=0.05),
    "Adagrad": lambda m: torch.optim.Adagrad(m.parameters(), lr=0.4),
    "Adafactor": lambda m: torch.optim.Adafactor(m.parameters(), lr=0.3),
    "fused Adam": lambda m: torch.optim.Adam(m.parameters(), lr=0.05, fused=True),
    "fused AdamW": lambda m: torch.optim.AdamW(
        m.parameters(), lr=0.05, weight_decay=0, fused=True
    ),
    "fused Adagrad": lambda m: torch.optim.Adagrad(m.parameters(), lr=0.4, fused=True),
}


@pytest.mark.slow
@pytest.mark.crossed
@pytest.mark.parametrize("loop", [plain_loop, by_closure, scaled], ids=lambda loop: loop.__name__)
@pytest.mark.parametrize("name", MAKERS)
def test_every_optimiser_of_torch_finds_the_ridge_solution(loop: Loop, name: str) -> None:
    assert_close(weights(loop, MAKERS[name], 1500), ridge_problem()[2], rtol=0, atol=1e-4)


def test_gradients_are_left_as_backward_wrote_them() -> None:
    x, y, _ = ridge_problem()
    model = nn.Linear(3, 1).double()
    optimiser = torch.optim.SGD(model.parameters(), lr=0.1)
    laplace = nas_evidence.online_laplace(model, optimiser, (x, y), likelihood="gaussian")
    laplace.loss(model(x), y).backward()
    written = [p.grad.clone() for p in model.parameters() if p.grad is not None]
    optimiser.step()
    assert_close([p.grad for p in model.parameters()], written, rtol=0, atol=0)


def test_a_second_call_on_one_optimiser_takes_the_place_of_the_first() -> None:
    def make(model: nn.Module) -> torch.optim.Optimizer:
        optimiser = _sgd(model)
        x, y, _ = ridge_problem()
        nas_evidence.online_laplace(
            model, optimiser, (x, y), likelihood="gaussian", prior_precision=50.0
        )
        return optimiser

    assert_close(weights(plain_loop, make, 150), ridge_problem()[2], rtol=0, atol=1e-4)


class Ignores(torch.optim.SGD):
    """Takes a closure and does not call it."""

    def step(self, closure: Any = None) -> Any:
        return super().step()


class Wrapper(torch.optim.Optimizer):
    """Holds another optimiser, without what torch sets up in an optimiser."""

    def __init__(self, inner: torch.optim.Optimizer) -> None:
        self.inner, self.param_groups, self.defaults = inner, inner.param_groups, inner.defaults

    def step(self, closure: Any = None) -> Any:
        return self.inner.step(closure)


@pytest.mark.parametrize(
    ("make", "code", "values"),
    [
        (torch.optim.ASGD, "own-loop-weight-decay", ["lambd", "0.0001"]),
        (lambda p: torch.optim.Muon(p), "own-loop-weight-decay", ["weight_decay", "0.1"]),
        (torch.optim.LBFGS, "own-loop-lbfgs", ["LBFGS"]),
        (lambda p: torch.optim.SGD(p, differentiable=True), "own-loop-differentiable", []),
        (lambda p: Wrapper(torch.optim.SGD(p)), "own-loop-optimiser", ["Wrapper"]),
        (lambda p: object(), "own-loop-optimiser", ["object"]),
        (lambda p: torch.optim.SGD(p, lr=0.7), "own-loop-prior-and-rate", ["weight", "0.612"]),
    ],
)
def test_an_optimiser_with_another_prior_or_without_ours_is_refused_before_training(
    make: Callable[[Any], Any], code: str, values: list[str]
) -> None:
    x, y, _ = ridge_problem()
    model = nn.Linear(3, 1, bias=False).double()
    with refused(code, *values):
        nas_evidence.online_laplace(
            model, make(list(model.parameters())), (x, y), likelihood="gaussian",
            prior_precision=PRIOR, noise_std=NOISE,
        )  # fmt: skip


def _decaying(model: nn.Module, optimiser: Any) -> None:
    optimiser.param_groups[0]["weight_decay"] = 0.01


def _replaced(model: nn.Module, optimiser: Any) -> None:
    model.weight = nn.Parameter(model.weight.detach().clone())
    model.weight.grad = torch.ones_like(model.weight)


def _sparse(model: nn.Module, optimiser: Any) -> None:
    assert isinstance(model.weight, Tensor)
    model.weight.grad = torch.ones_like(model.weight).to_sparse()


@pytest.mark.parametrize(
    ("change", "code", "values"),
    [
        (_decaying, "own-loop-weight-decay", ["weight_decay", "0.01"]),
        (_replaced, "own-loop-parameter-missing", ["weight"]),
        (_sparse, "own-loop-sparse-gradient", ["weight"]),
    ],
)
def test_what_changes_after_the_start_is_refused_at_the_next_step(
    change: Callable[[Any, Any], None], code: str, values: list[str]
) -> None:
    x, y, _ = ridge_problem()
    model = nn.Linear(3, 1, bias=False).double()
    optimiser = torch.optim.SGD(model.parameters(), lr=0.1)
    laplace = nas_evidence.online_laplace(model, optimiser, (x, y), likelihood="gaussian")
    laplace.loss(model(x), y).backward()
    change(model, optimiser)
    before = model.weight.detach().clone()
    with refused(code, *values):
        optimiser.step()
    assert_close(model.weight.detach(), before, rtol=0, atol=0)


def test_a_closure_that_is_not_called_is_said() -> None:
    x, y, _ = ridge_problem()
    model = nn.Linear(3, 1).double()
    optimiser = Ignores(model.parameters(), lr=0.1)
    laplace = nas_evidence.online_laplace(model, optimiser, (x, y), likelihood="gaussian")
    with refused("own-loop-closure-unused", "Ignores"):
        optimiser.step(closure_of(model, optimiser, laplace.loss, x, y))


@pytest.mark.parametrize("how", ["another optimiser", "a copy", "by hand"])
def test_an_epoch_without_the_optimisers_steps_is_refused(how: str) -> None:
    x, y, _ = ridge_problem()
    model = nn.Linear(3, 1).double()
    optimiser = torch.optim.SGD(model.parameters(), lr=0.1)
    laplace = nas_evidence.online_laplace(model, optimiser, (x, y), likelihood="gaussian", every=1)
    laplace.after_epoch()  # nothing was trained, and nothing changed
    laplace.loss(model(x), y).backward()
    if how == "another optimiser":
        torch.optim.Adam(model.parameters()).step()
    elif how == "a copy":
        other = copy.copy(optimiser)
        other.__dict__["_optimizer_step_pre_hooks"] = {}
        other.__dict__["_optimizer_step_post_hooks"] = {}
        other.step()
    else:
        with torch.no_grad():
            model.weight -= 0.1
    with refused("own-loop-no-step"):
        laplace.after_epoch()


@pytest.mark.long
@pytest.mark.slow
def test_a_step_that_is_compiled_has_the_prior() -> None:
    x, y, ridge = ridge_problem()
    model = nn.Linear(3, 1, bias=False).double()
    optimiser = torch.optim.SGD(model.parameters(), lr=0.3)
    laplace = nas_evidence.online_laplace(
        model, optimiser, (x, y), likelihood="gaussian", curvature="full_ggn", every=10**6,
        prior_precision=PRIOR, noise_std=NOISE,
    )  # fmt: skip
    step = torch.compile(optimiser.step, backend="eager")
    for _ in range(100):
        optimiser.zero_grad()
        laplace.loss(model(x), y).backward()
        step()
    laplace.after_epoch()
    assert_close(model.weight.detach()[0], ridge, rtol=0, atol=1e-4)
