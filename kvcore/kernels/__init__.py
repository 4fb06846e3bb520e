"""Attention kernels. `reference` is plain torch: the CPU's path, and the oracle for every other kernel."""
