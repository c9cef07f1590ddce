"""Stored records against each other: over time, over targets, over the machines that made them."""
