"""Integrations with Accelerate, Lightning and Transformers; import only the one in use."""
