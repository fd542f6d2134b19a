"""Validate what a store says of itself before it is used: its manifest, and the metadata of its arrays.

The manifest is one pydantic model. Array metadata must be what dasrel writes, codecs included: nothing is decoded with
a codec that data have chosen. Arrays of other programs may have the codecs of `FOREIGN`, which cannot run code.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal, get_args

from pydantic import BaseModel, ConfigDict, Field, FiniteFloat, ValidationError

from dasrel.errors import InputError, StoreError
from dasrel.names import KINDS, is_similarity
from dasrel.store.layout import FORMAT_VERSION, IMPORT_AGAIN
from dasrel.util.reading import load_json
from dasrel.util.text import shown, some


class LocalGroup:
    """The Zarr v3 group of a local store, for reading. Zarr, which takes 0.3 s to import, is used for arrays only."""

    def __init__(self, folder: Path) -> None:
        about = load_json(folder / "zarr.json")
        if about["zarr_format"] != 3 or about["node_type"] != "group":
            raise FileNotFoundError(f"{folder} is no Zarr group of format 3")
        self._folder = folder
        attributes = about.get("attributes")
        self.attrs: dict[str, Any] = attributes if isinstance(attributes, dict) else {}

    def __contains__(self, name: str) -> bool:
        return (self._folder / name / "zarr.json").exists()

    def __getitem__(self, name: str) -> Any:
        import zarr

        return zarr.open_group(self._folder, mode="r", zarr_format=3, use_consolidated=False)[name]

    def metadata(self, name: str) -> dict[str, Any]:
        """Return what the file of an array says, as it stands there; KeyError if there is none."""
        try:
            about: dict[str, Any] = load_json(self._folder / name / "zarr.json")
        except FileNotFoundError:
            raise KeyError(name) from None
        return about


def array_metadata(group: Any, name: str) -> dict[str, Any]:
    """Return the metadata of an array in a group of `open_group`; KeyError if there is no such array."""
    about: dict[str, Any] = group.metadata(name) if isinstance(group, LocalGroup) else group[name].metadata.to_dict()
    return about


State = Literal["begun", "writing", "complete", "abandoned"]
Checksum = Annotated[str, Field(pattern=r"^[0-9a-f]{8}$")]
Count = Annotated[int, Field(ge=0)]
Pair = Annotated[list[str], Field(min_length=2, max_length=2)]
LARGEST = 2**31 - 1

FOREIGN = (
    "bytes", "transpose", "sharding_indexed", "blosc", "gzip", "zlib", "bz2", "lzma", "lz4", "zstd", "shuffle", "delta",
    "crc32", "crc32c", "adler32", "fletcher32", "jenkins_lookup3", "fixedscaleoffset", "quantize", "bitround", "astype",
    "packbits",
)  # fmt: skip
"""Codecs of numbers that a Zarr array of another program may have; names of format 3 may begin with `numcodecs.`."""


class _Part(BaseModel):
    """A part of a manifest. Keys that are not named are those of later versions."""

    model_config = ConfigDict(strict=True, extra="allow")


class _Examples(_Part):
    count: Count
    examples: list[Pair]


class _Asymmetry(_Part):
    largest: FiniteFloat
    pairs: Count
    where: Pair | None = None


class _Range(_Part):
    minimum: FiniteFloat
    maximum: FiniteFloat


class _Clipped(_Part):
    count: Count
    lowest: FiniteFloat


class _Audit(_Part):
    pairs: Count
    minimum: FiniteFloat | None
    maximum: FiniteFloat | None
    mean: FiniteFloat | None
    zeros: _Examples
    asymmetry: _Asymmetry
    diagonal: _Range
    missing: _Examples
    clipped: _Clipped


class _Append(_Part):
    source: str
    objects: Count
    by: str = Field(alias="as")


class _Provenance(_Part):
    source: str | None = None
    checksum: str | None = None
    appends: list[_Append] = []


class _Checksums(_Part):
    array: Annotated[str, Field(pattern=r"^checksums(-\d+)?$")]
    tiles: Checksum
    records: Checksum
    ids: Checksum
    diagonal: Checksum | None = None


class Manifest(_Part):
    """The attribute `dasrel` of a store's group."""

    format_version: Literal[1]
    kind: Literal["distance", "squared-distance", "similarity", "kernel"]
    n_objects: Annotated[int, Field(ge=2, le=LARGEST)]
    tile: Annotated[int, Field(ge=1, le=LARGEST)]
    dtype: Literal["float32", "float64"]
    compress: Literal["lz4"] | None
    input: dict[str, str | int | float | None]
    provenance: _Provenance
    state: State
    audit: _Audit | None
    records: Annotated[str, Field(pattern=r"^records(-\d+)?$")] = "records"
    checksums: _Checksums | None = None
    identity: Annotated[str, Field(pattern=r"^[0-9a-f]{16}$")] | None = None


assert set(get_args(Manifest.model_fields["kind"].annotation)) == set(KINDS)


def check_manifest(manifest: dict[str, Any], where: str) -> None:
    """Raise `StoreError` that names the key if a manifest is not one that dasrel writes."""
    version = manifest.get("format_version")
    if version != FORMAT_VERSION:
        raise StoreError(
            f"{where} has format version {shown(version)}, this dasrel reads version {FORMAT_VERSION}",
            remedy="use the dasrel that wrote it, or import the source again",
        )
    try:
        checked = Manifest.model_validate(manifest)
    except ValidationError as error:
        problems = [
            f"{'.'.join(map(str, fault['loc']))} ({_reason(fault)})" for fault in error.errors(include_url=False)
        ]
        raise _damaged(where, some(problems)) from None
    if checked.state == "complete":
        lacking = [name for name in ("audit", "checksums", "identity") if getattr(checked, name) is None]
        if checked.checksums and checked.checksums.diagonal is None and is_similarity(checked.kind):
            lacking.append("checksums.diagonal")
        if lacking:
            raise _damaged(where, f"{some(lacking)} (a complete store has it)")


def _reason(error: Any) -> str:
    """Return what is wrong with a key: pydantic's sentence and the value found."""
    text = str(error["msg"])
    text = text[:1].lower() + text[1:]
    return text if error["type"] == "missing" else f"{text}, not {shown(error['input'], limit=60)}"


def check_arrays(group: Any, manifest: dict[str, Any], where: str) -> None:
    """Raise `StoreError` if the metadata of an array is not what the manifest describes.

    An append makes arrays longer before the manifest says so. Cost: reads the metadata of each array.
    """
    if manifest["state"] in ("begun", "abandoned"):
        return
    n, tile, dtype = manifest["n_objects"], manifest["tile"], manifest["dtype"]
    blosc: list[list[str]] = [["bytes", "blosc", "crc32c"]]
    codecs = [["bytes", "crc32c"]] if not manifest["compress"] else blosc
    values = _check_array(group, "values", where, dtype, (n, n), codecs)
    try:
        chunks = tuple(values["chunk_grid"]["configuration"]["chunk_shape"])
    except (KeyError, TypeError) as error:
        raise _unreadable(where, "values", f"its chunk_grid is damaged ({shown(error)})") from None
    if chunks != (tile, tile):
        raise _damaged(where, f"tile (it is {tile:,}, and values has chunks of {shown(chunks)})")
    _check_array(group, "ids", where, "string", (n,), [["vlen-utf8"], ["vlen-utf8", "zstd"]])
    numbers = [["bytes"], ["bytes", "zstd"]]
    if is_similarity(manifest["kind"]):
        _check_array(group, "diagonal", where, "float64", (n,), numbers)
    side = -(-n // tile)
    if manifest["state"] == "complete":
        _check_array(group, manifest.get("records", "records"), where, "float64", (side, side, 1), numbers)
        _check_array(group, manifest["checksums"]["array"], where, "int64", (side, side), numbers)
    try:
        is_growing = "progress" in group
    except Exception as error:  # Zarr has found something there that is no metadata
        raise _unreadable(where, "progress", shown(error, limit=200)) from None
    if is_growing:
        try:
            _check_array(group, "progress", where, "float64", (side, side, 1), numbers)
        except StoreError:
            if "progress" in group:  # else an append or an import has just removed it: it is done
                raise


def _check_array(
    group: Any, name: str, where: str, dtype: str, least: tuple[int, ...], codecs: list[list[str]]
) -> dict[str, Any]:
    """Return the metadata of an array; raise unless it has this type, at least this shape, and one of these codecs."""
    try:
        metadata = array_metadata(group, name)
    except KeyError:
        raise StoreError(f"{where} is damaged: {name} is missing", remedy=IMPORT_AGAIN) from None
    except Exception as error:  # whatever Zarr says about damaged metadata
        raise _unreadable(where, name, shown(error, limit=200)) from None
    try:
        problem = _array_fault(metadata, dtype, least, codecs)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        problem = f"its metadata are damaged ({shown(repr(error), limit=200)})"
    if problem:
        raise _unreadable(where, name, problem)
    return metadata


def _array_fault(metadata: dict[str, Any], dtype: str, least: tuple[int, ...], codecs: list[list[str]]) -> str:
    """Return what is wrong with the metadata of an array; an empty string if nothing is."""
    if metadata["zarr_format"] != 3 or metadata["node_type"] != "array":
        return "it is no Zarr array of format 3"
    names = [str(codec["name"]) for codec in metadata["codecs"]]
    if names not in codecs:
        return f"its codecs are {shown(' '.join(names))}, not {' '.join(codecs[0])}"
    for codec in metadata["codecs"]:
        if codec["name"] == "bytes" and codec.get("configuration", {}).get("endian", "little") != "little":
            return "its codec `bytes` is not little-endian"
        if codec["name"] == "blosc" and codec["configuration"]["cname"] != "lz4":
            return f"its codec `blosc` is not lz4 but {shown(codec['configuration']['cname'])}"
    if metadata["data_type"] != dtype:
        return f"its data_type is {shown(metadata['data_type'])}, not {dtype}"
    shape = metadata["shape"]
    if len(shape) != len(least) or any(size < wanted for size, wanted in zip(shape, least, strict=True)):
        described = " x ".join(map(str, least[:2]))
        return f"its shape is {shown(tuple(shape))}, and n_objects and tile mean {described}"
    encoding = metadata["chunk_key_encoding"]
    if encoding["name"] != "default" or encoding.get("configuration", {}).get("separator", "/") != "/":
        return "its chunk_key_encoding is not the default one"
    return ""


def check_codecs(array: Any, where: str) -> None:
    """Raise `InputError` if a Zarr array of another program has a codec that is not in `FOREIGN`. Reads nothing."""
    about = array.metadata.to_dict()
    if about["zarr_format"] == 2:
        names = [str(codec["id"]) for codec in (*(about.get("filters") or ()), about.get("compressor")) if codec]
    else:
        names = _codec_names(about["codecs"])
    unknown = [name for name in names if name.removeprefix("numcodecs.") not in FOREIGN]
    if unknown:
        raise InputError(
            f"{where} is encoded with {some([shown(name) for name in unknown])}, which dasrel does not decode",
            remedy="write the array again with a codec such as zstd, gzip or blosc",
        )


def _codec_names(codecs: Any) -> list[str]:
    """Return the names of codecs and of those inside shards."""
    names: list[str] = []
    for codec in codecs:
        names.append(str(codec["name"]))
        inside = codec.get("configuration") or {}
        names += _codec_names(inside.get("codecs") or ()) + _codec_names(inside.get("index_codecs") or ())
    return names


def _damaged(where: str, problem: str) -> StoreError:
    return StoreError(f"the manifest of {where} is damaged: {problem}", remedy=IMPORT_AGAIN)


def _unreadable(where: str, name: str, problem: str) -> StoreError:
    return StoreError(f"{where} is damaged: {name} cannot be read, {problem}", remedy=IMPORT_AGAIN)
