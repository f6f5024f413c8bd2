"""Read the records of JSON, JSON lines, Parquet, zip and torch files, each with its place."""

from __future__ import annotations

import gzip
import io
import json
import os
import re
import zipfile
import zlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import IO, Any, NoReturn, cast

from agentrl_core.exceptions import InvalidInputError, MissingDependencyError, UnsupportedError

_ZSTANDARD = 93
_LOCAL_HEADER = 30
_SPACES = re.compile(r"[ \t\r\n]*")


@dataclass(frozen=True)
class FileRecord:
    """One record of a file.

    Attributes:
        where: file and place, for errors, such as `log.jsonl, line 3`.
        value: the JSON value.
    """

    where: str
    value: Any

    def mapping(self) -> Mapping[str, Any]:
        """Return the record after checking that it is an object.

        Raises:
            InvalidInputError: the record is not an object.
        """
        if not isinstance(self.value, Mapping):
            raise InvalidInputError(f"{self.where} is {self.value!r:.60}; give an object")
        return self.value


def records_of(source: str | os.PathLike[str] | Iterable[Mapping[str, Any]]) -> Iterator[FileRecord]:
    """Yield the records of a file or a folder, or rows in memory.

    JSON is a list of records, or one record; JSON lines may end with a carriage return, begin with a byte order mark
    and be compressed by gzip. A folder gives one record for each of its `.json` files, in the order of their names.

    Raises:
        InvalidInputError: there is no such file, it is empty, or a record is not JSON.
        UnsupportedError: the kind of file is not supported.
        MissingDependencyError: a package that reads this kind of file is not installed.
    """
    if not isinstance(source, (str, os.PathLike)):
        for number, row in enumerate(source):
            yield FileRecord(f"record {number}", row)
        return
    path = Path(source)
    if path.is_dir():
        yield from _of_folder(path)
        return
    try:
        with path.open("rb") as file:
            magic = file.read(4)
    except OSError as error:
        raise InvalidInputError(
            f"source: {str(path)!r} cannot be read ({error.strerror}); give a readable file or folder"
        ) from error
    if magic == b"PK\x03\x04":
        yield from _of_zip(path)
    elif magic == b"PAR1":
        yield from _of_parquet(path)
    else:
        try:
            with _opened(path, packed=magic[:2] == b"\x1f\x8b") as file:
                yield from _of_text(path.name, file)
        except (EOFError, gzip.BadGzipFile, zlib.error) as error:
            raise InvalidInputError(f"source: {path.name!r} is damaged ({error}); copy it again") from error


def _opened(path: Path, *, packed: bool) -> IO[bytes]:
    return cast(IO[bytes], gzip.open(path, "rb")) if packed else path.open("rb")


def _of_folder(path: Path) -> Iterator[FileRecord]:
    files = sorted(path.glob("*.json"))
    if not files:
        raise InvalidInputError(
            f"source: the folder {str(path)!r} has no .json files; give a folder with some, or a file"
        )
    for file in files:
        yield FileRecord(file.name, _parsed(_decoded(file.read_bytes(), file.name), file.name))


def _of_text(name: str, file: IO[bytes]) -> Iterator[FileRecord]:
    """Yield the records of JSON lines one by one, or of a whole JSON file."""
    number, first = 0, ""
    for raw in file:
        number += 1
        first = _decoded(raw, f"{name}, line {number}")
        if first.strip():
            break
    if not first.strip():
        raise InvalidInputError(f"source: the file {name!r} is empty or blank; give one with records")
    try:
        value = json.loads(first)
    except (ValueError, RecursionError):
        rest = _decoded(file.read(), name)
        yield from _of_json(name, first + rest, number)
        return
    lines = ((at, _decoded(raw, f"{name}, line {at}").strip()) for at, raw in enumerate(file, number + 1))
    following = next((each for each in lines if each[1]), None)
    if following is None:
        yield from _of_value(name, value)
        return
    yield FileRecord(f"{name}, line {number}", value)
    for at, line in chain([following], lines):
        if line:
            yield FileRecord(f"{name}, line {at}", _parsed(line, f"{name}, line {at}"))


def _of_json(name: str, text: str, number: int) -> Iterator[FileRecord]:
    """Yield records of one JSON value, or of several concatenated ones, as in OpenTelemetry's console export."""
    decoder, values, at = json.JSONDecoder(), [], _spaces(text, 0)
    while at < len(text):
        try:
            value, at = decoder.raw_decode(text, at)
        except json.JSONDecodeError as error:
            line = number + error.lineno - 1
            raise InvalidInputError(
                f"{name}, line {line}, column {error.colno}: neither JSON nor JSON lines ({error.msg}); correct or "
                "remove the value there"
            ) from error
        except (ValueError, RecursionError) as error:
            raise InvalidInputError(
                f"{name}: the value at character {at} cannot be read ({error!s:.80}); correct or remove this value"
            ) from error
        values.append(value)
        at = _spaces(text, at)
    yield from _of_value(name, values if len(values) > 1 else values[0])


def _spaces(text: str, at: int) -> int:
    """Return the position after the spaces at `at`."""
    match = _SPACES.match(text, at)
    return at if match is None else match.end()


def _of_value(name: str, value: Any) -> Iterator[FileRecord]:
    if isinstance(value, list):
        for number, each in enumerate(value):
            yield FileRecord(f"{name}, record {number}", each)
    else:
        yield FileRecord(name, value)


def _of_parquet(path: Path) -> Iterator[FileRecord]:
    try:
        import polars as pl
    except ImportError as error:
        raise MissingDependencyError(
            "reading Parquet needs the package polars: pip install 'agentrl-core[polars]'"
        ) from error
    for number, row in enumerate(pl.read_parquet(path).iter_rows(named=True)):
        yield FileRecord(f"{path.name}, row {number}", row)


def _of_zip(path: Path) -> Iterator[FileRecord]:
    """Yield the header and samples of an Inspect log, which is a zip, or the value of a torch file, also a zip."""
    try:
        with zipfile.ZipFile(path) as archive:
            names = archive.namelist()
            if any(name.endswith("data.pkl") for name in names):
                yield FileRecord(path.name, _of_torch(path))
                return
            members = [name for name in names if name == "header.json" or name.startswith("samples/")]
            if not members:
                raise UnsupportedError(
                    f"{path.name} is a zip file with neither header.json nor samples/; give the .eval file of an "
                    "Inspect log"
                )
            # Of two members with one name the last one counts.
            for name in sorted(dict.fromkeys(members), key=lambda name: name != "header.json"):
                where = f"{path.name}, {name}"
                text = _decoded(_member(path, archive, name), where)
                yield FileRecord(where, _parsed(text, where))
    except zipfile.BadZipFile as error:
        raise InvalidInputError(f"source: {path.name!r} is a damaged zip ({error}); copy it again") from error


def _member(path: Path, archive: zipfile.ZipFile, name: str) -> bytes:
    """Return the bytes of a zip member, also with Zstandard, which `zipfile` supports since Python 3.14."""
    info = archive.getinfo(name)
    if info.compress_type != _ZSTANDARD or hasattr(zipfile, "ZIP_ZSTANDARD"):
        return archive.read(name)
    try:
        import zstandard
    except ImportError as error:
        raise MissingDependencyError(
            f"{path.name} is compressed by Zstandard and needs the package zstandard: pip install zstandard"
        ) from error
    with path.open("rb") as file:
        file.seek(info.header_offset)
        header = file.read(_LOCAL_HEADER)
        file.seek(sum(int.from_bytes(header[at : at + 2], "little") for at in (26, 28)), os.SEEK_CUR)
        packed = file.read(info.compress_size)
    try:
        with zstandard.ZstdDecompressor().stream_reader(io.BytesIO(packed), read_across_frames=True) as stream:
            content = bytes(stream.read())
    except zstandard.ZstdError as error:
        raise InvalidInputError(f"{path.name}, {name} is damaged ({error}); copy the file again") from error
    if len(content) != info.file_size or zlib.crc32(content) != info.CRC:
        raise InvalidInputError(f"{path.name}, {name} is damaged (wrong size or checksum); copy the file again")
    return content


def _of_torch(path: Path) -> Any:
    try:
        import torch
    except ImportError as error:
        raise MissingDependencyError(
            f"{path.name} is a torch file and needs the package torch: pip install 'agentrl-core[torch]'"
        ) from error
    from pickle import UnpicklingError

    try:
        return torch.load(path, map_location="cpu", weights_only=True)
    except (UnpicklingError, RuntimeError) as error:
        if isinstance(error, RuntimeError):
            raise UnsupportedError(
                f"{path.name} cannot be loaded by torch ({str(error)[:120]}); copy or save the file again"
            ) from error
        raise UnsupportedError(
            f"{path.name} has objects other than plain values and tensors, which are not loaded since they can run "
            f"code ({str(error)[:120]}); save it again with plain values and tensors only"
        ) from error


def _decoded(raw: bytes, where: str) -> str:
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise InvalidInputError(
            f"{where} is not UTF-8 ({error.reason} at byte {error.start}); convert it to UTF-8"
        ) from error


def _parsed(text: str, where: str) -> Any:
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        raise InvalidInputError(
            f"{where} is not JSON ({error.msg} at character {error.pos} of {len(text)}); correct or remove it"
        ) from error
    except (ValueError, RecursionError) as error:
        raise InvalidInputError(f"{where}: the JSON cannot be read ({error!s:.80}); correct or remove it") from error


def refuse(where: str, problem: str, do: str) -> NoReturn:
    """Raise an error for contents that a chat cannot represent.

    Raises:
        UnsupportedError: always.
    """
    raise UnsupportedError(f"{where}: {problem}; {do}")
