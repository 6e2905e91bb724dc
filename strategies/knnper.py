"""kNN-Per: Marfoq, Neglia, Kameni, Vidal, Personalized FL through Local Memorization, ICML 2022."""

from typing import Annotated

from fedapps.method import (
    FINETUNING,
    BaseStrategy,
    Count,
    Figure,
    Fraction,
    MethodSettings,
    Positive,
    doc,
)


class Settings(MethodSettings, frozen=True):
    """kNN-Per's own keys."""

    k: Annotated[Count, doc("k: number of neighbors that vote")]
    weight: Annotated[Fraction, doc("lambda_m: weight of the neighbors' vote")]
    scale: Annotated[Positive, doc("scale of the kernel exp(-d^2 / (width x scale))")]
    capacity: Annotated[Count, doc("most samples in a client's datastore; more are drawn from")]


class KNNPer(BaseStrategy):
    """FedAvg; each client lets its own samples vote that are near in the features (Eq. 7 to 9).

    Symbols: M `num-clients`, k `k`, lambda_m `weight`, the same for all clients (our choice; the
    paper tunes it on each client's validation samples). The datastore is made from the received
    model whenever a client predicts, so it is as new as the model; it never leaves the client.
    A newcomer gets the shared model, and its own training samples vote.
    """

    citation = "Marfoq et al. 2022"
    exchanges = "everything"
    unused = FINETUNING
    needs_classes = True
    needs_cut = True
    in_eval_mode = ("train",)
    figures = (Figure("global", "score of the shared model w", label="global", of_metric=True),)
    options: Settings
