"""How large the known defects of published codes are, each on one small case.

Every row re-enacts the defect in this project's terms and compares with the definition; rows that
name BackPACK or FunctionalLaplace run that code. The words behind the numbers are in
docs/reference/differences.md.
"""

import copy
import math
import sys
import warnings
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor, nn

from nas_evidence.curvature import KINDS, CurvaturePass, curvature_pass
from nas_evidence.evidence.laplace import squared_norms
from nas_evidence.likelihoods import Likelihood
from nas_evidence.likelihoods.categorical import Categorical
from nas_evidence.likelihoods.gaussian import Gaussian
from nas_evidence.maths.blocks import Dense, Diagonal, Kronecker
from nas_evidence.maths.structured import BlockDiagonal

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

from cases import laplace_value


def conv_net(side: int) -> tuple[nn.Sequential, Tensor, Tensor]:
    """Conv(2, 4, 3x3)-ReLU-Flatten-Linear(3) on 40 images of side x side."""
    torch.manual_seed(side)
    model = nn.Sequential(
        nn.Conv2d(2, 4, 3, padding=1), nn.ReLU(), nn.Flatten(), nn.Linear(4 * side**2, 3)
    )
    x = torch.rand(40, 2, side, side, dtype=torch.float64)
    return model.double(), x, torch.randint(0, 3, (40,))


def regression() -> tuple[nn.Sequential, Tensor, Tensor]:
    """Linear(3, 8)-Tanh-Linear(8, 2) on 60 rows with noise 0.3, after 2000 steps of Adam."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 2)).double()
    x = torch.randn(60, 3, dtype=torch.float64)
    y = torch.sin(x[:, :2]) + 0.3 * torch.randn(60, 2, dtype=torch.float64)
    optimiser = torch.optim.Adam(model.parameters(), lr=0.01)
    for _ in range(2000):
        optimiser.zero_grad()
        loss = Gaussian(0.3).nll_mean(model(x), y)
        loss = loss + sum(p.square().sum() for p in model.parameters()) / (2 * len(x))
        loss.backward()
        optimiser.step()
    return model, x, y


def run(
    kind: str, model: nn.Module, x: Tensor, y: Tensor, likelihood: Likelihood
) -> CurvaturePass:
    """Return the pass over all the data."""
    generator = torch.Generator().manual_seed(0)
    return curvature_pass(kind, model, x, y, likelihood, batch_size=512, generator=generator)


def log_z(passed: CurvaturePass, model: nn.Module, scale: float = 1.0) -> float:
    """Evidence at prior precision 1 with the curvature times `scale`."""
    ones = torch.ones(len(passed.curvature.names), dtype=torch.float64)
    norms, likelihood = squared_norms(model), passed.log_likelihood
    return float(laplace_value(likelihood, passed.curvature, norms, ones, scale))


def backpack_convolution() -> None:
    """Print what BackPACK's factor of a convolution does to the trace and to log Z."""
    try:
        from backpack import backpack, extend
        from backpack.extensions import KFLR
    except ImportError:
        print("1  BackPACK is not installed")
        return
    for side in (4, 8, 16):
        model, x, y = conv_net(side)
        ours, exact = (run(k, model, x, y, Categorical()) for k in ("kfac_ggn", "diag_ggn"))
        full = log_z(run("full_ggn", model, x, y, Categorical()), model)
        theirs = extend(copy.deepcopy(model))
        with backpack(KFLR()):
            extend(nn.CrossEntropyLoss(reduction="sum"))(theirs(x), y).backward()
        b, a = next(theirs.parameters()).kflr
        # Theirs is averaged over data in a and summed in b, as SA / N and SB.
        block = Kronecker(a[None].double(), b[None].double(), 1, 1)
        assert isinstance(ours.curvature, BlockDiagonal)
        blocks = (block, *ours.curvature.blocks[1:])
        swapped = replace(ours, curvature=BlockDiagonal(ours.curvature.names, blocks))
        trace = float(exact.curvature.trace()[0])
        print(
            f"1  |T| = {side**2:3d}: tr/tr exact {float(block.trace()) / trace:7.2f} BackPACK, "
            f"{float(ours.curvature.trace()[0]) / trace:5.2f} ours; log Z "
            f"{log_z(swapped, model):8.1f} and {log_z(ours, model):8.1f}, full {full:8.1f}"
        )


def detached_noise() -> None:
    """Print the gradient in the noise with and without that of the log determinant."""
    torch.manual_seed(0)
    model = nn.Linear(4, 1, bias=False).double()
    x = torch.randn(30, 4, dtype=torch.float64)
    y = x @ torch.randn(4, 1, dtype=torch.float64) + 0.5 * torch.randn(30, 1, dtype=torch.float64)
    with torch.no_grad():  # the mode for noise 0.5 and precision 1
        model.weight.copy_(torch.linalg.solve(x.T @ x + 0.25 * torch.eye(4), x.T @ y).T)
    passed = run("kfac_ggn", model, x, y, Gaussian(1.0))
    log_s = torch.tensor(math.log(0.5), dtype=torch.float64, requires_grad=True)
    variance = (2 * log_s).exp()
    fit = -0.5 * sum(passed.squared_errors) / variance - 15 * variance.log()
    for name, scale in (("ours", 1 / variance), ("detached", (1 / variance).detach())):
        one = torch.ones(1, dtype=torch.float64)
        value = laplace_value(fit, passed.curvature, squared_norms(model), one, scale)
        (gradient,) = torch.autograd.grad(value, log_s, retain_graph=True)
        print(f"2  d log Z / d log s: {float(gradient):8.3f} {name}")


def empirical_fisher_of_regression() -> None:
    """Print log Z with the right empirical Fisher and with one 2 s² times as large."""
    model, x, y = regression()
    for kind in ("diag_ef", "full_ef"):
        passed = run(kind, model, x, y, Gaussian(0.3))
        wrong = log_z(passed, model, scale=2 * 0.3**2)
        print(f"3  {kind}: log Z {log_z(passed, model):.2f}, with 2/s² {wrong:.2f}")


def inverted_temperature() -> None:
    """Print log Z with the likelihood to the power 5, and divided by 5 without the constant."""
    model, x, y = regression()
    passed = run("full_ggn", model, x, y, Gaussian(0.3))
    power = 5.0
    tempered = replace(passed, log_likelihood=power * passed.log_likelihood)
    right = log_z(tempered, model, scale=power)
    normaliser = -0.5 * y.numel() * math.log(2 * math.pi * 0.3**2)
    fit = passed.log_likelihood - normaliser
    wrong = replace(passed, log_likelihood=fit / power + normaliser)
    print(f"5  kappa = 5: log Z {right:.1f}, inverted {log_z(wrong, model, scale=1 / power):.1f}")


def prior_of_several_outputs() -> None:
    """Print what averaging the error over outputs does to a maximum a posteriori."""
    torch.manual_seed(0)
    x, y = torch.randn(20, 5).double(), torch.randn(20, 3).double()

    def ridge(delta: float) -> Tensor:
        return torch.linalg.solve(x.T @ x + delta * torch.eye(5).double(), x.T @ y)

    def log_joint(theta: Tensor) -> float:
        return float(-0.5 * (y - x @ theta).square().sum() - 2.5 * theta.square().sum())

    right, wrong = ridge(5.0), ridge(15.0)  # delta = 5, s = 1, C = 3
    print(
        f"6  C = 3: norm of theta {float(right.norm()):.3f}, with MSE mean "
        f"{float(wrong.norm()):.3f}; log joint lower by {log_joint(right) - log_joint(wrong):.2f}"
    )


def functional_evidence() -> None:
    """Print laplace-torch's evidence of a function beside that of the linear model behind it."""
    try:
        from laplace import Laplace
    except ImportError:
        print("7  laplace-torch is not installed")
        return
    torch.manual_seed(0)
    model = nn.Linear(4, 1, bias=False).double()
    x = torch.randn(30, 4).double()
    y = x @ torch.randn(4, 1).double() + 0.5 * torch.randn(30, 1).double()
    with torch.no_grad():  # the mode for noise 0.5 and precision 1
        model.weight.copy_(torch.linalg.solve(x.T @ x + 0.25 * torch.eye(4), x.T @ y).T)
    covariance = x @ x.T + 0.25 * torch.eye(30)
    zero = torch.zeros(30).double()
    exact = torch.distributions.MultivariateNormal(zero, covariance).log_prob(y[:, 0])
    ours = log_z(run("full_ggn", model, x, y, Gaussian(0.5)), model)
    data = torch.utils.data.TensorDataset(x, y)
    theirs = Laplace(
        copy.deepcopy(model),
        "regression",
        subset_of_weights="all",
        hessian_structure="gp",
        n_subset=30,
        sigma_noise=0.5,
        prior_precision=1.0,
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        theirs.fit(torch.utils.data.DataLoader(data, batch_size=30))
        found = float(theirs.log_marginal_likelihood())
    print(
        f"7  log evidence: exact {float(exact):.3f}, ours {ours:.3f}, "
        f"FunctionalLaplace {found:.3f}"
    )


def residual_nets() -> None:
    """Print what BackPACK does with a sum of two branches, and what we do."""
    try:
        from backpack import backpack, extend
        from backpack.custom_module.branching import Parallel
        from backpack.extensions import KFLR
    except ImportError:
        print("8  BackPACK is not installed")
        return
    torch.manual_seed(0)
    layers = nn.Linear(4, 4), nn.Linear(4, 3)
    x, y = torch.randn(20, 4), torch.randint(0, 3, (20,))

    class Skip(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner, self.head = (copy.deepcopy(layer).double() for layer in layers)

        def forward(self, h: Tensor) -> Tensor:
            return self.head(h + torch.tanh(self.inner(h)))

    model = Skip()
    kfac, full = (run(k, model, x.double(), y, Categorical()) for k in ("kfac_ggn", "full_ggn"))
    branch = nn.Sequential(copy.deepcopy(layers[0]), nn.Tanh())
    first = nn.Linear(4, 4)  # a parameter before the branches, where two gradients meet
    theirs = extend(nn.Sequential(first, Parallel(nn.Identity(), branch), layers[1]))
    try:
        with backpack(KFLR()):
            extend(nn.CrossEntropyLoss(reduction="sum"))(theirs(x), y).backward()
        words = "runs"
    except (NotImplementedError, AttributeError) as error:
        words = f"{type(error).__name__}: {str(error)[-90:]}"
    print(
        f"8  KFLR over a skip: {words}; our log Z {log_z(kfac, model):.2f}, "
        f"full {log_z(full, model):.2f}"
    )


def cross_positions() -> None:
    """Print the diagonal of a convolution as a sum over positions of squares."""
    model, x, y = conv_net(8)
    exact = run("diag_ef", model, x, y, Categorical())
    z = model[0](x).detach().requires_grad_()
    loss = nn.functional.cross_entropy(model[1:](z.clone()), y, reduction="sum")
    s = torch.autograd.grad(loss, z)[0].flatten(2)
    a = nn.functional.unfold(x, 3, padding=1)
    wrong = torch.einsum("not,nit->oi", s.square(), a.square())
    assert isinstance(exact.curvature, BlockDiagonal)
    right = exact.curvature.blocks[0]
    blocks = (Diagonal(wrong.flatten()), *exact.curvature.blocks[1:])
    swapped = replace(exact, curvature=BlockDiagonal(exact.curvature.names, blocks))
    error = float((wrong.flatten() - right.values).norm() / right.values.norm())
    print(
        f"11 relative error of the diagonal {error:.2f}; log Z {log_z(exact, model):.2f}, "
        f"without cross terms {log_z(swapped, model):.2f}"
    )


def bias_of_convolution() -> None:
    """Print what the bias of a convolution loses with the factor of the weight."""
    model, x, y = conv_net(8)
    passed = run("kfac_ggn", model, x, y, Categorical())
    assert isinstance(passed.curvature, BlockDiagonal)
    weight, bias, *others = passed.curvature.blocks
    assert isinstance(weight, Kronecker)
    wrong = Dense(weight.gradients[0] / weight.n_positions)
    blocks = (weight, wrong, *others)
    swapped = replace(passed, curvature=BlockDiagonal(passed.curvature.names, blocks))
    print(
        f"B  trace of the bias block {float(wrong.trace() / bias.trace()):.4f} of the exact one; "
        f"log Z {log_z(passed, model):.2f}, with it {log_z(swapped, model):.2f}"
    )


def points_not_visited() -> None:
    """Print log Z where the last batch is dropped and the factors know nothing of it."""
    model, x, y = conv_net(8)
    visited = run("kfac_ggn", model, x[:32], y[:32], Categorical())  # drop_last, batches of 32
    assert isinstance(visited.curvature, BlockDiagonal)
    blocks = tuple(
        replace(b, n_data=40) if isinstance(b, Kronecker) else b for b in visited.curvature.blocks
    )
    wrong = replace(visited, curvature=BlockDiagonal(visited.curvature.names, blocks))
    print(
        f"N  32 of 40 points visited: log Z {log_z(visited, model):.2f}, factors divided by 40 "
        f"{log_z(wrong, model):.2f}; all 40 points "
        f"{log_z(run('kfac_ggn', model, x, y, Categorical()), model):.2f}"
    )


def rounding() -> None:
    """Print log determinants in single precision."""
    generator = torch.Generator().manual_seed(0)
    values = (torch.randn(1_000_000, generator=generator) - 12).exp()
    delta = torch.tensor(7.0)
    difference = (values + delta).log().sum() - delta.log() * len(values)
    right = torch.log1p(values.double() / 7).sum()
    print(f"R  log|H+D| - log|D|, P = 1e6: {right:.3f}; float32 difference {difference:.3f}")
    j = torch.randn(5, 200, generator=generator)
    # curvature of rank 5 with eigenvalues near 1e9 beside a precision of 1
    h = 5e6 * j.T @ j
    right = torch.linalg.slogdet(torch.eye(5).double() + 5e6 * j.double() @ j.T.double())[1]
    print(
        f"R  log|H+D|, rank 5 of 200: {right:.2f}; float32 {torch.logdet(h + torch.eye(200)):.2f}"
    )


def single_precision() -> None:
    """Print the error of the evidence of float32 models, for every kind."""
    from cases import CASES, GOLDEN, Case, case, golden

    for kind in KINDS:
        worst = {}
        for name in (*CASES, *GOLDEN):
            c = golden(name)[0] if name in GOLDEN else case(name)
            c.model.float().double()
            c = Case(c.model, c.x.float().double(), c.y, c.noise_std, c.prior_precision)
            c.y = c.y if c.noise_std is None else c.y.float().double()
            values = []
            for dtype in (torch.float64, torch.float32):
                y = c.y if c.noise_std is None else c.y.to(dtype)
                cast = Case(c.model.to(dtype), c.x.to(dtype), y, c.noise_std, c.prior_precision)
                values.append(cast.estimate(kind, batch_size=512).value)
            worst[name] = (abs(values[1] / values[0] - 1), abs(values[1] - values[0]))
        name = max(worst, key=lambda n: worst[n][0])
        relative, nats = worst[name]
        largest = max(error for _, error in worst.values())
        print(
            f"F  {kind:12s} worst of {len(worst)}: {relative:.1e} relative, {nats:.1e} nats "
            f"({name}); largest {largest:.1e} nats"
        )


def label_draws() -> None:
    """Print the error of one Monte-Carlo draw: random signs, and random labels."""
    from cases import golden

    draws = torch.Generator().manual_seed(0)

    class Labels(Categorical):
        def signed_root(self, outputs: Tensor, signs: Tensor) -> Tensor:
            p = outputs.double().softmax(1)
            labels = torch.multinomial(p, 1, generator=draws)[:, 0]
            onehot = nn.functional.one_hot(labels, p.shape[1])
            return (onehot - p).to(outputs.dtype)[None]

    for name in ("digits_mlp", "digits_cnn"):
        c, definition = golden(name)
        for kind in ("diag_ggn_mc", "kfac_ggn_mc"):
            for word, likelihood in (("signs", Categorical()), ("labels", Labels())):
                generator = torch.Generator().manual_seed(0)
                errors = []
                for _ in range(20):
                    passed = curvature_pass(
                        kind, c.model, c.x, c.y, likelihood, batch_size=512, generator=generator
                    )
                    value = laplace_value(
                        passed.log_likelihood, passed.curvature, squared_norms(c.model),
                        c.prior_precision,
                    )  # fmt: skip
                    errors.append(float(value) - definition[kind.removesuffix("_mc")])
                e = torch.tensor(errors)
                print(f"M  {name} {kind:12s} {word:6s}: {e.mean():7.2f} ± {e.std():6.2f} nats")


ROWS: tuple[Callable[[], None], ...] = (
    backpack_convolution,
    detached_noise,
    empirical_fisher_of_regression,
    inverted_temperature,
    prior_of_several_outputs,
    functional_evidence,
    residual_nets,
    cross_positions,
    bias_of_convolution,
    points_not_visited,
    rounding,
    single_precision,
    label_draws,
)

if __name__ == "__main__":
    torch.set_num_threads(1)
    for row in ROWS:
        row()
