"""The public names of dasrel, each with its home. `__init__.py` reads this file and imports a name on first use."""

from dasrel.cmeans.align_job import align as align
from dasrel.cmeans.fit import cluster as cluster
from dasrel.cmeans.output import save_clustering as save_clustering
from dasrel.cmeans.plan import (
    ClusteringPlan as ClusteringPlan,
    plan_clustering as plan_clustering,
)
from dasrel.cmeans.result import Clustering as Clustering
from dasrel.commands.report import write_report as write_report
from dasrel.engine.checkpoint import Checkpoint as Checkpoint
from dasrel.engine.relation import Relation as Relation, relation as relation
from dasrel.engine.runtime import Runtime as Runtime, connect as connect
from dasrel.errors import (
    ClusterError as ClusterError,
    DasrelError as DasrelError,
    DasrelWarning as DasrelWarning,
    InputError as InputError,
    MemoryLimitError as MemoryLimitError,
    Stopped as Stopped,
    StoreError as StoreError,
)
from dasrel.estimators.agglomerative import AgglomerativeClustering as AgglomerativeClustering
from dasrel.estimators.cmeans import (
    EntropyFuzzyCMeans as EntropyFuzzyCMeans,
    EntropyPossibilisticCMeans as EntropyPossibilisticCMeans,
    FuzzyCMeans as FuzzyCMeans,
    HardCMeans as HardCMeans,
    PossibilisticCMeans as PossibilisticCMeans,
)
from dasrel.estimators.outliers import OneClusterPCM as OneClusterPCM
from dasrel.estimators.pcoa import PCoA as PCoA
from dasrel.geometry.dendrogram import Dendrogram as Dendrogram
from dasrel.geometry.embedding import Embedding as Embedding, embed as embed
from dasrel.geometry.euclidean import (
    Euclideanized as Euclideanized,
    Spectrum as Spectrum,
    euclideanize as euclideanize,
    spectrum as spectrum,
)
from dasrel.geometry.tree import (
    Tree as Tree,
    Ultrametric as Ultrametric,
    minimum_spanning_tree as minimum_spanning_tree,
    ultrametric as ultrametric,
)
from dasrel.hierarchy.linkage import linkage as linkage
from dasrel.io.append import Appended as Appended, append as append
from dasrel.io.export import export_matrix as export_matrix
from dasrel.io.importing import import_matrix as import_matrix
from dasrel.io.options import Reading as Reading
from dasrel.io.pairwise import from_blocks as from_blocks, pairwise as pairwise
from dasrel.judging.alignment_search import Alignment as Alignment, Evolution as Evolution
from dasrel.judging.comparison import Comparison as Comparison, compare as compare
from dasrel.judging.permanova import Permanova as Permanova, permanova as permanova
from dasrel.judging.validity import (
    Validity as Validity,
    silhouette_samples as silhouette_samples,
    validity as validity,
)
from dasrel.names import KINDS as KINDS
from dasrel.oneclass.fit import OneClass as OneClass, one_class as one_class
from dasrel.oneclass.run import OneClassRun as OneClassRun, Typicality as Typicality
from dasrel.oneclass.stability import Stability as Stability, stability as stability
from dasrel.partition.model import Model as Model
from dasrel.partition.result import Partition as Partition, RunResult as RunResult
from dasrel.partition.run import Run as Run, grid as grid
from dasrel.report.figures.dendrogram import dendrogram_picture as dendrogram_picture
from dasrel.report.figures.embedding import embedding_picture as embedding_picture
from dasrel.report.figures.matrix import matrix_image as matrix_image
from dasrel.report.figures.outliers import density_picture as density_picture
from dasrel.report.figures.partition import partition_picture as partition_picture
from dasrel.store.audit import audit_store as audit_store
from dasrel.store.matrix import Matrix as Matrix, open_matrix as open_matrix
from dasrel.store.options import Policy as Policy, Writing as Writing
from dasrel.util.drawing import progress as progress
from dasrel.util.progress import Progress as Progress, watch as watch
from dasrel.workflow.run import run_workflow as run_workflow
from dasrel.workflow.schema import read_workflow as read_workflow

__version__: str
