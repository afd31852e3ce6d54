"""The parameter server: sharded sums, scheduled in both directions by the kernel; no framework."""
