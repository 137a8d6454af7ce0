"""The result of a run: ``result.json``, and its view on the terminal."""
