"""Ditto's client: it keeps its personal model v_i."""

import torch

from fedapps.method import Arrays, BaseClient, Costs, Objective, Plan, put, replace, take
from strategies.ditto import Settings


class DittoClient(BaseClient):
    """After training w: v_i -= lr (grad F_i(v_i) + lambda (v_i - w)), with w as received."""

    options: Settings
    w: Arrays

    def before_training(self, plan: Plan) -> Costs:
        """Copy w as it was received."""
        self.w = take(self.model, self.layout.keys_of(self.layout.names))
        return Costs()

    def after_training(self, plan: Plan) -> Costs:
        """Train v_i and keep it as `v/<key>`; at first v_i is the initial model."""
        put(self.model, self.workspace.initial | self.kept("v/"))
        lambda_, epochs = self.options.lambda_, self.options.personal_epochs
        stage = replace(plan.stages[0], epochs=epochs, prox_mu=lambda_)
        w = {key: torch.from_numpy(value) for key, value in self.w.items()}
        personal = replace(plan, stages=(stage,))
        done = self.train(personal, "personal", Objective(self.loss, anchor=w))
        self.remember("v/", take(self.model, self.layout.keys_of(self.layout.names)))
        return done

    def before_scoring(self, plan: Plan) -> Costs:
        """Score v_i; if the client has none yet, the initial model."""
        put(self.model, self.kept("v/"))
        return Costs()
