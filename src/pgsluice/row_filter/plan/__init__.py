"""Plans of expressions: constants folded, kernels found, whole columns where Arrow can."""
