"""pFedMe's client: it keeps its personal model theta_i."""

from fedapps.method import (
    Backward,
    BaseClient,
    Costs,
    Objective,
    Plan,
    Samples,
    TrainingStats,
    descend,
    pull,
    put,
    swapped,
    take,
)
from strategies.pfedme import Settings


class PFedMeClient(BaseClient):
    """The model is w_{i,r}; a step is local round r; theta continues from its last value."""

    options: Settings

    def before_training(self, plan: Plan) -> Costs:
        """Start theta at w_t; eta_p follows the learning-rate schedule of eta (our choice)."""
        self.theta = [p.detach().clone() for p in self.trainable]
        self.inner_lr = self.scheduled(self.options.inner_lr, plan)
        return Costs()

    def objective(self, phase: str) -> Objective:
        """Use the gradient of the envelope F_i; with it, the optimizer's step is line 8."""
        return Objective(self.loss, gradients=self.envelope)

    def envelope(self, backward: Backward, batches: list[Samples]) -> None:
        """K steps of theta on h_i (Eq. 7) with one batch, then grad F_i(w) = lambda (w - theta)."""
        parameters, lambda_ = self.trainable, self.options.lambda_
        w = [p.detach().clone() for p in parameters]
        with swapped(parameters, self.theta):
            for _ in range(self.options.inner_steps):
                backward(batches[0])
                pull(parameters, self.settings.weight_decay)  # part of f_i (our choice)
                pull(parameters, lambda_, w)
                descend(parameters, self.inner_lr)
        pull(parameters, lambda_, self.theta)

    def after_training(self, plan: Plan) -> Costs:
        """Keep theta_i, with the BatchNorm statistics of theta's forward passes (our choice)."""
        with swapped(self.trainable, self.theta):
            self.remember("theta/", take(self.model, self.layout.keys_of(self.layout.names)))
        return Costs()

    def before_scoring(self, plan: Plan) -> Costs:
        """Score w, then theta_i: at first the initial model, but a newcomer's starts from w."""
        self.shared = self.score(self.test_data)
        if not plan.newcomer:
            put(self.model, self.workspace.initial | self.kept("theta/"))
        return Costs()

    def adapt(self, plan: Plan) -> TrainingStats:
        """Train theta_i as in a round, from w."""
        self.before_training(plan)
        done = self.train(plan, "finetune", self.objective("train"))
        self.after_training(plan)
        put(self.model, self.kept("theta/"))
        return done

    def extra_scores(self) -> dict[str, float]:
        """The score of w."""
        return {"global": self.shared.value}
