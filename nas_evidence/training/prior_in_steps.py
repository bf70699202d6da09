"""The gradient of the prior in the steps of any optimiser of torch.

    step   g ← s (∇ loss + d θ),   d = min(σ² δ_l / (κ N), 1 / (2 ρ))

    s   what the optimiser undoes before it steps: −1 with `maximize`, and the scale of the loss
        where a fused optimiser divides by it inside its step (`torch.amp.GradScaler`)
    ρ   learning rate of the parameter's group; the other symbols as in `own_loop`

A closure computes the gradients inside the step, so the prior is added after each call of it.
`p.grad` is as the backward pass left it when the step has ended: a step may be taken again, and
gradients may go on accumulating. What else changes the meaning of a gradient is refused.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from nas_evidence.curvature.refusals import refuse_batch_statistics
from nas_evidence.plumbing.user_error import UserError

#: Options of optimisers that pull parameters to zero, as a prior does.
_DECAYS = ("weight_decay", "lambd")


@dataclass
class PriorInSteps:
    """Adds the gradient of the prior to the steps of one optimiser.

    names    of the parameter tensors that have a prior: those that were free at the beginning
    decay    d of each of them [G] before the bound by the learning rate, float64
    n_steps  steps since `count_steps`
    """

    model: nn.Module
    names: tuple[str, ...]
    decay: Callable[[], Tensor]
    n_steps: int = 0
    _factors: tuple[Tensor, list[Tensor]] | None = None  # d [G], and as full tensors
    _before: list[tuple[Tensor, Tensor | None, Tensor]] = field(default_factory=list)
    _wrapped: Callable[[], Any] | None = None  # the closure of this step, with the prior
    _calls: int = 0  # of it
    _versions: list[int] = field(default_factory=list)

    def join(self, optimiser: torch.optim.Optimizer) -> None:
        """Take part in the steps of `optimiser`, in place of an earlier prior of it.

        Raises:
            ValueError: for an optimiser that would train without the prior, or with another; names
                the option.
        """
        check_optimiser(self.model, optimiser)
        if cut := self._bounded(optimiser)[1]:
            rates = {id(p): float(g["lr"]) for g in optimiser.param_groups for p in g["params"]}
            named = self._named()
            name = cut[0]
            decay = dict(zip(named, self.decay().tolist(), strict=True))[name]
            raise UserError(
                "own-loop-prior-and-rate",
                f"the prior of `{name}` needs a learning rate of at most {0.5 / decay:.3g}, but "
                f"its group has lr {rates[id(named[name])]:g}: beyond it steps overshoot. Lower "
                "the learning rate or `prior_precision`",
            )
        for hooks in (optimiser._optimizer_step_pre_hooks, optimiser._optimizer_step_post_hooks):
            for key, hook in [*hooks.items()]:
                if isinstance(getattr(hook, "__self__", None), PriorInSteps):
                    del hooks[key]
        optimiser.register_step_pre_hook(self.before_step)
        optimiser.register_step_post_hook(self.after_step)
        self._versions = self._current()

    def count_steps(self) -> None:
        """Begin to count the steps of the next epoch.

        Raises:
            ValueError: if parameters have changed without a step of the optimiser, or others are
                free than at the beginning.
        """
        free = {name for name, p in self.model.named_parameters() if p.requires_grad}
        if other := sorted(free.symmetric_difference(self.names)):
            raise UserError(
                "own-loop-free-changed",
                f"`{other[0]}` has been frozen or freed since `online_laplace` began, so that the "
                "prior would be of other parameters; begin a new one with those that are free",
            )
        if self.n_steps == 0 and self._versions != self._current():
            raise UserError(
                "own-loop-no-step",
                "the parameters have changed, but `optimiser` has taken no step since the last "
                "epoch, so that they were trained without the prior; step with the optimiser "
                "given to `online_laplace`, by its method `step`",
            )
        self.n_steps, self._versions = 0, self._current()

    def before_step(
        self, optimiser: torch.optim.Optimizer, args: Any, kwargs: Any
    ) -> tuple[Any, Any] | None:
        """Add the prior to the gradients, or to those that the closure of the step computes."""
        _refuse_in_graph()
        _refuse_decay(optimiser)
        refuse_batch_statistics(self.model)
        name = "closure" in kwargs
        closure = kwargs["closure"] if name else args[1] if len(args) > 1 else None
        if closure is None:
            self._add(optimiser)
            return None
        if closure is self._wrapped:  # the step of a subclass calls that of its parent
            return None
        self._calls = 0

        def with_prior() -> Any:
            self._restore()  # a closure may add to the gradients that are there
            loss = closure()
            self._add(optimiser)
            self._calls += 1
            return loss

        self._wrapped = with_prior
        if name:
            return args, {**kwargs, "closure": with_prior}
        return (args[0], with_prior, *args[2:]), kwargs

    def after_step(self, optimiser: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
        """Leave the gradients of the loss alone in `p.grad`, and count the step."""
        self._restore()
        closure = kwargs.get("closure", args[1] if len(args) > 1 else None)
        if closure is not None and self._calls == 0:
            raise UserError(
                "own-loop-closure-unused",
                f"{type(optimiser).__name__} has not called the closure of its step, so that the "
                "step was without the prior; call backward first, then `step()`",
            )
        self.n_steps += 1

    def _add(self, optimiser: torch.optim.Optimizer) -> None:
        self._restore()  # once, however many steps of parents are called in one step
        decay = self._bounded(optimiser)[0]
        groups = optimiser.param_groups
        rising = {id(p) for g in groups if g.get("maximize", False) for p in g["params"]}
        _refuse_missing(self.model, optimiser)
        named = [*self._named().items()]
        for name, parameter in named:
            if parameter.grad is not None and parameter.grad.layout is not torch.strided:
                raise UserError(
                    "own-loop-sparse-gradient",
                    f"the gradient of `{name}` is sparse, but the prior pulls every weight; set "
                    "sparse=False in its module",
                )
        signs = decay.new_tensor([-1.0 if id(p) in rising else 1.0 for _, p in named])
        parameters: list[Tensor] = [parameter for _, parameter in named]
        with torch.no_grad():
            factors = self._factors_of(decay * signs, parameters)
            # Frozen since the loop began: no step, so no prior in it.
            wanted = [i for i, p in enumerate(parameters) if p.requires_grad]
            given = [parameters[i] for i in wanted]
            factors = [factors[i] for i in wanted]
            if (scale := getattr(optimiser, "grad_scale", None)) is not None:
                factors = [f * scale.to(f) for f in factors]
            raw = [p.grad for p in given]
            whole = [
                torch.zeros_like(p) if g is None else g for p, g in zip(given, raw, strict=True)
            ]
            summed = torch._foreach_addcmul(whole, factors, given)
            for one, gradient in zip(given, summed, strict=True):
                one.grad = gradient
        self._before = list(zip(given, raw, summed, strict=True))

    def _restore(self) -> None:
        for parameter, raw, summed in self._before:
            if parameter.grad is summed:
                parameter.grad = raw
        self._before = []

    def _bounded(self, optimiser: torch.optim.Optimizer) -> tuple[Tensor, tuple[str, ...]]:
        """Return d [G], at most half the inverse learning rate, and the names of those cut.

        Beyond that bound a step overshoots zero.
        """
        rates = {id(p): float(g["lr"]) for g in optimiser.param_groups for p in g["params"]}
        of_each = [rates.get(id(p), 0.0) for p in self._named().values()]
        decay = self.decay()
        most = decay.new_tensor([0.5 / rate if rate > 0 else math.inf for rate in of_each])
        cut = (decay > most).tolist()
        found = tuple(name for name, is_cut in zip(self.names, cut, strict=True) if is_cut)
        return decay.minimum(most), found

    def _factors_of(self, decay: Tensor, parameters: list[Tensor]) -> list[Tensor]:
        """Return the factors [G] as tensors like the parameters, made anew only if they change.

        So a step copies nothing to the device, and takes one operator for all parameters.
        """
        known, factors = self._factors or (decay.new_empty(0), [])
        kinds = [(p.device, p.dtype) for p in parameters]
        if not torch.equal(known, decay) or [(f.device, f.dtype) for f in factors] != kinds:
            each = zip(parameters, decay.tolist(), strict=True)
            factors = [torch.full_like(parameter, factor) for parameter, factor in each]
            self._factors = decay, factors
        return factors

    def _current(self) -> list[int]:
        return [parameter._version for parameter in self._named().values()]

    def _named(self) -> dict[str, nn.Parameter]:
        every = dict(self.model.named_parameters())
        return {name: every[name] for name in self.names}


def check_optimiser(model: nn.Module, optimiser: torch.optim.Optimizer) -> None:
    """Check that each step of the optimiser takes the prior and no second one.

    Raises:
        ValueError: if it does not; names the option and the remedy.
    """
    if isinstance(optimiser, torch.optim.LBFGS):
        raise UserError(
            "own-loop-lbfgs",
            "`optimiser` must take one gradient per step, but LBFGS calls the loss again; use SGD "
            "or Adam",
        )
    runs_hooks = isinstance(optimiser, torch.optim.Optimizer) and hasattr(
        optimiser, "_optimizer_step_pre_hooks"
    )
    if not runs_hooks or not getattr(type(optimiser).step, "hooked", False):
        raise UserError(
            "own-loop-optimiser",
            f"`optimiser` must be a torch.optim.Optimizer whose steps run hooks, but got a "
            f"{type(optimiser).__name__}: the prior enters by such a hook. Give the optimiser of "
            "torch.optim that it wraps",
        )
    if any(group.get("differentiable", False) for group in optimiser.param_groups):
        raise UserError(
            "own-loop-differentiable",
            "`optimiser` has differentiable=True, with which torch cannot step the parameters of "
            "a module; leave it out",
        )
    _refuse_missing(model, optimiser)
    _refuse_decay(optimiser)


def _refuse_missing(model: nn.Module, optimiser: torch.optim.Optimizer) -> None:
    stepped = {id(p) for group in optimiser.param_groups for p in group["params"]}
    for name, parameter in model.named_parameters():
        if parameter.requires_grad and id(parameter) not in stepped:
            raise UserError(
                "own-loop-parameter-missing",
                f"`optimiser` must hold all free parameters of the model, but not `{name}`; the "
                "evidence is a function of all of them. What is a constant has "
                "requires_grad=False",
            )


def _refuse_decay(optimiser: torch.optim.Optimizer) -> None:
    for group in optimiser.param_groups:
        for name in _DECAYS:
            if group.get(name, 0):
                raise UserError(
                    "own-loop-weight-decay",
                    f"`optimiser` has {name} {group[name]}, a second prior beside the learned "
                    f"one; set {name}=0",
                )


def _refuse_in_graph() -> None:
    on_a_gpu = torch.cuda.is_initialized()  # type: ignore[no-untyped-call]
    capturing = on_a_gpu and torch.cuda.is_current_stream_capturing()
    if capturing or torch.compiler.is_compiling():
        raise UserError(
            "own-loop-step-in-graph",
            "`optimiser.step()` is being recorded in a graph, which would keep the present prior "
            "for ever; take the step outside of the CUDA graph or of torch.compile",
        )
