"""Being here puts `tests/` on the path, where helpers shared by the test folders live."""
