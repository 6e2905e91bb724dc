"""A small vision transformer, for images of any size."""

import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention

from fedapps.models.blocks import Mean, Modules, Shape, chain, classifier, of_images
from fedapps.models.deep import Add

SIZE, HEADS, BLOCKS = 64, 4, 4
SMALLEST_PATCH, MOST_PATCHES = 4, 8  # pixels on a side; patches on the longer side of an image


class Patches(nn.Module):
    """Vectors [N, patches, size] of the patches of images [N, C, H, W], plus their positions.

    Images are padded with zeros at the bottom and on the right to whole patches.
    """

    def __init__(self, shape: Shape, size: int) -> None:
        super().__init__()
        channels, *sides = shape
        side = max(SMALLEST_PATCH, -(-max(sides) // MOST_PATCHES))
        height, width = (-(-pixels // side) for pixels in sides)
        self.pad = nn.ZeroPad2d((0, width * side - sides[1], 0, height * side - sides[0]))
        self.conv = nn.Conv2d(channels, size, side, side)
        self.position = nn.Parameter(0.02 * torch.randn(height * width, size))

    def forward(self, x: Tensor) -> Tensor:
        """Return [N, patches, size]."""
        return self.conv(self.pad(x)).flatten(2).transpose(1, 2) + self.position


class Attention(nn.Module):
    """softmax(Q K^T / sqrt(d)) V of each head, for queries, keys and values [N, T, 3 size]."""

    def __init__(self, heads: int) -> None:
        super().__init__()
        self.heads = heads

    def forward(self, x: Tensor) -> Tensor:
        """Return [N, T, size]."""
        q, k, v = x.unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        return scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)


def vit(shape: Shape, classes: int) -> nn.Sequential:
    """ViT (Dosovitskiy et al. 2021) in small: 4 blocks of size 64 with 4 heads (our choice).

    Patches have 4 pixels on a side, or as many as make the longer side of an image 8 patches. The
    patches are averaged instead of adding a class token. The projections of attention are linear
    layers, so adapters can be put beside them. The layers are patches, block1..block4, fc.
    """
    after: Modules = {"norm": nn.LayerNorm(SIZE), "mean": Mean()}
    blocks = {f"block{i}": _block(after if i == BLOCKS else {}) for i in range(1, BLOCKS + 1)}
    return chain(patches=Patches(shape, SIZE), **blocks, fc=classifier(SIZE, classes))


def _block(after: Modules) -> nn.Sequential:
    """Return a layer: attention and two linear layers, each after LayerNorm, beside a shortcut."""
    attention = chain(
        norm=nn.LayerNorm(SIZE),
        qkv=nn.Linear(SIZE, 3 * SIZE),
        heads=Attention(HEADS),
        out=nn.Linear(SIZE, SIZE),
    )
    mlp = chain(
        norm=nn.LayerNorm(SIZE),
        wide=nn.Linear(SIZE, 4 * SIZE),
        gelu=nn.GELU(),
        narrow=nn.Linear(4 * SIZE, SIZE),
    )
    parts = {"attention": Add(attention, nn.Identity()), "mlp": Add(mlp, nn.Identity())}
    return chain(**parts, **after)


MODELS = {"vit-tiny": of_images(vit)}
