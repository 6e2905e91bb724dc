"""FedFomo's client: first order model optimization on a validation part of its own."""

import numpy as np

from fedapps.method import Arrays, BaseClient, Costs, Plan, put, take, under


class FedFomoClient(BaseClient):
    """It keeps its model, and begins every round with a step towards better models (Eq. 3)."""

    def before_training(self, plan: Plan) -> Costs:
        """theta_i += sum_n w_n (theta_n - theta_i), w_n = max(u_n, 0) / sum_k max(u_k, 0)."""
        mine = take(self.model, self.layout.shared(self.layout.names))
        numbers = dict.fromkeys(name.partition("/")[0] for name in self.received)
        others = [under(self.received, f"{n}/") for n in numbers]
        if not others:
            return Costs()
        own_loss = self.validation_loss()
        u = np.array([self.affinity(mine, theirs, own_loss) for theirs in others])
        w = np.maximum(u, 0)
        put(self.model, mixed(mine, others, w / w.sum()) if w.any() else mine)
        self.sends |= {f"affinity/{n}": value for n, value in zip(numbers, u[:, None], strict=True)}
        size = len(self.workspace.samples(self.client, "validation")[1])
        return self.forward_costs((1 + len(others)) * size, self.layout.names)

    def affinity(self, mine: Arrays, theirs: Arrays, own_loss: float) -> float:
        """u_n = (L_val(theta_i) - L_val(theta_n)) / ||theta_n - theta_i||; 0 for equal models.

        A model without a finite loss gets -1: it is not mixed, and soon no longer sent. Affinities
        are clipped to the range that the server accepts (`max-value`).
        """
        put(self.model, theirs)
        keys = [key for key in mine if key in self.layout.parameters]
        norm = np.sqrt(sum(np.sum((theirs[k].astype(np.float64) - mine[k]) ** 2) for k in keys))
        u = (own_loss - self.validation_loss()) / norm if norm else 0.0
        most = self.settings.max_value
        return float(np.clip(u, -most, most)) if np.isfinite(u) else -1.0

    def validation_loss(self) -> float:
        """Return the current model's mean loss on the validation part."""
        return self.score(self.workspace.samples(self.client, "validation")).loss


def mixed(mine: Arrays, others: list[Arrays], weights: np.ndarray) -> Arrays:
    """Return theta_i + sum_n w_n (theta_n - theta_i), summed in float64."""
    terms = [*zip(weights, others, strict=True)]
    step = {k: sum(w * (o[k].astype(np.float64) - a) for w, o in terms) for k, a in mine.items()}
    return {key: (value + step[key]).astype(np.float32) for key, value in mine.items()}
