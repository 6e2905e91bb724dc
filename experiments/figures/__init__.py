"""The commands that print and draw a figure of a paper."""
