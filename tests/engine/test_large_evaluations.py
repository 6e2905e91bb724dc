"""What the server keeps of the clients that it evaluates."""

from fedapps.engine.recovery import Recovery
from fedapps.training.costs import TrainingStats


def test_of_evaluated_clients_counts_are_kept_once(serial_run, monkeypatch):
    """As arrays of numbers; the lists that came, with an object for each count, are dropped."""
    seen, see = [], Recovery.see

    def watched(own, round_, update, report):
        if not isinstance(update.checked, TrainingStats):
            seen.append(update)
        see(own, round_, update, report)

    monkeypatch.setattr(Recovery, "see", watched)
    serial_run('strategy="fedper" num-clients=3 num-rounds=1 evaluate-every=1')
    assert [update.client for update in seen] == [0, 1, 2]
    for update in seen:
        assert update.checked.scores.before["total"].sum() == update.num_examples
        assert {"state-loaded", "state-saved"} <= update.metrics.keys()
        assert not [key for key, value in update.metrics.items() if isinstance(value, list)]
