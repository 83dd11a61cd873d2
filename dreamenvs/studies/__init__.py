"""Families × worlds × seeds as one study, here or on Ray, and baselines to compare with."""
