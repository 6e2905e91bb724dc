"""Secure sums: the server learns the sum of the clients' updates, but no single update.

Bonawitz et al., Practical Secure Aggregation for Privacy-Preserving Machine Learning, CCS 2017. A
round of n clients has four steps; `client.py` and `server.py` are its two sides:

1. Keys: each client u makes two X25519 keys and a seed b_u, from the system's entropy.
2. Shares: it splits the seed and the key s_u of its masks into n shares, any t = n - floor(n/3) of
   which give the secret, and encrypts a share of both for each client (`shamir.py`, `keys.py`).
3. Upload: it trains, and uploads n_u w_u in fixed point, plus the mask of b_u, plus or minus the
   mask that it has in common with each other client (`masks.py`). All sums are modulo 2^64.
4. Unmasking: each client gives the server its share of b_v for each v that has uploaded, and of s_v
   for each v that has not; never both of the same client. So the server can remove all masks that
   are left in the sum.

docs/security.md says against whom this protects.
"""
