"""The figure `leak`: how often features of foreign classes pass for a client's own classes."""

from fedapps.method.figures import Figure

LEAK = Figure(
    "leak",
    "share of other clients' test images of classes that the client lacks which, sent through the "
    "layers of its own last training, are taken for one of its classes (`score-last`, simulation)",
)
