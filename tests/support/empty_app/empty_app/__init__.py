"""An app that does nothing, to try Flower itself."""
