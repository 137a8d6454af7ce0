"""``result.json`` is the product; the terminal table and the page are views of it."""
