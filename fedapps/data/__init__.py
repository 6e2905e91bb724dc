"""Data sets, and which client holds which samples.

    cifar = load("cifar10", "~/fedapps-data")
    inputs, targets = cifar.tensors(np.arange(500))  # float32 [500, 3, 32, 32], int64 [500]
    for client, share in enumerate(shares(cifar.labels, cifar.num_train, settings)):
        share.train, share.test  # indices into cifar.labels, sorted

In the end, every data set is one `.npz` file. For a data set known by name it is
`<root>/<name>.npz`, made once from a download or an unpacked archive; otherwise it is the user's
own file. Its members are `train_images`, `train_labels`, `test_images`, `test_labels`: images are
uint8 (divided by 255) or float (0..1), [N, H, W] or [N, H, W, C]; labels are integers [N]. Samples
of any other shape have `train_inputs`, `train_targets`, `test_inputs`, `test_targets`. What begins
with `val_` is joined to the training set. A `Spec` says what an input and a target is, and a
`Normalization` how inputs are normalized.

A new data set needs one file in `fedapps.data.sources`, and a new partitioner one file in
`fedapps.data.partitioners`. Each also needs a line in the `__init__` of its package, which says
what else.
"""

from fedapps.data.contents import check_finite
from fedapps.data.dataset import Dataset, Shape, declared
from fedapps.data.forms import Form
from fedapps.data.loading import load
from fedapps.data.notes import notes
from fedapps.data.own import clients_in, of_device, unlabelled
from fedapps.data.partition import Share, class_counts, shares
from fedapps.data.sources import NAMES

__all__ = [
    "NAMES", "Dataset", "Form", "Shape", "Share", "check_finite", "class_counts", "clients_in",
    "declared", "load", "notes", "of_device", "shares", "unlabelled",
]  # fmt: skip
