"""Sizes and schedules by name: world models, online loops, variants."""
