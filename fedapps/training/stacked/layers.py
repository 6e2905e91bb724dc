"""The modules of a stacked model: those of `torch.nn`, for k clients whose samples are folded.

A linear layer is one product of batches of matrices (`baddbmm`), a BatchNorm has statistics for
each client, and recurrent layers are a loop over time.

Convolutions are grouped on a CPU, which was as fast as one client after the other (cnn), or up to
twice as fast (lenet5). On a GPU, where grouped ones are slow, they are im2col and one product.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.modules.batchnorm import _BatchNorm


@dataclass
class Places:
    """Which of the places [k, B] of a batch hold a sample: `taken` is 1 or 0 (None: all do)."""

    taken: Tensor | None = None


def product(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """Return x W^T + b of each client: x [k, n, in], weight [k, out, in], bias [k, out]."""
    turned = weight.transpose(1, 2)
    return torch.bmm(x, turned) if bias is None else torch.baddbmm(bias[:, None], x, turned)


def beside(x: Tensor, rows: int) -> Tensor:
    """Return [B, k*C, ...] of a folded batch [k*B, C, ...]: the clients' channels side by side."""
    return x.unflatten(0, (rows, -1)).transpose(0, 1).flatten(1, 2)


def folded(x: Tensor, rows: int) -> Tensor:
    """Return the folded batch [k*B, C, ...] of clients' channels side by side, [B, k*C, ...]."""
    return x.unflatten(1, (rows, -1)).transpose(0, 1).flatten(0, 1)


class Linear(nn.Linear):
    """`nn.Linear` for k clients."""

    def forward(self, x: Tensor) -> Tensor:
        """Map [k*B, ..., in] to [k*B, ..., out]."""
        rows = x.reshape(len(self.weight), -1, x.shape[-1])
        return product(rows, self.weight, self.bias).view(*x.shape[:-1], -1)


class Conv1d(nn.Conv1d):
    """`nn.Conv1d` for k clients."""

    def forward(self, x: Tensor) -> Tensor:
        """Map [k*B, C, T] to [k*B, out, T']."""
        return _grouped(self, F.conv1d, x)


class Conv2d(nn.Conv2d):
    """`nn.Conv2d` for k clients."""

    def forward(self, x: Tensor) -> Tensor:
        """Map [k*B, C, H, W] to [k*B, out, H', W']."""
        as_product = x.is_cuda and self.dilation == (1, 1) and not isinstance(self.padding, str)
        return im2col_product(self, x) if as_product else _grouped(self, F.conv2d, x)


def _grouped(conv: nn.Conv1d | nn.Conv2d, function: Callable[..., Tensor], x: Tensor) -> Tensor:
    rows, bias = len(conv.weight), conv.bias
    y = function(
        beside(x, rows),
        conv.weight.flatten(0, 1),
        None if bias is None else bias.flatten(),
        conv.stride,
        conv.padding,
        conv.dilation,
        rows * conv.groups,
    )
    return folded(y, rows)


def im2col_product(conv: nn.Conv2d, x: Tensor) -> Tensor:
    """Return a convolution as one product for each client and group of channels."""
    rows, out, groups = *conv.weight.shape[:2], conv.groups
    high, wide = (int(pixels) for pixels in conv.padding)
    x = F.pad(x, (wide, wide, high, high)).permute(0, 2, 3, 1)  # [k*B, H, W, C]
    for dim, (size, step) in enumerate(zip(conv.kernel_size, conv.stride, strict=True), 1):
        x = x.unfold(dim, size, step)  # at last [k*B, H', W', C, kh, kw]
    height, width = x.shape[1:3]
    x = x.unflatten(3, (groups, -1)).permute(3, 0, 1, 2, 5, 6, 4)  # [groups, k*B, ..., kh, kw, C]
    x = x.unflatten(1, (rows, -1)).transpose(0, 1)
    columns = x.reshape(rows * groups, -1, x.shape[-3:].numel())
    weight = conv.weight.permute(0, 1, 3, 4, 2).reshape(rows * groups, out // groups, -1)
    bias = None if conv.bias is None else conv.bias.reshape(rows * groups, -1)
    y = product(columns, weight, bias)  # [k * groups, B * H' * W', out / groups]
    y = y.unflatten(0, (rows, groups)).transpose(1, 2).reshape(-1, height, width, out)
    return y.permute(0, 3, 1, 2)


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


class GRU(nn.GRU):
    """`nn.GRU` for k clients."""

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:  # type: ignore[override]
        """Map [k*B, T, in] to outputs [k*B, T, units] and the last ones, [layers, k*B, units]."""
        return _through_time(self, x, _gru_step)


class LSTM(nn.LSTM):
    """`nn.LSTM` for k clients."""

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:  # type: ignore[override]
        """Map [k*B, T, in] to outputs [k*B, T, units] and the last ones, [layers, k*B, units]."""
        return _through_time(self, x, _lstm_step)


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


State = tuple[Tensor, ...]  # of a recurrent layer, each [k, B, units]; the first is its output


def _through_time(
    rnn: nn.RNNBase, x: Tensor, step: Callable[[Tensor, Tensor, State], State]
) -> tuple[Tensor, Tensor]:
    batch, steps = x.shape[:2]
    last = list[Tensor]()
    for layer in range(rnn.num_layers):
        of_input, of_state, *biases = (
            rnn.get_parameter(f"{name}_l{layer}")
            for name in ("weight_ih", "weight_hh", "bias_ih", "bias_hh")
        )
        rows = len(of_input)
        given = product(x.reshape(rows, -1, x.shape[-1]), of_input, biases[0])
        given = given.view(rows, -1, steps, given.shape[-1])
        zero = x.new_zeros(rows, batch // rows, rnn.hidden_size)
        state: State = (zero, zero)
        outputs = list[Tensor]()
        for now in given.unbind(2):
            state = step(now, product(state[0], of_state, biases[1]), state)
            outputs.append(state[0])
        x = torch.stack(outputs, 2).flatten(0, 1)
        last.append(state[0].flatten(0, 1))
    return x, torch.stack(last)


def _gru_step(given: Tensor, own: Tensor, state: State) -> State:
    size = 2 * given.shape[-1] // 3
    reset, update = (given[..., :size] + own[..., :size]).sigmoid().chunk(2, -1)
    new = torch.addcmul(given[..., size:], reset, own[..., size:]).tanh()
    return (torch.lerp(new, state[0], update),)


def _lstm_step(given: Tensor, own: Tensor, state: State) -> State:
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
    nn.GRU: GRU,
    nn.LSTM: LSTM,
}
