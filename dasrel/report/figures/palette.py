"""The colours of clusters, in every figure the same."""

CLUSTERS = (
    "#0072B2", "#E69F00", "#009E73", "#D55E00", "#56B4E9", "#CC79A7", "#B8A800", "#444444", "#882255", "#332288",
)  # fmt: skip
"""Of Okabe and Ito, told apart by colour-blind eyes, the yellow darkened to be seen on white, and two of Tol."""
