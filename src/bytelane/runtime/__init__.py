"""The runtime: ``sync`` carries plans out without a framework, ``torch`` connects it to PyTorch."""
