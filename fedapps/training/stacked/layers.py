"""The modules of a stacked model: those of `torch.nn`, for k clients whose samples are folded.

A linear layer is one product of batches of matrices (`baddbmm`), a BatchNorm has statistics for
each client, and recurrent layers are a loop over time.

A convolution is im2col and one product, too. As a grouped convolution, which `vmap` makes of it, it
was as fast on a CPU, but these are slow on a GPU.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.conv import _ConvNd
from torch.nn.modules.linear import NonDynamicallyQuantizableLinear


@dataclass
class Places:
    """Which of the places [k, B] of a batch hold a sample: `taken` is 1 or 0 (None: all do)."""

    taken: Tensor | None = None


class Product(torch.autograd.Function):
    """x W^T + b of each client: x [k, n, in], W [k, out, in], b [k, out] or None.

    The gradient of `bmm` alone would be a transposed W, which costs a copy in every step.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        """Return [k, n, out]."""
        ctx.save_for_backward(x, weight)
        turned = weight.transpose(1, 2)
        return torch.bmm(x, turned) if bias is None else torch.baddbmm(bias[:, None], x, turned)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        """Return the gradients of x, W and b, of those that are needed."""
        x, weight = ctx.saved_tensors
        return (
            torch.bmm(gradient, weight) if ctx.needs_input_grad[0] else None,
            torch.bmm(gradient.transpose(1, 2), x) if ctx.needs_input_grad[1] else None,
            gradient.sum(1) if ctx.needs_input_grad[2] else None,
        )


def product(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """Return x W^T + b of each client, as `Product` says."""
    return Product.apply(x, weight, bias)


class Linear(nn.Linear):
    """`nn.Linear` for k clients."""

    def forward(self, x: Tensor) -> Tensor:
        """Map [k*B, ..., in] to [k*B, ..., out]."""
        rows = x.reshape(len(self.weight), -1, x.shape[-1])
        return product(rows, self.weight, self.bias).view(*x.shape[:-1], -1)


class _Convolution(_ConvNd):
    """A convolution for k clients: im2col, and a product for each client and group of channels."""

    def forward(self, x: Tensor) -> Tensor:
        """Map [k*B, C, ...] to [k*B, out, ...]."""
        (rows, out), groups, sides = self.weight.shape[:2], self.groups, len(self.kernel_size)
        padding = [int(pixels) for pixels in self.padding]
        if any(padding):
            x = F.pad(x, [pixels for pixels in reversed(padding) for _ in ("before", "after")])
        x = x.movedim(1, -1)  # channels last, as pooling has left it
        for dim, (size, step) in enumerate(zip(self.kernel_size, self.stride, strict=True), 1):
            x = x.unfold(dim, size, step)
        places = x.shape[1 : 1 + sides]  # of the output; x is [k*B, *places, C, *kernel]
        x = x.unflatten(1 + sides, (groups, -1)).movedim(1 + sides, 0).movedim(2 + sides, -1)
        x = x.unflatten(1, (rows, -1)).transpose(0, 1)  # [k, groups, B, *places, *kernel, C/groups]
        columns = x.reshape(rows * groups, -1, x.shape[3 + sides :].numel())
        weight = self.weight.movedim(2, -1).reshape(rows * groups, out // groups, -1)
        bias = None if self.bias is None else self.bias.reshape(rows * groups, -1)
        y = product(columns, weight, bias).unflatten(0, (rows, groups)).transpose(1, 2)
        return y.reshape(-1, *places, out).movedim(-1, 1)


class Conv1d(_Convolution, nn.Conv1d):
    """`nn.Conv1d` for k clients."""


class Conv2d(_Convolution, nn.Conv2d):
    """`nn.Conv2d` for k clients."""


def beside(x: Tensor, rows: int) -> Tensor:
    """Return [B, k*C, ...] of a folded batch [k*B, C, ...]: the clients' channels side by side."""
    return x.unflatten(0, (rows, -1)).transpose(0, 1).flatten(1, 2)


def folded(x: Tensor, rows: int) -> Tensor:
    """Return the folded batch [k*B, C, ...] of clients' channels side by side, [B, k*C, ...]."""
    return x.unflatten(1, (rows, -1)).transpose(0, 1).flatten(0, 1)


class _Norm(_BatchNorm):
    """A BatchNorm for k clients; each has statistics of its own samples."""

    places: Places

    def forward(self, x: Tensor) -> Tensor:
        """Normalize [k*B, C, ...]; a place without a sample counts for nothing."""
        known = (self.running_mean, self.running_var, self.weight, self.bias)
        measures = self.training or self.running_mean is None
        if measures and self.places.taken is not None:
            return self._some(x, self.places.taken)
        rows = len(next(value for value in known if value is not None))
        mean, var, weight, bias = (None if v is None else v.flatten() for v in known)
        # For a batch of one sample, torch 2.15 computes a wrong gradient for some other strides.
        x = beside(x, rows).contiguous()
        y = F.batch_norm(x, mean, var, weight, bias, measures, self.momentum or 0.0, self.eps)
        return folded(y, rows)

    def _some(self, x: Tensor, taken: Tensor) -> Tensor:
        rows = len(taken)
        parts = x.unflatten(0, (rows, -1))
        each = [rows, -1, *[1] * (x.dim() - 1)]  # [k, B, 1, ...]
        dims = [d for d in range(1, parts.dim()) if d != 2]
        count = taken.sum(1) * (x[0, 0].numel())  # values of a channel [k]
        share = (taken / count[:, None]).view(each)
        mean = (parts * share).sum(dims, keepdim=True)
        apart = parts - mean
        var = (apart.square() * share).sum(dims, keepdim=True)
        if self.training and self.running_mean is not None:
            with torch.no_grad():
                unbiased = var.view(rows, -1) * (count / (count - 1))[:, None]
                assert self.running_var is not None and self.momentum is not None
                self.running_mean.lerp_(mean.view(rows, -1), self.momentum)
                self.running_var.lerp_(unbiased, self.momentum)
        y = apart * (var + self.eps).rsqrt()
        if self.affine:
            shape = [rows, 1, -1, *[1] * (x.dim() - 2)]
            y = y * self.weight.view(shape) + self.bias.view(shape)
        return y.flatten(0, 1)


class BatchNorm1d(_Norm, nn.BatchNorm1d):
    """`nn.BatchNorm1d` for k clients."""


class BatchNorm2d(_Norm, nn.BatchNorm2d):
    """`nn.BatchNorm2d` for k clients."""


class Embedding(nn.Embedding):
    """`nn.Embedding` for k clients."""

    def forward(self, x: Tensor) -> Tensor:
        """Map tokens [k*B, ...] to vectors [k*B, ..., size]."""
        rows, size = self.weight.shape[:2]
        first = torch.arange(0, rows * size, size, device=x.device)
        places = x.unflatten(0, (rows, -1)) + first.view(-1, *[1] * x.dim())
        return F.embedding(places.flatten(0, 1), self.weight.flatten(0, 1))


class LayerNorm(nn.LayerNorm):
    """`nn.LayerNorm` for k clients."""

    def forward(self, x: Tensor) -> Tensor:
        """Normalize [k*B, ...] over the last dimensions."""
        y = F.layer_norm(x, self.normalized_shape, eps=self.eps)
        shape = [len(self.weight), *[1] * (x.dim() - self.weight.dim() + 1), *self.normalized_shape]
        y = y.unflatten(0, (len(self.weight), -1)) * self.weight.view(shape)
        return (y if self.bias is None else y + self.bias.view(shape)).flatten(0, 1)


class MultiheadAttention(nn.MultiheadAttention):
    """`nn.MultiheadAttention` for k clients: of a series with itself, with the batch first."""

    def forward(  # type: ignore[override]
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attn_mask: Tensor | None = None,
        need_weights: bool = True,
    ) -> tuple[Tensor, None]:
        """Map [k*B, T, size] to the same shape; `attn_mask` [T, T] is true where nothing is seen.

        Raises NotImplementedError for attention to another series, and if weights are asked for.
        """
        if key is not query or value is not query or need_weights:
            raise NotImplementedError("attention to another series, or its weights")
        assert self.in_proj_weight is not None
        rows = query.reshape(len(self.in_proj_weight), -1, self.embed_dim)
        three = product(rows, self.in_proj_weight, self.in_proj_bias)
        q, k, v = three.view(*query.shape[:2], 3, self.num_heads, -1).permute(2, 0, 3, 1, 4)
        seen = None if attn_mask is None else ~attn_mask
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=seen)
        return self.out_proj(y.transpose(1, 2).flatten(2)), None


State = tuple[Tensor, ...]  # of a recurrent layer, each [k, B, units]; the first is its output


class _Recurrent(nn.RNNBase):
    """A recurrent layer for k clients, as a loop over time."""

    step: Callable[[Tensor, Tensor, State], State]  # of what input and state give, and the state

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Map [k*B, T, in] to outputs [k*B, T, units] and the last ones, [layers, k*B, units]."""
        batch, steps = x.shape[:2]
        last = list[Tensor]()
        for layer in range(self.num_layers):
            of_input, of_state, *biases = (
                self.get_parameter(f"{name}_l{layer}")
                for name in ("weight_ih", "weight_hh", "bias_ih", "bias_hh")
            )
            rows = len(of_input)
            given = product(x.reshape(rows, -1, x.shape[-1]), of_input, biases[0])
            given = given.view(rows, -1, steps, given.shape[-1])
            zero = x.new_zeros(rows, batch // rows, self.hidden_size)
            state: State = (zero, zero)
            outputs = list[Tensor]()
            for now in given.unbind(2):
                state = self.step(now, product(state[0], of_state, biases[1]), state)
                outputs.append(state[0])
            x = torch.stack(outputs, 2).flatten(0, 1)
            last.append(state[0].flatten(0, 1))
        return x, torch.stack(last)


class GRU(_Recurrent, nn.GRU):  # type: ignore[misc]
    """`nn.GRU` for k clients."""

    @staticmethod
    def step(given: Tensor, own: Tensor, state: State) -> State:
        size = 2 * given.shape[-1] // 3
        reset, update = (given[..., :size] + own[..., :size]).sigmoid().chunk(2, -1)
        new = torch.addcmul(given[..., size:], reset, own[..., size:]).tanh()
        return (torch.lerp(new, state[0], update),)


class LSTM(_Recurrent, nn.LSTM):  # type: ignore[misc]
    """`nn.LSTM` for k clients."""

    @staticmethod
    def step(given: Tensor, own: Tensor, state: State) -> State:
        enter, forget, new, out = (given + own).chunk(4, -1)
        cell = torch.addcmul(forget.sigmoid() * state[1], enter.sigmoid(), new.tanh())
        return out.sigmoid() * cell.tanh(), cell


NATIVE: dict[type[nn.Module], type[nn.Module]] = {
    nn.Linear: Linear,
    nn.Conv1d: Conv1d,
    nn.Conv2d: Conv2d,
    nn.BatchNorm1d: BatchNorm1d,
    nn.BatchNorm2d: BatchNorm2d,
    nn.Embedding: Embedding,
    nn.LayerNorm: LayerNorm,
    nn.MultiheadAttention: MultiheadAttention,
    NonDynamicallyQuantizableLinear: Linear,  # in an attention
    nn.GRU: GRU,
    nn.LSTM: LSTM,
}
