"""What the results say: figures beside the published ones, claims, comparisons."""
