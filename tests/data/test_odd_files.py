"""Data files of odd content: an error that names the file, in time and memory that do not depend on the content."""

import io
import pickle
import struct
import tarfile
import zipfile

import numpy as np
import pytest
from scipy.io import savemat

from openbench.data import download
from openbench.data.download import RemoteFile, prepare_file
from openbench.data.own.images import npz, read_rows
from openbench.data.sources import archives as packs
from openbench.data.sources.archives import load_pickle
from openbench.errors import DataError


def raw_zip(members, method=zipfile.ZIP_STORED):
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", method) as pack:
        for name, content in members.items():
            pack.writestr(name, content)
    return stream.getvalue()


def header(shape):
    """The beginning of a `.npy` file of bytes."""
    text = f"{{'descr': '|u1', 'fortran_order': False, 'shape': {shape}, }}".encode()
    text += b" " * (63 - (10 + len(text)) % 64) + b"\n"
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(text)) + text


def saved(**arrays):
    stream = io.BytesIO()
    np.savez(stream, **arrays)
    return stream.getvalue()


ONE = np.zeros((1, 3, 3), np.uint8)
NPZ = {
    "a single array": header("(1, 2, 2)") + bytes(4),
    "more than memory": raw_zip({"images.npy": header("(100000000, 100000, 1000)") + bytes(4)}),
    "an array that is a note": raw_zip({"images.npy": b"to follow"}),
    "objects": saved(images=np.array([[{}]], dtype=object)),
    "no pixels": saved(images=np.zeros((3, 0, 4), np.uint8)),
    "five axes": saved(images=np.zeros((1, 1, 1, 1, 3), np.uint8)),
    "floats": saved(images=np.zeros((3, 64))),
    "two channels": saved(images=np.zeros((3, 4, 4, 2), np.uint8)),
    "other names": saved(pixels=ONE),
    "nested labels": saved(images=ONE, labels=np.zeros((2, 2), int)),
    "too many labels": saved(images=ONE, labels=[0, 1], paths=["a", "b"]),
    "labels that are floats": saved(images=ONE, labels=[0.5]),
    "a label without a name": saved(images=ONE, labels=[2], classes=["a", "b"]),
}


@pytest.mark.parametrize("name", NPZ)
def test_an_npz_of_odd_content_is_refused_by_name(name, tmp_path):
    file = tmp_path / "own.npz"
    file.write_bytes(NPZ[name])
    for read in (npz, lambda path: packs.NpzPack("own.npz").find(path, [])):
        with pytest.raises(DataError, match=r"own\.npz'"):
            read(file)


def idx(*shape, body=b""):
    return b"\x00\x00\x08" + bytes([len(shape)]) + b"".join(struct.pack(">i", side) for side in shape) + body


def mat(**arrays):
    stream = io.BytesIO()
    savemat(stream, arrays)
    return stream.getvalue()


IDX, MAT, PICKLE = "t10k-images-idx3-ubyte", "test_32x32.mat", "data_batch_1"
READ = {
    IDX: lambda file: packs.IdxFiles(["."]).find(file.parent, []),
    MAT: lambda file: packs.SvhnMat().find(file, []),
    PICKLE: load_pickle,
}


@pytest.mark.parametrize(
    ("name", "content"),
    [
        (IDX, idx(4, body=bytes(4))),  # one axis where images have three
        (IDX, idx(2**31 - 1, 2**31 - 1, 2**31 - 1, body=bytes(4))),
        (IDX, idx(2**22, 2**21, 2**21)),  # 2⁶⁴ pixels, which are 0 in 64 bits
        (MAT, mat(X=np.zeros((32, 32, 3), np.uint8), y=np.zeros((1, 1)))),
        (MAT, mat(X=np.zeros((32, 32, 3, 2), np.uint8), y=np.zeros((3, 1)))),
        (MAT, mat(y=np.zeros((2, 1)))),
        (PICKLE, b"not a pickle"),
        (PICKLE, b"\x80\x04\x8e" + struct.pack("<Q", 2**60) + b"x."),  # bytes of an exabyte
        (PICKLE, b"cbuiltins\neval\n."),
    ],
)
def test_a_file_of_odd_content_is_refused_by_name(name, content, tmp_path):
    (tmp_path / name).write_bytes(content)
    (tmp_path / "t10k-labels-idx1-ubyte").write_bytes(idx(4, body=bytes(4)))
    with pytest.raises(DataError, match=f"{name}' ?(cannot be read|: X is)"):
        READ[name](tmp_path / name)


PIXELS = np.zeros((1, 3072), np.uint8)


@pytest.mark.parametrize(
    ("data", "labels", "names"),
    [
        *((PIXELS, [label], ["a"]) for label in (7, 0.5, -1)),
        (PIXELS, [0], [[]]),
        *((data, [0], ["a"]) for data in (np.zeros((1, 5), np.uint8), np.zeros((1, 3072), np.int16), None)),
    ],
)
def test_cifar_files_of_odd_content_are_refused(data, labels, names, tmp_path):
    folder = tmp_path / "cifar-10-batches-py"
    folder.mkdir()
    (folder / "test_batch").write_bytes(pickle.dumps({"data": data, "labels": labels}))
    (folder / "batches.meta").write_bytes(pickle.dumps({"label_names": names}))
    with pytest.raises(DataError, match="cifar-10-batches-py"):
        packs.CifarPickles().find(folder, ["cifar10/test/a/0001.png"])


@pytest.mark.parametrize("line", [b"caf\xe9.png,a", b"a\x00b.png,a", b"a\x07.png,a", b"a" * 200_000 + b",a"])
def test_a_csv_that_is_not_text_is_refused(line, tmp_path):
    file = tmp_path / "own.csv"
    file.write_bytes(b"path,label\n" + line + b"\n")
    with pytest.raises(DataError, match=r"own\.csv'"):
        read_rows(file)


def refused(name, content, root, message):
    """An archive that lies downloaded below a root is refused, and nothing of it is left there but itself."""
    file = RemoteFile(f"http://nowhere/{name}", "out", unpack=name.rpartition(".")[2])
    (store := root / download.DOWNLOADS).mkdir()
    (store / name).write_bytes(content)
    with pytest.raises(DataError, match=message):
        prepare_file(file, root)
    assert [path.name for path in root.iterdir()] == [store.name]
    assert {path.name for path in store.iterdir()} == {name, f"{name}.lock"}


def tar_of(name, kind=tarfile.REGTYPE, link="", content=b""):
    member = tarfile.TarInfo(name)
    member.type, member.linkname, member.size = kind, link, len(content)
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w") as pack:
        pack.addfile(member, io.BytesIO(content))
    return stream.getvalue()


ARCHIVES = {
    "device.tar": tar_of("null", tarfile.CHRTYPE),
    "link.tar": tar_of("link", tarfile.SYMTYPE, "/etc/passwd"),
    "hard_link.tar": tar_of("link", tarfile.LNKTYPE, "../../x"),
    "outside.tar": tar_of("../x"),
    "damaged.zip": raw_zip({"a": b"b" * 100})[:-30],
}


@pytest.mark.parametrize("name", ARCHIVES)
def test_an_archive_that_leaves_its_folder_or_cannot_be_read_is_refused(name, tmp_path):
    refused(name, ARCHIVES[name], tmp_path, f"archive '.*{name}' cannot be unpacked")
