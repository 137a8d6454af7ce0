"""One graph pass per file: each edits the model in place and records what it changed and what it declined, and why."""
