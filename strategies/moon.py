"""MOON: Li, He, Song, Model-Contrastive Federated Learning, CVPR 2021."""

from typing import Annotated

from fedapps.method import AtLeastZero, BaseStrategy, MethodSettings, Positive, doc


class Settings(MethodSettings, frozen=True):
    """MOON's own keys."""

    mu: Annotated[AtLeastZero, doc("mu: weight of the model-contrastive loss")]
    temperature: Annotated[Positive, doc("tau: divides the cosine similarities")]


class MOON(BaseStrategy):
    """FedAvg, but features stay near the received model's, and away from the client's last ones.

    Symbols: N `num-clients`, T `num-rounds`, E `local-epochs`, B `batch-size`, eta `lr`,
    mu `mu`, tau `temperature`; R_w is the body (Algorithm 1). The paper's projection head, if
    wanted, is a layer of the model: docs/papers/moon.md.
    A newcomer gets the shared model, and fine-tunes it.
    """

    citation = "Li, He, Song 2021"
    exchanges = "everything"
    needs_cut = True
    options: Settings
