"""The store of S3 and of servers that speak its protocol.

    verb             requests
    get, get_tail    GET
    read             GET
    get_ranges       GET for each run of ranges that lie close together, some at a time
    head             HEAD
    put              PUT
    put_if_absent    PUT with If-None-Match: *; never in parts, because some servers then ignore the condition
    open_writer      PUT, or above 8 MiB a multipart upload, some parts at a time
    copy_range       of writers, from 5 MiB on: a part that the server copies from an object of the bucket, if that has
                     the e-tag that one HEAD reported; a server that does not offer this, or fails to join such parts,
                     is not asked again
    list             LIST, one request per page
    delete           DELETE
    unfinished_uploads, abort_upload    LIST of multipart uploads, DELETE of one
    copy             HEAD and COPY; above 5 GiB a multipart upload by copy_range

Before the first conditional put to a server other than AWS, once per process, two puts of a scratch object show whether
it honors the condition: a server that ignores it would lose concurrent commits silently. The storage option
`aws_conditional_put=etag` declares that a server honors it, and skips these puts.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Coroutine, Iterator, Sequence
from concurrent.futures import wait
from typing import Any, Final

from lance_core.errors import AlreadyExistsError, ObjectNotFoundError, StoreError, UnsupportedError
from lance_core.store.base import (
    DEFAULT_READ_BYTES,
    ByteRange,
    BytesLike,
    LinklessStore,
    ObjectMeta,
    ObjectStore,
    ObjectWriter,
    ReadableBuffer,
    Upload,
    bytes_view,
    check_key,
    check_prefix,
    count_read,
    delete_each,
    unescaped_root,
)
from lance_core.store.coalesce import MergedRange, merge_ranges, split_merged
from lance_core.store.conditions import prove_conditional_puts
from lance_core.store.options import StorageOptions
from lance_core.store.s3_client import S3Client, s3_client

# A request costs about as much as the transfer of this many bytes.
MAX_GAP_BYTES = 512 << 10
MAX_MERGED_BYTES = 16 << 20
PART_BYTES = 8 << 20
MAX_COPY_BYTES = 5 << 30
LEAST_PART_BYTES = 5 << 20  # all but the last part of an upload
COPY_PART_BYTES = 64 << 20  # a copied part has up to twice as many
_REQUESTS_AT_A_TIME = 16
_UPLOADS_AT_A_TIME = 4
_COPY_END_S = 10.0
_PAGE_KEYS = 1000

_logger = logging.getLogger(__name__)


class S3Store(LinklessStore):
    """Objects below a prefix of a bucket.

    Args:
        root: `s3://bucket/prefix`.
        options: Storage options; see `store.options`.
    """

    is_local: Final = False
    put_is_a_request: Final = True
    keys_per_delete: Final = 1_000  # what DeleteObjects takes

    def __init__(self, root: str, options: StorageOptions | None = None) -> None:
        super().__init__(root, options)
        self._bucket, _, prefix = self._place.removeprefix("s3://").partition("/")
        self._prefix = prefix + "/" if prefix else ""
        self.options.for_s3()  # report mistakes in options here, not at the first request

    @property
    def _client(self) -> S3Client:
        return s3_client(self.options)

    def get(self, key: str) -> BytesLike:
        """Return a whole object."""
        return self.read(key)[0]

    def read(self, key: str) -> tuple[BytesLike, ObjectMeta]:
        """Return a whole object with its size and time."""
        response = self._call("get_object", Key=self._full_name(key))
        data: bytes = response["Body"]
        count_read(1, len(data))
        return data, _meta(key, len(data), response)

    def get_tail(self, key: str, length: int) -> tuple[BytesLike, int]:
        """Return the last `length` bytes, or all of a shorter object, and the object's size."""
        try:
            response = self._call("get_object", Key=self._full_name(key), Range=f"bytes=-{length}")
        except StoreError:
            if self.head(key).size == 0:
                return b"", 0  # an empty object has no range
            raise
        data: bytes = response["Body"]
        count_read(1, len(data))
        _, _, size = (response.get("ContentRange") or f"/{len(data)}").rpartition("/")
        return data, int(size)

    def get_ranges(self, key: str, ranges: Sequence[ByteRange]) -> list[BytesLike]:
        """Return several ranges of one object; some requests run in parallel."""
        merged = merge_ranges(ranges, max_gap=MAX_GAP_BYTES, max_size=MAX_MERGED_BYTES)
        name = self._full_name(key)
        parts = self._client.run(self._read_all, name, merged) if merged else []
        count_read(len(parts), sum(map(len, parts)))
        return split_merged(ranges, merged, parts)

    def head(self, key: str) -> ObjectMeta:
        """Return size and time of an object."""
        response = self._call("head_object", Key=self._full_name(key))
        return _meta(key, response["ContentLength"], response)

    def put(self, key: str, data: ReadableBuffer) -> str | None:
        """Write an object, replacing one that exists."""
        return _e_tag(self._call("put_object", Key=self._full_name(key), Body=bytes(bytes_view(data))))

    def prepare_commits(self) -> None:
        """Make sure that the server honors the condition of `put_if_absent`."""
        self._prove_conditional_puts()

    def put_if_absent(self, key: str, data: ReadableBuffer, *, durable: bool = True) -> str | None:
        """Write an object unless one exists, in one request; S3 is always durable."""
        del durable
        name = self._full_name(key)
        self._prove_conditional_puts()
        return _e_tag(self._call("put_object", writes=True, Key=name, Body=bytes(bytes_view(data)), IfNoneMatch="*"))

    def open_writer(self, key: str, *, durable: bool = True) -> S3Writer:
        """Start an upload that becomes the object when closed; S3 is always durable."""
        del durable
        return S3Writer(self._bucket, self._full_name(key), self.options)

    def list(self, prefix: str, *, start_after: str | None = None, limit: int | None = None) -> Iterator[ObjectMeta]:
        """Yield objects in ascending order of keys, a page of them at a time."""
        parameters: dict[str, Any] = {"Prefix": self._prefix + check_prefix(prefix)}
        if start_after is not None:
            parameters["StartAfter"] = self._prefix + start_after
        left = limit
        while left is None or left > 0:
            page_keys = _PAGE_KEYS if left is None else min(left, _PAGE_KEYS)
            response = self._call("list_objects_v2", MaxKeys=page_keys, **parameters)
            for item in response.get("Contents", []):
                if not item["Key"].endswith("/"):  # placeholders of folders, written by consoles
                    yield _meta(item["Key"].removeprefix(self._prefix), item["Size"], item)
            if left is not None:
                left -= len(response.get("Contents", []))
            if not response.get("IsTruncated"):
                return
            parameters["ContinuationToken"] = response["NextContinuationToken"]

    def delete(self, key: str) -> None:
        """Remove an object; a missing one is fine."""
        self._call("delete_object", Key=self._full_name(key))

    def delete_many(self, keys: Sequence[str]) -> dict[str, StoreError]:
        """Remove objects, 1,000 by one request; one by one if the server does not offer DeleteObjects.

        Keys that the server could not remove because of a transient error are sent again.
        """
        errors: dict[str, StoreError] = {}
        for first in range(0, len(keys), self.keys_per_delete):
            by_name = {self._full_name(key): key for key in keys[first : first + self.keys_per_delete]}
            try:
                failed = self._client.run(self._client.delete_objects, self._bucket, list(by_name))
            except UnsupportedError:
                return errors | delete_each(self.delete, keys[first:])
            except StoreError as error:
                failed = dict.fromkeys(by_name, error)
            errors |= {by_name[name]: error for name, error in failed.items()}
        return errors

    def unfinished_uploads(self) -> Sequence[Upload]:
        """The uploads in parts below the root that were neither completed nor aborted."""
        uploads: list[Upload] = []
        parameters: dict[str, Any] = {"Prefix": self._prefix}
        while True:
            page = self._call("list_multipart_uploads", **parameters)
            uploads += [
                Upload(
                    key=upload["Key"].removeprefix(self._prefix),
                    upload_id=upload["UploadId"],
                    begun=upload["Initiated"].timestamp(),
                )
                for upload in page.get("Uploads", [])
            ]
            if not page.get("IsTruncated"):
                return uploads
            parameters |= {"KeyMarker": page["NextKeyMarker"], "UploadIdMarker": page["NextUploadIdMarker"]}

    def abort_upload(self, upload: Upload) -> None:
        """Drop the parts of an upload; one that has ended is fine."""
        with contextlib.suppress(ObjectNotFoundError):
            self._call("abort_multipart_upload", Key=self._full_name(upload.key), UploadId=upload.upload_id)

    def keeps_removed_objects(self) -> bool:
        """Whether the bucket has noncurrent versions of objects; False if it has no versioning."""
        try:
            if not self._call("get_bucket_versioning", optional=True).get("Status"):
                return False
        except UnsupportedError:
            return False
        parameters: dict[str, Any] = {"Prefix": self._prefix}
        while True:
            page = self._call("list_object_versions", **parameters)
            if any(not version["IsLatest"] for version in page.get("Versions", [])):
                return True
            if not page.get("IsTruncated"):
                return False
            parameters |= {"KeyMarker": page["NextKeyMarker"], "VersionIdMarker": page["NextVersionIdMarker"]}

    def copy(self, source_key: str, target_key: str) -> None:
        """Copy an object on the server; in parts above 5 GiB, the limit of one request."""
        self.copy_from(self, source_key, target_key)

    def copy_from(self, source: S3Store, source_key: str, target_key: str) -> None:
        """Copy an object of any bucket of the server, as `copy` does; above 5 GiB one of another bucket is read."""
        size = source.head(source_key).size
        if size <= MAX_COPY_BYTES:
            place = {"Bucket": source._bucket, "Key": source._full_name(source_key)}
            self._call("copy_object", CopySource=place, Key=self._full_name(target_key))
            return
        with self.open_writer(target_key) as writer:
            writer.copy_range(source, source_key, 0, size)

    def _full_name(self, key: str) -> str:
        return self._prefix + check_key(key)

    def _call(self, method: str, *, writes: bool = False, optional: bool = False, **parameters: Any) -> Any:
        client = self._client

        async def request() -> Any:
            return await client.request(method, writes=writes, optional=optional, Bucket=self._bucket, **parameters)

        return client.run(request)

    async def _read_all(self, name: str, merged: Sequence[MergedRange]) -> Sequence[BytesLike]:
        """Read some ranges; a long range is read in parts."""
        gate = asyncio.Semaphore(_REQUESTS_AT_A_TIME)
        client = self._client

        async def read(start: int, end: int) -> bytes:
            async with gate:
                span = f"bytes={start}-{end - 1}"
                response = await client.request("get_object", Bucket=self._bucket, Key=name, Range=span)
            data: bytes = response["Body"]
            if len(data) != end - start:
                raise StoreError(f"s3://{self._bucket}/{name}: bytes {start} to {end} wanted, {len(data)} received")
            return data

        async def read_long(start: int, end: int) -> BytesLike:
            if end - start <= 2 * PART_BYTES:
                return await read(start, end)
            whole = bytearray(end - start)

            async def read_piece(low: int) -> None:
                high = min(low + PART_BYTES, end)
                whole[low - start : high - start] = await read(low, high)

            await asyncio.gather(*(read_piece(low) for low in range(start, end, PART_BYTES)))
            return memoryview(whole).toreadonly()

        return await asyncio.gather(*(read_long(part.start, part.end) for part in merged))

    def _prove_conditional_puts(self) -> None:
        client = self._client
        if client.conditional_put == "disabled":
            raise UnsupportedError(f"{self.root}: conditional puts are disabled by the storage options")
        if client.is_aws or client.conditional_put == "etag":
            return

        def put_if_absent(key: str, data: bytes) -> None:
            self._call("put_object", Key=self._full_name(key), Body=data, IfNoneMatch="*")

        prove_conditional_puts(self, (client.endpoint, self._bucket), put_if_absent)


def _meta(key: str, size: int, answer: dict[str, Any]) -> ObjectMeta:
    return ObjectMeta(key=key, size=size, modified=answer["LastModified"].timestamp(), e_tag=_e_tag(answer))


def _e_tag(answer: dict[str, Any]) -> str | None:
    return answer.get("ETag") or None


class S3Writer(ObjectWriter):
    """An upload; a small object is one PUT, and a large object is sent in parts while the next parts are filled.

    Args:
        bucket: The bucket.
        name: Full name of the object.
        options: The options of the store; the server can copy objects from stores with the same options.
    """

    least_copy_bytes = LEAST_PART_BYTES

    def __init__(self, bucket: str, name: str, options: StorageOptions) -> None:
        self._options = options
        self._place: dict[str, Any] = {"Bucket": bucket, "Key": name}
        self._chunks: list[bytes] = []
        self._buffered = 0
        self._size = 0
        self._upload_id = ""
        self._parts: list[Any] = []
        self._copies: list[Any] = []
        self._heads: dict[str, asyncio.Task[Any]] = {}
        self._open = True

    @property
    def _client(self) -> S3Client:
        return s3_client(self._options)

    def write(self, data: ReadableBuffer) -> None:
        """Append bytes."""
        self._check_open()
        view = bytes_view(data)
        while view:
            piece = bytes(view[: self._part_bytes - self._buffered])
            view = view[len(piece) :]
            self._chunks.append(piece)
            self._buffered += len(piece)
            self._size += len(piece)
            if self._buffered == self._part_bytes:
                self._send()

    def copy_range(
        self, source: ObjectStore, key: str, start: int, end: int, *, read_bytes: int = DEFAULT_READ_BYTES
    ) -> None:
        """Append a range of an object; within the bucket the server copies it.

        Buffered bytes become a part before the range. If they are too few for a part, bytes of the range are read and
        added to them.
        """
        self._check_open()
        name = self._find_name(source, key)
        missing = max(0, LEAST_PART_BYTES - self._buffered) if self._buffered else 0
        if name is not None and end - start >= missing + LEAST_PART_BYTES and self._client.copies_parts is not False:
            super().copy_range(source, key, start, start + missing, read_bytes=read_bytes)
            if self._buffered:
                self._send()
            start = self._copy_parts(name, start + missing, end)
        super().copy_range(source, key, start, end, read_bytes=read_bytes)

    def close(self) -> int:
        """Finish the upload and return the object's size.

        Raises:
            UnsupportedError: The server cannot join the parts that it copied itself; it is not asked to copy again.
        """
        self._check_open()
        if not self._upload_id:
            self._call("put_object", Body=b"".join(self._chunks))
        else:
            if self._buffered:
                self._send()
            done = [part.result() for part in self._parts]
            tags = [{"ETag": tag, "PartNumber": number} for number, tag in enumerate(done, 1)]
            self._complete(tags)
        self._open = False
        return self._size

    def abort(self) -> None:
        """Drop the parts that were sent."""
        if not self._open:
            return
        self._open = False
        wait(self._copies, _COPY_END_S)  # the server would finish copies after the abort, and keep their bytes
        for part in self._parts:
            part.cancel()
        if self._upload_id:
            try:
                self._call("abort_multipart_upload", UploadId=self._upload_id)
            except ObjectNotFoundError:
                return  # the server has dropped the upload
            except StoreError as error:  # the error that ended the writing matters more
                place = "s3://{Bucket}/{Key}".format_map(self._place)
                _logger.warning("%s: the upload %s was left unfinished: %s", place, self._upload_id, error)

    def _check_open(self) -> None:
        if not self._open:
            raise StoreError(f"s3://{self._place['Bucket']}/{self._place['Key']}: the writer is closed")

    @property
    def _part_bytes(self) -> int:
        # An upload has at most 10 000 parts; parts that grow let it reach terabytes.
        return PART_BYTES * (1 + len(self._parts) // 1000)

    def _find_name(self, source: ObjectStore, key: str) -> str | None:
        """The full name of an object in the same bucket, from which the server can copy; None for other objects."""
        bucket = f"s3://{self._place['Bucket']}/"
        place = f"{unescaped_root(source.data_root)}/{check_key(key)}"
        return place.removeprefix(bucket) if place.startswith(bucket) and source.options == self._options else None

    def _send(self) -> None:
        """Upload the buffered bytes as a part."""
        data, self._chunks, self._buffered = b"".join(self._chunks), [], 0
        self._add_part(self._put_part, data, most=_UPLOADS_AT_A_TIME)

    def _copy_parts(self, name: str, start: int, end: int) -> int:
        """Let the server copy a range, and return the first position that it does not copy."""
        count = max(1, (end - start) // COPY_PART_BYTES)
        step = -(-(end - start) // count)
        while start < end:
            part = self._add_part(self._copy_part, name, start, min(start + step, end), most=_REQUESTS_AT_A_TIME)
            if self._client.copies_parts is None and not self._copies:
                try:
                    part.result()
                except UnsupportedError:
                    self._client.copies_parts = False
                    self._parts.pop()
                    return start
            self._copies.append(part)
            self._size += min(step, end - start)
            start += step
        return end

    def _add_part(self, make: Callable[..., Coroutine[Any, Any, str]], *arguments: Any, most: int) -> Any:
        """Start the next part, once the part `most` places before it is done."""
        if not self._upload_id:
            self._upload_id = self._call("create_multipart_upload")["UploadId"]
        if len(self._parts) >= most:
            self._parts[-most].result()
        self._parts.append(self._client.submit(make(len(self._parts) + 1, *arguments)))
        return self._parts[-1]

    async def _put_part(self, number: int, data: bytes) -> str:
        response = await self._client.request(
            "upload_part", UploadId=self._upload_id, PartNumber=number, Body=data, **self._place
        )
        return str(response["ETag"])

    async def _copy_part(self, number: int, name: str, start: int, end: int) -> str:
        bucket = self._place["Bucket"]
        if name not in self._heads:
            self._heads[name] = asyncio.create_task(self._client.request("head_object", Bucket=bucket, Key=name))
        head = await self._heads[name]
        if end > head["ContentLength"]:
            size = head["ContentLength"]
            raise StoreError(f"s3://{bucket}/{name}: bytes up to {end} wanted, the object has {size}")
        try:
            response = await self._client.request(
                "upload_part_copy",
                optional=True,
                UploadId=self._upload_id,
                PartNumber=number,
                CopySource={"Bucket": bucket, "Key": name},
                CopySourceRange=f"bytes={start}-{end - 1}",
                CopySourceIfMatch=head["ETag"],
                **self._place,
            )
        except AlreadyExistsError:  # the condition on the e-tag was not fulfilled
            raise StoreError(f"s3://{bucket}/{name}: was written again while it was copied") from None
        e_tag = response.get("CopyPartResult", {}).get("ETag")
        if not e_tag:
            raise UnsupportedError(f"s3://{bucket}/{name}: the server did not copy a part")
        return str(e_tag)

    def _complete(self, parts: list[dict[str, Any]]) -> None:
        has_copies = bool(self._copies)
        try:
            upload = {"UploadId": self._upload_id, "MultipartUpload": {"Parts": parts}}
            self._call("complete_multipart_upload", optional=has_copies, **upload)
        except ObjectNotFoundError:
            # A repeated request after a lost response finds the object instead of the upload.
            if self._call("head_object")["ContentLength"] != self._size:
                raise
        except UnsupportedError:
            self._client.copies_parts = False
            raise
        if has_copies and self._client.copies_parts is None:
            self._prove_copies()

    def _prove_copies(self) -> None:
        """Make sure, once per client, that the object has the expected size after the server copied parts."""
        size = self._call("head_object")["ContentLength"]
        self._client.copies_parts = size == self._size
        if size != self._size:
            self._call("delete_object")
            raise UnsupportedError(
                f"s3://{self._place['Bucket']}/{self._place['Key']}: after copies by the server the object "
                f"has {size} bytes instead of {self._size}; it was deleted"
            )

    def _call(self, method: str, *, optional: bool = False, **parameters: Any) -> Any:
        async def request() -> Any:
            return await self._client.request(method, optional=optional, **self._place, **parameters)

        return self._client.run(request)
