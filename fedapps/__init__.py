"""Personalized federated learning on Flower: the application that all methods use."""
