"""The keys about data: what the samples are, where they come from, and who has which."""

from typing import Annotated, Literal

from msgspec import Meta

from fedapps.core import listed
from fedapps.core.schema import (
    BelowOne,
    Count,
    MethodSettings,
    NonNegative,
    OpenFraction,
    Positive,
    doc,
)

DEVICE = "device"  # value of the key dataset: every client is a device with its own data
# The keys that only some partitioners read, by the value of `partitioner`.
OF_PARTITIONERS: dict[str, tuple[str, ...]] = {
    "dirichlet": ("alpha", "dirichlet-balance", "min-samples"),
    "shards": ("shards-per-client",),
    "sizes": ("sizes",),
    "classes": ("classes-per-client",),
    "iid": (),
    "natural": ("min-samples",),
}


class DataSettings(MethodSettings, frozen=True):
    """The method, and the general keys about data."""

    strategy: Annotated[str, doc("the method; `fedapps methods` lists them")]
    dataset: Annotated[
        str,
        doc("name of a data set, absolute path of own data, or device: devices have their own"),
    ]
    data_root: Annotated[str, doc("folder of data sets and downloads, absolute or with `~`")]
    task: Annotated[
        Literal["auto", "classification", "regression", "multilabel", "tokens"],
        doc("what is learned: loss, predictions, metrics; auto: what the targets look like"),
    ]
    metric: Annotated[
        str, doc("the task's metric that leads: in tables and plots, keep-best, patience; or auto")
    ]
    target_column: Annotated[
        str, doc('column to predict, or several: a,b; "": the last one (tables, datasets)')
    ]
    client_column: Annotated[
        str, doc('column that says who a sample is from; "": none (tables, datasets)')
    ]
    columns: Annotated[
        str, doc('input columns; a text with its values: age,sex=f|m; "": all others (tables)')
    ]
    missing: Annotated[
        Literal["refuse", "mean", "drop"],
        doc("missing values; mean: of the training samples; drop: without such rows (tables)"),
    ]
    window: Annotated[
        NonNegative, doc("rows of a table or recording that make one sample; 0: one row, one file")
    ]
    window_step: Annotated[
        NonNegative, doc("rows from the start of a window to the next; 0: the same as window")
    ]
    text_length: Annotated[
        NonNegative,
        doc("bytes of each text that are tokens, if the input is a column of texts; 0: it is none"),
    ]
    input_shape: Annotated[
        str, doc("shape of the samples on devices: channels,height,width; steps,features; features")
    ]
    num_classes: Annotated[
        Count, doc("on devices, the number of classes, labels, tokens, or numbers to predict")
    ]
    class_names: Annotated[
        str, doc('names of the classes on devices, in order: cat,dog; "": numbers')
    ]
    client_state: Annotated[
        Literal["keep", "reset"],
        doc("keep: a device starts from its personal layers of earlier runs; reset: it drops them"),
    ]
    split: Annotated[
        Literal["merged", "official", "last"],
        doc(
            "merged: partition training and test set together; official: each separately; "
            "last: like merged, but a client's test samples are its last ones of each class"
        ),
    ]
    test_fraction: Annotated[
        OpenFraction, doc("share of a client's samples that become its test samples (merged, last)")
    ]
    validation_fraction: Annotated[
        BelowOne,
        doc("share of a client's training samples that is held out, the same ones in every round"),
    ]
    partitioner: Annotated[
        Literal["dirichlet", "shards", "sizes", "classes", "iid", "natural"],
        doc("how the samples are divided among the clients"),
    ]
    alpha: Annotated[
        Positive, doc("concentration; a smaller value gives each client fewer classes (dirichlet)")
    ]
    dirichlet_balance: Annotated[
        bool, doc("a client that has 1/N of all samples gets none of the next class (dirichlet)")
    ]
    shards_per_client: Annotated[
        Count, doc("number of shards, cut from the samples sorted by label, per client (shards)")
    ]
    sizes: Annotated[str, doc("share of the samples for each client: 0.4,0.3,0.2,0.1 (sizes)")]
    classes_per_client: Annotated[
        str, doc("classes of each client: 0-2/2-4/4-6/7-9 or 0,1/2,3 (classes)")
    ]
    num_clients: Annotated[
        NonNegative,
        doc("number N of clients, not of SuperNodes; 0: everybody in the data (natural)"),
    ]
    min_samples: Annotated[
        int, Meta(ge=2), doc("minimum number of samples per client (dirichlet, natural)")
    ]
    unseen_clients: Annotated[
        str,
        doc("clients that come only after the training: a share of all, 0.2, or 3,7-9, or names"),
    ]
    few_shot: Annotated[
        NonNegative,
        doc("training samples of each class that such a client personalizes on; 0: all of them"),
    ]

    @property
    def on_devices(self) -> bool:
        """Whether every client is a device with its own data."""
        return self.dataset == DEVICE

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the devices' samples; raises `RunError`."""
        return listed.shape(self.input_shape)

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the classes: their numbers if none are set; raises `RunError`."""
        return listed.class_names(self.class_names, self.num_classes)
