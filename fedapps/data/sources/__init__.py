"""The data sets known by name; a new one needs one file here and a line in `SOURCES`.

A data set's libraries or archives are read only when somebody first asks for the data set. It is
then kept as `<root>/<name>.npz`.
"""

from fedapps.data.sources import (
    cinic10,
    heart,
    medmnist,
    scikit_learn,
    shakespeare,
    tiny_imagenet,
    torchvision,
    watch,
)
from fedapps.data.sources.source import Source

SOURCES: dict[str, Source] = {
    source.name: source
    for source in (
        scikit_learn.DIGITS,
        torchvision.MNIST,
        torchvision.FMNIST,
        torchvision.EMNIST,
        torchvision.CIFAR10,
        torchvision.CIFAR100,
        cinic10.CINIC10,
        torchvision.SVHN,
        tiny_imagenet.TINY_IMAGENET,
        medmnist.ORGANAMNIST,
        medmnist.ORGANCMNIST,
        scikit_learn.BREAST_CANCER,
        scikit_learn.WINE,
        scikit_learn.DIABETES,
        heart.HEART,
        watch.WATCH,
        shakespeare.SHAKESPEARE,
    )
}
NAMES: tuple[str, ...] = tuple(SOURCES)
