"""Estimators that follow scikit-learn."""
