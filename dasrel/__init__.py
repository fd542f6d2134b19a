"""Cluster objects that are known only by a pairwise matrix, of any size, metric or not.

The matrix lives on disk as square tiles of a Zarr store. Every analysis reads it in scans: one read of all tiles that
serves every run and every parameter value at once.

    Get a matrix     import_matrix, pairwise, from_blocks, append, open_matrix; relation (views of it)
    Describe it      audit_store, spectrum (is it Euclidean?), euclideanize (make it so), neighbours
    Cluster          cluster, grid, Run; save_clustering; plan_clustering (what it would cost)
    Otherwise        hdbscan, DensityRun (by density: HDBSCAN and DBSCAN); kmedoids, MedoidRun (around medoids)
    Build a tree     linkage (agglomerative clustering; cut the result, draw it)
    Find outliers    one_class, OneClassRun (how typical every object is, at any number of widths); OneClusterPCM;
                     stability (of halves), density_figure
    Judge it         validity (indices of any partitions), silhouette_samples, compare (two partitions);
                     permanova (do groups differ?), align (how many clusters, and which width of a kernel?)
    scikit-learn     FuzzyCMeans, EntropyFuzzyCMeans, PossibilisticCMeans, EntropyPossibilisticCMeans, HardCMeans
    See it           embed (principal coordinates; PCoA), minimum_spanning_tree, ultrametric, matrix_image,
                     partition_figure, dendrogram_figure, embedding_figure; write_report (a page of results)
    Take it out      export_matrix
    Long jobs        Checkpoint (save and resume), connect and Runtime (Dask clusters), progress and watch
    Batches          read_workflow, run_workflow

Example::

    import dasrel
    matrix = dasrel.import_matrix("distances.npy", "distances.zarr", kind="distance")
    result = dasrel.cluster(matrix, dasrel.grid("fcm2", 5, n_init=10))
    print(result.best.labels)

Errors are `DasrelError`, with one line that says what is wrong and what to do; warnings are `DasrelWarning`.
Names are imported on first use, so that the command line starts quickly.
"""

from __future__ import annotations

import lazy_loader

__version__ = "0.2.0"
__getattr__, _, _names = lazy_loader.attach_stub(__name__, __file__)
__all__ = sorted([*_names, "__version__"])


def __dir__() -> list[str]:
    return __all__
