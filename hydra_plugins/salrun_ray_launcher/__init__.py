"""Hydra finds launchers in packages of `hydra_plugins`: Ray's, of which one dead worker ends no other job."""
