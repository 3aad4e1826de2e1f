"""Schemes as data: the type, cutting into groups, the paper's builders, and their names."""
