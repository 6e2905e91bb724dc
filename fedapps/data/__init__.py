"""Data sets, and which client holds which samples.

    cifar = load("cifar10", "~/fedapps-data")
    images, labels = cifar.tensors(np.arange(500))  # float32 [500, 3, 32, 32], int64 [500]
    for client, share in enumerate(shares(cifar.labels, cifar.num_train, settings)):
        share.train, share.test  # indices into cifar.labels, sorted

Every set is in the end one `.npz` file: `<root>/<name>.npz` for the sets known by name (made once
from a download or an unpacked archive), or the user's own file. Its members are `train_images`,
`train_labels`, `test_images`, `test_labels` and optionally `val_images`, `val_labels`, which are
joined to train. Images are uint8 or float, [N, H, W] or [N, H, W, C]; labels are integers, [N] or
[N, 1]. Float values are taken as they are (0..1 is expected), uint8 values are divided by 255.

A new set is one file in `fedapps.data.sources`, a new partitioner one in
`fedapps.data.partitioners`; each has its line in the package's `__init__`.
"""

from fedapps.data.dataset import Dataset, Shape, declared
from fedapps.data.loading import load
from fedapps.data.notes import notes
from fedapps.data.own import of_device, unlabelled
from fedapps.data.partition import Share, class_counts, own_share, shares
from fedapps.data.sources import NAMES

__all__ = [
    "NAMES",
    "Dataset",
    "Shape",
    "Share",
    "class_counts",
    "declared",
    "load",
    "notes",
    "of_device",
    "own_share",
    "shares",
    "unlabelled",
]
