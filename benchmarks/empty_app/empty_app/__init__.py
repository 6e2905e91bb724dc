"""An app that does nothing, to time Flower itself."""
