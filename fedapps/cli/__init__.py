"""The commands of `fedapps`."""
