"""Small files that claim much: the process that refuses one takes little memory."""

import gzip
import json
import struct
import subprocess
import zipfile

import numpy as np
import pytest
import scipy.io
import zarr

from tests.helpers.processes import script_line

pytestmark = pytest.mark.system

MOST = 300 << 20
SCRIPT = """
import json
from dasrel.errors import InputError
from dasrel.io.importing import import_matrix
try:
    import_matrix(sys.argv[1], sys.argv[2], kind="distance")
except InputError as error:
    print(json.dumps([str(error), status("VmHWM")]))
"""


def npy(path, shape):
    text = f"{{'descr': '<f8', 'fortran_order': False, 'shape': {shape}, }}\n".encode()
    path.write_bytes(b"\x93NUMPY\1\0" + struct.pack("<H", len(text)) + text + bytes(8))


def npz(path):
    npy(path.with_suffix(".npy"), (2**63 - 1, 2**63 - 1))
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.write(path.with_suffix(".npy"), "a.npy")


def text(path):
    with gzip.open(path, "wb") as packed:
        packed.write(b"\tx\ty\nx\t0\t1\ny\t")
        for _ in range(400):
            packed.write(b"0" * (1 << 20))


CLAIMS = {
    "a.npy": lambda path: npy(path, (2**32, 2**32)),
    "a.npz": npz,
    "zeros.npz": lambda path: np.savez_compressed(path, np.zeros((7000, 7000))),
    "a.mtx": lambda path: path.write_text(
        "%%MatrixMarket matrix coordinate real general\n200000000 200000000 3\n1 2 .5\n2 1 .5\n1 1 0\n"
    ),
    "a.phy": lambda path: path.write_text("200000000\na\nb 1\n"),
    "a.tsv.gz": text,
    "a.mat": lambda path: scipy.io.savemat(path, {"D": np.zeros((5000, 5000))}, do_compression=True),
    "a.zarr": lambda path: zarr.create_array(path, shape=(2**40, 2**40), chunks=(64, 64), dtype="f4"),
}


@pytest.mark.parametrize("name", CLAIMS)
def test_a_claim_takes_little_memory(tmp_path, name):
    CLAIMS[name](tmp_path / name)
    done = subprocess.run(
        script_line(SCRIPT, tmp_path / name, tmp_path / "s.zarr"),
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    message, memory = json.loads(done.stdout)
    assert name in message
    assert memory < MOST
