"""Searching: asking the planner again with one thing changed, and measuring what it does."""
