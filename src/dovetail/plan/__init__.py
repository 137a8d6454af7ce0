"""Choosing how every tensor, edge and constant is stored, under the target's constraints."""
