"""Other frameworks that train: each file stands alone and is imported by whoever uses it."""
