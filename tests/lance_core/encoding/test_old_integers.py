"""2.0 pages as writers of 2024 made them: bit-packed integers, strings of one length or in a frame of zstd, constants."""

import numpy as np
import pyarrow as pa
import pytest

from lance_core._proto.encodings_v2_0_pb2 import ArrayEncoding, Nullable
from lance_core.encoding.compression import fastlanes
from lance_core.encoding.page import PageInfo, RowRuns, run_steps
from lance_core.encoding.v2_0.decoder import decode_values
from lance_core.errors import CorruptFileError

WANTED = [[], [range(3000)], [range(7, 9)], [range(5), range(1020, 1030), range(1031, 1032), range(2999, 3000)]]


def decode(encoding, buffers, kind, runs, num_rows=3000):
    """Decode a page whose buffers stand one after the other in a file."""
    data, ranges = b"", []
    for buffer in buffers:
        ranges.append((len(data), len(data) + len(buffer)))
        data += buffer
    page = PageInfo(first_row=0, num_rows=num_rows, length=num_rows, encoding=encoding, buffers=tuple(ranges))
    rows = RowRuns(starts=np.array([r.start for r in runs], np.int64), ends=np.array([r.stop for r in runs], np.int64))
    return run_steps(decode_values(page, kind, rows), lambda asked: [data[a:b] for a, b in asked])


def picked(values, runs):
    return [values[i] for run in runs for i in run]


def back_to_back(values, width):
    """Bits of all values, least significant first, one value after the other."""
    number = sum((int(v) & ((1 << width) - 1)) << (i * width) for i, v in enumerate(values))
    return number.to_bytes(-(-len(values) * width // 8), "little")


@pytest.mark.parametrize("runs", WANTED)
@pytest.mark.parametrize(("kind", "width"), [("int8", 3), ("int16", 11), ("int32", 17), ("int64", 40), ("int64", 64)])
def test_bitpacked_with_sign(kind, width, runs):
    top = 1 << (width - 1)
    values = np.random.default_rng(width).integers(-top, top - 1, 3000, endpoint=True, dtype=np.int64).tolist()
    encoding = ArrayEncoding()
    packed = encoding.bitpacked
    packed.compressed_bits_per_value, packed.signed = width, True
    packed.uncompressed_bits_per_value = pa.type_for_alias(kind).bit_width
    packed.buffer.buffer_index = 0
    array = decode(encoding, [back_to_back(values, width)], pa.type_for_alias(kind), runs)
    assert array.to_pylist() == picked(values, runs)


@pytest.mark.parametrize("runs", WANTED)
def test_bitpacked_without_sign_and_with_nulls(runs):
    values = [None if i % 7 == 0 else i % 32 for i in range(3000)]
    encoding = ArrayEncoding()
    nulls: Nullable = encoding.nullable
    nulls.some_nulls.validity.flat.bits_per_value = 1
    packed = nulls.some_nulls.values.bitpacked
    packed.compressed_bits_per_value, packed.uncompressed_bits_per_value = 5, 32
    packed.buffer.buffer_index = 1
    buffers = [back_to_back([v is not None for v in values], 1), back_to_back([v or 0 for v in values], 5)]
    assert decode(encoding, buffers, pa.uint32(), runs).to_pylist() == picked(values, runs)


@pytest.mark.parametrize("runs", WANTED)
@pytest.mark.parametrize(("dtype", "width"), [("u1", 1), ("u2", 9), ("u4", 13), ("u8", 33), ("u4", 32)])
def test_chunks_of_values_that_are_not_negative(dtype, width, runs):
    values = np.random.default_rng(width).integers(0, 1 << width, 3072, dtype=np.uint64).astype(f"<{dtype}")
    out = np.zeros((3, fastlanes.packed_bytes(width) // values.dtype.itemsize), values.dtype)
    fastlanes.pack(values.reshape(3, 1024), width, out)
    encoding = ArrayEncoding()
    packed = encoding.bitpacked_for_non_neg
    packed.compressed_bits_per_value, packed.uncompressed_bits_per_value = width, values.dtype.itemsize * 8
    packed.buffer.buffer_index = 0
    array = decode(encoding, [out.tobytes()], pa.from_numpy_dtype(values.dtype), runs)
    assert array.to_pylist() == picked(values.tolist(), runs)


@pytest.mark.parametrize("bits", [8, 40])
@pytest.mark.parametrize("runs", WANTED)
def test_strings_of_one_length(bits, runs):
    values = [f"{i:05d}" for i in range(3000)]
    encoding = ArrayEncoding()
    encoding.fixed_size_binary.byte_width = 5
    encoding.fixed_size_binary.bytes.flat.bits_per_value = bits
    array = decode(encoding, ["".join(values).encode()], pa.string(), runs)
    assert array.to_pylist() == picked(values, runs)


def test_ends_of_strings_may_be_packed():
    ends = np.arange(1, 3001, dtype=np.int64) * 3
    encoding = ArrayEncoding()
    packed = encoding.binary.indices.bitpacked
    packed.compressed_bits_per_value, packed.uncompressed_bits_per_value = 14, 64
    encoding.binary.bytes.flat.bits_per_value = 8
    encoding.binary.bytes.flat.buffer.buffer_index = 1
    encoding.binary.null_adjustment = 9001
    data = b"".join(b"%03d" % (i % 1000) for i in range(3000))
    array = decode(encoding, [back_to_back(ends, 14), data], pa.string(), [range(998, 1002)])
    assert array.to_pylist() == ["998", "999", "000", "001"]


def compressed_strings(before=b""):
    """A page of strings `000` to `2999` in one frame of zstd: releases before 0.31 wrote nothing before it."""
    values = [f"{i:03d}" for i in range(3000)]
    encoding = ArrayEncoding()
    encoding.binary.indices.flat.bits_per_value = 64
    encoding.binary.bytes.flat.bits_per_value = 8
    encoding.binary.bytes.flat.buffer.buffer_index = 1
    encoding.binary.bytes.flat.compression.scheme = "zstd"
    data = "".join(values).encode()
    encoding.binary.null_adjustment = len(data) + 1
    ends = np.cumsum([len(value) for value in values]).astype("<u8")
    frame = pa.Codec("zstd").compress(data, asbytes=True)
    return encoding, [ends.tobytes(), before + frame], values


@pytest.mark.parametrize("runs", WANTED)
@pytest.mark.parametrize("is_size_recorded", [False, True])
def test_strings_in_a_frame_of_zstd(is_size_recorded, runs):
    size = sum(len(f"{i:03d}") for i in range(3000))
    encoding, buffers, values = compressed_strings(size.to_bytes(8, "little") if is_size_recorded else b"")
    assert decode(encoding, buffers, pa.string(), runs).to_pylist() == picked(values, runs)


@pytest.mark.parametrize("damaged", [b"", b"\x28\xb5\x2f", b"no frame and no size", (2**40).to_bytes(8, "little")])
def test_damaged_frames_of_zstd_are_rejected(damaged):
    encoding, (ends, frame), _ = compressed_strings()
    for data in (damaged, damaged + frame[:50], frame[:-50], frame[:4] + bytes(200)):
        with pytest.raises(CorruptFileError):
            decode(encoding, [ends, data], pa.string(), [range(3000)])


def test_a_constant():
    encoding = ArrayEncoding()
    encoding.constant.value = (-5).to_bytes(4, "little", signed=True)
    assert decode(encoding, [], pa.int32(), [range(3)]).to_pylist() == [-5] * 3


@pytest.mark.parametrize(("compressed", "uncompressed"), [(0, 32), (33, 32), (5, 24)])
def test_widths_that_make_no_sense_are_rejected(compressed, uncompressed):
    for name in ("bitpacked", "bitpacked_for_non_neg"):
        encoding = ArrayEncoding()
        packed = getattr(encoding, name)
        packed.compressed_bits_per_value, packed.uncompressed_bits_per_value = compressed, uncompressed
        with pytest.raises(CorruptFileError):
            decode(encoding, [bytes(100_000)], pa.int32(), [range(10)])


def test_too_few_bytes_are_rejected():
    for name in ("bitpacked", "bitpacked_for_non_neg"):
        encoding = ArrayEncoding()
        packed = getattr(encoding, name)
        packed.compressed_bits_per_value, packed.uncompressed_bits_per_value = 9, 32
        with pytest.raises(CorruptFileError, match="too few"):
            decode(encoding, [bytes(1000)], pa.int32(), [range(2990, 3000)])
