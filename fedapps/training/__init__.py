"""Local training and scoring: plans, the one loop over batches, and what training costs."""
