"""FedFomo's client: first order model optimization on a validation part of its own."""

import numpy as np

from fedapps.method import Arrays, BaseClient, Costs, Plan, TrainingStats, put, take


class FedFomoClient(BaseClient):
    """It keeps its model, and begins every round with a step towards better models (Eq. 3)."""

    def before_training(self, plan: Plan) -> Costs:
        """theta_i += sum_n w_n (theta_n - theta_i), w_n = max(u_n, 0) / sum_k max(u_k, 0)."""
        mine = take(self.model, self.layout.shared(self.layout.names))
        others = self.others()
        if not others:
            return Costs()
        own_loss = self.validation_loss()
        u = np.array([self.affinity(mine, theirs, own_loss) for theirs in others.values()])
        weights = np.maximum(u, 0)
        if weights.sum() > 0:
            weights /= weights.sum()
            put(self.model, mixed(mine, list(others.values()), weights))
        else:
            put(self.model, mine)
        for n, value in zip(others, u.astype(np.float32), strict=True):
            self.sends[f"affinity/{n}"] = value[None]
        size = len(self.workspace.samples(self.client, "validation")[1])
        return self.forward_costs((1 + len(others)) * size, self.layout.names)

    def adapt(self, plan: Plan) -> TrainingStats:
        """Step towards better models, and train, as in a round."""
        costs = self.before_training(plan)
        done = self.personalize(plan)
        done.spend(costs)
        return done

    def others(self) -> dict[int, Arrays]:
        """Return the received models by client."""
        models: dict[int, Arrays] = {}
        for name, value in self.received.items():
            client, _, key = name.partition("/")
            models.setdefault(int(client), {})[key] = value
        return models

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
        self.model.eval()
        return self.score(self.workspace.samples(self.client, "validation")).loss


def mixed(mine: Arrays, others: list[Arrays], weights: np.ndarray) -> Arrays:
    """Return theta_i + sum_n w_n (theta_n - theta_i), summed in float64."""
    result = {key: value.astype(np.float64) for key, value in mine.items()}
    for weight, theirs in zip(weights, others, strict=True):
        for key, value in mine.items():
            result[key] += weight * (theirs[key].astype(np.float64) - value)
    return {key: value.astype(np.float32) for key, value in result.items()}
