"""One graph change per file: each edits the model in place and reports where it fired and where it declined."""
