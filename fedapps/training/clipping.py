"""Adaptive gradient clipping (AutoClip), which any stage can use.

The threshold of a step is the T-th percentile of all gradient norms so far, including this step's,
but at most `max_norm`: c_t = min(tau_t, mu); g <- g min(1, c_t / ||g||) (PerFreezeClip, Section 3).
"""

import math
from bisect import bisect_left, insort
from collections import Counter, deque
from collections.abc import Iterable, Mapping

import torch
from torch import Tensor, nn
from torch.nn.functional import unfold
from torch.nn.grad import conv2d_weight

from fedapps.models.calls import computes_as, first_tensor
from fedapps.models.layers import Slice
from fedapps.training.plan import Clip

Supported = nn.Linear | nn.Conv2d


class Threshold:
    """Running percentile of the last `history` norms, kept both sorted and in order of arrival."""

    def __init__(self, clip: Clip, norms: Iterable[float] = ()) -> None:
        self.clip = clip
        self.limit = math.inf if clip.max_norm is None else clip.max_norm
        self.arrived = deque(norms, maxlen=clip.history)
        self._sorted = sorted(self.arrived)

    @property
    def remembers(self) -> bool:
        """Whether the history matters: at percentile 100 only `max_norm` does."""
        return self.clip.percentile < 100

    @property
    def by_sample(self) -> bool:
        """Whether the gradients of single samples are clipped, instead of the batch's gradient."""
        return self.clip.mode == "sample"

    def after(self, norm: float) -> float:
        """Add the norm of a new step, and return the threshold c_t of this step."""
        if not self.remembers:
            return self.limit
        if len(self.arrived) == self.clip.history:
            del self._sorted[bisect_left(self._sorted, self.arrived[0])]
        self.arrived.append(norm)
        insort(self._sorted, norm)
        return min(self.percentile(), self.limit)

    def percentile(self) -> float:
        """Return the T-th percentile of the history, with linear interpolation as in NumPy."""
        position = (len(self._sorted) - 1) * self.clip.percentile / 100
        low = int(position)
        high = min(low + 1, len(self._sorted) - 1)
        below, above = self._sorted[low], self._sorted[high]
        return below + (above - below) * (position - low)


Thresholds = Mapping[tuple[Slice, Clip], Threshold]  # by a stage's layers and clipping


def clip_batch(gradients: list[Tensor], threshold: Threshold) -> bool:
    """Clip the batch gradient in place; return False if its norm is not finite.

    The caller must then reject the step.
    """
    norm = float(torch.linalg.vector_norm(torch.stack(torch._foreach_norm(gradients))))
    if not math.isfinite(norm):
        return False
    limit = threshold.after(norm)
    if norm > limit:
        torch._foreach_mul_(gradients, limit / norm)
    return True


class SampleGradients:
    """Per-sample gradient norms, and means of clipped gradients, of linear and convolution layers.

    For a linear layer, the gradient of a sample is never formed, because its norm is the norm of
    the sample's input times that of its output gradient. The mean of the clipped gradients is one
    weighted product per layer. All this costs about as much as a batch gradient; vmap(grad) takes
    ten times as long (measured with cnn).

    The result is correct under two conditions: the loss is a mean of one term for each sample, and
    it depends on the weights of a layer only through one pass through that layer. The second
    condition is checked in every step; the first cannot be checked.
    """

    def __init__(self, model: nn.Module) -> None:
        self.layers = [_supported(m) for m in model.modules() if _is_trained(m)]
        self._seen: dict[nn.Module, tuple[Tensor, Tensor]] = {}  # since the last step
        self._handles = [m.register_forward_hook(self._see, with_kwargs=True) for m in self.layers]

    def close(self) -> None:
        """Remove the hooks from the model."""
        for handle in self._handles:
            handle.remove()

    def clip(self, loss: Tensor, threshold: Threshold) -> bool:
        """Set each parameter's `.grad` to the mean of the clipped gradients of the samples.

        `loss` is the mean over the batch. The history gets one value for each step: the mean of the
        per-sample norms. Returns False if this mean is not finite; the caller must then reject the
        step. A layer on which the loss does not depend gets no gradient. Raises ValueError if the
        gradients would be wrong.
        """
        layers = self._layers_of(loss)
        seen = [self._seen[module] for module in layers]
        self._seen = {}
        size = len(seen[0][0])
        outputs = torch.autograd.grad(loss * size, [output for _, output in seen])
        pairs = [
            (module, values, gradient)
            for module, (values, _), gradient in zip(layers, seen, outputs, strict=True)
        ]
        with torch.no_grad():
            norms = torch.stack([_square_norms(*pair) for pair in pairs]).sum(0).sqrt()
            mean = float(norms.mean())
            if not math.isfinite(mean):
                return False
            limit = threshold.after(mean)
            weights = torch.where(norms > limit, limit / norms, torch.ones_like(norms)) / size
            for pair in pairs:
                _set_weighted_gradient(*pair, weights)
        return True

    def _layers_of(self, loss: Tensor) -> list[Supported]:
        """Return the layers on which a loss depends; refuse a loss with incomplete gradients."""
        uses = _uses(loss)
        for module in self.layers:
            for parameter in module.parameters(recurse=False):
                if parameter.grad is not None:
                    raise refusal("a step has gradients of more than one loss")
                if uses[parameter] > (module in self._seen):
                    raise refusal(
                        "the loss uses weights outside of their layer, such as in a penalty"
                    )
        return [module for module in self.layers if uses[module.weight]]

    def _see(self, module: nn.Module, args: object, kwargs: object, output: Tensor) -> Tensor:
        if not output.requires_grad:  # no gradient flows through here
            return output
        if module in self._seen:
            raise refusal(f"a step runs a {type(module).__name__} twice")
        x = first_tensor((args, kwargs))
        assert x is not None  # otherwise there would be no output
        if isinstance(module, nn.Linear) and x.dim() != 2:
            raise refusal(f"a Linear gets {x.dim()} dimensions, not [samples, features]")
        self._seen[module] = (x.detach(), output)
        return output.clone()  # an in-place ReLU would otherwise change the recorded output


def refusal(what: str) -> ValueError:
    """Return the error for a step or layer with which per-sample gradients do not work."""
    return ValueError(f'clip-mode = "sample": {what}; use "batch"')


def _uses(loss: Tensor) -> Counter[Tensor]:
    """Count how often each parameter enters a loss's graph: once for each pass of its layer."""
    found: Counter[Tensor] = Counter()
    met, nodes = {loss.grad_fn}, [loss.grad_fn]
    while nodes:
        for node, _ in getattr(nodes.pop(), "next_functions", ()):
            if (leaf := getattr(node, "variable", None)) is not None:
                found[leaf] += 1
            elif node not in met:
                met.add(node)
                nodes.append(node)
    return found


def _supported(module: nn.Module) -> Supported:
    what = type(module).__name__
    kind = next((kind for kind in (nn.Linear, nn.Conv2d) if isinstance(module, kind)), None)
    if kind and not computes_as(module, kind):
        raise refusal(f"a trained layer has {what} with a forward or weights of its own")
    if isinstance(module, nn.Linear):
        return module
    if isinstance(module, nn.Conv2d):
        other = {
            "groups": module.groups != 1 and module.groups,
            "padding": module.padding == "same" and "same",
            "padding_mode": module.padding_mode != "zeros" and module.padding_mode,
        }
        if not any(other.values()):
            return module
        what += " with " + ", ".join(f"{key}={value}" for key, value in other.items() if value)
    raise refusal(f"a trained layer has {what}")


def _is_trained(module: nn.Module) -> bool:
    return any(parameter.requires_grad for parameter in module.parameters(recurse=False))


def _square_norms(module: Supported, values: Tensor, gradient: Tensor) -> Tensor:
    """Return [b]: the squared norm of each sample's gradient of weight and bias together."""
    if isinstance(module, nn.Linear):
        bias = 0 if module.bias is None else 1
        return gradient.square().sum(1) * (values.square().sum(1) + bias)
    padding = module.padding if isinstance(module.padding, tuple) else 0
    columns = unfold(values, module.kernel_size, module.dilation, padding, module.stride)
    flat = gradient.flatten(2)
    squares = torch.bmm(flat, columns.transpose(1, 2)).square().sum((1, 2))
    return squares if module.bias is None else squares + flat.sum(2).square().sum(1)


def _set_weighted_gradient(
    module: Supported, values: Tensor, gradient: Tensor, weights: Tensor
) -> None:
    """Set `.grad` of weight and bias to sum_i weights_i g_i."""
    scaled = gradient * weights.view(-1, *[1] * (gradient.dim() - 1))
    if isinstance(module, nn.Linear):
        module.weight.grad = scaled.t() @ values
    else:
        module.weight.grad = conv2d_weight(
            values, module.weight.shape, scaled, module.stride, module.padding, module.dilation
        )
    if module.bias is not None:
        module.bias.grad = scaled.sum([d for d in range(scaled.dim()) if d != 1])
