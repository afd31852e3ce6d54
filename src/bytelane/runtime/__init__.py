"""Real time: carry a plan out. ``engine`` knows no framework; ``torch`` brings PyTorch to it."""
