"""Scripted players, for data in which something happens."""
