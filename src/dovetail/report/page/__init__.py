"""The report page: one self-contained HTML file made from the result of a run."""
