"""Hydra finds launchers in packages of `hydra_plugins`: salrun's, for jobs that are submitted."""
