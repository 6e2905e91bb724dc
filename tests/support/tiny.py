"""The run-config that a test's own settings are laid over: a second of training."""

BASE = (
    'dataset="digits" split="merged" test-fraction=0.25 partitioner="dirichlet" alpha=1.0 '
    'num-clients=6 model="cnn" num-rounds=2 fraction-train=0.5 local-epochs=1 batch-size=32 '
    'lr=0.05 evaluate-every=1 finetune-epochs=1 seed=0 threads=1 device="cpu"'
)
