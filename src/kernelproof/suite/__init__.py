"""Suites: many problems and many candidates, judged on one GPU or on many machines."""
