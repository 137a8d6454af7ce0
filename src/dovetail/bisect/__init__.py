"""The smallest part of a model that a vendor's compiler refuses, changes or computes incorrectly."""
