"""The public names of dasrel, each with its home. `lazy_loader` reads it and imports a name on first use."""

from .cmeans.fit import cluster as cluster
from .cmeans.plan import (
    ClusteringPlan as ClusteringPlan,
    plan_clustering as plan_clustering,
)
from .cmeans.result import Clustering as Clustering
from .commands.align import align as align
from .commands.cluster import save_clustering as save_clustering
from .commands.report import write_report as write_report
from .density.fit import Density as Density, DensityResult as DensityResult, hdbscan as hdbscan
from .density.model import DensityModel as DensityModel
from .density.run import DensityRun as DensityRun
from .engine.checkpoint import Checkpoint as Checkpoint
from .engine.neighbours import Neighbours as Neighbours
from .engine.relation import Relation as Relation, relation as relation
from .engine.runtime import Runtime as Runtime, connect as connect
from .errors import (
    ClusterError as ClusterError,
    DasrelError as DasrelError,
    DasrelWarning as DasrelWarning,
    InputError as InputError,
    MemoryLimitError as MemoryLimitError,
    Stopped as Stopped,
    StoreError as StoreError,
)
from .estimators.agglomerative import AgglomerativeClustering as AgglomerativeClustering
from .estimators.cmeans import (
    EntropyFuzzyCMeans as EntropyFuzzyCMeans,
    EntropyPossibilisticCMeans as EntropyPossibilisticCMeans,
    FuzzyCMeans as FuzzyCMeans,
    HardCMeans as HardCMeans,
    PossibilisticCMeans as PossibilisticCMeans,
)
from .estimators.density import HDBSCAN as HDBSCAN
from .estimators.medoids import KMedoids as KMedoids
from .estimators.outliers import OneClusterPCM as OneClusterPCM
from .estimators.pcoa import PCoA as PCoA
from .geometry.dendrogram import Dendrogram as Dendrogram
from .geometry.embedding import Embedding as Embedding, embed as embed
from .geometry.euclidean import (
    Euclideanized as Euclideanized,
    Spectrum as Spectrum,
    euclideanize as euclideanize,
    spectrum as spectrum,
)
from .geometry.tree import (
    Tree as Tree,
    Ultrametric as Ultrametric,
    minimum_spanning_tree as minimum_spanning_tree,
    ultrametric as ultrametric,
)
from .hierarchy.linkage import linkage as linkage
from .io.append import Appended as Appended, append as append
from .io.export import export_matrix as export_matrix
from .io.importing import import_matrix as import_matrix
from .io.neighbour_graph import neighbours as neighbours
from .io.options import Reading as Reading
from .io.pairwise import from_blocks as from_blocks, pairwise as pairwise
from .judging.alignment_search import Alignment as Alignment, Evolution as Evolution
from .judging.comparison import Comparison as Comparison, compare as compare
from .judging.permanova import Permanova as Permanova, permanova as permanova
from .judging.validity import (
    Validity as Validity,
    silhouette_samples as silhouette_samples,
    validity as validity,
)
from .medoids.fit import KMedoidsResult as KMedoidsResult, MedoidResult as MedoidResult, kmedoids as kmedoids
from .medoids.run import MedoidRun as MedoidRun
from .names import KINDS as KINDS
from .oneclass.fit import OneClass as OneClass, one_class as one_class
from .oneclass.run import OneClassRun as OneClassRun
from .oneclass.stability import Stability as Stability, stability as stability
from .oneclass.typicality import Typicality as Typicality
from .partition.model import Model as Model
from .partition.result import Partition as Partition, RunResult as RunResult
from .partition.run import Run as Run, grid as grid
from .report.figures.dendrogram import dendrogram_figure as dendrogram_figure
from .report.figures.embedding import embedding_figure as embedding_figure
from .report.figures.matrix import matrix_image as matrix_image
from .report.figures.outliers import density_figure as density_figure
from .report.figures.partition import partition_figure as partition_figure
from .store.audit import audit_store as audit_store
from .store.matrix import Matrix as Matrix, open_matrix as open_matrix
from .store.options import Policy as Policy, Writing as Writing
from .util.drawing import progress as progress
from .util.progress import Progress as Progress, watch as watch
from .workflow.run import run_workflow as run_workflow
from .workflow.schema import read_workflow as read_workflow

__version__: str
