"""Passes: each a pure function from module to module."""
