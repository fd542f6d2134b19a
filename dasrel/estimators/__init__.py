"""Classes as scikit-learn has them."""
