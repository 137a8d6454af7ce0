"""Every network that tests and benches build or export, and how it is exported once for all of them."""
