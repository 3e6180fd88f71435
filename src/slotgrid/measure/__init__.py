"""Measuring: plans fed to something that really computes."""
